import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.errors import ExportRefused, SettingsError
from models.states import Grade
from models.tokens.row import Span
from producer.export import FORMS, ExportRow, Options, Selection, Vocabulary, export
from producer.token_rows import line

Make = Callable[..., ExportRow]
Many = Callable[[int], list[ExportRow]]


def read(out: Path, form: str = "tokens") -> list[dict[str, Any]]:
    return [json.loads(text) for file in sorted((out / form).rglob("*.jsonl")) for text in file.read_bytes().split(b"\n") if text]


def files(out: Path) -> dict[str, str]:
    return {str(f.relative_to(out)): hashlib.sha256(f.read_bytes()).hexdigest() for f in out.rglob("*") if f.is_file()}


def test_a_row_is_prompt_and_sampled_ids_with_a_mask_over_the_sampled_ones(tmp_path: Path, row: Make, options: Options) -> None:
    export([row()], tmp_path / "out", options)
    [got] = read(tmp_path / "out")
    assert got["input_ids"] == [1, 10, 11, 20, 21, 2]
    assert got["loss_mask"] == [0, 0, 0, 1, 1, 1]
    assert got["text"] == "‹1›‹10›‹11›‹20›‹21›‹2›"
    assert (got["id"], got["primary_id"], got["exactness"], got["completion_tokens"]) == ("B1/a", "B1/a", "engine", 3)


def test_mask_end_leaves_the_end_token_out_of_the_mask_but_not_out_of_the_ids(
        tmp_path: Path, row: Make, options: Options) -> None:
    export([row(), row(id="b", spans=())], tmp_path / "out", replace(options, mask_end=True))
    for got in read(tmp_path / "out"):
        assert got["input_ids"] == [1, 10, 11, 20, 21, 2]
        assert got["loss_mask"] == [0, 0, 0, 1, 1, 0]
        assert got["completion_tokens"] == 2


def test_every_row_has_the_same_columns_of_the_same_types_and_none_is_null(tmp_path: Path, many: Many, options: Options) -> None:
    export(many(300), tmp_path / "out", options)
    rows = read(tmp_path / "out")
    assert len(rows) == 300
    shapes = {tuple((name, type(value)) for name, value in got.items()) for got in rows}
    assert len(shapes) == 1
    assert {kind for _, kind in shapes.pop()} == {str, list, int, bool, float}
    assert all(isinstance(json.loads(got["extra"]), dict) for got in rows)


def test_a_late_string_after_ten_megabytes_cannot_follow_a_null(tmp_path: Path, row: Make, options: Options) -> None:
    """What breaks `datasets` is written as one type from the first row on: checked with its own JSON reader."""
    from pyarrow import json as arrow_json

    def rows() -> Iterator[ExportRow]:
        bare = row(provider="", quantization="", temperature=None, reasoning=None, metadata={}, fingerprint="")
        body = np.full(4_000, 7, dtype=np.int32)
        for i in range(700):
            yield replace(bare, id=f"{i}", completion_ids=body, spans=())
        yield row(id="late", provider="p", temperature=0.5, metadata={"new": [1]}, finish_reason="tool_calls")
    export(rows(), tmp_path / "out", replace(options, selection=Selection(val_share=0)))
    [shard] = (tmp_path / "out/tokens/train").iterdir()
    assert shard.stat().st_size > 12_000_000
    table = arrow_json.read_json(shard, read_options=arrow_json.ReadOptions(block_size=1 << 20))
    assert table.num_rows == 701
    assert not any(column.null_count for column in table.columns)


