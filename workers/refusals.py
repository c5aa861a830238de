"""The table of refusals: an error status, or an error object inside a reply of HTTP 200. The first rule that fits decides.

Meanings: openrouter.ai/docs/api-reference/errors and /limits; the engines' own error forms as recorded in the tests.
A sample is failed for its own fault alone; what belongs to a provider, the account or the dataset makes those wait.
"""

import re
from collections.abc import Callable
from dataclasses import replace

from workers.evidence import Case
from workers.ruling import Action, Billed, History, Scope, Verdict

LONGEST_WAIT_S = 86_400.0
PAUSE_FROM_S = 300.0               # a longer hint is no retry but a pause
PROBE_S = (15.0, 30.0)             # how often a halted account or dataset is tried again
BACKOFF_S = (10.0, 30.0, 60.0)
OUTAGE_S = (10.0, 60.0)
EDGE_PAUSE_S = (60.0, 300.0)

Test = Callable[[Case], bool]
Make = Callable[[Case], Verdict]

CREDIT_LIMITS = ("openrouter_key_limit", "openrouter_workspace_budget", "openrouter_guardrail_budget")
TOO_LONG = r"context.?(?:length|size|window)|exceed_context|prompt is too long|too many tokens|input.*too long|maximum.*length is"
OUR_MAX = (r"max.?(?:completion.?|new.?)?tokens.*(?:cannot be greater|exceed|too large|at most|less than or equal)"
           r"|max_tokens_exceeded")
MODERATED = r"moderat|flagged|content.?policy|refusal|guardrail|safety"
NO_MODEL = (r"not a valid model|model.*(?:does not exist|not found|is not available|no longer)|unknown model|model_not_found"
            r"|no such model")
NO_ROUTE = r"no endpoints|routing requirements|no allowed providers|constraint_filtered|data policy|no_endpoints"
LEGACY_NO_PROVIDER = r"no available model provider|no provider"


def backoff(history: History) -> tuple[float, float]:
    """Seconds before the next try. The floor keeps a minute of outage from eating every attempt of a sample."""
    longest = BACKOFF_S[min(history.burnt, len(BACKOFF_S) - 1)]
    return longest / 3, longest


def retry(case: Case, code: str, billed: Billed, scope: Scope = Scope.REQUEST, *, possibly_paid: bool = False,
          ignore: str = "", wait_s: tuple[float, float] | None = None) -> Verdict:
    return Verdict(Action.RETRY, code, scope, wait_s or backoff(case.history), burns=True, billed=billed,
                   possibly_paid=possibly_paid, ignore_provider=ignore)


def snooze(case: Case, code: str, scope: Scope, at_least_s: float = 1.0) -> Verdict:
    """Again after the hinted time, a little spread; without a hint after a time that grows with the waits so far."""
    if case.hint_s is None:
        longest = min(60.0, max(4.0, 2 * at_least_s) * 2.0 ** min(case.history.snoozed, 6))
        return Verdict(Action.SNOOZE, code, scope, (at_least_s, longest))
    return Verdict(Action.SNOOZE, code, scope, _spread(case.hint_s))


def _spread(hint_s: float) -> tuple[float, float]:
    low = min(max(hint_s, 1.0), LONGEST_WAIT_S)
    return low, min(low * 1.2 + 1.0, LONGEST_WAIT_S)


def halt(code: str, scope: Scope = Scope.ACCOUNT) -> Verdict:
    return Verdict(Action.SNOOZE, code, scope, PROBE_S, halts=True)


def drop(case: Case, code: str) -> Verdict:
    return Verdict(Action.DROP, code, burns=True, billed=case.unpaid())


def _limited(case: Case) -> Verdict:
    scope = Scope.ACCOUNT if case.names_own_limit else Scope.PROVIDER
    if case.hint_s is not None and case.hint_s > PAUSE_FROM_S:
        return Verdict(Action.SNOOZE, "rate_limited_long", scope, _spread(case.hint_s))
    return snooze(case, "rate_limited", scope)


def _edge_limited(case: Case) -> Verdict:
    low, high = EDGE_PAUSE_S
    return Verdict(Action.SNOOZE, "rate_limited_edge", Scope.ACCOUNT, (min(max(low, case.hint_s or 0), high), high))


def _in_flight(case: Case) -> Verdict:
    return snooze(case, "inflight_budget", Scope.ACCOUNT, 5.0)


def _other_provider(case: Case) -> Verdict:
    return retry(case, "provider_bad_request", case.unpaid(), Scope.PROVIDER, ignore=case.provider, wait_s=(0.0, 10.0))


def _broken(case: Case) -> Verdict:
    """The fault of one host where one is named or the router says so, else of nobody in particular."""
    theirs = bool(case.provider) or case.says(r"provider returned|provider_")
    return retry(case, "provider_error", case.unpaid(), Scope.PROVIDER if theirs else Scope.REQUEST)


