"""The words of a verdict: what is done with a sample after one exchange, who waits, what was paid."""

from collections.abc import Container
from dataclasses import dataclass
from enum import StrEnum

from models.answer import Answer


class Action(StrEnum):
    """The closed set. A pause or a closed dataset is a Snooze with a wider scope."""

    DONE = "done"          # store the completion (flags say whether it is trainable)
    RETRY = "retry"        # again after wait_s; an attempt is burnt
    SNOOZE = "snooze"      # again after wait_s; no attempt is burnt
    PROMOTE = "promote"    # keep the truncated answer, run once on the long lane
    DROP = "drop"          # failed, with `code` as the reason


class Scope(StrEnum):
    """Who waits, or is stopped."""

    REQUEST = "request"
    PROVIDER = "provider"
    ACCOUNT = "account"    # the corpus calls it key or fleet
    DATASET = "dataset"


@dataclass(frozen=True, slots=True)
class Billed:
    """basis: usage (as reported) | estimate (possibly or surely paid, not reported) | none.

    cost_usd is the reply's own `usage.cost`; cost_known is false where something was or may have been paid and no
    believable cost was named, so that the ledger has to price the tokens itself.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    basis: str = "none"
    cost_known: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    action: Action
    code: str                          # a label such as rate_limited; [a-z0-9_]+
    scope: Scope = Scope.REQUEST
    wait_s: tuple[float, float] = (0.0, 0.0)   # a range; the caller draws from it with full jitter
    burns: bool = False                # an attempt is used up
    possibly_paid: bool = False        # counts against the bound of possibly-paid attempts
    halts: bool = False                # with scope ACCOUNT: pause and probe; with DATASET: close with `code`
    ignore_provider: str = ""          # leave this provider out next time
    billed: Billed = Billed()
    answer: Answer | None = None
    truncated: bool = False
    trainable: bool = False
    flags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class History:
    """What the sample has behind it, this attempt not counted.

    snoozed: waits in a row that burnt nothing; they lengthen the next one. expected_tokens: what a lost answer is
    booked as (default: the whole of max_tokens). seen: generation ids of other samples' answers.
    """

    burnt: int = 0
    possibly_paid: int = 0
    max_burnt: int = 4
    max_possibly_paid: int = 2
    lane: str = "short"
    may_promote: bool = True
    snoozed: int = 0
    expected_tokens: int | None = None
    seen: Container[str] = ()
