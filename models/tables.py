"""The tables. `docs/data-model.md` explains them; `store` holds every verb that writes them.

Money is in nano-dollars (1e-9 $) so that the smallest call is a whole number. Times come from the database clock.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, LargeBinary, SmallInteger, Text, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, TIMESTAMP
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base

Time = TIMESTAMP(timezone=True)
NOW = text("clock_timestamp()")
ZERO = text("0")


class Dataset(Base):
    """A named set of prompts with its settings, budgets and running sums.

    reserved_*: the sum over open attempts. margin_*: what the forecast expects beyond that (0 in strict mode).
    short_expected, long_expected: tokens a new claim of that lane reserves; *_expected_nusd the same in money.
    """

    __tablename__ = "dataset"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    state: Mapped[int] = mapped_column(SmallInteger, server_default=ZERO)
    closed_reason: Mapped[str | None] = mapped_column(Text)
    closed_at: Mapped[datetime | None] = mapped_column(Time)
    created_at: Mapped[datetime] = mapped_column(Time, server_default=NOW)
    settings: Mapped[dict[str, Any]] = mapped_column(JSONB)       # {"plan": DatasetPlan, "accounts": {name: Account}}
    fingerprint: Mapped[str] = mapped_column(Text)
    token_budget: Mapped[int | None] = mapped_column(BigInteger)
    money_budget_nusd: Mapped[int | None] = mapped_column(BigInteger)
    strict: Mapped[bool] = mapped_column(server_default=text("true"))
    short_max_tokens: Mapped[int] = mapped_column(Integer)
    long_max_tokens: Mapped[int] = mapped_column(Integer)
    short_expected: Mapped[int] = mapped_column(Integer)
    long_expected: Mapped[int] = mapped_column(Integer)
    nusd_per_token: Mapped[int] = mapped_column(BigInteger, server_default=ZERO)
    stored_tokens: Mapped[int] = mapped_column(BigInteger, server_default=ZERO)
    useful_tokens: Mapped[int] = mapped_column(BigInteger, server_default=ZERO)
    billed_tokens: Mapped[int] = mapped_column(BigInteger, server_default=ZERO)
    reserved_tokens: Mapped[int] = mapped_column(BigInteger, server_default=ZERO)
    margin_tokens: Mapped[int] = mapped_column(BigInteger, server_default=ZERO)
    spent_nusd: Mapped[int] = mapped_column(BigInteger, server_default=ZERO)
    reserved_nusd: Mapped[int] = mapped_column(BigInteger, server_default=ZERO)
    margin_nusd: Mapped[int] = mapped_column(BigInteger, server_default=ZERO)
    samples: Mapped[int] = mapped_column(Integer, server_default=ZERO)
    running: Mapped[int] = mapped_column(Integer, server_default=ZERO)
    done: Mapped[int] = mapped_column(Integer, server_default=ZERO)
    failed: Mapped[int] = mapped_column(Integer, server_default=ZERO)
    forecast_at: Mapped[datetime | None] = mapped_column(Time)

    __table_args__ = (
        Index("dataset_name_key", text("lower(name)"), unique=True),
        # One hot row: room for HOT updates, and early vacuum, keep it short.
        {"postgresql_with": {"fillfactor": "20", "autovacuum_vacuum_scale_factor": "0",
                             "autovacuum_vacuum_threshold": "200"}},
    )


class Sample(Base):
    """One prompt that wants one answer."""

    __tablename__ = "sample"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    dataset_id: Mapped[int] = mapped_column(ForeignKey("dataset.id"))
    key: Mapped[str] = mapped_column(Text)
    primary_id: Mapped[str] = mapped_column(Text)                 # the conversation; = key for single turns
    turn: Mapped[int] = mapped_column(SmallInteger, server_default=ZERO)
    lane: Mapped[int] = mapped_column(SmallInteger, server_default=ZERO)
    state: Mapped[int] = mapped_column(SmallInteger, server_default=ZERO)
    fence: Mapped[int] = mapped_column(Integer, server_default=ZERO)
    burnt: Mapped[int] = mapped_column(SmallInteger, server_default=ZERO)          # attempts used up
    possibly_paid: Mapped[int] = mapped_column(SmallInteger, server_default=ZERO)
    crashes: Mapped[int] = mapped_column(SmallInteger, server_default=ZERO)        # workers that died with it
    max_tokens: Mapped[int | None] = mapped_column(Integer)       # overrides the lane's
    ignore: Mapped[list[str] | None] = mapped_column(ARRAY(Text))  # providers to leave out next time
    worker_id: Mapped[int | None] = mapped_column(Integer)
    not_before: Mapped[datetime | None] = mapped_column(Time)
    hinted_at: Mapped[datetime | None] = mapped_column(Time)
    reason: Mapped[str | None] = mapped_column(Text)              # of the last retry, or of the failure
    changed_at: Mapped[datetime] = mapped_column(Time, server_default=NOW)
    prompt: Mapped[bytes] = mapped_column(LargeBinary)            # blob.pack_json of the prompt document

    __table_args__ = (
        UniqueConstraint("dataset_id", "key"),
        Index("sample_due", "dataset_id", "lane", text("hinted_at nulls first"), "id", postgresql_where=text("state = 0")),
        Index("sample_running", "worker_id", postgresql_where=text("state = 1")),
        Index("sample_failed", "dataset_id", "id", postgresql_where=text("state = 3")),
        {"postgresql_with": {"fillfactor": "85"}},
    )


class Attempt(Base):
    """One call to a provider: written before the call, closed after it with what it cost."""

    __tablename__ = "attempt"

    sample_id: Mapped[int] = mapped_column(ForeignKey("sample.id"), primary_key=True)
    fence: Mapped[int] = mapped_column(Integer, primary_key=True)
    dataset_id: Mapped[int] = mapped_column(Integer)
    worker_id: Mapped[int] = mapped_column(Integer)
    lane: Mapped[int] = mapped_column(SmallInteger)
    account: Mapped[str | None] = mapped_column(Text)
    reserved_tokens: Mapped[int] = mapped_column(Integer)
    reserved_nusd: Mapped[int] = mapped_column(BigInteger)
    started_at: Mapped[datetime] = mapped_column(Time, server_default=NOW)
    ended_at: Mapped[datetime | None] = mapped_column(Time)
    action: Mapped[str | None] = mapped_column(Text)              # done retry snooze promote drop release rescue
    code: Mapped[str | None] = mapped_column(Text)
    basis: Mapped[str | None] = mapped_column(Text)               # usage | estimate | none
    provider: Mapped[str | None] = mapped_column(Text)
    quantization: Mapped[str | None] = mapped_column(Text)
    model: Mapped[str | None] = mapped_column(Text)
    generation_id: Mapped[str | None] = mapped_column(Text)
    status: Mapped[int | None] = mapped_column(SmallInteger)
    prompt_tokens: Mapped[int | None] = mapped_column(Integer)
    completion_tokens: Mapped[int | None] = mapped_column(Integer)
    cost_nusd: Mapped[int | None] = mapped_column(BigInteger)
    latency_ms: Mapped[int | None] = mapped_column(Integer)
    bill_at: Mapped[datetime | None] = mapped_column(Time)        # when its bill is asked for next; null: never

    __table_args__ = (
        Index("attempt_bill", "bill_at", postgresql_where=text("bill_at is not null")),
        Index("attempt_open", "dataset_id", postgresql_where=text("ended_at is null")),
        Index("attempt_ended", "dataset_id", "ended_at"),
        {"postgresql_with": {"fillfactor": "85"}},
    )


class Completion(Base):
    """The accepted answer of a sample. ids columns: blob.pack_ids; raw, answer: blobs of the reply and what was read of it."""

    __tablename__ = "completion"

    sample_id: Mapped[int] = mapped_column(ForeignKey("sample.id"), primary_key=True)
    fence: Mapped[int] = mapped_column(Integer)
    dataset_id: Mapped[int] = mapped_column(Integer)
    grade: Mapped[int] = mapped_column(SmallInteger)
    candidates: Mapped[int] = mapped_column(SmallInteger, server_default=text("1"))
    rule: Mapped[str] = mapped_column(Text, server_default=text("''"))
    reason: Mapped[str] = mapped_column(Text, server_default=text("''"))
    delta: Mapped[int | None] = mapped_column(Integer)
    prompt_delta: Mapped[int | None] = mapped_column(Integer)
    version: Mapped[str] = mapped_column(Text)
    trainable: Mapped[bool]
    truncated: Mapped[bool]
    finish_reason: Mapped[str] = mapped_column(Text)
    flags: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'"))
    provider: Mapped[str] = mapped_column(Text, server_default=text("''"))
    quantization: Mapped[str] = mapped_column(Text, server_default=text("''"))
    model: Mapped[str] = mapped_column(Text)
    account: Mapped[str] = mapped_column(Text)
    fingerprint: Mapped[str] = mapped_column(Text)
    sampling: Mapped[dict[str, Any]] = mapped_column(JSONB)
    billed_prompt_tokens: Mapped[int | None] = mapped_column(Integer)
    billed_tokens: Mapped[int | None] = mapped_column(Integer)    # completion tokens as billed
    cost_nusd: Mapped[int] = mapped_column(BigInteger)
    n_prompt: Mapped[int] = mapped_column(Integer)
    n_tokens: Mapped[int] = mapped_column(Integer)                # completion tokens stored
    spans: Mapped[list[Any]] = mapped_column(JSONB)               # [[kind, start, end], ...]
    prompt_ids: Mapped[bytes] = mapped_column(LargeBinary)
    ids: Mapped[bytes] = mapped_column(LargeBinary)
    raw: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[datetime] = mapped_column(Time, server_default=NOW)

    __table_args__ = (Index("completion_dataset", "dataset_id", "sample_id", postgresql_include=["grade"]),)


class Partial(Base):
    """A promoted sample's truncated answer: kept, not counted, and continued from where the engine takes ids."""

    __tablename__ = "partial"

    sample_id: Mapped[int] = mapped_column(ForeignKey("sample.id"), primary_key=True)
    fence: Mapped[int] = mapped_column(Integer)
    n_tokens: Mapped[int] = mapped_column(Integer)
    exact: Mapped[bool]                                           # ids from an engine: generation may continue from them
    ids: Mapped[bytes] = mapped_column(LargeBinary)
    raw: Mapped[bytes] = mapped_column(LargeBinary)