@pytest.mark.parametrize(("change", "reason"), [
    ({"completion_ids": np.array([], dtype=np.int32), "spans": ()}, "nothing_supervised"),
    ({"prompt_ids": np.array([], dtype=np.int32)}, "no_prompt_ids"),
    ({"prompt_ids": np.array([1, 1, 10], dtype=np.int32)}, "double_bos"),
    ({"prompt_ids": np.array([1, 1_000], dtype=np.int32)}, "id_out_of_vocabulary"),
    ({"completion_ids": np.array([20, -1, 2], dtype=np.int32)}, "id_out_of_vocabulary"),
    ({"finish_reason": "length"}, "closed_though_cut"),
    ({"truncated": True, "spans": ()}, "closed_though_cut"),
    ({"spans": (Span("content", 0, 2),)}, "spans_do_not_fit"),
    ({"grade": Grade.AMBIGUOUS}, "grade"),
    ({"trainable": False}, "not_trainable"),
    ({"trainable": False, "truncated": True, "flags": frozenset({"truncated", "degenerate_repetition"})}, "not_trainable"),
])
def test_what_is_no_training_row_is_left_out_and_counted(
        tmp_path: Path, row: Make, options: Options, change: dict[str, Any], reason: str) -> None:
    summary = export([row(id="good"), row(**change)], tmp_path / "out", options)
    assert [got["id"] for got in read(tmp_path / "out")] == ["good"]
    assert summary.tally.left_out == Counter({reason: 1})


def test_a_mask_with_nothing_under_it_is_left_out(tmp_path: Path, row: Make, options: Options) -> None:
    only_end = row(completion_ids=np.array([2], dtype=np.int32), spans=(Span("stop", 0, 1),))
    summary = export([row(), only_end], tmp_path / "out", replace(options, mask_end=True))
    assert summary.tally.left_out == Counter({"nothing_supervised": 1})


def test_a_cut_row_stays_in_the_tokens_without_an_end_and_out_of_every_chat_form(
        tmp_path: Path, row: Make, options: Options) -> None:
    cut = row(id="cut", completion_ids=np.array([20, 21], dtype=np.int32), spans=(Span("content", 0, 2),),
              finish_reason="length", truncated=True, trainable=False, flags=frozenset({"truncated"}))
    summary = export([row(), cut], tmp_path / "out", replace(options, forms=FORMS))
    assert [got["input_ids"][-1] for got in read(tmp_path / "out") if got["id"] == "cut"] == [21]
    for dialect in ("messages", "specforge", "speculators", "modelopt", "torchspec"):
        assert [got["id"] for got in read(tmp_path / "out", dialect)] == ["B1/a"]
        assert summary.chat_left_out[dialect] == {"cut": 1}
    assert summary.tally.cut == 1


@pytest.mark.parametrize(("selection", "kept"), [
    (Selection(min_grade=Grade.ENGINE), ["a"]),
    (Selection(providers=frozenset({"q"})), ["b"]),
    (Selection(quantizations=frozenset({"bf16"})), ["b"]),
    (Selection(finish_reasons=frozenset({"tool_calls"})), ["b"]),
    (Selection(without_flags=frozenset({"odd"})), ["a"]),
    (Selection(max_length=6), ["a"]),
    (Selection(min_length=7), ["b"]),
    (Selection(metadata={"topic": re.compile("^st")}), ["b"]),
])
def test_each_filter_takes_what_it_says(
        tmp_path: Path, row: Make, options: Options, selection: Selection, kept: list[str]) -> None:
    other = row(id="b", grade=Grade.VERIFIED, provider="q", quantization="bf16", finish_reason="tool_calls",
                flags=frozenset({"odd"}), prompt_ids=np.array([1, 10, 11, 12], dtype=np.int32), metadata={"topic": "stars"})
    export([row(id="a", metadata={"topic": "astronomy"}), other], tmp_path / "out", replace(options, selection=selection))
    assert [got["id"] for got in read(tmp_path / "out")] == kept


def test_all_turns_of_a_conversation_are_on_one_side_of_the_split(tmp_path: Path, many: Many, options: Options) -> None:
    summary = export(many(400), tmp_path / "out", options)
    sides: dict[str, set[str]] = {}
    for side in ("train", "val"):
        for got in read(tmp_path / "out", f"tokens/{side}"):
            sides.setdefault(got["primary_id"], set()).add(side)
    assert all(len(found) == 1 for found in sides.values())
    assert 60 < summary.tally.splits["val"] < 180


