"""2,000 hostile names and 2,000 hostile answers: refused, or kept as what they are and nothing more."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from models import blob
from models.errors import NameRefused
from models.names import NAME, checked, cleaned
from models.plan import Plan
from tests.chaos.fleet import SEED, Fleet, check_sums
from tests.chaos.hostile import provider, strings
from tests.flows.job import account, job

COUNT = 2_000


def accepted(name: str) -> bool:
    try:
        return checked(name) == name
    except NameRefused:
        return False


@pytest.mark.quick
def test_hostile_names_are_refused_or_harmless(tmp_path: Path, note: Callable[..., None]) -> None:
    let_in = [name for name in strings(SEED, COUNT) if accepted(name)]
    for name in let_in:
        assert NAME.fullmatch(name)
        assert (tmp_path / name).resolve().parent == tmp_path.resolve()
        assert name.isascii()
        assert not set(name) & set("/\\'\"\0\r\n=+@<>{}$`;%| ")
    for name in strings(SEED, COUNT):
        for where in ({"accounts": {name: {}}}, {"accounts": {"a": {}}, "datasets": {name: {
                "profile": "smollm2", "model": "m", "account": "a"}}}):
            try:
                Plan.model_validate(where)
            except (NameRefused, ValueError):
                assert name not in let_in
            else:
                assert name in let_in
        shown = cleaned(name)
        assert shown.isascii()
        assert shown.isprintable()
        assert len(shown) <= 120
        assert not shown.startswith(("=", "+", "-", "@"))
    note("hostile names: 2,000 of datasets, accounts, providers and models", "refused or harmless",
         f"{COUNT - len(let_in):,} refused, {len(let_in)} harmless; 0 escapes")


@pytest.mark.timeout(300)
def test_hostile_answers_end_as_rows_or_reasons_and_escape_nowhere(
    fleet: Callable[..., Fleet], note: Callable[..., None],
) -> None:
    struck = fleet()
    with provider(list(strings(SEED, COUNT))) as (url, said):
        plan = job(struck.rig, {"router": account(url)}, {"B1": COUNT}, in_flight=50, waste_bound=1e6)
        struck.rig.start("run", "--plan", plan, "--no-export")
        assert struck.rig.process is not None
        assert struck.rig.process.wait(250) in (0, 1), struck.rig.tail()
    check_sums(struck)
    ends = Counter(dict(struck.query("select state, count(*) from sample group by 1")))
    assert ends[2] + ends[3] == COUNT, (ends, struck.query("select state, closed_reason from dataset"))
    assert ends[2] > COUNT // 2, struck.query("select reason, count(*) from sample where state = 3 group by 1")
    rows = struck.query("select s.prompt, c.raw from completion c join sample s on s.id = c.sample_id")
    for prompt, raw in rows:
        text = said[blob.unpack_json(prompt)["messages"][-1]["content"]]
        as_it_was = text in strings_of(json.loads(blob.unpack_raw(raw)))
        assert as_it_was, text[:80]
    names = struck.query("select provider, model, generation_id from attempt union select provider, model, '' from completion")
    for name in {name for row in names for name in row}:
        assert cleaned(name) == name
    outside = [p for p in struck.folder.rglob("*") if not {"home", "services", "prompts"} & set(p.parts)]
    assert {p.name for p in outside} <= {"key.txt", "command.log", "draftmill.toml"}
    code, out = struck.rig.command("export", "--output-dir", str(struck.rig.out), "--grade", "drift")
    assert code in (0, 1), out
    written = {p.relative_to(struck.rig.out).parts[0] for p in struck.rig.out.rglob("*")} if struck.rig.out.exists() else {"B1"}
    assert written <= {"B1"}
    log = "".join(p.read_text(errors="replace") for p in (struck.rig.home / "logs").glob("*.log"))
    assert "drop table" not in log
    assert "\x1b]0" not in log
    note("hostile answers: 2,000, of a hostile provider", "a row or a reason each, text as it was",
         f"{ends[2]:,} rows, {ends[3]:,} reasons; 0 escapes")


def strings_of(document: object) -> set[str]:
    if isinstance(document, str):
        return {document}
    if isinstance(document, dict):
        return set().union(*map(strings_of, document.values())) if document else set()
    if isinstance(document, list):
        return set().union(*map(strings_of, document)) if document else set()
    return set()