class Worker(Base):
    """One worker process. Its heartbeat is on the database clock."""

    __tablename__ = "worker"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    host: Mapped[str] = mapped_column(Text)
    pid: Mapped[int] = mapped_column(Integer)
    lane: Mapped[int] = mapped_column(SmallInteger)
    concurrency: Mapped[int] = mapped_column(Integer)
    started_at: Mapped[datetime] = mapped_column(Time, server_default=NOW)
    heartbeat_at: Mapped[datetime] = mapped_column(Time, server_default=NOW)
    stopped_at: Mapped[datetime | None] = mapped_column(Time)
    died_at: Mapped[datetime | None] = mapped_column(Time)
    in_flight: Mapped[int] = mapped_column(Integer, server_default=ZERO)
    facts: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'"))   # loop lag, token wait, spool

    __table_args__ = (Index("worker_alive", "id", postgresql_where=text("stopped_at is null and died_at is null")),)


class Calibration(Base):
    """A provider's counting convention, learned; the newest version of a key counts."""

    __tablename__ = "calibration"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    profile: Mapped[str] = mapped_column(Text)
    model: Mapped[str] = mapped_column(Text)
    provider: Mapped[str] = mapped_column(Text)
    finish_reason: Mapped[str] = mapped_column(Text)
    rows: Mapped[int] = mapped_column(Integer)
    convention: Mapped[dict[str, Any]] = mapped_column(JSONB)
    created_at: Mapped[datetime] = mapped_column(Time, server_default=NOW)

    __table_args__ = (Index("calibration_key", "profile", "model", "provider", "finish_reason", "id"),)


class Requeue(Base):
    """Who asked for samples again, when and which: undoable while not yet claimed."""

    __tablename__ = "requeue"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    at: Mapped[datetime] = mapped_column(Time, server_default=NOW)
    who: Mapped[str] = mapped_column(Text)
    what: Mapped[dict[str, Any]] = mapped_column(JSONB)
    before: Mapped[list[Any]] = mapped_column(JSONB)              # [[sample_id, state, lane, max_tokens, reason], ...]
    undone_at: Mapped[datetime | None] = mapped_column(Time)


class Shelved(Base):
    """The answer of a done sample that was asked for again: what a requeue gives back when it is taken back."""

    __tablename__ = "shelved"

    requeue_id: Mapped[int] = mapped_column(ForeignKey("requeue.id"), primary_key=True)
    sample_id: Mapped[int] = mapped_column(ForeignKey("sample.id"), primary_key=True)
    answer: Mapped[dict[str, Any]] = mapped_column(JSONB)         # the row of `completion`
