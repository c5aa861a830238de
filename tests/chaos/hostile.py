"""What an enemy would call things and answer, and a provider that does."""

import json
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SEEDS = (
    "'; drop table sample; --", "\" or 1=1 --", "\\'; select pg_sleep(9); --", "$$; truncate completion; $$",
    "%s%s%n", "{0.__class__}", "../../../../etc/passwd", "..\\..\\windows", "/etc/cron.d/x", "a/../../b", "C:\\x",
    "~root", "-rf", "--output-dir=/", "x\x00.jsonl", "=cmd|' /c calc'!A1", "+1+1", "@SUM(A1)", "-2+3", "\t=1", "\r=1",
    "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "{{7*7}}", "${jndi:ldap://x}", "`id`", "$(id)",
    "x\r\nSet-Cookie: a=b", "x\nINFO forged line", "\x1b[2J\x1b]0;title\x07", "\u202egpj.exe", "B\u0406",
    "\u0412\u0031", "\uff22\uff11", "B1\u200b", "\ufeffB1", "caf\u00e9", "e\u0301" * 40, "\u0130", "\U0001f4a3",
    "\ud800", "\udfff\ud800", "\x7f", "\x85\u2028\u2029", "CON", "nul.txt", ".", "..", "...", "a..b", ".hidden",
    "trail.", " ", "", "<|im_end|>", "<think>", "</think></think>", "null", "NaN", "1e999", "9" * 400, "B1/../B2",
    "short.B1", "draftmill:limit:router")


def strings(seed: int, count: int) -> Iterator[str]:
    """Each seed as it is, then pieces of them put together, some very long."""
    chance = random.Random(seed)
    yield from SEEDS[:count]
    for _ in range(count - len(SEEDS)):
        text = "".join(chance.choice(SEEDS)[:chance.randint(1, 40)] for _ in range(chance.randint(1, 4)))
        yield text * (chance.randint(500, 5_000) if chance.random() < 0.02 else 1)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hostile: Sequence[str] = ()
    said: "dict[str, str]" = {}  # noqa: RUF012  (made anew for each server)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt = body["messages"][-1]["content"]
        at = int(prompt.split()[1])
        bad, worse = self.hostile[at], self.hostile[-at - 1]
        self.said[prompt] = json.loads(json.dumps(bad))     # on the wire two halves of a surrogate pair may meet
        self._reply({
            "id": bad, "model": worse, "provider": bad, "object": bad, "created": worse, "system_fingerprint": bad,
            "choices": [{"index": 0, "finish_reason": "stop", "native_finish_reason": worse, "logprobs": None,
                         "message": {"role": "assistant", "content": bad, "refusal": None}}],
            "usage": {"prompt_tokens": 20, "completion_tokens": 1 + len(bad) // 4, "total_tokens": 21 + len(bad) // 4,
                      "cost": 1e-6}})

    def do_GET(self) -> None:
        listed = [{"provider_name": bad, "tag": bad, "quantization": bad} for bad in self.hostile[:60]]
        self._reply({"data": {"endpoints": listed}})

    def _reply(self, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def provider(answers: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """(base URL, prompt -> what it was answered). Prompt "Question N of ..." gets answer N, and its names are hostile too."""
    said: dict[str, str] = {}
    handler = type("Handler", (_Handler,), {"hostile": answers, "said": said})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/api/v1", said
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
