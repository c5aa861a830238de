"""Each wire form holds what the real one holds: the keys of recorded replies, and what OpenRouter documents."""

import json
from pathlib import Path
from typing import Any

import pytest

SPARE = {"logprobs", "timings", "completion_probabilities", "generation_settings", "annotations", "audio", "function_call"}


def recorded(shared: Path, name: str) -> Any:
    return json.loads((shared / "engine" / "recorded" / f"{name}.json").read_text(encoding="utf-8"))["response"]


def missing(real: Any, ours: Any, at: str = "") -> list[str]:
    """Keys of the real reply that ours lacks, but for what only a real sampler can tell."""
    if isinstance(real, dict):
        assert isinstance(ours, dict), at
        gone = [f"{at}.{k}" for k in real.keys() - ours.keys() - SPARE]
        return gone + [m for k in real.keys() & ours.keys() - SPARE for m in missing(real[k], ours[k], f"{at}.{k}")]
    if isinstance(real, list) and real and isinstance(real[0], dict):
        return missing(real[0], ours[0], f"{at}[]")
    return []


@pytest.mark.parametrize(("name", "at", "asks"), [
    ("vllm-chat", "vllm", {"return_token_ids": True}),
    ("vllm-chat-reasoning", "vllm", {"return_token_ids": True}),
    ("llama-server-chat", "llamacpp", {"verbose": True, "return_tokens": True}),
    ("llama-server-chat-reasoning", "llamacpp", {"verbose": True, "return_tokens": True}),
])
def test_an_engines_chat_reply_has_every_key_of_the_recorded_one(
        client: Any, shared: Path, name: str, at: str, asks: dict[str, Any]) -> None:
    assert missing(recorded(shared, name), client.ask(at=at, **asks).json()) == []


@pytest.mark.parametrize(("name", "path"), [
    ("vllm-completions", "/vllm/v1/completions"), ("llama-server-completion", "/completion")])
def test_an_engines_reply_to_ids_has_every_key_of_the_recorded_one(client: Any, shared: Path, name: str, path: str) -> None:
    body = {"model": "m", "prompt": list(range(1_000, 1_030)), "max_tokens": 9, "return_token_ids": True, "return_tokens": True}
    assert missing(recorded(shared, name), client.post(path, body).json()) == []


@pytest.mark.parametrize(("name", "at"), [("vllm-chat-stream", "vllm"), ("llama-server-chat-stream", "llamacpp")])
def test_an_engines_events_have_every_key_of_the_recorded_ones(client: Any, shared: Path, name: str, at: str) -> None:
    real = [json.loads(e[6:]) for e in recorded(shared, name) if e.startswith("data: {")]
    quiet = {} if at == "vllm" else {"chat_template_kwargs": {"enable_thinking": False}}
    ours = client.events(client.ask(at=at, stream=True, stream_options={"include_usage": True}, return_token_ids=True, **quiet))
    for place in (0, 1, -1):
        assert [m for m in missing(real[place], ours[place]) if "fingerprint" not in m] == []


def test_openrouter_says_who_served_what_it_cost_and_how_it_thought(client: Any) -> None:
    reply = client.ask()
    body = reply.json()
    choice, usage = body["choices"][0], body["usage"]
    message = choice["message"]
    assert reply.headers["x-generation-id"] == body["id"]
    assert body["object"] == "chat.completion"
    assert body["model"] == "moonshotai/kimi-k2.5"
    assert body["provider"]
    assert choice["finish_reason"] == choice["native_finish_reason"] == "stop"
    assert message["content"]
    assert message["reasoning"]
    assert message["reasoning_details"][0]["type"] == "reasoning.text"
    assert message["reasoning_details"][0]["text"] == message["reasoning"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["cost"] > 0
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]


