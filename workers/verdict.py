"""From one exchange to one verdict: pure, total, and the only place that knows what a reply means.

    refusals.py   a status or an error object       -> the table REFUSALS
    LOST          a fault of the transport          -> what may have been paid, and whose turn it is
    _spoilt       a body that is no answer
    _answered     an answer                         -> stored, promoted or dropped, with its flags

The words are in `ruling`, the evidence in `evidence`; docs/verdicts.md tells the same to people.
"""

from collections.abc import Iterator
from dataclasses import replace

from models.answer import Answer
from workers.evidence import Case
from workers.providers import soundness
from workers.providers.base import Ask, Exchange, Fault
from workers.refusals import OUTAGE_S, drop, halt, refused, retry, snooze
from workers.ruling import Action, Billed, History, Scope, Verdict

__all__ = ["Action", "Billed", "History", "Scope", "Verdict", "judge"]

# Why an answer is stored and not simply ok, the weightiest first; the first that applies names the verdict.
REASONS = (
    "wrong_model", "excluded_provider", "duplicate_generation_id", "degenerate_repetition", "provider_cap", "truncated",
    "reasoning_hidden", "reasoning_conflict", "tool_calls_unreadable", "ran_past_eot", "special_literal_in_text",
    "lossy_text", "tool_ids_rewritten", "no_answer", "suspect_truncated", "unknown_finish", "refusal",
    "prompt_tokens_mismatch", "token_count_mismatch", "tool_calls_rebuilt", "extra_choices", "usage_invalid", "usage_zero",
    "usage_missing", "usage_inconsistent")
HARMLESS = {"tool_calls_rebuilt", "extra_choices", "usage_invalid", "usage_zero", "usage_missing", "usage_inconsistent"}
# Doubts about the text alone do not matter where the engine gave the ids.
CURED_BY_IDS = {"ran_past_eot", "special_literal_in_text", "lossy_text", "tool_ids_rewritten", "tool_calls_unreadable",
                "no_answer", "reasoning_conflict"}
REWRITTEN = {"split_think", "stripped_eot", "joined_parts"}
UNSEEN = {"joined_parts"}          # says how a reply was read, nothing about the row
SCOPES = {"wrong_model": Scope.DATASET, "excluded_provider": Scope.PROVIDER, "prompt_tokens_mismatch": Scope.PROVIDER,
          "provider_cap": Scope.PROVIDER}
FRESH = History()
KNOWN_FINISH = {"stop", "tool_calls", "length"}
# Faults after which the answer may have been made and paid for: the code, and whether it counts as a possibly paid try.
LOST = {
    Fault.CLOSED: ("connect_failed", False), Fault.RESET: ("body_lost", True), Fault.CUT: ("body_lost", True),
    Fault.IDLE: ("timeout", True), Fault.DEADLINE: ("timeout", True), Fault.PROTOCOL: ("protocol_error", False),
    Fault.ENCODING: ("bad_encoding", True), Fault.TOO_LARGE: ("body_too_large", True)}


def judge(ask: Ask, exchange: Exchange, history: History = FRESH) -> Verdict:
    """What one exchange means. The same evidence always gives the same verdict, and none makes it raise.

    A refusal is judged by its status and body even if the body lost its end; a lost reply by its fault; the rest by
    what it says. Waits never exceed a day.
    """
    case = Case.of(ask, exchange, history)
    if case.status >= 300:
        verdict = refused(case)
    elif exchange.fault is not None and not case.complete:
        verdict = _lost(case, exchange.fault)
    elif exchange.status is None:
        verdict = _lost(case, Fault.PROTOCOL)
    elif case.problem.kind:
        verdict = _spoilt(case)
    else:
        verdict = _answered(case)
    return _bounded(verdict, history)


def _bounded(verdict: Verdict, history: History) -> Verdict:
    """The last attempt of a sample ends it, unless what failed was not the sample's: then that is halted instead."""
    spent = verdict.burns and history.burnt + 1 >= history.max_burnt
    paid = verdict.possibly_paid and history.possibly_paid + 1 >= history.max_possibly_paid
    if verdict.action is not Action.RETRY or not (spent or paid):
        return verdict
    if verdict.scope in (Scope.ACCOUNT, Scope.DATASET) or verdict.code == "connect_failed":
        scope = Scope.DATASET if verdict.scope is Scope.DATASET else Scope.ACCOUNT
        return replace(halt(verdict.code, scope), billed=verdict.billed)
    return replace(verdict, action=Action.DROP, wait_s=(0.0, 0.0), ignore_provider="")


