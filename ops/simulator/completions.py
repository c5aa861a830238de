"""Replies to prompts that are ids: SGLang's /generate, vLLM's /v1/completions, llama.cpp's /completion."""

from ops.simulator.answers import Cut
from ops.simulator.dialects import DONE, Reply


class SGLangGenerate:
    """Streams carry the whole text so far, as the real one does."""

    name, aborts = "sglang", True

    def body(self, reply: Reply) -> bytes:
        return self._state(reply, reply.cut, b'{"type":"stop","matched":%b}' % reply.last_id if reply.cut.stopped
                           else b'{"type":"length","length":%d}' % reply.cut.tokens)

    def _state(self, reply: Reply, cut: Cut, finish: bytes) -> bytes:
        return (
            b'{"text":"%b","output_ids":[%b],"meta_info":{"id":"%b","finish_reason":%b,"prompt_tokens":%d,"completion_tokens":%d,'
            b'"reasoning_tokens":%d,"cached_tokens":0,"weight_version":"default","num_retractions":0,"e2e_latency":0.0}}'
            % (cut.sampled, cut.ids, reply.id.encode(), finish, reply.prompt_tokens, cut.tokens, cut.reasoning_tokens))

    def opening(self, reply: Reply) -> bytes:
        return b""

    def event(self, reply: Reply, piece: Cut) -> bytes:
        return b""

    def closing(self, reply: Reply) -> bytes:
        return b"data: " + self.body(reply) + b"\n\n" + DONE


class VllmCompletion:
    name, aborts = "vllm", True

    def body(self, reply: Reply) -> bytes:
        wanted = reply.asked.get("return_token_ids")
        return (
            b'{"id":"%b","object":"text_completion","created":%d,"model":%b,"choices":[{"index":0,"text":"%b","logprobs":null,'
            b'"finish_reason":%b,"stop_reason":null,"token_ids":%b,"prompt_logprobs":null,"prompt_token_ids":%b,'
            b'"routed_experts":null}],"service_tier":null,"system_fingerprint":"simulator","usage":{%b,"prompt_tokens_details":null,'
            b'"completion_tokens_details":null},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}'
            % (reply.id.encode(), reply.created, reply.model, reply.cut.sampled, reply.finish,
               b"[%b]" % reply.cut.ids if wanted else b"null", b"[%b]" % reply.prompt_ids if wanted else b"null", reply.counts))

    def opening(self, reply: Reply) -> bytes:
        return b""

    def event(self, reply: Reply, piece: Cut) -> bytes:
        ids = b',"token_ids":[%b]' % piece.ids if reply.asked.get("return_token_ids") else b""
        return (b'data: {"id":"%b","object":"text_completion","created":%d,"model":%b,"choices":[{"index":0,"text":"%b",'
                b'"logprobs":null,"finish_reason":null,"stop_reason":null%b}]}\n\n'
                % (reply.id.encode(), reply.created, reply.model, piece.sampled, ids))

    def closing(self, reply: Reply) -> bytes:
        return (b'data: {"id":"%b","object":"text_completion","created":%d,"model":%b,"choices":[{"index":0,"text":"",'
                b'"logprobs":null,"finish_reason":%b,"stop_reason":null}],"usage":{%b}}\n\n'
                % (reply.id.encode(), reply.created, reply.model, reply.finish, reply.counts)) + DONE


class LlamaCompletion:
    name, aborts = "llamacpp", True

    def body(self, reply: Reply) -> bytes:
        cut = reply.cut
        tokens = cut.ids if reply.asked.get("return_tokens") else b""
        return (
            b'{"index":0,"content":"%b","tokens":[%b],"id_slot":0,"stop":true,"model":%b,"tokens_predicted":%d,"tokens_evaluated":%d,'
            b'"generation_settings":{},"prompt":"","has_new_line":false,"truncated":false,"stop_type":"%b","stopping_word":"",'
            b'"tokens_cached":0,"timings":{}}'
            % (cut.sampled, tokens, reply.model, cut.tokens, reply.prompt_tokens, b"eos" if cut.stopped else b"limit"))

    def opening(self, reply: Reply) -> bytes:
        return b""

    def event(self, reply: Reply, piece: Cut) -> bytes:
        tokens = piece.ids if reply.asked.get("return_tokens") else b""
        return b'data: {"index":0,"content":"%b","tokens":[%b],"stop":false,"id_slot":0}\n\n' % (piece.sampled, tokens)

    def closing(self, reply: Reply) -> bytes:
        return b"data: " + self.body(reply) + b"\n\n"
