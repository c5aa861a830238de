"""Chat replies in the forms of OpenRouter, SGLang, vLLM and llama.cpp, built from bytes that are JSON already."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ops.simulator.answers import Cut

DONE = b"data: [DONE]\n\n"
COMMENT = b": OPENROUTER PROCESSING\n\n"


@dataclass(slots=True)
class Reply:
    """What a dialect needs to know of one call. `model` is a JSON string; `prompt_ids` reads "1,2,3", b"" if not asked for."""

    id: str
    model: bytes
    created: int
    host: str
    cut: Cut
    prompt_tokens: int
    cost: float
    asked: Mapping[str, Any]
    prompt_ids: bytes = b""
    fault: str = ""
    head: bytes = b""          # the fields that every event of a stream repeats, kept by the dialect

    @property
    def finish(self) -> bytes:
        return b"null" if self.fault == "no_finish" else b'"%b"' % self.cut.finish.encode()

    @property
    def content(self) -> bytes:
        """The content as JSON; null where the answer was cut inside its reasoning."""
        return b'"%b"' % self.cut.content if self.cut.content or self.cut.stopped else b"null"

    @property
    def reasoning(self) -> bytes:
        return b'"%b"' % self.cut.reasoning if self.cut.has_reasoning else b"null"

    @property
    def last_id(self) -> bytes:
        return self.cut.ids.rpartition(b",")[2]

    @property
    def counts(self) -> bytes:
        n, m = self.prompt_tokens * (3 if self.fault == "other_template" else 1), self.cut.tokens
        return b'"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d' % (n, m, n + m)


class Dialect(Protocol):
    """`aborts`: a client that leaves ends the generation, streamed or not."""

    name: str
    aborts: bool

    def body(self, reply: Reply) -> bytes: ...

    def opening(self, reply: Reply) -> bytes: ...

    def event(self, reply: Reply, piece: Cut) -> bytes: ...

    def closing(self, reply: Reply) -> bytes: ...


class OpenRouter:
    name, aborts = "openrouter", False

    def body(self, reply: Reply) -> bytes:
        return (
            b'{%b,"object":"chat.completion","choices":[{"logprobs":null,"finish_reason":%b,"native_finish_reason":%b,"index":0,'
            b'"message":{"role":"assistant","content":%b,"refusal":null,"reasoning":%b%b}}]%b}'
            % (self._head(reply), reply.finish, reply.finish, reply.content, reply.reasoning,
               self._details(reply.cut), self._usage(reply)))

    def opening(self, reply: Reply) -> bytes:
        return self._chunk(reply, b'{"role":"assistant","content":""}', b"null")

    def event(self, reply: Reply, piece: Cut) -> bytes:
        if piece.has_reasoning:
            delta = b'{"role":"assistant","content":"","reasoning":"%b"%b}' % (piece.reasoning, self._details(piece))
        else:
            delta = b'{"role":"assistant","content":"%b"}' % piece.content
        return self._chunk(reply, delta, b"null")

    def closing(self, reply: Reply) -> bytes:
        last = b'data: {%b,"object":"chat.completion.chunk","choices":[]%b}\n\n' % (self._head(reply), self._usage(reply))
        return self._chunk(reply, b'{"role":"assistant","content":""}', reply.finish) + last + DONE

    def _chunk(self, reply: Reply, delta: bytes, finish: bytes) -> bytes:
        return (b'data: {%b,"object":"chat.completion.chunk","choices":[{"index":0,"delta":%b,"finish_reason":%b,'
                b'"native_finish_reason":%b,"logprobs":null}]}\n\n' % (self._head(reply), delta, finish, finish))

    def _head(self, reply: Reply) -> bytes:
        if not reply.head:
            reply.head = b'"id":"%b","provider":%b,"model":%b,"created":%d' % (
                reply.id.encode(), json.dumps(reply.host).encode(), reply.model, reply.created)
        return reply.head

    def _details(self, cut: Cut) -> bytes:
        if not cut.has_reasoning:
            return b""
        return b',"reasoning_details":[{"type":"reasoning.text","text":"%b","format":"unknown","index":0}]' % cut.reasoning

    def _usage(self, reply: Reply) -> bytes:
        if reply.fault == "no_usage":
            return b""
        cost = b"null" if reply.fault == "null_cost" else repr(reply.cost).encode()
        return (b',"usage":{%b,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":%d},'
                b'"cost":%b,"is_byok":false,"cost_details":{"upstream_inference_cost":null}}'
                % (reply.counts, reply.cut.reasoning_tokens, cost))


class _Engine:
    """What SGLang and vLLM share. `reasoning_field` differs, and where ids stand."""

    name, aborts, reasoning_field = "engine", True, b"reasoning_content"

    def opening(self, reply: Reply) -> bytes:
        return self._chunk(reply, b'{"role":"assistant","content":""}', b"null", b"")

    def event(self, reply: Reply, piece: Cut) -> bytes:
        field, text = (self.reasoning_field, piece.reasoning) if piece.has_reasoning else (b"content", piece.content)
        return self._chunk(reply, b'{"%b":"%b"}' % (field, text), b"null", piece.ids)

    def closing(self, reply: Reply) -> bytes:
        end = self._chunk(reply, b"{}", reply.finish, b"")
        if (reply.asked.get("stream_options") or {}).get("include_usage"):
            end += b'data: {%b,"choices":[]%b}\n\n' % (self._head(reply, b"chat.completion.chunk"), self._usage(reply))
        return end + DONE

    def _chunk(self, reply: Reply, delta: bytes, finish: bytes, ids: bytes) -> bytes:
        return b'data: {%b,"choices":[{"index":0,"delta":%b,"logprobs":null,"finish_reason":%b%b}]}\n\n' % (
            self._head(reply, b"chat.completion.chunk"), delta, finish, self._chunk_ids(reply, ids))

    def _chunk_ids(self, reply: Reply, ids: bytes) -> bytes:
        return b""

    def _head(self, reply: Reply, what: bytes) -> bytes:
        return b'"id":"%b","object":"%b","created":%d,"model":%b' % (reply.id.encode(), what, reply.created, reply.model)

    def _usage(self, reply: Reply) -> bytes:
        if reply.fault == "no_usage":
            return b""
        return (b',"usage":{%b,"prompt_tokens_details":null,"completion_tokens_details":{"reasoning_tokens":%d}}'
                % (reply.counts, reply.cut.reasoning_tokens))


class SGLang(_Engine):
    """`return_token_ids` (not streamed), and the newer `return_*_ids_in_sglext`."""

    name = "sglang"

    def body(self, reply: Reply) -> bytes:
        asked, ids, extra = reply.asked, b"", []
        if asked.get("return_token_ids"):
            ids = b',"prompt_token_ids":[%b],"response_token_ids":[%b]' % (reply.prompt_ids, reply.cut.ids)
        if asked.get("return_output_ids_in_sglext"):
            extra.append(b'"output_ids":[[%b]]' % reply.cut.ids)
        if asked.get("return_input_ids_in_sglext"):
            extra.append(b'"input_ids":[%b]' % reply.prompt_ids)
        return (
            b'{%b,"choices":[{"index":0,"message":{"role":"assistant","content":%b,"reasoning_content":%b,"tool_calls":null},'
            b'"logprobs":null,"finish_reason":%b,"matched_stop":%b%b}]%b,"metadata":{"weight_version":"default"}%b}'
            % (self._head(reply, b"chat.completion"), reply.content, reply.reasoning, reply.finish,
               reply.last_id if reply.cut.stopped else b"null", ids, self._usage(reply),
               b',"sglext":{%b}' % b",".join(extra) if extra else b""))


class Vllm(_Engine):
    name, reasoning_field = "vllm", b"reasoning"

    def body(self, reply: Reply) -> bytes:
        wanted = reply.asked.get("return_token_ids")
        return (
            b'{%b,"choices":[{"index":0,"message":{"role":"assistant","content":%b,"refusal":null,"annotations":null,"audio":null,'
            b'"function_call":null,"reasoning":%b},"logprobs":null,"finish_reason":%b,"stop_reason":null,"token_ids":%b,'
            b'"routed_experts":null}],"service_tier":null,"system_fingerprint":"simulator"%b,"prompt_logprobs":null,'
            b'"prompt_token_ids":%b,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}'
            % (self._head(reply, b"chat.completion"), reply.content, reply.reasoning, reply.finish,
               b"[%b]" % reply.cut.ids if wanted else b"null", self._usage(reply),
               b"[%b]" % reply.prompt_ids if wanted else b"null"))

    def opening(self, reply: Reply) -> bytes:
        ids = b',"prompt_token_ids":[%b],"prompt_text":null' % reply.prompt_ids if reply.asked.get("return_token_ids") else b""
        return (b'data: {%b,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
                b'"finish_reason":null}]%b}\n\n' % (self._head(reply, b"chat.completion.chunk"), ids))

    def _chunk_ids(self, reply: Reply, ids: bytes) -> bytes:
        return b',"token_ids":[%b]' % ids if ids and reply.asked.get("return_token_ids") else b""


class LlamaCpp(_Engine):
    """`verbose` + `return_tokens`. As the real one, it drops white space at the head of content and reasoning."""

    name = "llamacpp"

    def body(self, reply: Reply) -> bytes:
        cut = reply.cut
        thought = b',"reasoning_content":"%b"' % cut.reasoning.lstrip(b" ") if cut.has_reasoning else b""
        return (
            b'{"choices":[{"finish_reason":%b,"index":0,"message":{"role":"assistant","content":"%b"%b}}],"created":%d,"model":%b,'
            b'"system_fingerprint":"simulator","object":"chat.completion"%b,"id":"%b"%b}'
            % (reply.finish, cut.content.lstrip(b" "), thought, reply.created, reply.model, self._usage(reply),
               reply.id.encode(), self._verbose(reply)))

    def opening(self, reply: Reply) -> bytes:
        return self._chunk(reply, b'{"role":"assistant","content":null}', b"null", b"")

    def _usage(self, reply: Reply) -> bytes:
        return b"" if reply.fault == "no_usage" else b',"usage":{%b,"prompt_tokens_details":{"cached_tokens":0}}' % reply.counts

    def _verbose(self, reply: Reply) -> bytes:
        if not reply.asked.get("verbose"):
            return b""
        cut = reply.cut
        tokens = cut.ids if reply.asked.get("return_tokens") else b""
        return (
            b',"__verbose":{"index":0,"content":"%b","tokens":[%b],"id_slot":0,"stop":true,"model":%b,"tokens_predicted":%d,'
            b'"tokens_evaluated":%d,"generation_settings":{},"prompt":"","has_new_line":false,"truncated":false,"stop_type":"%b",'
            b'"stopping_word":"","tokens_cached":0}'
            % (cut.sampled, tokens, reply.model, cut.tokens, reply.prompt_tokens, b"eos" if cut.stopped else b"limit"))
