"""The page of all datasets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from models.states import Grade
from models.store import board, totals
from models.store.board import LaneCounts, Purse
from models.store.totals import DatasetTotals
from ops import tables
from ops.board import charts
from ops.board.charts import Part
from ops.board.handlers import Page
from ops.board.look import Problem

GRADES = [grade.label for grade in sorted(Grade, reverse=True)]
TONES = {"running": "run", "open": "run", "finished": "good", "at budget": "good", "at money": "warn"}


def tone(d: DatasetTotals) -> str:
    return TONES.get(tables.state_of(d), "warn")


def tokens_bar(d: DatasetTotals) -> str:
    """Useful, stored but not useful, reserved, against the budget; without one, against all that is billed."""
    whole = d.token_budget or max(1, d.billed_tokens)
    held = max(0, d.reserved_tokens + d.margin_tokens)
    said = f"{tables.count(d.stored_tokens)} stored" + (f" of {tables.count(d.token_budget)}" if d.token_budget else "")
    useless = d.stored_tokens - d.useful_tokens
    return charts.bar([
        Part("useful", d.useful_tokens / whole, f"{tables.count(d.useful_tokens)} useful"),
        Part("stored", useless / whole, f"{tables.count(useless)} stored, not useful"),
        Part("held", held / whole, f"{tables.count(held)} reserved"),
    ], f"{d.name}: {said}, {tables.count(held)} reserved")


def money_bar(spent: float, held: float, budget: float | None, name: str) -> str:
    if not budget:
        return ""
    return charts.bar([Part("spent", spent / budget, f"{tables.dollars(spent)} spent"),
                       Part("held", held / budget, f"{tables.dollars(held)} reserved")],
                      f"{name}: {tables.dollars(spent)} of {tables.dollars(budget)} spent, {tables.dollars(held)} reserved")


def grades_bar(d: DatasetTotals) -> str:
    whole = sum(d.grades.values())
    if not whole:
        return ""
    parts = [Part(f"grade-{g}", d.grades[g] / whole, f"{d.grades[g]:,} {g}") for g in GRADES if d.grades.get(g)]
    return charts.bar(parts, ", ".join(part.title for part in parts))


def best_grade(d: DatasetTotals) -> str:
    """The most frequent grade with its share."""
    if not d.grades:
        return ""
    name = max(d.grades, key=lambda g: d.grades[g])
    return f"{100 * d.grades[name] / sum(d.grades.values()):.0f}% {name}"


def eta(d: DatasetTotals) -> tuple[str, str]:
    """The guess, and its range."""
    if d.eta_s is None:
        return "", ""
    return tables.duration(d.eta_s), tables.span(d.eta_range_s)


@dataclass(frozen=True, slots=True)
class Row:
    d: DatasetTotals
    lanes: list[LaneCounts]
    spark: str


@dataclass(frozen=True, slots=True)
class Sums:
    """Of all datasets together."""

    open: int
    datasets: int
    stored: int
    budget: int
    useful: int
    spent_usd: float
    money_usd: float | None
    running: int
    failed: int
    tokens_per_s: float
    eta_s: float | None
    eta_range_s: tuple[float, float] | None

    @property
    def usd_per_million(self) -> float | None:
        return self.spent_usd * 1e6 / self.useful if self.useful and self.spent_usd else None


def summed(found: Sequence[DatasetTotals], purses: Sequence[Purse] = ()) -> Sums:
    """The slowest open dataset says when all are done. Dealt-out money is counted by its purse."""
    shared = {name for purse in purses for name in purse.datasets}
    budgets = [d.money_budget_usd for d in found if d.name not in shared]
    money = sum(p.usd for p in purses) + sum(b or 0 for b in budgets) if found and all(budgets) else None
    last = max((d for d in found if d.eta_s), key=lambda d: d.eta_s or 0, default=None)
    return Sums(
        sum(d.state == "open" and not d.finished for d in found), len(found), sum(d.stored_tokens for d in found),
        sum(d.token_budget or 0 for d in found) if all(d.token_budget for d in found) else 0, sum(d.useful_tokens for d in found),
        sum(d.spent_usd for d in found), money, sum(d.running for d in found), sum(d.failed for d in found),
        sum(d.pace for d in found if not d.settled), last.eta_s if last else None, last.eta_range_s if last else None)


def _read(connection: Connection) -> tuple[list[DatasetTotals], dict[int, list[LaneCounts]], list[Purse]]:
    return totals.datasets(connection), board.lanes(connection), board.purses(connection)


class Datasets(Page):
    page = "datasets"

    async def get(self) -> None:
        asked = await self.together(read=self.look.ask("datasets", verb=_read), sparks=self.look.ask("sparks", verb=board.sparks),
                                    fleet=self.look.ask("workers", verb=totals.workers), limits=self.limits())
        read = asked["read"]
        found, lanes, purses = ([], {}, []) if isinstance(read, Problem) else read
        sparks = {} if isinstance(asked["sparks"], Problem) else asked["sparks"]
        rows = [Row(d, lanes.get(d.id, []), charts.spark(sparks.get(d.id, []), f"{d.name}: tokens a second, last 30 minutes"))
                for d in found]
        self.show("datasets.html", problem=read if isinstance(read, Problem) else None, rows=rows, sums=summed(found, purses),
                  purses=purses, fleet=asked["fleet"], limits=asked["limits"], **DRAWN)


DRAWN: dict[str, Any] = {"tokens_bar": tokens_bar, "money_bar": money_bar, "grades_bar": grades_bar, "best_grade": best_grade,
                          "tone": tone, "eta": eta, "span": tables.span, "GRADES": GRADES}
