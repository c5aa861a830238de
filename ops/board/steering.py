"""The pages that change something: closing and opening a dataset, asking for samples again, taking that back."""

import logging
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Connection
from tornado.web import HTTPError, authenticated

from models.base import transaction
from models.errors import DraftmillError
from models.states import Closed, Grade
from models.store import board_failures, board_requeues, datasets, totals
from models.store.totals import DatasetTotals
from ops.board.handlers import Page
from ops.board.look import Problem
from producer.requeue import Bound, Wish, requeue, undo

log = logging.getLogger(__name__)


class Steering(Page):
    """What all that changes something has in common: after it, back to a page that shows what came of it."""

    def back(self, name: str, *args: Any, **query: Any) -> None:
        """Leave for the page of that name; what is None is left out of its address."""
        said = urlencode({k: v for k, v in query.items() if v is not None}, doseq=True)
        self.redirect(self.reverse_url(name, *args) + (f"?{said}" if said else ""))

    def refused(self, error: DraftmillError) -> None:
        self.set_status(409)
        self.show("problem.html", status=409, said=str(error))


class Steer(Steering):
    """POST do=close or do=open."""

    page = "datasets"

    @authenticated
    async def post(self, name: str) -> None:
        wanted, came_from = self.get_body_argument("do"), self.get_body_argument("from", "")
        if wanted not in ("close", "open"):
            raise HTTPError(400, "A dataset is closed or opened.")

        def steer() -> bool:
            with transaction(self.look.engine) as connection:
                known = {d.name: d.id for d in datasets.every(connection)}
                if name not in known:
                    raise HTTPError(404, "There is no such dataset.")
                return (datasets.close(connection, known[name], Closed.OPERATOR) if wanted == "close"
                        else datasets.open_again(connection, known[name]))

        try:
            changed = await self.look.act(steer)
        except DraftmillError as error:
            self.refused(error)
            return
        log.warning("%s: %s by %s%s", name, wanted, self.who(), "" if changed else ", and it was already")
        if came_from == "datasets":
            self.back("datasets")
        elif came_from == "requeue":
            self.back("requeue", dataset=name)
        else:
            self.back("dataset", name)


def _number(text: str, what: str, kind: type = int, least: float = 1) -> Any:
    if not text:
        return None
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not least <= value <= 1_000_000:
        raise HTTPError(400, f"{what} must be a number from {least:g} to 1,000,000.")
    return value


class Requeue(Steering):
    """GET shows how many and what it can cost; POST does it."""

    page = "requeue"

    def wish(self, dataset: str) -> Wish:
        def one(name: str) -> str:
            return str(self.get_argument(name, "", escape=False))

        def many(name: str) -> tuple[str, ...]:
            return tuple(v for v in self.get_arguments(name) if v)

        minutes = _number(one("older_min"), "The age in minutes", float, 0)
        return Wish(dataset, many("cause"), one("from_lane") or None, one("provider") or None, one("truncated") == "true",
                    many("grade"), None if minutes is None else minutes * 60, one("lane") or None,
                    _number(one("max_tokens"), "The maximum of tokens"), many("without"))

    async def get(self) -> None:
        read = await self.look.ask("choice", verb=totals.datasets)
        found: list[DatasetTotals] = [] if isinstance(read, Problem) else read
        if not found:
            self.show("requeue.html", problem=read if isinstance(read, Problem) else None, d=None, found=[])
            return
        name = self.get_argument("dataset", None) or max(found, key=lambda d: d.failed).name
        d = next((d for d in found if d.name == name), None)
        if d is None:
            raise HTTPError(404, "There is no such dataset.")
        wish = self.wish(d.name)
        done = wish.truncated or bool(wish.grades)
        asked = await self.together(
            bound=self.look.ask("bound", wish, verb=lambda _: requeue(self.look.engine, wish, dry_run=True)),
            facets=self.look.ask("facets", d.id, done, verb=lambda c: board_failures.facets(c, d.id, truncated=done)),
            requeues=self.look.ask("requeues", name, verb=lambda c: board_requeues.latest(c, name)),
            plan=self.look.ask("lanes of plan", d.id, verb=_lanes(d.name)))
        self.show("requeue.html", problem=None, d=d, found=found, wish=wish, done=done, fields=fields(wish),
                  record=self.get_argument("record", None), undone=self.get_argument("undone", None),
                  labels={str(int(g)): g.label for g in Grade}, **asked)

    @authenticated
    async def post(self) -> None:
        wish = self.wish(self.get_body_argument("dataset"))
        shown = _number(self.get_body_argument("shown"), "The number of samples")
        try:
            bound: Bound = await self.look.act(lambda: requeue(self.look.engine, wish, who=self.who(), at_most=shown))
        except DraftmillError as error:
            self.refused(error)
            return
        log.warning("%s: %d samples asked for again by %s", wish.dataset, bound.count, self.who())
        self.back("requeue", dataset=wish.dataset, record=bound.record)


class Undo(Steering):
    page = "requeue"

    @authenticated
    async def post(self, record: str) -> None:
        def back() -> tuple[int, str | None]:
            n = undo(self.look.engine, int(record))
            with transaction(self.look.engine) as connection:
                known = {r.id: r.what.get("dataset") for r in board_requeues.latest(connection, None, 1_000, 0)}
            return n, known.get(int(record))

        try:
            n, dataset = await self.look.act(back)
        except DraftmillError as error:
            self.refused(error)
            return
        log.warning("requeue %s: %d samples taken back by %s", record, n, self.who())
        self.back("requeue", dataset=dataset, undone=n)


def fields(wish: Wish) -> list[tuple[str, str]]:
    """The wish as fields of a form."""
    plain = asdict(replace(wish, older_than_s=None))
    names = {"causes": "cause", "grades": "grade", "older_than_s": "older_min"}
    found = [] if wish.older_than_s is None else [("older_min", f"{wish.older_than_s / 60:g}")]
    for key, value in plain.items():
        values = value if isinstance(value, tuple) else () if value in (None, False) else (value,)
        found += [(names.get(key, key), "true" if v is True else str(v)) for v in values]
    return found


def _lanes(name: str) -> Any:
    def read(connection: Connection) -> dict[str, int]:
        [plan] = [d.plan for d in datasets.every(connection) if d.name == name]
        return {lane: plan.lane(lane).max_tokens for lane in ("short", "long")}
    return read
