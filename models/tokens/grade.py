"""How far the ids of one answer can be believed.

    engine      the engine's own ids, whose count, text and end agree with the reply
    logprobs    the true bytes of every token, which make up the text
    verified    exactly one candidate has the count that was billed, under a settled convention
    ambiguous   several have, or what matches rests on a guess that `rule` names
    drift       the nearest is off by at most max(2, 0.05%), or its count cannot be judged yet
    rejected    none of these; `reason` says why
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from models.answer import Answer
from models.blob import Ids
from models.names import unpaired
from models.states import Grade
from models.tokens.calibrate import Convention
from models.tokens.evidence import Evidence, by_bytes, disagreement
from models.tokens.parts import CUT, Parts, edges_of, part
from models.tokens.rebuild import Candidate, Rebuilder
from models.tokens.row import Row

FINISHED = frozenset({"stop", "length", "tool_calls"})
MOST = 256      # candidates looked at; an answer with more open questions is not verified anyway


def bound(billed: int) -> int:
    """How many tokens a drifting row may be off."""
    return max(2, int(0.0005 * billed))


def grade(
    rebuilder: Rebuilder, answer: Answer, prompt_ids: Ids, convention: Convention | None, truncated: bool, version: str
) -> Row:
    """One answer's row. Pure: the same arguments give the same row, in any process."""
    evidence = Evidence(rebuilder, answer, truncated, rebuilder.inside(prompt_ids))
    billed = answer.usage.prompt_tokens
    row = Row(prompt_ids, np.empty(0, np.int32), (), Grade.REJECTED, version=version,
              prompt_delta=None if billed is None else billed - len(prompt_ids))
    if answer.completion_ids is not None:
        return _by_engine(evidence, answer.completion_ids, row)
    listed = by_bytes(evidence, answer.token_bytes) if answer.token_bytes else None
    if listed is not None and not refusal(answer):
        return _row(row, listed, evidence.spans(listed), Grade.LOGPROBS, delta=_delta(answer, len(listed)))
    return _by_text(rebuilder, answer, convention, truncated, row)


def refusal(answer: Answer) -> str:
    """Why no ids can be given at all, "" when they can."""
    if answer.finish_reason not in FINISHED:
        return f"finish reason {answer.finish_reason or 'missing'}"
    if answer.usage.completion_tokens is None:
        return "no usage"
    if answer.reasoning_form == "hidden" or (answer.reasoning is None and (answer.usage.reasoning_tokens or 0) > 2
                                             and answer.reasoning_form == "none" and "</think>" not in answer.content):
        return "reasoning is hidden"
    return ""


def _row(row: Row, ids: Sequence[int] | Ids, spans: tuple, grade: Grade, **rest: object) -> Row:  # type: ignore[type-arg]
    return replace(row, completion_ids=np.asarray(ids, np.int32), spans=spans, grade=grade, **rest)  # type: ignore[arg-type]


def _delta(answer: Answer, count: int) -> int | None:
    billed = answer.usage.completion_tokens
    return None if billed is None else billed - count


def _by_engine(evidence: Evidence, ids: Ids, row: Row) -> Row:
    """Ids of an engine are never replaced: where a check fails, the row says so."""
    delta = _delta(evidence.answer, len(ids))
    hard, soft = disagreement(evidence, ids.tolist())
    if hard:
        verdict, reason = Grade.REJECTED, hard
    elif delta is None:
        verdict, reason = Grade.REJECTED, "no usage"
    elif delta:
        verdict = Grade.DRIFT if abs(delta) <= bound(len(ids)) else Grade.REJECTED
        reason = f"the engine gave {len(ids)} ids and billed {delta + len(ids)}"
    else:
        verdict, reason = (Grade.DRIFT, soft) if soft else (Grade.ENGINE, "")
    spans = evidence.spans(ids.tolist())
    return _row(row, ids, spans, verdict, delta=delta, reason=reason)


