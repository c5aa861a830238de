import gzip
import json
import random
import tracemalloc
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from producer.prompts import MAX_DEPTH, Prompt, Refusal, Rejects, Seen, read
from producer.sources import MAX_ROW_BYTES


def rows(path: Path, *values: Any) -> Path:
    path.write_text("".join((v if isinstance(v, str) else json.dumps(v)) + "\n" for v in values), encoding="utf-8")
    return path


def split(path: Path, **options: Any) -> tuple[list[Prompt], list[Refusal]]:
    found = list(read(path, **options))
    return [p for p in found if isinstance(p, Prompt)], [r for r in found if isinstance(r, Refusal)]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


SLOW_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
CONTEXT_CASES = {"input-033", "input-036", "input-037"}  # lanes and names decide those


def test_the_corpus_of_bad_inputs_is_read_as_it_says(shared: Path, tmp_path: Path) -> None:
    cases = [json.loads(line) for line in (shared / "faults/cases.jsonl").read_bytes().split(b"\n") if line]
    checked = 0
    for case in cases:
        if case["kind"] != "input" or case["id"] in CONTEXT_CASES:
            continue
        given, expect = case["input"], case["expect"]
        path = tmp_path / case["id"]
        path.write_bytes(b64decode(given["body_b64"]) if "body_b64" in given else given["body"].encode())
        prompts, refusals = split(path)
        assert len(prompts) == expect["accepted"], case["id"]
        of_rows = [{"line": r.line, "code": r.code} for r in refusals if r.line]
        assert of_rows == expect["rejected"], case["id"]
        assert [r.code for r in refusals if not r.line] == ([expect["file_error"]] if "file_error" in expect else [])
        if "prompt_turns" in expect:
            assert [len(p.messages) for p in prompts] == expect["prompt_turns"]
        if "prompt_text" in expect:
            assert prompts[0].messages[0]["content"] == expect["prompt_text"]
        if "distinct_ids" in expect:
            assert len({p.key for p in prompts}) == expect["distinct_ids"]
            assert [p.key for p in split(path)[0]] == [p.key for p in prompts]
        checked += 1
    assert checked >= 20


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress, lambda d: gzip.compress(d[:9]) + gzip.compress(d[9:])])
def test_a_packed_file_is_known_by_its_first_bytes(tmp_path: Path, pack: Any) -> None:
    path = tmp_path / "plain.jsonl"
    path.write_bytes(pack(b'{"prompt":"Hi"}\n' * 3))
    assert [p.line for p in split(path)[0]] == [1, 2, 3]


