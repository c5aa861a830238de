"""Hosts of a model, and whom a plan admits."""

import pytest

from models.plan import DatasetPlan, LanePlan, Routing
from workers.providers.listing import caution, read, refusal

ENTRY = {"provider_name": "Moonshot AI", "tag": "moonshotai/int4", "quantization": "int4", "context_length": 262_144,
         "max_completion_tokens": 65_536, "pricing": {"prompt": "0.0000006", "completion": "0.0000025"},
         "supported_parameters": ["logprobs", "seed"], "uptime_last_30m": 99.5}


def plan(profile: str = "qwen3", **routing: object) -> DatasetPlan:
    return DatasetPlan(profile=profile, model="m", account="a", routing=Routing(**routing),  # type: ignore[arg-type]
                       long=LanePlan(max_tokens=16_384, concurrency=1))


def test_an_entry_is_read_with_its_prices_a_million() -> None:
    one = read(ENTRY)
    assert (one.provider, one.slug, one.quantization) == ("Moonshot AI", "moonshotai", "int4")
    assert (one.logprobs, one.cancels) == (True, False)
    assert (round(one.prompt_usd or 0, 6), round(one.completion_usd or 0, 6)) == (0.6, 2.5)
    assert read({**ENTRY, "tag": "deepinfra/fp4"}).cancels


@pytest.mark.parametrize("entry", [{}, {"pricing": [], "supported_parameters": 1, "tag": 5, "uptime_last_30m": "x"},
                                   {"pricing": {"prompt": {}, "completion": "-1"}, "max_completion_tokens": True}])
def test_whatever_an_entry_lacks_is_read_as_unknown(entry: dict[str, object]) -> None:
    one = read(entry)
    assert (one.prompt_usd, one.completion_usd, one.max_completion_tokens, one.uptime) == (None, None, None, None)
    assert refusal(one, plan()) == ""


@pytest.mark.parametrize(("routing", "why"), [
    ({}, ""), ({"only": ["MoonshotAI"]}, ""), ({"only": ["fireworks"]}, "only"), ({"ignore": ["moonshotai"]}, "ignore"),
    ({"order": ["fireworks"]}, ""), ({"order": ["fireworks"], "allow_fallbacks": False}, "order"),
    ({"quantizations": ["fp8"]}, "quantizations"), ({"max_price": {"completion": 2.0}}, "max_price"),
    ({"max_price": {"completion": 3.0, "prompt": 1.0}}, "")])
def test_the_plan_admits_or_says_why_not(routing: dict[str, object], why: str) -> None:
    found = refusal(read(ENTRY), plan(**routing))
    assert (why in found) if why else found == ""


def test_fp4_is_left_out_for_kimi_by_default() -> None:
    kimi = plan("kimi-k2.5")
    assert "fp4" in refusal(read({**ENTRY, "quantization": "fp4"}), kimi)
    assert refusal(read(ENTRY), kimi) == ""


@pytest.mark.parametrize(("wanted", "served", "fine"), [
    (["fp4"], "mxfp4", True), (["fp4"], "nvfp4", True), (["mxfp4"], "fp4", False), (["mxfp8"], "fp8", False),
    (["fp8"], "unknown", False)])
def test_fp4_means_both_its_kinds_and_no_other_precision_means_another(wanted: list[str], served: str, fine: bool) -> None:
    found = refusal(read({**ENTRY, "quantization": served}), plan(quantizations=wanted))
    assert (found == "") == fine


def test_a_host_that_cuts_below_the_long_lane_is_named() -> None:
    assert "8,192" in caution(read({**ENTRY, "max_completion_tokens": 8_192}), plan())
    assert caution(read(ENTRY), plan()) == ""