def _lost(case: Case, fault: Fault) -> Verdict:
    if fault is Fault.CANCELLED:
        return Verdict(Action.SNOOZE, "cancelled", billed=case.reported(), answer=case.exchange.answer)
    if fault is Fault.POOL:
        return Verdict(Action.SNOOZE, "local_pool", wait_s=(1.0, 10.0))
    if fault is Fault.DNS:
        return snooze(case, "dns_failed", Scope.REQUEST)
    if fault is Fault.KEY:
        return halt("bad_credentials")
    if fault is Fault.REFUSED:
        return retry(case, "connect_failed", case.unpaid())
    code, possibly_paid = LOST[fault]
    if case.exchange.streamed and case.text and code == "body_lost":
        code = "stream_truncated"
    return retry(case, code, case.estimated(), possibly_paid=possibly_paid)


def _spoilt(case: Case) -> Verdict:
    kind = case.problem.kind
    if kind == "not_json":
        return retry(case, kind, case.unpaid(), Scope.ACCOUNT, wait_s=OUTAGE_S)
    if kind in ("no_choices", "no_message") or (kind == "empty_body" and case.exchange.status != 200):
        return retry(case, kind, case.unpaid())
    if kind == "bad_schema":
        return retry(case, kind, case.reported() if case.answer.usage.completion_tokens else case.unpaid())
    return retry(case, kind, case.estimated(), possibly_paid=kind == "stream_truncated")


def _answered(case: Case) -> Verdict:
    answer, billed = case.answer, case.reported()
    finish = answer.finish_reason
    if "content_filter" in (finish, answer.native_finish_reason):
        return replace(drop(case, "content_filtered"), billed=billed)
    if finish == "abort":
        return retry(case, "aborted", billed)
    if not finish:
        return retry(case, "no_finish_reason" if case.text else "empty_completion", billed)
    said = case.text.strip() or answer.tool_calls or "continued" in answer.flags    # the rest may be its end alone
    if "length" not in (finish, answer.native_finish_reason) and not said:
        if "refusal" in answer.flags:
            return replace(drop(case, "refused"), billed=billed)
        return retry(case, "empty_completion", billed)
    return _stored(case, billed)


def _stored(case: Case, billed: Billed) -> Verdict:
    """Paid for, so kept: whether it may be trained on is what the flags say."""
    answer = case.answer
    truncated = "length" in (answer.finish_reason, answer.native_finish_reason)
    found = soundness.oddities(case.ask, answer, truncated, case.history.seen)
    flags = frozenset({*answer.flags, *found, *_endings(case, truncated)}) - UNSEEN
    doubts = [r for r in REASONS if r in flags and not (r in CURED_BY_IDS and answer.completion_ids is not None)]
    harmless = HARMLESS | ({"prompt_tokens_mismatch"} if answer.usage.prompt_tokens == 0 else set())  # a count left out
    code = _label(doubts, answer)
    verdict = Verdict(
        Action.DONE, code, SCOPES.get(code, Scope.REQUEST), burns=True, billed=billed, answer=answer, flags=flags,
        truncated=bool(flags & {"truncated", "suspect_truncated"}), trainable=all(d in harmless for d in doubts))
    return _promoted(verdict, case) if truncated else verdict


def _label(doubts: list[str], answer: Answer) -> str:
    reason = doubts[0] if doubts else ""
    if reason == "truncated" and "no_answer" in doubts:
        return "truncated_reasoning"
    if reason == "prompt_tokens_mismatch" and answer.usage.prompt_tokens == 0:
        return "prompt_tokens_zero"
    if reason == "no_answer":
        return "answer_in_reasoning"
    return reason or ("ok_normalised" if answer.flags & REWRITTEN else "ok")


def _endings(case: Case, truncated: bool) -> Iterator[str]:
    """Truncation is under-reported: complete is a stop, a native stop, and a count below the limit."""
    answer, counted = case.answer, case.answer.usage.completion_tokens
    if truncated:
        yield "truncated"
        if counted and counted < soundness.CAP_SHARE * case.ask.max_tokens:
            yield "provider_cap"
    elif counted is not None and counted >= case.ask.max_tokens and answer.completion_ids is None:   # ids show their end
        yield "suspect_truncated"
    if answer.finish_reason not in KNOWN_FINISH:
        yield "unknown_finish"
    if counted == 0:
        yield "usage_zero"
    elif counted is None and "usage_invalid" not in answer.flags:
        yield "usage_missing"


def _promoted(verdict: Verdict, case: Case) -> Verdict:
    """A cut answer runs once more on the long lane, never again at its own size, and never a loop."""
    if case.history.lane == "short" and case.history.may_promote and verdict.code not in ("degenerate_repetition", "wrong_model"):
        ignore = case.answer.provider if "provider_cap" in verdict.flags else ""
        return replace(verdict, action=Action.PROMOTE, ignore_provider=ignore)
    if not case.text.strip() and case.answer.completion_ids is None:
        return replace(drop(case, "empty_completion"), billed=verdict.billed)
    return verdict
