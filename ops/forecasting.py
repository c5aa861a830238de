"""`draftmill forecast`: some of the prompts are answered first, and what that took says what all will take.

The pilot's samples are the datasets' own: a later run finds them done and pays for the rest alone.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from models.base import connect, transaction
from models.errors import SettingsError
from models.plan import DatasetPlan, Plan
from models.settings import Settings
from models.states import Lane
from models.store import datasets, spending, totals
from models.store.totals import DatasetTotals
from ops import tables
from ops.run import follow, put_in
from ops.standing import Fleet, standing
from producer.prompts import Prompt, Seen, read

PILOT = 50


@dataclass(frozen=True, slots=True)
class Outlook:
    """What all of a dataset will take, the pilot included. rows: answers stored before its prompts or a budget are used up.

    by: what ends it (prompts, budget, money). seconds: with its lanes full all the time.
    """

    samples: int
    rows: int
    useful_rows: int
    tokens: int
    usd: float
    seconds: float
    by: str


def outlook(pilot: DatasetTotals, call_s: dict[Lane, float], samples: int, plan: DatasetPlan) -> Outlook | None:
    """From what ended in the pilot; None when nothing did."""
    ended = pilot.done + pilot.failed
    if not ended:
        return None
    bounds = {"prompts": float(samples)}
    if plan.token_budget is not None and pilot.stored_tokens:
        bounds["budget"] = plan.token_budget * ended / pilot.stored_tokens
    if plan.money_budget_usd is not None and pilot.spent_usd:
        bounds["money"] = plan.money_budget_usd * ended / pilot.spent_usd
    by = min(bounds, key=lambda name: bounds[name])
    times = bounds[by] / ended
    seconds = max(call_s.get(lane, 0.0) * times / plan.lane(lane.label).concurrency for lane in Lane)
    useful = pilot.useful_tokens / pilot.stored_tokens if pilot.stored_tokens else 0.0
    rows = pilot.done * times
    return Outlook(samples, round(rows), round(rows * useful), round(pilot.stored_tokens * times), pilot.spent_usd * times,
                   seconds, by)


def forecast(settings: Settings, plan: Plan, console: Console, n: int = PILOT) -> int:
    """Answer about n prompts of each dataset, then say what all of them will cost, take and give."""
    counts = {name: counted(d.prompts, d) for name, d in plan.datasets.items()}
    every = {name: max(1, prompts // n) for name, prompts in counts.items()}
    fleet: Fleet = {lane: (1, max(d.lane(lane).concurrency for d in plan.datasets.values())) for lane in ("short", "long")}
    names = list(plan.datasets)
    with standing(settings, plan, fleet, console, flower=False) as live:
        assert live.settings.database_url is not None
        database = connect(live.settings.database_url.get_secret_value(), size=1)
        with transaction(database) as connection:
            known = totals.datasets(connection, names)
        waiting = [d.name for d in known if d.queued and d.done + d.failed < n]
        if waiting:
            raise SettingsError(cause=f"{', '.join(waiting)} is being answered already; see draftmill status")
        asyncio.run(put_in(live.settings, live.plan, every={k: v for k, v in every.items() if k not in {d.name for d in known}}))
        follow(live, names, console)
        with transaction(database) as connection:
            found = totals.datasets(connection, names)
            spending.add(connection, found)
            ids = {d.name: d.id for d in datasets.every(connection)}
            seconds = {name: spending.call_seconds(connection, ids[name]) for name in names}
    looks = {d.name: outlook(d, seconds[d.name], counts[d.name] * plan.datasets[d.name].answers, plan.datasets[d.name])
             for d in found}
    console.print(table(found, looks))
    return 0 if all(looks.values()) else 1


def counted(files: Iterable[Path], plan: DatasetPlan) -> int:
    """Good prompts in the files."""
    seen = Seen()
    return sum(isinstance(item, Prompt) for file in files for item in read(file, turns=plan.turns, seen=seen))


def table(pilots: list[DatasetTotals], looks: dict[str, Outlook | None]) -> Table:
    found = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for name in ("dataset", "pilot", "samples", "rows", "useful", "tokens", "cost", "time", "ends by"):
        found.add_column(name, justify="left" if name in ("dataset", "ends by") else "right", no_wrap=True)
    for d in pilots:
        look = looks[d.name]
        if look is None:
            found.add_row(d.name, f"0/{d.failed}", *["-"] * 6, "no answer")
            continue
        found.add_row(d.name, f"{d.done}/{d.done + d.failed}", tables.count(look.samples), tables.count(look.rows),
                      tables.count(look.useful_rows), tables.count(look.tokens), tables.dollars(look.usd),
                      tables.duration(look.seconds), look.by)
    return found
