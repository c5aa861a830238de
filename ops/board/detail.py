"""One dataset's page: over time, by length, by cause, by provider."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from sqlalchemy import Connection
from tornado.web import HTTPError

from models import blob
from models.health import Health
from models.store import board, board_failures, board_requeues, providers, spending, totals
from models.store.board import Length, Series
from models.store.board_failures import Cause
from models.store.totals import DatasetTotals, ProviderTotals
from ops import tables
from ops.board import charts, overview
from ops.board.charts import Column, Curve
from ops.board.handlers import Page
from ops.board.look import Problem

SPANS = {"15m": 900.0, "1h": 3_600.0, "6h": 21_600.0, "all": None}
EXAMPLES, EXCERPT = 3, 400


def tokens_chart(found: Series, d: DatasetTotals) -> str:
    stored = list(accumulate((s.stored for s in found.steps), initial=found.before.stored))[1:]
    billed = list(accumulate((s.billed for s in found.steps), initial=found.before.billed))[1:]
    drawn = [Curve("useful", "stored", stored), Curve("held", "billed, with prompts", billed)]
    label = f"Tokens over time: {tables.count(stored[-1])} stored, {tables.count(billed[-1])} billed"
    return charts.curves([s.at for s in found.steps], drawn, tables.count, label, d.token_budget)


def money_chart(found: Series, d: DatasetTotals) -> str:
    spent = list(accumulate((s.usd for s in found.steps), initial=found.before.usd))[1:]
    return charts.curves([s.at for s in found.steps], [Curve("spent", "spent", spent)], money_tick,
                         f"Dollars over time: {tables.dollars(spent[-1])} spent", d.money_budget_usd)


def rate_chart(found: Series) -> str:
    span = (found.steps[-1].at - found.steps[0].at).total_seconds()
    drawn = [Column(f"{charts.clock(s.at, span)} UTC: {tables.count(s.stored / found.step_s)} tokens/s, {s.done} done, "
                    f"{s.broken} failed or tried again", [("useful", s.stored / found.step_s)]) for s in found.steps]
    marks = [charts.clock(found.steps[round(i * (len(found.steps) - 1) / 5)].at, span) for i in range(6)]
    return charts.columns(drawn, tables.count, "Stored tokens a second over time", marks)


def lengths_chart(found: Sequence[Length]) -> str:
    drawn = [Column(f"{b.low:,} to {b.high:,} tokens: {b.ended} ended, {b.cut} cut", [("useful", b.ended), ("cut", b.cut)])
             for b in found]
    most = found[-1].high + 1
    return charts.columns(drawn, tables.count, f"{sum(b.ended + b.cut for b in found):,} answers by their length in tokens",
                          [tables.count(most * i / 4) for i in range(5)])


def money_tick(usd: float) -> str:
    return f"${usd:,.0f}" if usd == round(usd) else f"${usd:.2f}" if usd >= 0.01 else f"${usd:.4f}"


@dataclass(frozen=True, slots=True)
class Served:
    """One provider's row: its calls, and what is held against it."""

    p: ProviderTotals
    health: Health | None
    excluded: str

    @property
    def ok_share(self) -> float:
        tried = self.p.ok + self.p.broken
        return self.p.ok / tried if tried else 0.0

    @property
    def mismatched(self) -> str:
        return f"{100 * self.health.mismatched / self.health.rows:.0f}%" if self.health and self.health.rows else "-"


def _served(name: str, dataset_id: int, excluded: dict[str, str]) -> Callable[[Connection], list[Served]]:
    def read(connection: Connection) -> list[Served]:
        known = {h.provider: h for h in providers.health(connection, dataset_id)}
        rows = totals.providers(connection, [name])
        return [Served(p, known.get(p.provider), excluded.get(p.provider, "")) for p in rows]
    return read


def _one(name: str) -> Callable[[Connection], DatasetTotals | None]:
    def read(connection: Connection) -> DatasetTotals | None:
        found = totals.datasets(connection, [name])
        spending.add(connection, found)
        return found[0] if found else None
    return read


def excerpt(packed: bytes) -> str:
    """The last thing said in a prompt, cut short."""
    messages = blob.unpack_json(packed)["messages"]
    content = messages[-1].get("content") if messages else ""
    text = content if isinstance(content, str) else " ".join(str(part.get("text", "")) for part in content or ())
    return text if len(text) <= EXCERPT else text[:EXCERPT] + "…"


class Dataset(Page):
    page = "datasets"

    async def get(self, name: str) -> None:
        d = await self.look.ask("dataset", name, verb=_one(name))
        if isinstance(d, Problem):
            self.show("dataset.html", problem=d, d=None, called=name)
            return
        if d is None:
            raise HTTPError(404, "There is no such dataset.")
        span = self.get_argument("span", "all")
        if span not in SPANS:
            raise HTTPError(400, f"The span is one of {', '.join(SPANS)}.")
        asked = await self.together(
            series=self.look.ask("series", d.id, span, verb=lambda c: board.series(c, d.id, SPANS[span])),
            lanes=self.look.ask("lanes", d.id, verb=lambda c: board.lanes(c, [name])),
            plan=self.look.ask("plan", d.id, verb=lambda c: board.plan(c, d.id)),
            lengths=self.look.ask("lengths", d.id, verb=lambda c: board.lengths(c, d.id)),
            causes=self.look.ask("causes", d.id, verb=lambda c: board_failures.causes(c, d.id, EXAMPLES)),
            served=self.look.ask("served", d.id, verb=_served(name, d.id, d.excluded)),
            requeues=self.look.ask("requeues", name, verb=lambda c: board_requeues.latest(c, name, 4)),
            limits=self.limits())
        texts = await self._texts(asked["causes"])
        limits, plan = asked.pop("limits"), asked["plan"]
        if not isinstance(limits, Problem) and not isinstance(plan, Problem):
            limits = {account: known for account, known in limits.items() if account in plan.accounts}
        self.show("dataset.html", problem=None, d=d, called=name, span_name=span, spans=list(SPANS), limits=limits, texts=texts,
                  **asked, **_DRAWN)

    async def _texts(self, causes: list[Cause] | Problem) -> dict[int, str]:
        if not self.show_text or isinstance(causes, Problem):
            return {}
        ids = [e.id for cause in causes for e in cause.examples]
        packed = await self.look.ask("texts", *ids, verb=lambda c: board_failures.prompts(c, ids))
        return {} if isinstance(packed, Problem) else {i: excerpt(p) for i, p in packed.items()}


_DRAWN: dict[str, Any] = {
    **overview.DRAWN, "tokens_chart": tokens_chart, "money_chart": money_chart, "rate_chart": rate_chart,
    "lengths_chart": lengths_chart, "waste": tables.waste}
