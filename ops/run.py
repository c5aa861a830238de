"""`draftmill run` and `draftmill up`: bring everything up, put prompts in, follow, export, sum up."""

import asyncio
import time
from collections.abc import Mapping

from rich.console import Console

from models.base import connect, connect_async, transaction
from models.errors import StoreAway
from models.hint import Hints
from models.plan import Plan
from models.settings import Settings
from models.states import DatasetState
from models.store import datasets as store
from models.store import purses, spending, totals
from models.store.totals import DatasetTotals
from ops import glance, tables
from ops.standing import Fleet, Standing, standing, url_of
from producer.enqueue import Enqueued, enqueue, hint

LOOK_EVERY_S = 1.0


def run(settings: Settings, plan: Plan, short_workers: int, long_workers: int, *, mix: bool, export: bool) -> int:
    """0 when every dataset is finished, whatever failed in it, or at its budget; 1 when one was closed for another reason."""
    console = Console()
    fleet = {
        "short": (short_workers, max(d.short.concurrency for d in plan.datasets.values())),
        "long": (long_workers, max(d.long.concurrency for d in plan.datasets.values())),
    }
    names = list(plan.datasets)
    with standing(settings, plan, fleet, console) as live:
        try:
            for result in asyncio.run(put_in(live.settings, live.plan, mix=mix)):
                console.print(str(result), highlight=False, soft_wrap=True)
            found = follow(live, names, console)
        except KeyboardInterrupt:
            console.print("\nstopping; answers under way may still arrive. The same command goes on from here.")
            return 130
        if export:
            from ops.exporting import Wish, export_datasets

            _grade_again(live.settings, found, console)
            database = connect(url_of(live.settings))
            for line in export_datasets(database, names, plan.output_dir, Wish(), live.settings.home):
                console.print(line)
        found = _totals(live.settings, names)
    summary(found, console)
    return 0 if all(d.finished or d.closed_reason in ("budget", "money") for d in found) else 1


def _grade_again(settings: Settings, found: list[DatasetTotals], console: Console) -> None:
    """Text-only rows are verified once their providers' conventions are known, which takes some rows of each."""
    from ops.grading import calibrate, regrade

    names = [d.name for d in found if set(d.grades) - {"engine", "logprobs"}]
    if not names:
        return
    console.print("learning how the providers count, and grading the rows by it")
    database = connect(url_of(settings), size=2)
    for _ in calibrate(database, names, settings.home):
        pass
    for name, looked, changed in regrade(database, names, settings.home):
        console.print(f"{name}: {looked} rows graded again, {changed} changed", highlight=False)


def _totals(settings: Settings, names: list[str]) -> list[DatasetTotals]:
    with transaction(connect(url_of(settings), size=1)) as connection:
        found = totals.datasets(connection, names)
        spending.add(connection, found)
        return found


def up(settings: Settings, plan: Plan, fleet: Fleet, *, flower: bool) -> int:
    """Stand until a signal comes."""
    console = Console()
    with standing(settings, plan, fleet, console, flower=flower):
        console.print("up; stop with Ctrl-C. In this folder: draftmill enqueue, status, requeue, export")
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            console.print("\nstopping")
    return 0


async def put_in(settings: Settings, plan: Plan, *, mix: bool = False, every: Mapping[str, int] | None = None) -> list[Enqueued]:
    """Datasets and their prompts, then hints. A dataset at its budget is skipped without reading its prompts.

    every: take one prompt in so many of these datasets only.
    """
    with transaction(connect(url_of(settings), size=1)) as connection:
        ids = {name: store.put(connection, name, d, plan.accounts, mix=mix) for name, d in plan.datasets.items()}
        if plan.money_budget_usd is not None:
            purses.share(connection, ids.values(), plan.money_budget_usd)
        store.resume(connection, ids)
        known = {d.name: d for d in store.every(connection)}
    assert settings.redis_url is not None
    database = connect_async(url_of(settings), size=2, worker=False)
    hints = Hints(settings.redis_url.get_secret_value(), settings.key_prefix)
    results = []
    try:
        for name, dataset in plan.datasets.items():
            if known[name].state is DatasetState.CLOSED:
                results.append(Enqueued(name, skipped=known[name].closed_reason or "closed"))
                continue
            rejects = settings.home / "rejects" / f"{name}.jsonl"
            one_in = (every or {}).get(name, 1)
            results.append(await enqueue(database, ids[name], name, dataset, dataset.prompts, rejects, every=one_in,
                                         home=settings.home))
            await hint(database, hints, [name], settings.hint_window)
    finally:
        await hints.close()
        await database.dispose()
    return results


def follow(live: Standing, names: list[str], console: Console) -> list[DatasetTotals]:
    """Show progress until nothing more will happen by itself; a database that is away is waited for."""
    looker = glance.Looker(connect(url_of(live.settings), size=1), live.settings, names)
    found: list[DatasetTotals] = []
    with glance.screen(console, fleet=False) as show:
        while not found or not all(d.settled for d in found):
            if found:
                time.sleep(LOOK_EVERY_S)
            try:
                seen = looker.look()
            except StoreAway as error:
                console.print(f"waiting for the database: {error}")
                time.sleep(LOOK_EVERY_S)
                continue
            show(seen)
            found = seen.datasets
            while live.deaths:
                death = live.deaths.popleft()
                console.print(f"{death.name} ended ({death.exit_code}) and is started again", style="yellow")
    return found


def summary(found: list[DatasetTotals], console: Console) -> None:
    console.print()
    console.print(tables.datasets(found))
    console.print(tables.details(found))
