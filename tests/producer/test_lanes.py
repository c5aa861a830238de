from pathlib import Path
from typing import Any

import pytest

from models.errors import NameRefused, SettingsError
from models.plan import DatasetPlan, LanePlan, LaneRule
from models.states import Lane
from producer.lanes import lane_of, max_tokens_of, too_long
from producer.partitions import datasets_of
from producer.prompts import Prompt


def prompt(chars: int = 10, **given: Any) -> Prompt:
    return Prompt(key="k", primary_id="k", messages=[], tools=None, lane=given.get("lane"), max_tokens=given.get("max_tokens"),
                  metadata={}, later=[], line=1, chars=chars)


def plan(**given: Any) -> DatasetPlan:
    return DatasetPlan(profile="p", model="m", account="a", **given)


def test_an_explicit_lane_wins_over_the_rule() -> None:
    ruled = plan(lane_rule=LaneRule(long_from_chars=100))
    assert lane_of(prompt(99), ruled) is Lane.SHORT
    assert lane_of(prompt(100), ruled) is Lane.LONG
    assert lane_of(prompt(100, lane="short"), ruled) is Lane.SHORT
    assert lane_of(prompt(1), plan(lane_rule=LaneRule(default="long"))) is Lane.LONG


def test_a_row_may_ask_for_less_than_its_lane_and_never_for_more() -> None:
    lanes = plan(short=LanePlan(max_tokens=100, concurrency=1))
    assert [max_tokens_of(prompt(max_tokens=n), lanes) for n in (None, 7, 1_000)] == [100, 7, 100]


def test_a_prompt_that_passes_the_context_with_its_answer_is_refused_before_it_costs_anything() -> None:
    refusal = too_long("f", prompt(1_300_000), plan(), context_tokens=262_144)
    assert refusal is not None
    assert (refusal.line, refusal.code) == (1, "prompt_too_long")
    assert too_long("f", prompt(1_200_000), plan(), 262_144) is None


def test_tokens_are_counted_only_where_size_does_not_decide() -> None:
    asked: list[int] = []

    def count(p: Prompt) -> int:
        asked.append(p.chars)
        return 251_904
    assert too_long("f", prompt(50_000), plan(), 262_144, count) is None
    assert asked == []
    assert too_long("f", prompt(900_000), plan(), 262_144, count) is None  # 251,904 + 10,240 is the context exactly
    assert too_long("f", prompt(900_000, lane="long"), plan(), 262_144, count) is not None
    assert asked == [900_000, 900_000]


def test_files_and_subfolders_of_a_folder_are_datasets(tmp_path: Path) -> None:
    for name in ("B2.jsonl", "B1.jsonl.gz", "notes.txt", ".hidden.jsonl", "B3/part-1.parquet", "B3/part-0.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    found = datasets_of(tmp_path, "all")
    assert {n: [f.name for f in files] for n, files in found.items()} == {
        "B1": ["B1.jsonl.gz"], "B2": ["B2.jsonl"], "B3": ["part-0.parquet", "part-1.parquet"]}
    assert list(datasets_of(tmp_path, "B2")) == ["B2"]
    assert list(datasets_of(tmp_path / "B2.jsonl")) == ["B2"]


@pytest.mark.parametrize("name", ["B1'; DROP TABLE samples;--.jsonl", "a b.jsonl", "..jsonl.jsonl"])
def test_a_file_whose_name_cannot_be_a_dataset_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    with pytest.raises(NameRefused):
        datasets_of(tmp_path / name)


@pytest.mark.parametrize("partition", ["../../etc/cron.d/x", "B1'; DROP TABLE samples;--"])
def test_a_partition_is_a_name_and_not_a_path(tmp_path: Path, partition: str) -> None:
    (tmp_path / "B1.jsonl").write_text("x")
    with pytest.raises(NameRefused):
        datasets_of(tmp_path, partition)


def test_two_names_that_differ_by_case_alone_are_refused(tmp_path: Path) -> None:
    (tmp_path / "b1.jsonl").write_text("x")
    (tmp_path / "B1.parquet").write_text("x")
    with pytest.raises(NameRefused):
        datasets_of(tmp_path)


def test_a_path_without_prompts_is_a_setting_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        datasets_of(tmp_path)
    with pytest.raises(SettingsError):
        datasets_of(tmp_path / "missing")
    (tmp_path / "B1.jsonl").write_text("x")
    with pytest.raises(SettingsError):
        datasets_of(tmp_path, "B2")
