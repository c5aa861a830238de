"""Plans, and what stands in the database of them: keys, endpoints, profiles, routing, prompts."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

from models import plan as plans
from models.base import connect, transaction
from models.errors import DraftmillError
from models.plan import NO_FP4, Account, DatasetPlan
from models.settings import Settings
from models.store import datasets
from models.store.schema import standing
from ops.checks.finding import Finding, bad, note, ok
from ops.checks.machine import readable_by_others
from workers.providers.probe import probe


def look(settings: Settings, file: Path | None) -> Iterator[Finding]:
    """The plan, and the datasets of the database that it does not name."""
    plan = plans.Plan()
    if file is not None:
        try:
            plan = plans.read(file)
        except DraftmillError as error:
            yield bad(str(error), f"mend {file}")
            return
        yield ok(f"{file}: {len(plan.datasets)} datasets, {len(plan.accounts)} accounts")
    stored = {name: d for name, d in _stored(settings).items() if name not in plan.datasets}
    accounts: dict[tuple[str, str], Account] = {(n, a.base_url): a for n, a in plan.accounts.items()}
    for _, theirs in stored.values():
        accounts.update({(n, a.base_url): a for n, a in theirs.items()})
    for (name, _), account in accounts.items():
        yield from _account(settings, name, account)
    opened: set[str] = set()
    for name, dataset in {**plan.datasets, **{name: d for name, (d, _) in stored.items()}}.items():
        if dataset.profile not in opened:
            opened.add(dataset.profile)
            yield from _profile(settings, name, dataset.profile)
        yield from _dataset(name, dataset)


def _stored(settings: Settings) -> Mapping[str, tuple[DatasetPlan, dict[str, Account]]]:
    if settings.database_url is None:
        return {}
    engine = connect(settings.database_url.get_secret_value(), size=1)
    try:
        with transaction(engine) as connection:
            known = datasets.every(connection) if standing(connection).usable else []
    except DraftmillError:
        return {}
    finally:
        engine.dispose()
    return {d.name: (d.plan, d.accounts) for d in known}


def _account(settings: Settings, name: str, account: Account) -> Iterator[Finding]:
    try:
        key = settings.key_of(name, account)
    except DraftmillError as error:
        variable = f"DRAFTMILL_API_KEY_FILE_{name.upper().replace('-', '_')}"
        yield bad(f"account {name}: {error}", f"put the key there, on one line, or name another file: {variable}")
        return
    if key is None and account.kind == "openrouter":
        yield bad(f"account {name} has no key", "api_key_file in the plan, --api-key-file, or DRAFTMILL_API_KEY_FILE")
    file = account.api_key_file or settings.api_key_file
    if file and readable_by_others(file):
        yield bad(f"the key file {file} can be read by others", f"chmod 600 {file}")
    if account.kind == "embedded":
        return
    wrong = asyncio.run(probe(account.kind, account.base_url, key.get_secret_value() if key else None))
    if wrong:
        yield bad(f"account {name}: {account.base_url} {wrong.what}", wrong.remedy)
    else:
        yield ok(f"account {name}: {account.base_url} answers")


def _profile(settings: Settings, dataset: str, name: str) -> Iterator[Finding]:
    from models.tokens import profile
    from models.tokens.model import Model

    try:
        Model.open(profile.load(name, settings.home))
    except DraftmillError as error:
        inner = "resolve" in str(error) and "do not" in str(error)
        yield bad(f"dataset {dataset}: {error}", "mend the profile's [ids]: they are not this tokenizer's" if inner else
                  f"put the tokenizer below {settings.home / 'tokenizers'}, or let it be downloaded")
    else:
        yield ok(f"profile {name}: its tokenizer and ids are in place")


def _dataset(name: str, dataset: DatasetPlan) -> Iterator[Finding]:
    for prompts in dataset.prompts:
        if not prompts.exists():
            yield bad(f"dataset {name}: there are no prompts at {prompts}", "mend the path in the plan")
    admitted = set(dataset.routing.quantizations or ()) - set(NO_FP4)
    if dataset.profile.startswith("kimi-") and admitted:
        yield bad(f"dataset {name}: its routing admits {', '.join(sorted(admitted))}: Kimi's rows would come from FP4 hosts too",
                  "leave routing.quantizations out of the plan: by default it is a list without FP4")
    budget = dataset.token_budget
    for lane, level in (("short", bad), ("long", note)):
        most = dataset.lane(lane).max_tokens
        if budget is not None and budget < most:
            yield level(f"dataset {name}: its budget of {budget:,} tokens is smaller than one answer of its {lane} lane may be "
                        f"({most:,}), which so gets none", "raise token_budget, or lower max_tokens of that lane")
            return
