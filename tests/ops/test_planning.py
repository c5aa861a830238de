from pathlib import Path

import pytest

from models.errors import SettingsError
from models.plan import NO_FP4
from ops.planning import Flags, planned


def rows(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / f"{name}.jsonl").write_text('{"prompt": "hello"}\n')
    return folder


def test_the_launch_line_of_the_story_makes_eight_datasets_on_openrouter(tmp_path: Path) -> None:
    prompts = rows(tmp_path / "prompts", *(f"B{i}" for i in range(1, 9)))
    key = tmp_path / "key.txt"
    plan = planned(Flags(prompts, "all", tmp_path / "out", api_key_file=key, short_concurrency=2_000, short_max_tokens=10_240,
                         long_concurrency=500, long_max_tokens=16_384, token_budget=10_000_000))
    assert sorted(plan.datasets) == [f"B{i}" for i in range(1, 9)]
    b1 = plan.datasets["B1"]
    assert (b1.short.max_tokens, b1.short.concurrency, b1.long.max_tokens, b1.long.concurrency) == (10_240, 2_000, 16_384, 500)
    assert b1.token_budget == 10_000_000
    assert plan.accounts["openrouter"].base_url == "https://openrouter.ai/api/v1"
    assert plan.accounts["openrouter"].api_key_file == key
    assert plan.output_dir == tmp_path / "out"


def test_fp4_is_left_out_for_kimi_unless_told_otherwise(tmp_path: Path) -> None:
    plan = planned(Flags(rows(tmp_path / "p", "B1")))
    assert plan.datasets["B1"].routing.quantizations == NO_FP4
    assert not {"fp4", "mxfp4", "nvfp4", "unknown"} & set(NO_FP4)


def test_partition_takes_one_dataset(tmp_path: Path) -> None:
    assert list(planned(Flags(rows(tmp_path / "p", "B1", "B2"), "B2")).datasets) == ["B2"]


def test_flags_lie_on_top_of_the_plan_file(tmp_path: Path) -> None:
    rows(tmp_path / "p", "B1")
    file = tmp_path / "draftmill.toml"
    file.write_text('[accounts.local]\nkind = "sglang"\nbase_url = "http://127.0.0.1:30000/v1"\n'
                    '[datasets.B1]\nprompts = "p/B1.jsonl"\nprofile = "qwen3"\nmodel = "q"\naccount = "local"\ntoken_budget = 5\n')  # noqa: E501
    plan = planned(Flags(plan=file, token_budget=7, short_max_tokens=64))
    assert plan.datasets["B1"].token_budget == 7
    assert plan.datasets["B1"].short.max_tokens == 64
    assert plan.datasets["B1"].short.concurrency == 2_000
    assert plan.datasets["B1"].prompts == [tmp_path / "p" / "B1.jsonl"]
    assert plan.datasets["B1"].routing.quantizations is None


def test_nothing_to_do_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="nothing to do"):
        planned(Flags())


def test_a_wrong_flag_names_its_place(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"kind"):
        planned(Flags(rows(tmp_path / "p", "B1"), kind="azure"))
