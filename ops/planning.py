"""From a plan file and flags to the plan of a run. Flags lie on top; the story's launch line needs no file."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from models import plan as plans
from models.errors import SettingsError
from models.plan import Account, DatasetPlan, LanePlan, Plan
from producer.partitions import datasets_of

DEFAULT_FILE = Path("draftmill.toml")


@dataclass(slots=True)
class Flags:
    """What the command line said; None where it said nothing."""

    prompts: Path | None = None
    partition: str | None = None
    output_dir: Path | None = None
    plan: Path | None = None
    api_key_file: Path | None = None
    kind: str | None = None
    base_url: str | None = None
    model: str | None = None
    profile: str | None = None
    short_concurrency: int | None = None
    short_max_tokens: int | None = None
    long_concurrency: int | None = None
    long_max_tokens: int | None = None
    token_budget: int | None = None
    money_budget: float | None = None
    budget_mode: str | None = None
    turns: str | None = None
    run_money_budget: float | None = None
    dedup: str | None = None
    decontaminate: list[Path] | None = None

    def given(self) -> set[str]:
        return {f.name for f in fields(self) if getattr(self, f.name) is not None}


def planned(flags: Flags) -> Plan:
    """The plan; SettingsError or NameRefused says what is wrong and where."""
    file = flags.plan or (DEFAULT_FILE if DEFAULT_FILE.exists() and flags.prompts is None else None)
    plan = plans.read(file) if file else Plan()
    try:
        plan = _from_prompts(plan, flags) if flags.prompts else _narrowed(plan, flags.partition)
        datasets = {name: _with_flags(d, flags) for name, d in plan.datasets.items()}
        accounts = {name: _account(a, flags) for name, a in plan.accounts.items()}
        result = Plan(
            accounts=accounts,
            datasets=datasets,
            output_dir=flags.output_dir or plan.output_dir,
            money_budget_usd=flags.run_money_budget or plan.money_budget_usd,
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise SettingsError(cause=f"{'.'.join(str(p) for p in first['loc'])}: {first['msg']}") from None
    if not result.datasets:
        raise SettingsError(cause="there is nothing to do: name a file or folder of prompts, or a plan with datasets")
    return result


def _from_prompts(plan: Plan, flags: Flags) -> Plan:
    """Datasets from a file or folder; a plan file, if any, gives them their settings by name or from its first dataset."""
    assert flags.prompts is not None
    accounts = plan.accounts or {
        "openrouter" if flags.kind in (None, "openrouter") else str(flags.kind): Account(kind="openrouter")
    }
    pattern = next(iter(plan.datasets.values()), None) or DatasetPlan(
        profile=flags.profile or "kimi-k2.5", model=flags.model or "moonshotai/kimi-k2.5", account=next(iter(accounts))
    )
    found = datasets_of(flags.prompts, flags.partition)
    datasets = {name: plan.datasets.get(name, pattern).model_copy(update={"prompts": files}) for name, files in found.items()}
    return plan.model_copy(update={"accounts": accounts, "datasets": datasets})


def _narrowed(plan: Plan, partition: str | None) -> Plan:
    if partition in (None, "all"):
        return plan
    if partition not in plan.datasets:
        raise SettingsError(cause=f"the plan has no dataset {partition!r}, only {', '.join(sorted(plan.datasets))}")
    return plan.model_copy(update={"datasets": {partition: plan.datasets[partition]}})


def _with_flags(dataset: DatasetPlan, flags: Flags) -> DatasetPlan:
    document = dataset.model_dump()
    simple = {
        "model": flags.model,
        "profile": flags.profile,
        "token_budget": flags.token_budget,
        "money_budget_usd": flags.money_budget,
        "budget_mode": flags.budget_mode,
        "turns": flags.turns,
        "dedup": flags.dedup,
        "decontaminate": flags.decontaminate or None,
    }
    document.update({k: v for k, v in simple.items() if v is not None})
    document["short"] = _lane(dataset.short, flags.short_max_tokens, flags.short_concurrency)
    document["long"] = _lane(dataset.long, flags.long_max_tokens, flags.long_concurrency)
    return DatasetPlan.model_validate(document)


def _lane(lane: LanePlan, max_tokens: int | None, concurrency: int | None) -> dict[str, Any]:
    return {**lane.model_dump(), **{k: v for k, v in (("max_tokens", max_tokens), ("concurrency", concurrency)) if v is not None}}


def _account(account: Account, flags: Flags) -> Account:
    given = {
        "kind": flags.kind,
        "base_url": flags.base_url,
        "api_key_file": flags.api_key_file.absolute() if flags.api_key_file else None,
    }
    return Account.model_validate({**account.model_dump(), **{k: v for k, v in given.items() if v is not None}})