def test_the_same_rows_give_the_same_bytes(tmp_path: Path, many: Many, options: Options) -> None:
    options = replace(options, forms=FORMS, shard_rows=37)
    export(many(200), tmp_path / "one", options)
    export(iter(many(200)), tmp_path / "two", options)
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_shards_are_cut_by_rows_and_bytes_and_hashed_as_they_are(tmp_path: Path, many: Many, options: Options) -> None:
    summary = export(many(200), tmp_path / "out", replace(options, shard_rows=37, selection=Selection(val_share=0)))
    shards = [s for s in summary.shards if s.path.startswith("tokens/")]
    assert [s.rows for s in shards] == [37, 37, 37, 37, 37, 15]
    assert all((tmp_path / "out" / s.path).stat().st_size == s.bytes for s in shards)
    assert {s.path: s.sha256 for s in summary.shards} == {
        n: h for n, h in files(tmp_path / "out").items() if n != "MANIFEST.yaml"}
    small = export(many(200), tmp_path / "small", replace(options, shard_bytes=5_000))
    assert all(s.bytes < 8_000 for s in small.shards if s.path.startswith("tokens/"))


def test_data_folders_hold_data_and_nothing_else(tmp_path: Path, many: Many, options: Options) -> None:
    export(many(200), tmp_path / "out", replace(options, forms=FORMS))
    for folder in ("tokens", "trl", "messages", "specforge", "speculators", "modelopt", "torchspec"):
        assert {f.suffix for f in (tmp_path / "out" / folder).rglob("*") if f.is_file()} == {".jsonl"}
    assert {f.name for f in (tmp_path / "out").iterdir() if f.is_file()} == {"README.md", "MANIFEST.yaml"}


def test_the_manifest_is_yaml_and_agrees_with_the_rows(tmp_path: Path, many: Many, options: Options) -> None:
    rows = many(100)
    summary = export(rows, tmp_path / "out", replace(options, facts={"template_sha256": "abc", "wasted_usd": 0.5}))
    manifest = yaml.safe_load((tmp_path / "out/MANIFEST.yaml").read_text())
    assert manifest["rows"] == sum(manifest["splits"].values()) == summary.rows == 100
    assert manifest["tokens"] == sum(r.length for r in rows)
    assert manifest["supervised_tokens"] == sum(len(r.completion_ids) for r in rows)
    assert manifest["spent_usd"] == 0.1
    lengths = sorted(r.length for r in rows)
    assert manifest["length_percentiles"] == {"p50": lengths[49], "p90": lengths[89], "p99": lengths[98], "max": lengths[99]}
    assert manifest["hidden_states_bytes"] == manifest["tokens"] * 64 * 4 * 2
    assert manifest["facts"]["template_sha256"] == "abc"
    card = (tmp_path / "out/README.md").read_text()
    assert f"data.max_length={lengths[-1]}" in card
    assert f"--seq-length {lengths[-1]}" in card
    assert "wasted_usd" in card


def test_the_card_says_how_many_rows_a_trainers_silent_limit_would_cut(tmp_path: Path, row: Make, options: Options) -> None:
    long = row(id="long", completion_ids=np.full(3_000, 9, dtype=np.int32), spans=())
    export([row(), long], tmp_path / "out", options)
    card = (tmp_path / "out/README.md").read_text()
    assert "SpecForge cuts at 2,048 by default: longer rows 1 (50.0%)" in card
    assert "speculators cuts" not in card


def test_a_new_export_takes_the_place_of_the_old_one_whole(tmp_path: Path, many: Many, row: Make, options: Options) -> None:
    out = tmp_path / "out"
    export(many(50), out, replace(options, shard_rows=5))
    export([row()], out, options)
    assert [got["id"] for got in read(out)] == ["B1/a"]
    assert [f.name for f in tmp_path.iterdir()] == ["out"]