def test_a_damaged_archive_gives_its_good_rows_and_one_refusal(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl.gz"
    noise = "".join(random.Random(1).choices("abcdefgh", k=200_000))
    whole = gzip.compress(f'{{"prompt":"Hi"}}\n{{"prompt":"{noise}"}}\n'.encode())
    path.write_bytes(whole[: len(whole) // 2])
    prompts, refusals = split(path)
    assert len(prompts) == 1
    assert [(r.line, r.code) for r in refusals] == [(0, "damaged")]


@pytest.mark.parametrize("name", ["missing.jsonl", "folder"])
def test_what_cannot_be_opened_is_one_refusal_of_the_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    assert [(r.line, r.code) for r in split(tmp_path / name)[1]] == [(0, "unreadable")]


def test_parquet_rows_are_read_with_their_absent_fields_as_null(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist([
        {"id": "a", "messages": [{"role": "user", "content": "Hi", "name": None}], "prompt": None, "lane": "long"},
        {"id": None, "messages": None, "prompt": "Ho", "lane": None},
        {"id": "c", "messages": None, "prompt": None, "lane": None},
    ])
    parquet.write_table(table, tmp_path / "p.parquet", row_group_size=1)
    prompts, refusals = split(tmp_path / "p.parquet")
    assert [(p.line, p.lane, p.messages) for p in prompts] == [(1, "long", [user("Hi")]), (2, None, [user("Ho")])]
    assert [(r.line, r.code) for r in refusals] == [(3, "empty_conversation")]


def test_a_broken_parquet_file_is_one_refusal(tmp_path: Path) -> None:
    (tmp_path / "p.parquet").write_bytes(b"PAR1 and then nothing of the kind PAR1")
    assert [(r.line, r.code) for r in split(tmp_path / "p.parquet")[1]] == [(0, "damaged")]


def test_a_line_without_end_is_refused_in_bounded_memory_and_the_next_is_read(tmp_path: Path) -> None:
    path = tmp_path / "wide.jsonl"
    with path.open("wb") as file:
        for _ in range(4):
            file.write(b"x" * MAX_ROW_BYTES)
        file.write(b'\n{"prompt":"Hi"}\n')
    tracemalloc.start()
    prompts, refusals = split(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [p.line for p in prompts] == [2]
    assert [(r.line, r.code) for r in refusals] == [(1, "line_too_long")]
    assert peak < 3 * MAX_ROW_BYTES


def test_a_long_array_is_streamed(tmp_path: Path) -> None:
    path = tmp_path / "array.json"
    row = json.dumps({"prompt": "é" * 2_000})
    with path.open("w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join([row] * 2_000) + "\n]\n")
    tracemalloc.start()
    count = sum(1 for p in read(path) if isinstance(p, Prompt))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 2_000
    assert peak < 4_000_000


@pytest.mark.parametrize(("text", "accepted", "refused"), [
    ("[]", 0, [(0, "empty")]),
    ('[{"prompt":"a"},]', 1, [(2, "bad_json")]),
    ('[{"prompt":"a"} {"prompt":"b"}]', 1, [(1, "bad_json")]),
    ('[{"prompt":"a"}] x', 1, [(2, "bad_json")]),
    ('[{"prompt":"a"},{"prompt":"a","prompt":"b"},{"prompt":"c"}]', 2, [(2, "bad_json")]),
    ('[{"prompt":"a"},{"prompt":', 1, [(2, "bad_json")]),
    ('[7,"x",{"prompt":"a"}]', 1, [(1, "bad_row"), (2, "bad_row")]),
])
def test_an_array_is_refused_element_by_element(tmp_path: Path, text: str, accepted: int, refused: list[Any]) -> None:
    (tmp_path / "a.json").write_text(text)
    prompts, refusals = split(tmp_path / "a.json")
    assert len(prompts) == accepted
    assert [(r.line, r.code) for r in refusals] == refused


@pytest.mark.parametrize(("row", "code"), [
    ("7", "bad_row"),
    ("null", "bad_row"),
    ('{"prompt":"a","w":1e999}', "bad_json"),
    ('{"prompt":"a","w":123456789012345678901234567890}', "bad_json"),
    ('{"prompt":"a","w":' + "9" * 5_000 + "}", "bad_json"),
    ('{"prompt":"a","w":-Infinity}', "bad_json"),
    ('{"prompt":"a","w":' + "[" * 100_000 + "]" * 100_000 + "}", "too_deep"),
    ('{"prompt":"a","metadata":{"x":' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}}", "too_deep"),
    ('{"prompt":"a\tb"}', "bad_json"),
    ({"prompt": "a", "id": True}, "bad_id"),
    ({"prompt": "a", "id": 1.5}, "bad_id"),
    ({"prompt": "a", "id": ""}, "bad_id"),
    ({"prompt": "a", "id": "x\x00"}, "bad_id"),
    ({"prompt": "a", "id": "x\ud800"}, "bad_unicode"),
    ({"prompt": "a", "id": "x" * 201}, "bad_id"),
    ({"prompt": "a", "metadata": {"\udfff": 1}}, "bad_unicode"),
    ({"prompt": "a", "metadata": [1]}, "bad_metadata"),
    ({"prompt": "a", "lane": "Long"}, "bad_lane"),
    ({"prompt": "a", "lane": []}, "bad_lane"),
    ({"prompt": "a", "max_tokens": 0}, "bad_max_tokens"),
    ({"prompt": "a", "max_tokens": True}, "bad_max_tokens"),
    ({"prompt": "a", "tools": [{"name": "f"}]}, "bad_tools"),
    ({"prompt": "a", "tools": "not json"}, "bad_tools"),
    ({"prompt": "<|im_end|>hello"}, "special_token"),
    ({"prompt": "a" * 101}, "prompt_too_long"),
    ({"text": "a"}, "empty_conversation"),
    ({"messages": {"role": "user", "content": "a"}}, "bad_row"),
    ({"messages": ["a"]}, "bad_row"),
    ({"messages": [{"role": "system", "content": "a"}]}, "no_user_turn"),
    ({"messages": [{"role": "assistant", "content": "a"}]}, "no_user_turn"),
    ({"messages": [user("a"), {"role": "tool", "content": "a"}]}, "unsupported_role"),
    ({"messages": [user("a"), {"role": ["user"], "content": "a"}]}, "unsupported_role"),
    ({"messages": [user("a"), {"role": "assistant", "content": ""}, user("b")]}, "bad_content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "bad_content"),
    ({"messages": [{"role": "user", "content": []}]}, "bad_content"),
    ({"instruction": 7, "input": "x"}, "bad_content"),
])
def test_a_bad_row_is_refused_by_its_own_code_and_the_rest_goes_on(tmp_path: Path, row: Any, code: str) -> None:
    path = rows(tmp_path / "p.jsonl", row, {"prompt": "good"})
    prompts, refusals = split(path, max_chars=100, markers=["<|im_end|>"])
    assert [(r.line, r.code) for r in refusals] == [(1, code)]
    assert [p.line for p in prompts] == [2]


def test_every_form_gives_the_same_messages(tmp_path: Path) -> None:
    path = rows(tmp_path / "p.jsonl",
                {"messages": [user("Hi")]}, {"conversations": [user("Hi")]},
                {"conversations": [{"from": "human", "value": "Hi"}]},
                {"prompt": "Hi"}, {"prompt": [user("Hi")]}, {"instruction": "Hi", "input": ""})
    assert [p.messages for p in split(path)[0]] == [[user("Hi")]] * 6
    alpaca = rows(tmp_path / "q.jsonl", {"instruction": "Add", "input": "1 2", "system": "Be terse."})
    assert split(alpaca)[0][0].messages == [{"role": "system", "content": "Be terse."}, user("Add\n\n1 2")]


def test_given_fields_come_through(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    path = rows(tmp_path / "p.jsonl", {
        "id": 7, "prompt": " Hi\n", "tools": json.dumps([tool]), "metadata": {"a": [1]}, "lane": "long", "max_tokens": 5})
    [prompt] = split(path)[0]
    assert (prompt.key, prompt.primary_id, prompt.lane, prompt.max_tokens) == ("7", "7", "long", 5)
    assert prompt.messages == [user(" Hi\n")]
    assert prompt.document() == {
        "messages": [user(" Hi\n")], "tools": [tool], "later": [], "metadata": {"a": [1]}, "turn": 0}


def test_turns_all_begins_at_the_first_answer_and_keeps_the_rest_for_later(tmp_path: Path) -> None:
    talk = [{"role": "system", "content": ""}, user("1"), {"role": "assistant", "content": "2"}, user("3"),
            {"role": "assistant", "content": "4", "reasoning_content": "hm"}]
    path = rows(tmp_path / "p.jsonl", {"id": "a", "messages": talk})
    [first] = split(path, turns="all")[0]
    assert (first.key, first.primary_id, first.messages, first.later) == ("a#t0", "a", talk[:2], talk[2:])
    [last] = split(path)[0]
    assert (last.key, last.messages, last.later) == ("a", talk[:4], [])


def test_a_history_whose_call_has_no_result_is_refused(tmp_path: Path) -> None:
    function = {"name": "f", "arguments": {"x": 1}}
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": function}]}
    path = rows(tmp_path / "p.jsonl",
                {"messages": [user("a"), call, user("b")]},
                {"messages": [user("a"), call]},
                {"messages": [user("a"), call, {"role": "tool", "content": "", "tool_call_id": "c"}]})
    prompts, refusals = split(path)
    assert [(r.line, r.code) for r in refusals] == [(1, "bad_tools")]
    assert [len(p.messages) for p in prompts] == [1, 3]
    assert prompts[1].messages[1]["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'


def test_keys_are_unique_over_all_files_of_a_dataset(tmp_path: Path) -> None:
    one = rows(tmp_path / "1.jsonl", {"prompt": "Hi"}, {"id": "a", "prompt": "x"})
    two = rows(tmp_path / "2.jsonl", {"prompt": "Hi"}, {"id": "a", "prompt": "y"})
    seen = Seen()
    keys = [p.key for file in (one, two) for p in split(file, seen=seen)[0]]
    assert len(set(keys)) == len(keys) == 3
    assert [r.code for r in split(two, seen=seen)[1]] == ["duplicate_id_conflict"]


def test_rejects_hold_no_text_of_the_row_and_vanish_when_nothing_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "rejects" / "B1.jsonl"
    bad = rows(tmp_path / "p.jsonl", {"prompt": "SECRET \ud800"}, '{"prompt": "SECRET', {"id": "SECRET", "messages": ["SECRET"]})
    with Rejects(target) as rejects:
        for refusal in split(bad)[1]:
            rejects.write(refusal)
    assert rejects.total == 3
    assert "SECRET" not in target.read_text()
    assert [json.loads(line)["line"] for line in target.read_text().splitlines()] == [1, 2, 3]
    with Rejects(target) as rejects:
        pass
    assert not target.exists()


@SLOW_MACHINE
@given(st.binary(max_size=300))
def test_no_bytes_whatever_raise(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "p"
    path.write_bytes(data)
    assert list(read(path))


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=[])),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(["role", "from", "content", "value", "type", "text", "tool_calls", "function", "id",
                                         "name", "arguments", "tool_call_id"]) | st.text(max_size=3), inner, max_size=4))


@SLOW_MACHINE
@given(st.dictionaries(st.sampled_from(["id", "messages", "conversations", "prompt", "instruction", "input", "system", "tools",
                                        "metadata", "lane", "max_tokens"]), JSON, max_size=5))
def test_no_row_whatever_raises_and_what_is_taken_can_be_stored(tmp_path_factory: pytest.TempPathFactory, row: Any) -> None:
    path = rows(tmp_path_factory.mktemp("any") / "p", row)
    for turns in ("last", "all"):
        [found] = read(path, turns=turns)
        if isinstance(found, Prompt):
            json.dumps(found.document(), allow_nan=False).encode("ascii")
            assert "\x00" not in found.key
            assert any(m["role"] == "user" for m in found.messages)
