"""One suite for all dialects: what is sent, what real engines answered, and how a promoted sample goes on from its ids."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workers.providers.base import Ask, Limits
from workers.providers.reread import reread
from workers.verdict import Action, History, judge

KINDS = ("openrouter", "sglang", "vllm", "llamacpp", "embedded")
ENGINES = KINDS[1:]
PROMPT, PREFIX = np.arange(5, dtype=np.int32), np.array([7, 8], dtype=np.int32)
ASK = Ask("vendor/model", [{"role": "user", "content": "Hi \u2028 there."}], 100, sampling={"temperature": 0.7, "seed": 3},
          limits=Limits(total_s=10), prompt_ids=PROMPT, expected_prompt_tokens=5)
CHAT = {"id": "c", "model": "vendor/model", "provider": "P", "choices": [{"index": 0, "finish_reason": "stop", "message": {
    "role": "assistant", "content": "A prime is eleven."}, "token_ids": [1, 2, 3, 4, 5, 6]}],
    "prompt_token_ids": PROMPT.tolist(), "usage": {"prompt_tokens": 5, "completion_tokens": 6, "cost": 0.1}}


def recordings() -> Iterator[Any]:
    folder = Path(__file__).resolve().parents[4] / "shared" / "engine" / "recorded"
    yield from (pytest.param(file, id=file.stem) for file in sorted(folder.glob("*.json")))


def kind_of(recorded: dict[str, Any]) -> str:
    return "vllm" if recorded["engine"].startswith("vLLM") else "llamacpp"


# -- what is sent

@pytest.mark.parametrize("kind", KINDS)
async def test_messages_and_settings_are_sent_as_given(kind: str, scripted: Any, provider_of: Any) -> None:
    scripted.json(CHAT)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    await (await provider_of(kind)).ask(replace(ASK, tools=tools))
    path, _, body = scripted.requests[0]
    assert path == ("/chat/completions" if kind == "openrouter" else "/v1/chat/completions")
    assert {k: body[k] for k in ("model", "messages", "max_tokens", "temperature", "seed", "tools")} == {
        "model": ASK.model, "messages": ASK.messages, "max_tokens": 100, "temperature": 0.7, "seed": 3, "tools": tools}


@pytest.mark.parametrize(("kind", "fields"), [
    ("sglang", {"return_token_ids": True}), ("vllm", {"return_token_ids": True}),
    ("llamacpp", {"verbose": True, "return_tokens": True})])
async def test_engines_are_asked_for_their_ids(kind: str, fields: dict[str, bool], scripted: Any, provider_of: Any) -> None:
    scripted.json(CHAT)
    await (await provider_of(kind)).ask(replace(ASK, thinking=False, thinking_key="thinking", stream=True))
    body = scripted.requests[0][2]
    assert fields.items() <= body.items()
    assert body["chat_template_kwargs"] == {"thinking": False}
    assert body["stream"] is (kind == "vllm")       # the others give no ids in a stream


async def test_the_router_is_told_who_may_answer_and_never_to_hide_reasoning(scripted: Any, provider_of: Any) -> None:
    scripted.json(CHAT)
    ask = replace(ASK, routing={"quantizations": ["fp8", "int4"], "ignore": ["baseten"]},
                  ignore=("Moonshot AI", "Amazon Bedrock"), reasoning={"max_tokens": 50, "exclude": True},
                  sampling={"reasoning_effort": "high"})
    provider = await provider_of("openrouter")
    await provider.ask(ask)
    body = scripted.requests[0][2]
    assert body["provider"] == {"quantizations": ["fp8", "int4"], "ignore": ["amazon-bedrock", "baseten", "moonshot-ai"]}
    assert body["reasoning"] == {"max_tokens": 50, "effort": "high"}
    scripted.json({"data": {"endpoints": [{"provider_name": "Moonshot AI", "tag": "moonshotai/int4"}]}})
    assert [e["tag"] for e in await provider.endpoints("moonshotai/kimi-k2.5")] == ["moonshotai/int4"]
    assert (scripted.requests[1][0], provider.slug("Moonshot AI")) == ("/models/moonshotai/kimi-k2.5/endpoints", "moonshotai")


@pytest.mark.parametrize(("thinking", "reasoning"), [(True, {"enabled": True}), (False, {"enabled": False}), (None, None)])
async def test_the_router_knows_one_switch_for_thinking(
    thinking: bool | None, reasoning: Any, scripted: Any, provider_of: Any,
) -> None:
    scripted.json(CHAT)
    await (await provider_of()).ask(replace(ASK, thinking=thinking))
    assert scripted.requests[0][2].get("reasoning") == reasoning


async def test_the_side_endpoints_give_their_data_or_nothing(scripted: Any, provider_of: Any) -> None:
    provider = await provider_of("openrouter")
    scripted.json({"data": {"limit_remaining": 7.5}})
    assert await provider.key() == await provider.credits() == await provider.generation("gen 1&x") == {"limit_remaining": 7.5}
    assert [r[0] for r in scripted.requests] == ["/key", "/credits", "/generation?id=gen%201%26x"]
    for body, status in ((b"<html>", 200), (b'{"data": []}', 200), (b"[]", 200), (b'{"data": {"a": 1}}', 404), (b"", 200)):
        scripted.raw(body, status)
        assert (await provider.key(), await provider.endpoints("a/b")) == ({}, [])


@pytest.mark.parametrize("kind", ENGINES)
async def test_a_base_url_may_end_in_v1(kind: str, scripted: Any, provider_of: Any) -> None:
    scripted.json(CHAT)
    scripted.url += "/v1"
    await (await provider_of(kind)).ask(ASK)
    assert scripted.requests[0][0] == "/v1/chat/completions"


# -- what comes back

@pytest.mark.parametrize("kind", KINDS)
async def test_every_dialect_gives_one_answer(kind: str, scripted: Any, provider_of: Any) -> None:
    scripted.json(CHAT)
    exchange = await (await provider_of(kind)).ask(ASK)
    verdict = judge(ASK, exchange)
    assert (verdict.action, verdict.code, verdict.trainable, verdict.billed.completion_tokens) == (Action.DONE, "ok", True, 6)
    assert exchange.answer.completion_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert exchange.dialect == ("openrouter" if kind == "openrouter" else f"{kind.replace('embedded', 'llamacpp')}/chat")
    assert json.loads(exchange.body) == CHAT
    again = reread(kind, exchange.body)
    assert (again.content, again.completion_ids.tolist()) == (exchange.answer.content, [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("status", "document", "code"), [
    (401, {"error": {"message": "Invalid API Key", "code": 401}}, "bad_credentials"),
    (503, {"error": {"message": "Loading model"}}, "provider_error"),
    (400, {"object": "error", "message": "This model's maximum context length is 4096 tokens", "code": 400}, "prompt_too_long"),
    (400, {"error": {"message": "The input (9000 tokens) is longer than the model's context length."}}, "prompt_too_long")])
async def test_every_dialect_says_no_in_the_same_words(
    kind: str, status: int, document: Any, code: str, scripted: Any, provider_of: Any,
) -> None:
    scripted.json(document, status)
    assert judge(ASK, await (await provider_of(kind)).ask(ASK)).code == code


@pytest.mark.parametrize("file", list(recordings()) or [Path("none")])
async def test_what_a_real_engine_answered_is_read_whole(file: Path, shared: Path, scripted: Any, provider_of: Any) -> None:
    recorded = json.loads(file.read_text(encoding="utf-8"))
    request, response = recorded["request"], recorded["response"]
    native = recorded["path"] in ("/completion", "/v1/completions")
    prompt = np.array(request["prompt"], np.int32) if native else None
    ask = Ask("tiny-qwen3-random", request.get("messages", []), request.get("max_tokens", request.get("n_predict", 0)),
              stream=isinstance(response, list), limits=Limits(total_s=10), prompt_ids=prompt,
              prefix_ids=np.empty(0, np.int32) if native else None)
    if isinstance(response, list):
        scripted.events(*(line.encode() for line in response if line))
    else:
        scripted.json(response, recorded["status"])
    exchange = await (await provider_of(kind_of(recorded))).ask(ask)
    assert scripted.requests[0][0] == recorded["path"]
    verdict = judge(ask, exchange, History(lane="long"))
    if recorded["status"] != 200:
        too_long = "prompt_too_long" if "llama" in file.stem else "max_tokens_too_large"
        codes = {"401": "bad_credentials", "context": too_long, "request": "bad_request"}
        assert verdict.code == codes[file.stem.split("-")[-1]]
        return
    assert verdict.answer is not None
    assert verdict.action is Action.DONE
    assert verdict.billed.basis == "usage"
    ids = verdict.answer.completion_ids
    assert ids is not None
    assert len(ids) == verdict.billed.completion_tokens
    assert verdict.truncated is (verdict.answer.finish_reason == "length")
    assert verdict.trainable is not verdict.truncated


async def test_ids_that_log_probabilities_left_out_are_not_made_up(shared: Path, scripted: Any, provider_of: Any) -> None:
    recorded = json.loads((shared / "engine/recorded/llama-server-chat-split-character.json").read_text(encoding="utf-8"))
    whole = recorded["response"]
    scripted.json({k: v for k, v in whole.items() if k != "__verbose"})
    exchange = await (await provider_of("llamacpp")).ask(ASK)
    assert len(whole["choices"][0]["logprobs"]["content"]) < whole["usage"]["completion_tokens"]
    assert exchange.answer.completion_ids is None


@pytest.mark.parametrize("ids", [[], [-1], [2**31], ["1"], [1.0], [True], "1 2", None, {}])
async def test_ids_that_are_none_are_left_out(ids: Any, scripted: Any, provider_of: Any) -> None:
    choice = {**CHAT["choices"][0], "token_ids": ids}       # type: ignore[index]
    scripted.json({**CHAT, "choices": [choice]})
    assert (await (await provider_of("vllm")).ask(ASK)).answer.completion_ids is None


# -- going on from ids

NATIVE = {
    "sglang": ("/generate", {"text": " eleven is prime.", "output_ids": [9, 10, 11, 12], "meta_info": {
        "id": "r", "finish_reason": {"type": "stop", "matched": 2}, "prompt_tokens": 7, "completion_tokens": 4}}),
    "vllm": ("/v1/completions", {"id": "c", "usage": {"prompt_tokens": 7, "completion_tokens": 4}, "choices": [
        {"index": 0, "text": " eleven is prime.", "finish_reason": "stop", "token_ids": [9, 10, 11, 12],
         "prompt_token_ids": [0, 1, 2, 3, 4, 7, 8]}]}),
    "llamacpp": ("/completion", {
        "content": " eleven is prime.", "tokens": [9, 10, 11, 12], "stop_type": "eos", "tokens_evaluated": 7,
        "tokens_predicted": 4})}


@pytest.mark.parametrize("kind", NATIVE)
async def test_a_promoted_sample_goes_on_from_its_ids(kind: str, scripted: Any, provider_of: Any) -> None:
    path, document = NATIVE[kind]
    scripted.json(document)
    ask = replace(ASK, prefix_ids=PREFIX, sampling={"temperature": 0.7})
    exchange = await (await provider_of(kind)).ask(ask)
    asked_path, _, body = scripted.requests[0]
    assert asked_path == path
    assert [0, 1, 2, 3, 4, 7, 8] in body.values()
    assert 100 in (body.get("max_tokens"), body.get("n_predict"), body.get("sampling_params", {}).get("max_new_tokens"))
    answer = exchange.answer
    assert (answer.prompt_ids.tolist(), answer.completion_ids.tolist()) == ([0, 1, 2, 3, 4], [7, 8, 9, 10, 11, 12])
    verdict = judge(ask, exchange, History(lane="long"))
    assert (verdict.code, verdict.trainable, verdict.billed.completion_tokens, verdict.billed.prompt_tokens) == ("ok", True, 4, 7)
    assert "continued" in verdict.flags


@pytest.mark.parametrize("kind", NATIVE)
async def test_a_native_route_refuses_like_any_other(kind: str, scripted: Any, provider_of: Any) -> None:
    provider, ask = await provider_of(kind), replace(ASK, prefix_ids=PREFIX)
    for document, status, code in (
        ({"error": {"message": "busy", "code": 503}}, 503, "provider_error"), ([], 200, "bad_schema"), ({}, 200, "bad_schema"),
        ({"text": 1, "meta_info": 2}, 200, "bad_schema"), ({"content": 5}, 200, None)):
        scripted.json(document, status)
        verdict = judge(ask, await provider.ask(ask))
        assert verdict.action is Action.RETRY
        assert code is None or verdict.code == code


async def test_an_sglang_without_ids_in_chat_is_asked_natively_from_then_on(scripted: Any, provider_of: Any) -> None:
    provider = await provider_of("sglang")
    old = {**CHAT, "choices": [{k: v for k, v in CHAT["choices"][0].items() if k != "token_ids"}]}     # type: ignore[index,attr-defined]
    scripted.json(old)
    assert (await provider.ask(ASK)).answer.completion_ids is None
    scripted.json(NATIVE["sglang"][1])
    exchange = await provider.ask(ASK)
    assert (scripted.requests[-1][0], exchange.dialect) == ("/generate", "sglang/generate")
    assert (exchange.answer.content, exchange.answer.completion_ids.tolist()) == (" eleven is prime.", [9, 10, 11, 12])