def test_nothing_to_export_is_refused_with_the_reasons_and_leaves_the_old_export(
        tmp_path: Path, row: Make, options: Options) -> None:
    out = tmp_path / "out"
    export([row()], out, options)
    before = files(out)
    with pytest.raises(ExportRefused, match="grade 1"):
        export([row(grade=Grade.DRIFT)], out, options)
    assert files(out) == before
    assert [f.name for f in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("place", ["link", "folder", "file", "dangling"])
def test_what_is_not_an_export_is_never_replaced(tmp_path: Path, row: Make, options: Options, place: str) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    if place in ("link", "dangling"):
        out.symlink_to(other if place == "link" else tmp_path / "nowhere")
    elif place == "folder":
        other.rename(out)
    else:
        out.write_text("x")
    before = files(tmp_path)
    with pytest.raises(ExportRefused):
        export([row()], out, options)
    assert files(tmp_path) == before


def test_a_link_under_the_hidden_name_is_not_followed(tmp_path: Path, row: Make, options: Options) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/keep").write_text("x")
    (tmp_path / ".out.partial").symlink_to(tmp_path / "victim")
    with pytest.raises(ExportRefused):
        export([row()], tmp_path / "out", options)
    assert (tmp_path / "victim/keep").exists()


def test_a_reader_that_fails_half_way_leaves_nothing(tmp_path: Path, many: Many, options: Options) -> None:
    def broken() -> Iterator[ExportRow]:
        yield from many(50)
        raise ConnectionError("gone")
    with pytest.raises(ExportRefused):
        export(broken(), tmp_path / "out", replace(options, forms=FORMS))
    assert list(tmp_path.iterdir()) == []


def test_two_exports_to_one_place_do_not_mix(tmp_path: Path, row: Make, options: Options) -> None:
    def meanwhile() -> Iterator[ExportRow]:
        with pytest.raises(ExportRefused, match="under way"):
            export([row()], tmp_path / "out", options)
        yield row(id="first")
    export(meanwhile(), tmp_path / "out", options)
    assert [got["id"] for got in read(tmp_path / "out")] == ["first"]


KILLED = """
import sys, numpy as np, time
from pathlib import Path
from models.states import Grade
from producer.export import *
def rows():
    i = 0
    while True:
        i += 1
        yield ExportRow(id=str(i), key="k", primary_id="k", dataset="B", turn=0, prompt={}, prompt_ids=np.full(9, 5, np.int32),
            completion_ids=np.full(900, 6, np.int32), spans=(), grade=Grade.ENGINE, finish_reason="stop")
        if i == 5000:
            print("half", flush=True)
export(rows(), Path(sys.argv[1]), Options(Vocabulary(10), shard_rows=1000))
"""


def test_an_export_killed_half_way_leaves_nothing_under_the_name_and_the_next_one_clears_up(
        tmp_path: Path, row: Make, options: Options) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "out")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"half\n"
        os.kill(process.pid, signal.SIGKILL)
    assert [f.name for f in tmp_path.iterdir()] == [".out.partial"]
    export([row()], tmp_path / "out", options)
    assert [f.name for f in tmp_path.iterdir()] == ["out"]


def test_an_unknown_form_is_a_setting_that_cannot_be_used(tmp_path: Path, row: Make, options: Options) -> None:
    with pytest.raises(SettingsError):
        export([row()], tmp_path / "out", replace(options, forms=("eagle",)))


def test_memory_does_not_grow_with_the_rows(tmp_path: Path, row: Make, options: Options) -> None:
    def rows(n: int) -> Iterator[ExportRow]:
        body = np.full(500, 7, dtype=np.int32)
        return (row(id=str(i), primary_id=str(i), completion_ids=body, spans=()) for i in range(n))

    def peak(n: int) -> int:
        tracemalloc.start()
        export(rows(n), tmp_path / "out", replace(options, vocabulary=Vocabulary(size=1_000)))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found
    peak(100)
    assert peak(12_000) < 30_000_000


