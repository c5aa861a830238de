"""A run as a person writes it."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from models.errors import DraftmillError, SettingsError
from models.plan import NO_FP4, Account, DatasetPlan, LanePlan, LaneRule, Plan, Routing, Sampling, read

ROOT = Path(__file__).parents[2]
ACCOUNT = '[accounts.router]\nkind = "openrouter"\n'
DATASET = '[datasets.B1]\nprofile = "smollm2"\nmodel = "a/model"\naccount = "router"\n'


def plan(**changes: object) -> DatasetPlan:
    return DatasetPlan.model_validate({"profile": "smollm2", "model": "a/model", "account": "home", **changes})


def written(folder: Path, text: str) -> Path:
    file = folder / "draftmill.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_paths_are_of_the_plans_folder_and_urls_stay_urls(tmp_path: Path) -> None:
    text = ('output_dir = "out"\n[accounts.router]\napi_key_file = "key.txt"\n' + DATASET
            + 'prompts = ["a.jsonl", "/b.jsonl", "s3://bucket/c.jsonl"]\ndecontaminate = ["d.jsonl"]\n')
    found = read(written(tmp_path, text))
    assert found.accounts["router"].api_key_file == tmp_path / "key.txt"
    assert found.datasets["B1"].prompts == [tmp_path / "a.jsonl", Path("/b.jsonl"), Path("s3://bucket/c.jsonl")]
    assert found.datasets["B1"].decontaminate == [tmp_path / "d.jsonl"]
    assert found.output_dir == tmp_path / "out"


@pytest.mark.parametrize(("text", "named"), [
    ("[datasets.B1", "draftmill.toml"),
    (ACCOUNT + DATASET + "tokn_budget = 5\n", "datasets.B1.tokn_budget"),
    (ACCOUNT + DATASET + "token_budget = 0\n", "datasets.B1.token_budget"),
    (ACCOUNT + DATASET + "[datasets.B1.short]\nmax_tokens = 5\n", "datasets.B1.short.concurrency"),
    (ACCOUNT + DATASET + "[datasets.B1.routing]\ndata_collection = 'maybe'\n", "datasets.B1.routing.data_collection"),
    (DATASET, "names the account 'router'"),
    (ACCOUNT + DATASET + DATASET.replace("B1", "b1"), "upper and lower case"),
    ('[accounts.router]\nbase_url = "ftp://x"\n', "accounts.router.base_url"),
    ('[accounts.router]\nbase_url = "https://me:secret@x/v1"\n', "must not hold a password"),
])
def test_a_mistake_is_told_with_its_place(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        read(written(tmp_path, text))
    assert named in str(refusal.value)
    assert "secret@" not in str(refusal.value)


def test_a_name_that_is_unsafe_is_refused(tmp_path: Path) -> None:
    with pytest.raises((DraftmillError, ValidationError)):
        read(written(tmp_path, ACCOUNT + DATASET.replace("B1", '"../x"')))


def test_a_plan_that_is_missing_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nothing\.toml"):
        read(tmp_path / "nothing.toml")


def test_kimi_is_never_served_at_fp4_unless_a_plan_asks_for_it() -> None:
    assert plan(profile="kimi-k2.5").routing.quantizations == NO_FP4
    assert plan(profile="kimi-k2.5", routing={"only": ["x"]}).routing.body() == {"only": ["x"], "quantizations": NO_FP4}
    assert plan(profile="kimi-k2.5", routing={"quantizations": ["fp4"]}).routing.quantizations == ["fp4"]
    assert plan().routing.body() == {}
    assert not any("fp4" in name for name in NO_FP4)


def test_accounts_are_one_several_in_order_or_several_with_weights() -> None:
    assert (plan().account_names(), plan().account_weights()) == (["home"], None)
    assert (plan(account=["a", "b"]).account_names(), plan(account=["a", "b"]).account_weights()) == (["a", "b"], None)
    weighed = plan(account={"a": 3, "b": 0})
    assert (weighed.account_names(), weighed.account_weights()) == (["a", "b"], [3, 0])
    for nobody in ([], "", {}, {"a": 0}, {"a": -1, "b": 2}):
        with pytest.raises(ValidationError):
            plan(account=nobody)


def test_what_rows_depend_on_changes_the_fingerprint_and_nothing_else_does() -> None:
    usual = plan().fingerprint_id()
    for same in ({"prompts": "x.jsonl"}, {"token_budget": 5}, {"money_budget_usd": 1.0}, {"account": ["a", "b"]},
                 {"short": LanePlan(max_tokens=5, concurrency=1)}, {"promote": False}, {"answers": 3}):
        assert plan(**same).fingerprint_id() == usual, same
    others = [{"profile": "qwen3"}, {"model": "b/model"}, {"turns": "all"}, {"thinking": True}, {"reasoning": {"effort": "low"}},
              {"sampling": {"temperature": 1.0}}, {"routing": {"only": ["x"]}}]
    assert len({usual, *(plan(**other).fingerprint_id() for other in others)}) == 1 + len(others)


def test_a_plan_stored_as_json_is_read_back_the_same() -> None:
    sampling = {"temperature": [{"value": 0.2, "weight": 2}, {"value": 1}], "reasoning_effort": "low"}
    full = plan(account={"a": 1.0}, sampling=sampling,
                routing={"max_price": {"completion": 3}, "order": ["x"]}, money_budget_usd=2.5, prompts=["a", "b"])
    assert DatasetPlan.model_validate_json(full.model_dump_json()) == full


def test_an_accounts_url_ends_without_a_slash() -> None:
    assert Account(base_url="https://x/v1/").base_url == "https://x/v1"


def test_every_setting_is_explained_and_no_other() -> None:
    page = (ROOT / "docs/plan.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", page))
    parts = (Plan, Account, DatasetPlan, LanePlan, LaneRule, Sampling, Routing)
    settings = {name for part in parts for name in part.model_fields}
    assert settings - {"accounts", "datasets"} <= named
    first_cells = {name for row in re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert first_cells <= settings


def test_what_is_told_to_be_in_the_fingerprint_is() -> None:
    page = (ROOT / "docs/plan.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(\w+)` F\b", page)) == plan().fingerprint().keys()


@pytest.mark.parametrize("name", ["draftmill.toml", "openrouter.toml"])
def test_the_examples_are_plans_whose_prompts_are_there(name: str) -> None:
    found = read(ROOT / "examples" / name)
    assert found.datasets
    assert all(file.is_file() for dataset in found.datasets.values() for file in dataset.prompts)
