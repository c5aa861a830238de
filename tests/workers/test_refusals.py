"""What providers refuse, and how long is waited, kind by kind."""

from email.utils import formatdate
from typing import Any

import pytest

from tests.workers.replies import ASK, NOW, exchange_of, failed, of
from workers.providers.base import Exchange, Fault
from workers.verdict import Action, History, Scope, Verdict, judge

# -- refusals

@pytest.mark.parametrize("status", [200, 401])
def test_a_bad_key_pauses_the_account_and_fails_nothing(status: int) -> None:
    verdict = failed(401, "No auth credentials found", status)
    assert (verdict.action, verdict.scope, verdict.halts, verdict.burns) == (Action.SNOOZE, Scope.ACCOUNT, True, False)


@pytest.mark.parametrize(("metadata", "after", "action", "code"), [
    ({"limit_source": "openrouter_credits"}, None, Action.SNOOZE, "no_credit"),
    ({"limit_source": "openrouter_in_flight_budget"}, None, Action.SNOOZE, "inflight_budget"),
    ({}, "9", Action.SNOOZE, "inflight_budget"),
    ({"limit_source": "openrouter_credits", "error_type": "weight_exceeds_budget"}, None, Action.DROP, "request_too_expensive")])
def test_a_402_has_three_meanings(metadata: dict[str, str], after: str | None, action: Action, code: str) -> None:
    verdict = failed(402, "Payment", metadata=metadata, **({"retry_after": after} if after else {}))
    assert (verdict.action, verdict.code, verdict.halts) == (action, code, code == "no_credit")


@pytest.mark.parametrize(("message", "metadata", "action", "code"), [
    ("Key limit exceeded", {"limit_source": "openrouter_key_limit"}, Action.SNOOZE, "key_limit"),
    ("Budget", {"limit_source": "openrouter_guardrail_budget", "resets_at": "2026-12-01"}, Action.SNOOZE, "key_limit"),
    ("Input flagged", {"reasons": ["violence"]}, Action.DROP, "moderated"),
    ("Blocked", {"error_type": "content_policy_violation"}, Action.DROP, "moderated"),
    ("You shall not", {}, Action.SNOOZE, "forbidden"),
    ("Provider returned error", {"provider_name": "X"}, Action.RETRY, "provider_bad_request")])
def test_a_403_is_the_prompts_fault_only_when_it_says_so(message: str, metadata: Any, action: Action, code: str) -> None:
    verdict = failed(403, message, metadata=metadata)
    assert (verdict.action, verdict.code) == (action, code)


@pytest.mark.parametrize(("document", "code", "scope"), [
    ({"error": {"message": "No endpoints found matching your data policy", "code": 404}}, "bad_routing", Scope.DATASET),
    ({"error": {"message": "The model `x` does not exist.", "type": "NotFoundError"}}, "unknown_model", Scope.DATASET),
    ({"detail": "Not Found"}, "bad_endpoint", Scope.ACCOUNT), (b"404 page not found", "bad_endpoint", Scope.ACCOUNT),
    (b"<html>404</html>", "bad_endpoint", Scope.ACCOUNT), (b"", "bad_endpoint", Scope.ACCOUNT)])
def test_a_404_halts_what_it_belongs_to(document: Any, code: str, scope: Scope) -> None:
    verdict = of(document, 404)
    assert (verdict.action, verdict.halts, verdict.code, verdict.scope) == (Action.SNOOZE, True, code, scope)


@pytest.mark.parametrize(("code", "message", "wanted"), [
    (400, "kimi-k9 is not a valid model ID", (Action.SNOOZE, "unknown_model")),
    (400, "prompt is too long: 300000 tokens", (Action.DROP, "prompt_too_long")),
    (400, "request (6009 tokens) exceeds the available context size (4096 tokens)", (Action.DROP, "prompt_too_long")),
    (400, "max_tokens=5000 cannot be greater than max_model_len=1024.", (Action.SNOOZE, "max_tokens_too_large")),
    (400, "'messages' is required", (Action.DROP, "bad_request")), (422, "bad", (Action.DROP, "bad_request")),
    (413, "Payload Too Large", (Action.DROP, "request_too_large")), (451, "Unavailable", (Action.DROP, "moderated")),
    (405, "Method Not Allowed", (Action.SNOOZE, "bad_endpoint")), (418, "teapot", (Action.DROP, "bad_request"))])
def test_a_4xx_fails_the_sample_only_for_its_own_fault(code: int, message: str, wanted: tuple[Action, str]) -> None:
    verdict = failed(code, message)
    assert (verdict.action, verdict.code) == wanted


@pytest.mark.parametrize("status", [300, 301, 302, 307, 308])
def test_a_redirect_is_a_wrong_url(status: int) -> None:
    verdict = of(b"", status, location="https://elsewhere.example")
    assert (verdict.code, verdict.scope, verdict.halts) == ("bad_endpoint", Scope.ACCOUNT, True)


@pytest.mark.parametrize("status", [408, 504, 524])
def test_a_timeout_of_theirs_is_booked_and_asked_again_once(status: int) -> None:
    first, second = (of(b"<html/>", status, History(burnt=n, possibly_paid=n, expected_tokens=333)) for n in (0, 1))
    assert (first.action, first.code, first.possibly_paid, first.billed.completion_tokens) == (Action.RETRY, "timeout", True, 333)
    assert second.action is Action.DROP


