"""The corpus' prompt files, read by the producer."""

import tempfile
from base64 import b64decode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from models.errors import NameRefused
from models.names import checked
from models.plan import DatasetPlan
from producer.lanes import too_long
from producer.prompts import Prompt, Refusal, read


def input_misses(case: Mapping[str, Any]) -> Iterator[str]:
    """What differs between what the case expects and what reading its file gives."""
    given, expect = case["input"], case["expect"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "prompts.jsonl")
        path.write_bytes(_body(given))
        if not _name_fits(given.get("dataset", "B1"), "dataset_name_error" in expect):
            yield f"the name {given['dataset']!r} is judged wrongly"
        if "dataset_name_error" in expect:
            return          # a refused name reads nothing
        prompts, refusals = _read(path, given)
        yield from _compared(expect, prompts, refusals)
        if [p.key for p in prompts] != [p.key for p in _read(path, given)[0]]:
            yield "a second reading gives other keys"


def _body(given: Mapping[str, Any]) -> bytes:
    if "body_b64" in given:
        return b64decode(given["body_b64"])
    if "generate" in given:
        text = given["generate"]["repeat"] * given["generate"]["times"]
        return b'{"id":"a","prompt":"' + text.encode() + b'"}\n'
    return str(given["body"]).encode()


def _name_fits(name: str, refused: bool) -> bool:
    try:
        checked(name)
    except NameRefused:
        return refused
    return not refused


def _read(path: Path, given: Mapping[str, Any]) -> tuple[list[Prompt], list[Refusal]]:
    plan = DatasetPlan(profile="p", model="m", account="a")
    prompts: list[Prompt] = []
    refusals: list[Refusal] = []
    for item in read(path):
        context = given.get("context_length")
        long = too_long(str(path), item, plan, context) if context and isinstance(item, Prompt) else None
        if isinstance(item, Refusal) or long is not None:
            refusals.append(item if isinstance(item, Refusal) else long)  # type: ignore[arg-type]
        else:
            prompts.append(item)
    return prompts, refusals


def _compared(expect: Mapping[str, Any], prompts: list[Prompt], refusals: list[Refusal]) -> Iterator[str]:
    of_rows = [{"line": r.line, "code": r.code} for r in refusals if r.line]
    of_file = [r.code for r in refusals if not r.line]
    found: dict[str, Any] = {
        "accepted": len(prompts), "rejected": of_rows, "file_error": of_file[0] if of_file else None,
        "prompt_turns": [len(p.messages) for p in prompts], "distinct_ids": len({p.key for p in prompts}),
        "prompt_text": prompts[0].messages[0]["content"] if prompts else None}
    for name, value in found.items():
        if name in expect and value != expect[name]:
            yield f"{name}: {value!r}, expected {expect[name]!r}"
    if of_file and "file_error" not in expect:
        yield f"file_error: {of_file}"
