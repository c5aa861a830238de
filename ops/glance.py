"""The whole of a run at a glance, in a terminal of 80 columns: datasets, money, limits, the last failures, workers."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text
from sqlalchemy import Engine

from models.base import transaction
from models.errors import BrokerAway, SettingsError
from models.settings import Settings
from models.store import board, board_failures, spending, totals
from models.store.board import Purse
from models.store.board_failures import Failure
from models.store.totals import DatasetTotals, ProviderTotals, WorkerTotals
from ops import limits, tables

WASTE_EVERY_S = 20.0     # reads every attempt
PLAIN_EVERY_S = 10.0
LATEST = 4


@dataclass(slots=True)
class Glance:
    """limits: by account; None where Redis did not answer."""

    datasets: list[DatasetTotals]
    purses: list[Purse] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    fleet: list[WorkerTotals] = field(default_factory=list)
    providers: list[ProviderTotals] = field(default_factory=list)
    limits: dict[str, dict[str, Any]] | None = None


class Looker:
    """Looks again and again. Raises StoreAway; a Redis that is away costs the limits alone."""

    def __init__(self, engine: Engine, settings: Settings, names: list[str] | None = None, *, providers: bool = False) -> None:
        self._engine, self._settings, self._names, self._providers = engine, settings, names, providers
        self._waste: dict[int, tuple[dict[str, dict[str, float]], int]] = {}
        self._wasted_at = -WASTE_EVERY_S

    def look(self) -> Glance:
        with transaction(self._engine) as connection:
            found = totals.datasets(connection, self._names)
            if time.monotonic() - self._wasted_at >= WASTE_EVERY_S:
                spending.add(connection, found)
                self._waste = {d.id: (d.waste, d.saved_tokens) for d in found}
                self._wasted_at = time.monotonic()
            for d in found:
                d.waste, d.saved_tokens = self._waste.get(d.id, (d.waste, d.saved_tokens))
            purses = [p for p in board.purses(connection) if not self._names or set(p.datasets) & set(self._names)]
            return Glance(found, purses, board_failures.latest(connection, self._names, LATEST),
                          totals.workers(connection),
                          totals.providers(connection, self._names) if self._providers else [], self._limits())

    def _limits(self) -> dict[str, dict[str, Any]] | None:
        try:
            return limits.states(self._settings)
        except (BrokerAway, SettingsError):
            return None


def sums(found: list[DatasetTotals]) -> Text:
    """All datasets in two lines."""
    if not found:
        return Text("no dataset yet; start one: draftmill run prompts/", style="dim")
    moving = [d for d in found if not d.settled]
    parts = [f"{len(moving)} of {len(found)} go on", f"{tables.count(sum(d.running for d in found))} in flight",
             f"{tables.count(sum(d.pace for d in moving))} tokens/s"]
    money: list[str] = []
    if last := max((d for d in moving if d.eta_s), key=lambda d: d.eta_s or 0, default=None):
        money.append(f"done in {tables.duration(last.eta_s)} ({tables.span(last.eta_range_s)})")
    if spent := sum(d.spent_usd for d in found):
        useful = sum(d.useful_tokens for d in found)
        money.append(f"{tables.dollars(spent)} spent"
                     + (f", {tables.dollars(spent * 1e6 / useful)} per million useful tokens" if useful else ""))
    return Text("\n".join(" · ".join(part) for part in (parts, money) if part), style="bold")


def purse(of: Purse) -> Text:
    names = of.datasets[0] if len(of.datasets) == 1 else f"{of.datasets[0]} to {of.datasets[-1]}"
    return Text.assemble(("the run's money: ", "bold"), tables.share_bar(of.spent_usd, of.reserved_usd, of.usd, 20),
                         f" {tables.dollars(of.spent_usd)} of {tables.dollars(of.usd)}, "
                         f"{tables.dollars(of.reserved_usd)} reserved",
                         (f"  {names}", "dim"))


def limit(account: str, of: dict[str, Any]) -> Text:
    state, style = ((f"paused: {of['halted']}", "red") if of["halted"] else ("probing", "yellow") if of["probing"]
                    else ("fixed", "cyan") if of["fixed"] else ("", ""))
    room = f"{tables.count(of['in_flight'])} of {tables.count(of['limit'])} at once"
    ceiling = f", ceiling {tables.count(of['ceiling'])}" if of["ceiling"] else ""
    return Text.assemble((f"{account}: ", "bold"), room + ceiling, (f" {state}" if state else "", style))


def failures(rows: list[Failure]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for _ in range(5):
        table.add_column(no_wrap=True, overflow="ellipsis", max_width=28)
    for f in rows:
        table.add_row(Text(f.code, "red"), f.key, f.lane, f.provider, f"{tables.duration(f.ago_s)} ago")
    return table


def render(glance: Glance, *, fleet: bool = True, brief: bool = False) -> RenderableType:
    found = glance.datasets
    parts: list[RenderableType] = [sums(found), Text(), tables.datasets(found), tables.details(found, brief=brief)]
    parts += [purse(p) for p in glance.purses]
    if glance.limits is None:
        parts.append(Text("limits are not known: Redis does not answer", style="yellow"))
    elif glance.limits:
        parts += [Text(), *(limit(account, of) for account, of in glance.limits.items())]
    if glance.failures:
        parts += [Text("\nlast failures", style="bold"), failures(glance.failures)]
    if fleet:
        parts += [Text(), tables.workers(glance.fleet) if glance.fleet else Text(
            "no worker is alive; start one: draftmill worker short, or all: draftmill up", style="yellow")]
    if glance.providers:
        parts += [Text(), tables.providers(glance.providers)]
    return Group(*parts)


def as_json(glance: Glance) -> dict[str, Any]:
    return {"datasets": [d.as_json() for d in glance.datasets], "purses": [asdict(p) for p in glance.purses],
            "limits": glance.limits, "failures": [asdict(f) for f in glance.failures],
            "workers": [asdict(w) for w in glance.fleet], "providers": [asdict(p) for p in glance.providers]}


@contextmanager
def screen(console: Console, *, fleet: bool = True) -> Iterator[Callable[[Glance], None]]:
    """Shows what it is given: live in a terminal, else as a line for each dataset now and then, and at the end."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4, vertical_overflow="crop") as live:
            yield lambda glance: live.update(render(glance, fleet=fleet, brief=True))
        return
    said = [-PLAIN_EVERY_S]

    def lines(glance: Glance) -> None:
        if time.monotonic() - said[0] >= PLAIN_EVERY_S or all(d.settled for d in glance.datasets):
            for d in glance.datasets:
                console.print(tables.line(d), highlight=False, soft_wrap=True)
            said[0] = time.monotonic()

    yield lines
