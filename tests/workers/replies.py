"""Replies as providers send them, judged: what the tests of verdicts are written in."""

import json
from typing import Any

from workers.providers.base import Ask, Exchange, Fault
from workers.providers.reading import interpreted
from workers.providers.stream import Gather, gathered
from workers.verdict import History, Verdict, judge

NOW = 1_790_000_000.0
ASK = Ask("moonshotai/kimi-k2.5", [{"role": "user", "content": "Tell me of the sea."}], 1_000, expected_prompt_tokens=200,
          routing={"ignore": ["fireworks", "baseten"]})
LONG = History(lane="long", may_promote=False)
TEXT = "The sea is wide and deep, and nobody has counted its waves."
USAGE = {"prompt_tokens": 200, "completion_tokens": 30, "total_tokens": 230, "cost": 0.001}


def reply(finish: Any = "stop", usage: Any = USAGE, native: Any = None, error: Any = None, **message: Any) -> dict[str, Any]:
    document = {"id": "gen-7", "provider": "Moonshot AI", "model": "moonshotai/kimi-k2.5", "usage": usage, "choices": [
        {"index": 0, "finish_reason": finish, "native_finish_reason": native, "message": {"role": "assistant", **message}}]}
    return {**document, "error": error} if error is not None else document


def exchange_of(document: Any, status: int = 200, ask: Ask = ASK, **headers: str) -> Exchange:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    named = {k.replace("_", "-"): v for k, v in headers.items()}
    exchange = Exchange(status=status, headers={"content-type": "application/json", **named}, body=body, received_at=NOW,
                        dialect="openrouter")
    return interpreted(exchange, Gather(), ask)


def of(document: Any, status: int = 200, history: History | None = None, ask: Ask = ASK, **headers: str) -> Verdict:
    return judge(ask, exchange_of(document, status, ask, **headers), history or History())


def failed(code: Any, message: str = "x", status: int | None = None, metadata: Any = None, **rest: Any) -> Verdict:
    headers = {k: rest.pop(k) for k in list(rest) if k.startswith(("retry_", "x_"))}
    error = {"code": code, "message": message, **({"metadata": metadata} if metadata else {}), **rest}
    return of({"error": error}, code if status is None else status, **headers)


def streamed(*events: Any, fault: Fault | None = None, ends: bytes = b"\n\n") -> Verdict:
    lines = [e if isinstance(e, bytes) else b"data: " + json.dumps(e).encode() for e in events]
    body = b"".join(line + ends for line in lines)
    exchange = Exchange(status=200, headers={"content-type": "text/event-stream"}, body=body, streamed=True, fault=fault,
                        received_at=NOW, dialect="openrouter")
    return judge(ASK, interpreted(exchange, gathered(body), ASK))


def piece(finish: Any = None, **delta: Any) -> dict[str, Any]:
    return {"id": "gen-8", "provider": "Moonshot AI", "model": "moonshotai/kimi-k2.5",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


LAST = {"id": "gen-8", "choices": [], "usage": USAGE}