def test_the_same_prompt_is_answered_the_same_on_every_engine_and_call(client: Any) -> None:
    router, again = (client.ask("again and again").json() for _ in range(2))
    assert {**router, "id": "", "created": 0} == {**again, "id": "", "created": 0}
    sglang = client.ask("again and again", at="sglang", return_token_ids=True).json()
    vllm = client.ask("again and again", at="vllm", return_token_ids=True).json()
    assert sglang["choices"][0]["message"]["content"] == router["choices"][0]["message"]["content"]
    assert sglang["choices"][0]["message"]["reasoning_content"] == vllm["choices"][0]["message"]["reasoning"]
    assert sglang["choices"][0]["response_token_ids"] == vllm["choices"][0]["token_ids"]
    assert sglang["choices"][0]["prompt_token_ids"] == vllm["prompt_token_ids"]
    assert len(vllm["prompt_token_ids"]) == vllm["usage"]["prompt_tokens"] == router["usage"]["prompt_tokens"]
    assert len(vllm["choices"][0]["token_ids"]) == vllm["usage"]["completion_tokens"] == router["usage"]["completion_tokens"]
    assert client.ask("again and again", seed=5).json()["choices"] != router["choices"]


@pytest.mark.parametrize("at", ["openrouter", "vllm", "llamacpp"])
def test_a_stream_joins_to_the_plain_reply(client: Any, at: str) -> None:
    plain = client.ask("stream me", at=at).json()
    reply = client.ask("stream me", at=at, stream=True, stream_options={"include_usage": True})
    chunks = client.events(reply)
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    names = ("reasoning", "reasoning_content")
    thought = "".join(d.get(n) or "" for d in deltas for n in names)
    message = plain["choices"][0]["message"]
    assert "".join(d.get("content") or "" for d in deltas).lstrip() == message["content"].lstrip()
    assert thought.lstrip() == next(message[n] for n in names if n in message).lstrip()
    assert [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]] == ["stop"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == plain["usage"]
    assert reply.text.startswith(": OPENROUTER PROCESSING\n\n") == (at == "openrouter")


def test_vllm_streams_all_ids(client: Any) -> None:
    plain = client.ask("ids", at="vllm", return_token_ids=True).json()
    chunks = client.events(client.ask("ids", at="vllm", stream=True, return_token_ids=True))
    assert chunks[0]["prompt_token_ids"] == plain["prompt_token_ids"]
    ids = [i for chunk in chunks for choice in chunk["choices"] for i in choice.get("token_ids", [])]
    assert ids == plain["choices"][0]["token_ids"]


def test_sglang_refuses_to_stream_ids_and_hands_them_out_in_its_newer_field(client: Any) -> None:
    assert client.ask(at="sglang", stream=True, return_token_ids=True).status_code == 400
    body = client.ask(at="sglang", return_output_ids_in_sglext=True, return_token_ids=True).json()
    assert body["sglext"]["output_ids"] == [body["choices"][0]["response_token_ids"]]


@pytest.mark.parametrize(("path", "ids_of"), [
    ("/sglang/generate", lambda b: b["output_ids"]), ("/vllm/v1/completions", lambda b: b["choices"][0]["token_ids"]),
    ("/llamacpp/completion", lambda b: b["tokens"])])
def test_an_answer_that_was_cut_goes_on_from_its_ids(client: Any, path: str, ids_of: Any) -> None:
    prompt = f"a long story for {path}"
    whole = client.ask(prompt, at="vllm", return_token_ids=True).json()
    part = client.ask(prompt, at="vllm", return_token_ids=True, max_tokens=18).json()
    assert part["choices"][0]["finish_reason"] == "length"
    assert part["usage"]["completion_tokens"] == 18
    prefix = part["prompt_token_ids"] + part["choices"][0]["token_ids"]
    sampling = {"max_new_tokens": 900}
    rest = client.post(path, {"prompt": prefix, "input_ids": prefix, "max_tokens": 900, "sampling_params": sampling,
                              "return_token_ids": True, "return_tokens": True}).json()
    assert part["choices"][0]["token_ids"] + ids_of(rest) == whole["choices"][0]["token_ids"]
    assert len({r["prompt"] for r in client.simulator.ledger()[-3:]}) == 1


@pytest.mark.parametrize(("path", "ids_of"), [
    ("/sglang/generate", lambda e: e["output_ids"]), ("/vllm/v1/completions", lambda e: e["choices"][0].get("token_ids", [])),
    ("/llamacpp/completion", lambda e: [] if e["stop"] else e["tokens"])])
def test_a_reply_to_ids_can_be_streamed(client: Any, path: str, ids_of: Any) -> None:
    body = {"prompt": [*range(3_000, 3_020)], "max_tokens": 15, "return_token_ids": True, "return_tokens": True}
    whole = client.post("/vllm/v1/completions", body).json()["choices"][0]["token_ids"]
    asked = {**body, "input_ids": body["prompt"], "sampling_params": {"max_new_tokens": 15}, "stream": True}
    lines = client.post(path, asked).text.split("\n")
    streamed = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert [i for event in streamed for i in ids_of(event)] == whole


def test_generate_names_why_it_stopped(client: Any) -> None:
    asked = {"input_ids": list(range(2_000, 2_020)), "sampling_params": {"max_new_tokens": 5}}
    meta = client.post("/generate", asked).json()["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 5}
    assert meta["completion_tokens"] == 5


def test_thinking_can_be_switched_off(client: Any) -> None:
    assert client.ask(reasoning={"enabled": False}).json()["choices"][0]["message"]["reasoning"] is None
    quiet = client.ask(at="vllm", chat_template_kwargs={"enable_thinking": False}).json()
    assert quiet["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


def test_routing_chooses_among_the_endpoints_it_admits(client: Any) -> None:
    served = {client.ask(f"p{i}", provider={"quantizations": ["fp8"]}).json()["provider"] for i in range(12)}
    assert served == {"Fireworks", "Novita"}
    assert client.ask(provider={"only": ["deepinfra"]}).json()["provider"] == "DeepInfra"
    nobody = client.ask(provider={"only": ["deepinfra"], "quantizations": ["bf16"]})
    assert nobody.status_code == 404
    assert nobody.json()["error"]["availability"]["code"] == "constraint_filtered"


def test_the_endpoints_page_tells_quantization_price_and_limits(client: Any) -> None:
    data = client.get("/api/v1/models/moonshotai/kimi-k2.5/endpoints").json()["data"]
    assert data["id"] == "moonshotai/kimi-k2.5"
    assert {e["quantization"] for e in data["endpoints"]} == {"int4", "fp8", "fp4"}
    for endpoint in data["endpoints"]:
        assert float(endpoint["pricing"]["completion"]) > float(endpoint["pricing"]["prompt"]) > 0
        assert endpoint["max_completion_tokens"]
        assert endpoint["supported_parameters"]
        assert endpoint["status"] == 0


def test_key_credits_and_generation_agree_with_the_replies(client: Any) -> None:
    before = client.get("/api/v1/credits").json()["data"]["total_usage"]
    body = client.ask("what did it cost").json()
    after = client.get("/api/v1/key").json()["data"]
    assert after["usage"] - before == pytest.approx(body["usage"]["cost"])
    assert after["limit_remaining"] == pytest.approx(after["limit"] - after["usage"])
    found = client.get(f"/api/v1/generation?id={body['id']}").json()["data"]
    assert found["total_cost"] == body["usage"]["cost"]
    assert found["provider_name"] == body["provider"]
    assert found["native_tokens_completion"] == body["usage"]["completion_tokens"]
    assert client.get("/api/v1/generation?id=gen-nobody").status_code == 404


@pytest.mark.parametrize(("fields", "why"), [
    ({"messages": []}, "messages"), ({"messages": "hi"}, "messages"), ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 400_000}, "context")])
def test_a_request_that_makes_no_sense_is_a_400_that_says_why(client: Any, fields: dict[str, Any], why: str) -> None:
    reply = client.ask(**fields)
    assert reply.status_code == 400
    assert why in reply.json()["error"]["message"]


def test_health_and_queue_gauges_can_be_read(client: Any) -> None:
    assert client.get("/health").status_code == client.get("/sglang/health").status_code == 200
    assert "sglang:num_queue_reqs 0" in client.get("/metrics").text
    assert client.get("/nowhere").status_code == 404