def test_parquet_and_trl_hold_the_same_rows_as_the_tokens(tmp_path: Path, many: Many, options: Options) -> None:
    from pyarrow import parquet

    export(many(150), tmp_path / "out", replace(options, forms=("tokens", "parquet", "trl")))
    for side in ("train", "val"):
        tokens = read(tmp_path / "out", f"tokens/{side}")
        table = parquet.read_table(tmp_path / "out/parquet" / side / "part-00000.parquet").to_pylist()
        assert table == tokens
        renamed = [{**got, "assistant_masks": got["loss_mask"]} for got in tokens]
        for got in renamed:
            del got["loss_mask"]
        assert read(tmp_path / "out", f"trl/{side}") == renamed


IDS = st.lists(st.integers(0, 999), min_size=1, max_size=30)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(prompt=IDS, completion=IDS, names=st.text(), flag=st.text(max_size=4), temperature=st.floats() | st.none(),
       end=st.booleans())
def test_any_row_is_one_line_with_one_run_of_ones(row: Make, prompt: list[int], completion: list[int], names: str, flag: str,
                                                  temperature: float | None, end: bool) -> None:
    some = row(id=names, provider=names, metadata={names: names}, flags=frozenset({flag}), temperature=temperature,
               prompt_ids=np.array(prompt, dtype=np.int32), completion_ids=np.array(completion, dtype=np.int32))
    covered = len(completion) - int(end)
    text = line(some, Vocabulary(size=1_000, decode=lambda ids: "\u2028\x00" + names), covered)
    assert b"\n" not in text
    got = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert got["input_ids"] == prompt + completion
    assert got["loss_mask"] == [0] * len(prompt) + [1] * covered + [0] * int(end)
    assert None not in got.values()
    assert json.loads(got["extra"])["metadata"] == {names: names}
    assert type(got["temperature"]) is float


def test_a_full_disk_is_an_answer_and_leaves_nothing(tmp_path: Path, many: Many, options: Options) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # writes beyond fail, as they do on a full disk
    try:
        with pytest.raises(ExportRefused, match="File too large"):
            export(many(300), tmp_path / "out", replace(options, forms=FORMS))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


PNG = b"\x89PNG\r\n\x1a\n"


def test_plots_lie_beside_the_data_and_in_the_card_and_are_the_same_twice(tmp_path: Path, many: Many, options: Options) -> None:
    pytest.importorskip("matplotlib")
    rows = [replace(r, created_at=f"2026-12-01T{8 + n // 60:02}:{n % 60:02}:30+00:00") for n, r in enumerate(many(200))]
    for name in ("one", "two"):
        summary = export(rows, tmp_path / name, replace(options, plots=True))
    assert files(tmp_path / "one") == files(tmp_path / "two")
    drawn = sorted(p for p in files(tmp_path / "one") if p.endswith(".png"))
    assert drawn == ["plots/grades.png", "plots/lengths.png", "plots/time.png"]
    card = (tmp_path / "one/README.md").read_text()
    for path in drawn:
        assert (tmp_path / "one" / path).read_bytes().startswith(PNG)
        assert f"]({path})" in card
    assert summary.tally.minutes.total() == summary.tally.supervised
    assert summary.tally.minutes_nusd.total() == summary.tally.cost_nusd > 0
    assert {p.parent.parent.name for p in (tmp_path / "one").rglob("*.jsonl")} == {"tokens"}


def test_nothing_is_drawn_and_no_time_is_looked_at_unless_asked(tmp_path: Path, many: Many, options: Options) -> None:
    summary = export(many(20), tmp_path / "out", options)
    assert (summary.tally.minutes, (tmp_path / "out/plots").exists()) == ({}, False)
    loaded = subprocess.run([sys.executable, "-c", "import producer.export, sys; print('matplotlib' in sys.modules)"],
                            capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]).stdout
    assert loaded.strip() == "False"