def _by_text(rebuilder: Rebuilder, answer: Answer, convention: Convention | None, truncated: bool, row: Row) -> Row:
    parts = part(answer, rebuilder.profile, rebuilder.vocabulary, truncated)
    inside = rebuilder.inside(row.prompt_ids)
    found = listing(rebuilder, parts, inside, truncated, convention, row.prompt_ids)
    first = found[0]
    reason = refusal(answer) or _damage(answer, parts) or _unspelled(rebuilder, first, parts)
    billed = answer.usage.completion_tokens
    if reason or billed is None:
        return _row(row, first.ids, first.spans, Grade.REJECTED, reason=reason)
    if convention is None or not _known(convention, first.shape):
        return _near(row, first, billed - len(first.ids), billed, "not calibrated", slack=4)
    matching = [c for c in found if len(c.ids) == billed - convention.offset(c.shape).delta and _known(convention, c.shape)]
    if parts.trimmed or not matching:
        nearest = min(found, key=lambda c: abs(billed - convention.offset(c.shape).delta - len(c.ids)))
        delta = billed - convention.offset(nearest.shape).delta - len(nearest.ids)
        if parts.trimmed:
            slack = len(rebuilder.vocabulary.spell(parts.trimmed)) + 2
            return _near(row, nearest, delta, billed, "cut inside a character", slack)
        if any("spelled out" in c.rule for c in found):
            why = "marker text that the count does not resolve"
            return _row(row, nearest.ids, nearest.spans, Grade.REJECTED, reason=why, delta=delta)
        return _near(row, nearest, delta, billed, "the count differs")
    best = min(matching, key=lambda c: not c.sure)
    believed = len(matching) == 1 and best.sure and convention.offset(best.shape).settled
    verdict, rule = (Grade.VERIFIED, best.rule) if believed else (Grade.AMBIGUOUS, best.rule or "as sent")
    return _row(row, best.ids, best.spans, verdict, candidates=len(matching), rule=rule, delta=0)


def _known(convention: Convention, shape: str) -> bool:
    offset = convention.offset(shape)
    return offset.settled or offset.basis == "assumed"


def _near(row: Row, best: Candidate, delta: int, billed: int, reason: str, slack: int = 0) -> Row:
    near = abs(delta) <= bound(billed) + slack
    return _row(row, best.ids, best.spans, Grade.DRIFT if near else Grade.REJECTED, delta=delta, rule=best.rule,
                reason=reason if near else f"{reason}: off by {delta:+d}")


def _damage(answer: Answer, parts: Parts) -> str:
    """Text from which the sampled bytes cannot be known."""
    texts = [parts.thought or "", parts.content, *(c.arguments for c in parts.calls)]
    if any(CUT in text for text in texts):
        return "a replacement character stands in the text"
    if any(map(unpaired, texts)):
        return "a lone surrogate stands in the text"
    return ""


def _unspelled(rebuilder: Rebuilder, first: Candidate, parts: Parts) -> str:
    if rebuilder.vocabulary.complete:
        return ""
    told = rebuilder.vocabulary.decode(first.ids.tolist())
    lost = not all(text.encode("utf-8", "replace") in told for text in ((parts.thought or "").strip(), parts.content.strip()))
    return "the vocabulary cannot spell the text" if lost else ""


def listing(
    rebuilder: Rebuilder, parts: Parts, inside: bool, truncated: bool, convention: Convention | None, prompt_ids: Ids
) -> list[Candidate]:
    """Candidates with different ids, likeliest first."""
    names = edges_of(parts, truncated, inside)
    edges = {name: convention.edge(name) for name in names} if convention else {}
    prior = int(np.count_nonzero(prompt_ids == rebuilder.call_begin)) if parts.calls else 0
    found: dict[bytes, Candidate] = {}
    for n, candidate in enumerate(rebuilder.candidates(parts, inside, truncated, edges, prior)):
        found.setdefault(candidate.ids.tobytes(), candidate)
        if n + 1 >= MOST:
            break
    return list(found.values())
