"""Engines that hand back the ids they sampled: SGLang, vLLM, llama.cpp's server.

Each has a chat route that renders the prompt itself and a native route that takes ids. The native route is used to go on
from a prefix (Answer.completion_ids then holds prefix and continuation, content and usage only the continuation, flag
`continued`), and on SGLang when its chat route turns out not to give ids.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from models.blob import Ids
from workers.providers import reading
from workers.providers.base import Ask, Exchange
from workers.providers.http import Door, Key
from workers.providers.listing import Listed

Body = dict[str, Any]
CHAT_ONLY = ("logprobs", "top_logprobs", "reasoning_effort")


class Engine:
    """What the three have in common. base_url may end in /v1 or not."""

    kind = ""
    native = ""              # the route that takes ids
    streams_ids = False

    def __init__(self, base_url: str, key: Key, max_connections: int) -> None:
        self._door = Door(base_url.rstrip("/").removesuffix("/v1"), key, max_connections)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._door!r})"

    async def ask(self, ask: Ask) -> Exchange:
        if ask.prefix_ids is not None and ask.prompt_ids is not None:
            return _continued(await self._native(ask, np.concatenate([ask.prompt_ids, ask.prefix_ids])), ask.prefix_ids)
        return await self._chat(ask)

    async def _chat(self, ask: Ask) -> Exchange:
        streamed = ask.stream and self.streams_ids
        body: Body = {"model": ask.model, "messages": ask.messages, "max_tokens": ask.max_tokens,
                      "stream": streamed, **ask.sampling, **self.asks_for_ids()}
        if streamed:
            body["stream_options"] = {"include_usage": True}
        if ask.tools:
            body["tools"] = ask.tools
        if ask.thinking is not None:
            body["chat_template_kwargs"] = {ask.thinking_key: ask.thinking}
        exchange, gather = await self._door.post("/v1/chat/completions", body, ask, streamed=streamed)
        exchange.dialect = f"{self.kind}/chat"
        return reading.interpreted(exchange, gather, ask)

    async def _native(self, ask: Ask, prompt: Ids) -> Exchange:
        exchange, gather = await self._door.post(self.native, self.native_body(ask, prompt.tolist()), ask)
        exchange.dialect = f"{self.kind}{self.native}"
        reading.interpreted(exchange, gather, ask, self.as_chat)
        if exchange.answer is not None and exchange.answer.prompt_ids is None:
            exchange.answer = replace(exchange.answer, prompt_ids=np.asarray(prompt, dtype=np.int32))
        return exchange

    def asks_for_ids(self) -> Body:
        return {"return_token_ids": True}

    def native_body(self, ask: Ask, prompt: list[int]) -> Body:
        raise NotImplementedError

    @staticmethod
    def as_chat(document: Mapping[str, Any]) -> Mapping[str, Any]:
        """The native reply in the shape of a chat reply."""
        return document

    async def hosts(self, model: str) -> tuple[Listed, ...]:
        return ()

    def cancels(self, hosts: Sequence[Listed]) -> bool:
        return self.streams_ids

    def stop(self, wanted: Callable[[Ask], bool]) -> int:
        return self._door.stop(wanted)

    async def aclose(self) -> None:
        await self._door.aclose()


class SGLang(Engine):
    """Its chat route refuses to stream with ids, so it is not streamed. An older server ignores `return_token_ids`
    without an error: from the first such answer on, samples with prompt ids go to /generate."""

    kind = "sglang"
    native = "/generate"

    def __init__(self, base_url: str, key: Key, max_connections: int) -> None:
        super().__init__(base_url, key, max_connections)
        self._chat_gives_ids = True

    async def _chat(self, ask: Ask) -> Exchange:
        if not self._chat_gives_ids and ask.prompt_ids is not None and not ask.tools:
            return await self._native(ask, ask.prompt_ids)
        exchange = await super()._chat(ask)
        if exchange.answer is not None and exchange.problem is None and exchange.status == 200:
            self._chat_gives_ids = exchange.answer.completion_ids is not None
        return exchange

    def native_body(self, ask: Ask, prompt: list[int]) -> Body:
        names = {"max_tokens": "max_new_tokens", "seed": "sampling_seed"}
        sampling = {names.get(k, k): v for k, v in ask.sampling.items() if k not in CHAT_ONLY}
        return {"input_ids": prompt, "stream": False,
                "sampling_params": {**sampling, "max_new_tokens": ask.max_tokens, "skip_special_tokens": False}}

    @staticmethod
    def as_chat(document: Mapping[str, Any]) -> Mapping[str, Any]:
        meta = document.get("meta_info")
        if not isinstance(meta, dict):
            return document
        finish = meta.get("finish_reason")
        if isinstance(finish, dict):
            finish = finish.get("type")
        return {"id": meta.get("id"), "usage": _usage(meta.get("prompt_tokens"), meta.get("completion_tokens")), "choices": [
            {"index": 0, "finish_reason": finish, "text": document.get("text"), "token_ids": document.get("output_ids")}]}


class VLLM(Engine):
    kind = "vllm"
    native = "/v1/completions"
    streams_ids = True

    def native_body(self, ask: Ask, prompt: list[int]) -> Body:
        sampling = {k: v for k, v in ask.sampling.items() if k not in CHAT_ONLY}
        return {"model": ask.model, "prompt": prompt, "max_tokens": ask.max_tokens, **sampling,
                "return_token_ids": True, "skip_special_tokens": False}


class LlamaCpp(Engine):
    """Streaming gives no ids here, so it is not streamed either. Its native route names a file where others name a model."""

    kind = "llamacpp"
    native = "/completion"

    def asks_for_ids(self) -> Body:
        return {"verbose": True, "return_tokens": True}

    def native_body(self, ask: Ask, prompt: list[int]) -> Body:
        names = {"repetition_penalty": "repeat_penalty"}
        sampling = {names.get(k, k): v for k, v in ask.sampling.items() if k not in CHAT_ONLY}
        return {"prompt": prompt, "n_predict": ask.max_tokens, **sampling, "return_tokens": True}

    @staticmethod
    def as_chat(document: Mapping[str, Any]) -> Mapping[str, Any]:
        if "content" not in document:
            return document
        finish = {"limit": "length", "eos": "stop", "word": "stop"}.get(str(document.get("stop_type")))
        usage = _usage(document.get("tokens_evaluated"), document.get("tokens_predicted"))
        return {"usage": usage, "choices": [
            {"index": 0, "finish_reason": finish, "text": document["content"], "token_ids": document.get("tokens")}]}


def _usage(prompt: Any, completion: Any) -> Body:
    return {"prompt_tokens": prompt, "completion_tokens": completion}


def _continued(exchange: Exchange, prefix: Ids) -> Exchange:
    answer = exchange.answer
    if answer is not None and answer.completion_ids is not None:
        assert answer.prompt_ids is not None
        exchange.answer = replace(
            answer, prompt_ids=answer.prompt_ids[: len(answer.prompt_ids) - len(prefix)],
            completion_ids=np.concatenate([prefix, answer.completion_ids]).astype(np.int32), flags=answer.flags | {"continued"})
    return exchange
