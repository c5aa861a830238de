"""Asking again for failed or truncated samples: the cost bound first, a record of who and what, and a way back."""

import getpass
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from sqlalchemy import Connection, Engine

from models.base import transaction
from models.errors import SettingsError
from models.states import DatasetState, Grade, Lane
from models.store import board, datasets, samples
from models.store.samples import Selection


@dataclass(frozen=True, slots=True)
class Wish:
    """Which samples, and how they are to run now. Empty or None: any, or as before."""

    dataset: str
    causes: tuple[str, ...] = ()
    from_lane: str | None = None
    provider: str | None = None
    truncated: bool = False
    grades: tuple[str, ...] = ()
    older_than_s: float | None = None
    lane: str | None = None
    max_tokens: int | None = None
    without: tuple[str, ...] = ()       # providers to leave out from now on


@dataclass(frozen=True, slots=True)
class Bound:
    """How many, why they had ended, and the most that one answer to each can cost.

    By the price of the dearest provider so far, else by the plan's; max_usd is None for an engine that has answered nothing.
    """

    count: int
    causes: Mapping[str, int] = field(default_factory=dict)
    max_tokens: int = 0
    max_usd: float | None = None
    record: int | None = None


def requeue(engine: Engine, wish: Wish, *, dry_run: bool = False, who: str | None = None, at_most: int | None = None) -> Bound:
    """SettingsError for what does not exist, for a closed dataset (with the reason), and for more samples than `at_most`."""
    with transaction(engine) as connection:
        dataset = _dataset(connection, wish.dataset)
        if dataset.state is DatasetState.CLOSED and not dry_run:
            raise SettingsError(cause=f"dataset {wish.dataset!r} is closed ({dataset.closed_reason}); "
                                      f"open it first: draftmill open {wish.dataset}")
        rows = samples.select(connection, _selection(dataset.id, wish))
        if at_most is not None and len(rows) > at_most:
            raise SettingsError(cause=f"{len(rows):,} samples are meant now, more than the {at_most:,} shown; look again")
        lane = _lane(wish.lane)
        most = sum(wish.max_tokens or r.max_tokens
                   or dataset.plan.lane(Lane(r.lane if lane is None else lane).label).max_tokens for r in rows)
        price = _price(connection, dataset)
        causes = Counter(r.reason or "truncated" for r in rows)
        record = None
        if rows and not dry_run:
            _, record = samples.requeue(connection, rows, lane=lane, max_tokens=wish.max_tokens, who=who or getpass.getuser(),
                                        what={k: v for k, v in asdict(wish).items() if v}, without=wish.without)
        return Bound(len(rows), dict(causes), most, None if price is None else most * price, record)


def _price(connection: Connection, dataset: datasets.Dataset) -> float | None:
    """Dollars per completion token at most."""
    known = board.dearest(connection, dataset.id)
    hosted = any(account.kind == "openrouter" for account in dataset.accounts.values())
    return known if known is not None else dataset.plan.usd_per_million_tokens / 1e6 if hosted else None


def undo(engine: Engine, record: int) -> int:
    """Take a requeue back as far as no worker has claimed its samples; how many."""
    with transaction(engine) as connection:
        return samples.undo(connection, record)


def _dataset(connection: Connection, name: str) -> datasets.Dataset:
    for dataset in datasets.every(connection):
        if dataset.name == name:
            return dataset
    raise SettingsError(cause=f"there is no dataset {name!r}")


def _selection(dataset_id: int, wish: Wish) -> Selection:
    try:
        grades = tuple(int(Grade.of(g)) for g in wish.grades) or None
    except KeyError as error:
        raise SettingsError(cause=f"there is no grade {error}") from None
    return Selection(dataset_id, wish.causes or None, _lane(wish.from_lane), wish.provider, wish.truncated, grades,
                     wish.older_than_s)


def _lane(label: str | None) -> Lane | None:
    if label not in (None, "short", "long"):
        raise SettingsError(cause=f"there is no lane {label!r}; it is short or long")
    return Lane.of(label) if label else None
