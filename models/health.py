"""Whether one provider of a dataset drifts from its others. Pure.

Compared is each one with all others together, so that what is wrong with the prompts or the model excludes nobody. A share
counts as worse when it is so by a margin that matters and by more than chance gives in a thousand datasets.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LEAST = 30           # calls or rows, of it and of the others, before anything is said
DEVIATIONS = 4.0


@dataclass(frozen=True, slots=True)
class Health:
    """One provider's newest calls. Calls that were refused for a limit are not among them.

    ok: calls that gave a row. rows: those stored; of them mismatched: counts or ids that contradict the bill; cut: ended
    at a limit. refused: answers that are refusals or were filtered. off_plan: rows of a model, host or precision not asked for.
    """

    provider: str
    calls: int
    ok: int
    rows: int
    mismatched: int
    cut: int
    refused: int
    off_plan: int = 0


@dataclass(frozen=True, slots=True)
class Sign:
    name: str
    bad: Callable[[Health], int]
    of: Callable[[Health], int]
    margin: float


SIGNS = (
    Sign("calls that fail", lambda h: h.calls - h.ok, lambda h: h.calls, 0.25),
    Sign("counts that do not match", lambda h: h.mismatched, lambda h: h.rows, 0.10),
    Sign("answers off the plan", lambda h: h.off_plan, lambda h: h.rows, 0.10),
    Sign("answers that are cut", lambda h: h.cut, lambda h: h.rows, 0.20),
    Sign("answers that are refusals", lambda h: h.refused, lambda h: h.calls, 0.15),
)


def drifted(known: Sequence[Health]) -> dict[str, str]:
    """provider -> reason, of those to leave out. The one with the most good answers always stays."""
    best = max(known, key=lambda h: h.ok - h.mismatched - h.cut - h.refused - h.off_plan, default=None)
    found = {}
    for health in known:
        others = [h for h in known if h is not health]
        reasons = [reason for sign in SIGNS if (reason := _worse(sign, health, others))]
        if reasons and health is not best:
            found[health.provider] = reasons[0]
    return found


def _worse(sign: Sign, one: Health, others: Sequence[Health]) -> str:
    bad, of = sign.bad(one), sign.of(one)
    others_bad, others_of = sum(map(sign.bad, others)), sum(map(sign.of, others))
    if min(of, others_of) < LEAST:
        return ""
    share, usual = bad / of, others_bad / others_of
    pooled = (bad + others_bad) / (of + others_of)
    deviation = math.sqrt(pooled * (1 - pooled) * (1 / of + 1 / others_of))
    if share - usual < sign.margin or share - usual < DEVIATIONS * deviation:
        return ""
    return f"{sign.name}: {share:.0%} against {usual:.0%} of the others"