def _timed_out(case: Case) -> Verdict:
    return retry(case, "timeout", case.estimated(), possibly_paid=True)


def _status(*wanted: int) -> Test:
    return lambda case: case.status in wanted


def _says(pattern: str, *statuses: int) -> Test:
    return lambda case: case.status in statuses and case.says(pattern)


def _is_in_flight(case: Case) -> bool:
    source = f"{case.problem.limit_source} {case.words}"
    return case.status == 402 and (re.search(r"in.?flight", source) is not None or case.hint_s is not None)


def _is_spent_limit(case: Case) -> bool:
    named = case.problem.limit_source in CREDIT_LIMITS or case.problem.resets
    return case.status == 403 and (named or case.says(r"(?:key|spend\w*) limit|limit exceeded"))


def _is_moderation(case: Case) -> bool:
    return case.status in (400, 403, 422, 451) and (case.problem.moderated or case.status == 451 or case.says(MODERATED))


def _is_routing(case: Case) -> bool:
    return case.status == 404 and (case.problem.availability != "" or case.says(NO_ROUTE))


def _is_our_maximum(case: Case) -> bool:
    return case.status in (400, 422) and case.says(OUR_MAX) and not case.says(r"context.?length")


def _is_one_providers(case: Case) -> bool:
    return case.status in (400, 403) and (case.provider != "" or case.says(r"provider returned"))


def _has_no_provider(case: Case) -> bool:
    unroutable = case.problem.availability in ("no_endpoints", "constraint_filtered")
    return case.status == 503 and (unroutable or case.says(f"{NO_ROUTE}|{LEGACY_NO_PROVIDER}"))


def _is_retryable(case: Case) -> bool:
    retryable = case.problem.retryable
    return case.status == 503 and (retryable is True or (retryable is None and case.hint_s is not None))


def _halts(code: str, scope: Scope = Scope.ACCOUNT) -> Make:
    return lambda case: halt(code, scope)


def _drops(code: str) -> Make:
    return lambda case: drop(case, code)


def _not_json(case: Case) -> Verdict:
    return retry(case, "not_json", case.unpaid(), Scope.ACCOUNT, wait_s=OUTAGE_S)


def _no_provider(case: Case) -> Verdict:
    return retry(case, "no_provider", case.unpaid(), Scope.DATASET, wait_s=OUTAGE_S)


REFUSALS: tuple[tuple[Test, Make], ...] = (
    (lambda c: 300 <= c.status < 400, _halts("bad_endpoint")),       # never followed: the key would go along
    (_status(401, 407), _halts("bad_credentials")),
    # 402 has three meanings.
    (_says(r"weight", 402), _drops("request_too_expensive")),
    (_is_in_flight, _in_flight),
    (_status(402), _halts("no_credit")),
    # 403 has four, and a page instead of JSON means that our address is blocked.
    (lambda c: c.status == 403 and not c.is_json, _halts("edge_blocked")),
    (_is_spent_limit, _halts("key_limit")),
    (_is_moderation, _drops("moderated")),
    # 404: the routing, the model, or the URL.
    (_is_routing, _halts("bad_routing", Scope.DATASET)),
    (_says(NO_MODEL, 400, 404, 410), _halts("unknown_model", Scope.DATASET)),
    (_status(404, 405, 406, 410, 415, 426), _halts("bad_endpoint")),
    # 400: a setting of ours, this prompt, or one host's private refusal.
    (_is_our_maximum, _halts("max_tokens_too_large", Scope.DATASET)),
    (_says(TOO_LONG, 400, 413, 422), _drops("prompt_too_long")),
    (_is_one_providers, _other_provider),
    (_status(403), _halts("forbidden")),
    (lambda c: c.status == 400 and c.html, _not_json),
    (_status(400, 422), _drops("bad_request")),
    (_status(413), _drops("request_too_large")),
    # Time-outs of the router or its edge: the generation may run on and be billed.
    (_status(408, 499, 504, 524, 598, 599), _timed_out),
    # Limits.
    (lambda c: c.status == 429 and c.html, _edge_limited),
    (_status(429, 529), _limited),
    (_says(r"overloaded|capacity|rate.?limit", 503), _limited),
    (_has_no_provider, _no_provider),
    (_is_retryable, lambda c: snooze(c, "provider_error", Scope.PROVIDER)),
    (lambda c: c.status in (409, 425) or c.status >= 500, _broken),
    (lambda c: c.html, _not_json),
    (lambda c: True, _drops("bad_request")),
)


def refused(case: Case) -> Verdict:
    verdict = next(make(case) for test, make in REFUSALS if test(case))
    # Cut off in the middle: what had come is booked, unless it is insured (finish_reason error is not charged).
    return replace(verdict, billed=case.reported()) if case.partly_answered and verdict.billed.basis == "none" else verdict
