"""What an answer means, kind by kind: each reply here is of a kind the corpus has, and not one of its cases."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.workers.replies import ASK, LONG, TEXT, USAGE, exchange_of, of, reply
from workers.verdict import Action, History, Scope, judge

# -- answers

def test_a_whole_answer_is_done_and_billed_as_it_says() -> None:
    verdict = of(reply(content=TEXT, reasoning="Think of water."))
    assert (verdict.action, verdict.code, verdict.trainable, verdict.flags) == (Action.DONE, "ok", True, frozenset())
    assert (verdict.billed.completion_tokens, verdict.billed.cost_usd, verdict.billed.cost_known) == (30, 0.001, True)


def test_a_cut_answer_is_promoted_once_and_then_kept_as_it_is() -> None:
    cut = reply("length", {**USAGE, "completion_tokens": 1_000, "total_tokens": 1_200}, content=TEXT)
    short, long = of(cut), of(cut, history=LONG)
    assert (short.action, short.code, short.truncated) == (Action.PROMOTE, "truncated", True)
    assert (long.action, long.code, long.trainable) == (Action.DONE, "truncated", False)


@pytest.mark.parametrize("native", ["length", "MAX_TOKENS", "max_output_tokens"])
def test_a_native_length_under_a_stop_is_a_cut(native: str) -> None:
    verdict = of(reply("stop", {**USAGE, "completion_tokens": 1_000, "total_tokens": 1_200}, native=native, content=TEXT))
    assert verdict.action is Action.PROMOTE


def test_an_answer_cut_far_below_our_limit_goes_on_elsewhere() -> None:
    verdict = of(reply("length", {**USAGE, "completion_tokens": 400, "total_tokens": 600}, content=TEXT))
    assert (verdict.action, verdict.code, verdict.ignore_provider) == (Action.PROMOTE, "provider_cap", "Moonshot AI")


def test_a_loop_in_the_reasoning_is_not_promoted() -> None:
    usage = {**USAGE, "completion_tokens": 1_000, "total_tokens": 1_200}
    verdict = of(reply("length", usage, content=None, reasoning="Wait, let me think about that again. " * 300))
    assert (verdict.action, verdict.code) == (Action.DONE, "degenerate_repetition")


def test_a_long_honest_table_is_no_loop() -> None:
    usage = {**USAGE, "completion_tokens": 1_000, "total_tokens": 1_200}
    table = "\n".join(f"| {n} | {n * n} | {n ** 3 % 9973} |" for n in range(300))
    assert of(reply("length", usage, content=table)).action is Action.PROMOTE


def test_a_cut_without_any_text_is_not_stored_as_an_answer() -> None:
    usage = {**USAGE, "completion_tokens": 1_000, "total_tokens": 1_200}
    assert of(reply("length", usage, content=None), history=LONG).action is Action.DROP


@pytest.mark.parametrize("message", [
    {"content": TEXT, "reasoning": None, "reasoning_content": "Water."},
    {"content": TEXT, "reasoning": "Water.", "reasoning_details": [{"type": "reasoning.text", "text": "Water."}]},
    {"content": TEXT, "reasoning_details": [{"type": "reasoning.text", "text": text} for text in ("Wat", "er.")]},
    {"content": [{"type": "text", "text": TEXT[:9]}, {"type": "text", "text": TEXT[9:]}], "reasoning": "Water."},
    {"content": f"<think>Water.</think>{TEXT}"},
    {"content": f"Water.</think>{TEXT}"},
    {"content": f"{TEXT}<|im_end|>", "reasoning": "Water."},
])
def test_the_forms_of_one_answer_are_one_answer(message: dict[str, Any]) -> None:
    verdict = of(reply(**message))
    assert verdict.answer is not None
    assert (verdict.trainable, verdict.answer.content, verdict.answer.reasoning) == (True, TEXT, "Water.")


def test_white_space_and_odd_characters_survive_as_they_came() -> None:
    text = "\n\n  e\u0301\u200d\u2028\u0085\x00 \t"
    verdict = of(reply(usage={**USAGE, "completion_tokens": 14, "total_tokens": 214}, content=text, reasoning=" w\n"))
    assert verdict.answer is not None
    assert (verdict.answer.content, verdict.answer.reasoning, verdict.trainable) == (text, " w\n", True)
    assert verdict.flags == {"has_nul"}


def test_no_bare_end_of_thought_is_split_where_thinking_is_off() -> None:
    ask = replace(ASK, thinking=False)
    verdict = of(reply(content=f"Write </think> to end. {TEXT}"), ask=ask)
    assert verdict.answer is not None
    assert (verdict.answer.content[:5], verdict.code) == ("Write", "special_literal_in_text")


@pytest.mark.parametrize(("message", "code"), [
    ({"content": TEXT, "reasoning": "a", "reasoning_content": "b"}, "reasoning_conflict"),
    ({"content": TEXT, "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}, "reasoning_hidden"),
    ({"content": TEXT, "reasoning": "s", "reasoning_details": [{"type": "reasoning.summary", "summary": "s"}]},
     "reasoning_hidden"),
    ({"content": "<think>Water"}, "answer_in_reasoning"),
    ({"content": " \n", "reasoning": "Water."}, "answer_in_reasoning"),
    ({"content": f"{TEXT}<|im_end|>\n<|im_start|>user\nMore?"}, "ran_past_eot"),
    ({"content": f"{TEXT} <|im_end|> marks it."}, "special_literal_in_text"),
    ({"content": f"{TEXT} \udc00"}, "lossy_text"),
    ({"content": TEXT, "reasoning": "w\ufffd"}, "lossy_text"),
    ({"content": None, "tool_calls": [{"id": "call_9f", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
     "tool_ids_rewritten"),
])
def test_what_cannot_be_rebuilt_is_kept_and_not_trained_on(message: dict[str, Any], code: str) -> None:
    verdict = of(reply(**message))
    assert (verdict.action, verdict.code, verdict.trainable) == (Action.DONE, code, False)


def test_native_tool_ids_can_be_rebuilt() -> None:
    function = {"name": "calc", "arguments": "{\"n\": 1}"}
    calls = [{"id": f"functions.calc:{n}", "type": "function", "function": function} for n in (0, 1)]
    verdict = of(reply("tool_calls", content="", reasoning="w", tool_calls=calls))
    assert (verdict.code, verdict.trainable) == ("tool_calls_rebuilt", True)


def test_doubts_about_the_text_do_not_touch_ids_from_an_engine() -> None:
    document = reply(content=f"{TEXT} \ufffd <|im_end|> x")
    document["choices"][0]["token_ids"] = list(range(30))
    document["prompt_token_ids"] = list(range(200))
    verdict = of(document)
    assert (verdict.code, verdict.trainable) == ("ok", True)
    assert {"lossy_text", "special_literal_in_text"} <= verdict.flags


def test_ids_that_are_not_as_many_as_billed_are_not_trained_on() -> None:
    document = reply(content=TEXT)
    document["choices"][0]["token_ids"] = list(range(24))
    assert of(document).code == "token_count_mismatch"


def test_a_continuation_is_counted_without_its_prefix() -> None:
    document = reply(content=TEXT)
    document["choices"][0]["token_ids"] = list(range(30))
    ask = replace(ASK, prompt_ids=np.arange(200, dtype=np.int32), prefix_ids=np.arange(50, dtype=np.int32))
    exchange = exchange_of({**document, "usage": {**USAGE, "prompt_tokens": 250, "total_tokens": 280}}, ask=ask)
    assert exchange.answer is not None
    exchange.answer = replace(exchange.answer, completion_ids=np.arange(80, dtype=np.int32), flags=frozenset({"continued"}))
    verdict = judge(ask, exchange, LONG)
    assert (verdict.code, verdict.trainable, verdict.billed.completion_tokens) == ("ok", True, 30)


@pytest.mark.parametrize(("count", "text"), [
    (900, TEXT), (30, TEXT * 9), (70, "Yes."), (9, "one two three four five six seven eight nine ten")])
def test_a_count_no_tokenizer_could_give_is_flagged(count: int, text: str) -> None:
    verdict = of(reply(usage={**USAGE, "completion_tokens": count, "total_tokens": 200 + count}, content=text))
    assert (verdict.code, verdict.trainable) == ("token_count_mismatch", False)


@pytest.mark.parametrize("text", [
    "नमस्ते दुनिया, यह एक परीक्षा है।", "海は広くて深い。誰も波を数えたことがない。", "สวัสดีชาวโลก นี่คือการทดสอบ",
    "مرحبا بالعالم هذا اختبار",
    "for(i=0;i<n;++i){a[i]+=b[i]*c[i];}" * 2, "🦅🦅🦅🦅🦅🦅 eagle", "x" * 60, "a\n\n\n\n    b\t\tc" * 3])
def test_no_script_or_code_is_taken_for_a_wrong_count(text: str) -> None:
    count = 45 if text.startswith("for") else 26
    verdict = of(reply(usage={**USAGE, "completion_tokens": count, "total_tokens": 200 + count}, content=text))
    assert verdict.code == "ok", verdict.code


@pytest.mark.parametrize(("usage", "code", "basis"), [
    (None, "usage_missing", "estimate"), ([], "usage_missing", "estimate"), ({"prompt_tokens": 200}, "usage_missing", "estimate"),
    ({**USAGE, "completion_tokens": 0, "total_tokens": 200}, "usage_zero", "estimate"),
    ({**USAGE, "completion_tokens": "many"}, "usage_invalid", "estimate"),
    ({**USAGE, "completion_tokens": 1e400}, "usage_invalid", "estimate"),
    ({**USAGE, "completion_tokens": True}, "usage_invalid", "estimate"),
    ({**USAGE, "total_tokens": 999}, "usage_inconsistent", "usage"),
    ({"prompt_tokens": "200", "completion_tokens": "30", "cost": "0.001"}, "ok", "usage"),
])
def test_a_count_that_cannot_be_believed_is_estimated_and_costs_no_row(usage: Any, code: str, basis: str) -> None:
    verdict = of(json.dumps(reply(usage=usage, content=TEXT)).replace("Infinity", "1e400").encode())
    assert (verdict.action, verdict.code, verdict.trainable, verdict.billed.basis) == (Action.DONE, code, True, basis)
    assert 8 <= verdict.billed.completion_tokens <= 40


@pytest.mark.parametrize(("cost", "known", "flag"), [
    (None, False, "cost_missing"), ("free", False, "cost_missing"), (float("nan"), False, "cost_missing"),
    (-0.5, False, "usage_invalid"),
    (1e300, False, "usage_invalid"), ("0.25", True, ""), (0, True, "")])
def test_a_cost_is_known_or_said_to_be_unknown(cost: Any, known: bool, flag: str) -> None:
    verdict = of(reply(usage={**USAGE, "cost": cost}, content=TEXT))
    assert (verdict.billed.cost_known, verdict.billed.cost_usd >= 0) == (known, True)
    assert verdict.flags == ({flag} if flag else set())


@pytest.mark.parametrize(("model", "fine"), [
    ("moonshotai/kimi-k2.5-0127", True), ("moonshotai/kimi-k2.5-20260127", True), ("moonshotai/kimi-k2.5-2026-01-27", True),
    ("kimi-k2.5", True), ("MoonshotAI/Kimi-K2.5", True), ("moonshotai/kimi-k2.5:nitro", True), ("", True),
    ("moonshotai/kimi-k2", False), ("moonshotai/kimi-k2.5-thinking", False), ("openai/gpt-9", False)])
def test_an_alias_with_a_date_is_the_model_and_a_fallback_is_not(model: str, fine: bool) -> None:
    verdict = of({**reply(content=TEXT), "model": model})
    assert (verdict.code == "ok", verdict.scope is Scope.DATASET) == (fine, not fine)


@pytest.mark.parametrize(("routing", "provider", "fine"), [
    ({"ignore": ["baseten"]}, "BaseTen", False), ({"ignore": ["novita"]}, "NovitaAI", False),
    ({"ignore": ["fireworks/fp4"]}, "Fireworks", False),
    ({"only": ["moonshotai"]}, "Moonshot AI", True), ({"only": ["deepinfra"]}, "Parasail", False),
    ({"ignore": []}, "Fireworks", True)])
def test_a_host_the_plan_excludes_is_flagged(routing: dict[str, Any], provider: str, fine: bool) -> None:
    verdict = of({**reply(content=TEXT), "provider": provider}, ask=replace(ASK, routing=routing))
    assert (verdict.code == "ok", verdict.trainable) == (fine, fine)


@pytest.mark.parametrize(("quantization", "fine"), [("int4", True), ("fp8", False), ("", True), ("nvfp4", True)])
def test_a_precision_the_plan_excludes_is_flagged(quantization: str, fine: bool) -> None:
    ask = replace(ASK, routing={"quantizations": ["int4", "fp4"]})
    exchange = exchange_of(reply(content=TEXT), ask=ask)
    assert exchange.answer is not None
    exchange.answer = replace(exchange.answer, quantization=quantization)
    verdict = judge(ask, exchange)
    assert (verdict.code == "ok", verdict.trainable) == (fine, fine)


@pytest.mark.parametrize(("prompt", "fine"), [(200, True), (210, True), (150, False), (420, False)])
def test_a_prompt_count_shows_another_template(prompt: int, fine: bool) -> None:
    verdict = of(reply(usage={**USAGE, "prompt_tokens": prompt, "total_tokens": prompt + 30}, content=TEXT))
    assert (verdict.trainable, verdict.code) == (fine, "ok" if fine else "prompt_tokens_mismatch")


def test_a_generation_seen_before_is_not_trained_on_twice() -> None:
    assert of(reply(content=TEXT), history=History(seen={"gen-7"})).code == "duplicate_generation_id"


@pytest.mark.parametrize(("finish", "action", "code"), [
    ("end_turn", Action.DONE, "ok"), ("eos", Action.DONE, "ok"), ("content_filter", Action.DROP, "content_filtered"),
    ("SAFETY", Action.DROP, "content_filtered"), ("abort", Action.RETRY, "aborted"), ("cancelled", Action.RETRY, "aborted"),
    ("", Action.RETRY, "no_finish_reason"), (7, Action.RETRY, "no_finish_reason"), ("error", Action.RETRY, "provider_error"),
    ("fin", Action.DONE, "unknown_finish")])
def test_how_an_answer_ended_decides(finish: Any, action: Action, code: str) -> None:
    verdict = of(reply(finish, content=TEXT))
    assert (verdict.action, verdict.code) == (action, code)