@pytest.mark.parametrize("status", [500, 502, 503, 505, 520, 522])
def test_a_5xx_burns_an_attempt_and_the_last_one_ends_the_sample(status: int) -> None:
    verdicts = [of(b"<html/>", status, History(burnt=n)) for n in range(4)]
    assert [v.action for v in verdicts] == [Action.RETRY] * 3 + [Action.DROP]
    assert {v.code for v in verdicts} == {"provider_error"}


def test_waits_between_attempts_outlast_a_short_outage() -> None:
    waits = [of(b"", 502, History(burnt=n)).wait_s for n in range(3)]
    assert sum(low for low, _ in waits) >= 30
    assert all(1 <= low < high <= 60 for low, high in waits)


@pytest.mark.parametrize("history", [History(burnt=3), History(burnt=9)])
def test_what_is_not_the_samples_fault_never_fails_it(history: History) -> None:
    refused = judge(ASK, Exchange(fault=Fault.REFUSED), history)
    page = of(b"<html>Just a moment</html>", history=history)
    nobody = failed_with(history, 503, "No available model provider meets your routing requirements")
    for verdict, scope in ((refused, Scope.ACCOUNT), (page, Scope.ACCOUNT), (nobody, Scope.DATASET)):
        assert (verdict.action, verdict.halts, verdict.scope) == (Action.SNOOZE, True, scope)


def failed_with(history: History, code: int, message: str) -> Verdict:
    return of({"error": {"code": code, "message": message}}, code, history)


# -- waiting

@pytest.mark.parametrize("status", [429, 529])
def test_a_limit_is_snoozed_and_burns_no_attempt_ever(status: int) -> None:
    verdicts = [failed_with(History(burnt=3, snoozed=n), status, "slow down") for n in (0, 3, 500)]
    assert {(v.action, v.code, v.burns) for v in verdicts} == {(Action.SNOOZE, "rate_limited", False)}
    assert [v.wait_s[1] for v in verdicts] == [4.0, 32.0, 60.0]


@pytest.mark.parametrize(("headers", "error", "seconds"), [
    ({"retry_after": "17"}, {}, 17), ({"retry_after": "2.5"}, {}, 2.5),
    ({"retry_after": formatdate(NOW + 40, usegmt=True)}, {}, 40),
    ({"retry_after_ms": "9000"}, {}, 9), ({"x_ratelimit_reset": str(int((NOW + 33) * 1000))}, {}, 33),
    ({"x_ratelimit_reset": str(int(NOW + 33))}, {}, 33), ({"x_ratelimit_reset": "12"}, {}, 12),
    ({}, {"metadata": {"headers": {"X-RateLimit-Reset": str(int((NOW + 21) * 1000))}}}, 21),
    ({}, {"metadata": {"headers": {"Retry-After": 8}}}, 8),
    ({}, {"availability": {"code": "capacity_exhausted", "retry_after": 14}}, 14),
    ({"retry_after": "1"}, {"availability": {"retry_after": 19}}, 19), ({}, {"metadata": {"retry_after_seconds": 6}}, 6)])
def test_a_hint_is_read_wherever_it_stands(headers: dict[str, str], error: dict[str, Any], seconds: float) -> None:
    low, high = failed(429, **headers, **error).wait_s
    assert seconds - 1 <= low <= seconds + 1
    assert low < high <= 1.2 * seconds + 2.2


@pytest.mark.parametrize("value", [
    "0", "-5", "soon", "", "nan", "inf", formatdate(NOW - 99, usegmt=True), "Wed, 99 Foo 2026 25:61:00 GMT"])
def test_a_hint_that_is_none_leaves_our_own_wait(value: str) -> None:
    low, high = failed(429, retry_after=value).wait_s
    assert 1 <= low < high <= 60


@pytest.mark.parametrize("value", ["301", "86400", "99999999999"])
def test_an_absurd_hint_is_a_pause_of_a_day_at_most(value: str) -> None:
    verdict = failed(429, retry_after=value)
    assert (verdict.code, verdict.burns) == ("rate_limited_long", False)
    assert 300 <= verdict.wait_s[0] <= verdict.wait_s[1] <= 86_400


def test_dates_are_read_by_the_servers_own_clock() -> None:
    skewed = NOW - 7_200
    exchange = exchange_of({"error": {"code": 429}}, 429, retry_after=formatdate(skewed + 25, usegmt=True),
                           date=formatdate(skewed, usegmt=True))
    assert judge(ASK, exchange).wait_s[0] == 25


@pytest.mark.parametrize(("headers", "scope"), [({"x_ratelimit_remaining": "0"}, Scope.ACCOUNT), ({}, Scope.PROVIDER)])
def test_a_limit_is_the_accounts_when_its_own_counters_come_along(headers: dict[str, str], scope: Scope) -> None:
    assert failed(429, **headers).scope is scope


@pytest.mark.parametrize(("availability", "burns", "scope"), [
    ({"code": "temporarily_unavailable", "retryable": True}, False, Scope.PROVIDER),
    ({"code": "no_endpoints", "retryable": False}, True, Scope.DATASET),
    ({"code": "temporarily_unavailable", "retryable": False}, True, Scope.REQUEST)])
def test_a_503_says_whether_it_is_worth_waiting(availability: dict[str, Any], burns: bool, scope: Scope) -> None:
    verdict = failed(503, availability=availability)
    assert (verdict.burns, verdict.scope) == (burns, scope)
