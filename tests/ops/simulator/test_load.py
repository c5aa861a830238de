"""Thousands of calls at once, counted by the server."""

import asyncio
import json
import resource
from collections.abc import Callable
from typing import Any

import psutil

CONNECTIONS = 3_000


async def _ask(host: str, port: int, number: int) -> int:
    reader, writer = await asyncio.open_connection(host, port)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": f"p{number}"}], "max_tokens": 10_240}).encode()
    head = b"POST /api/v1/chat/completions HTTP/1.1\r\nconnection: close\r\n"
    writer.write(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
    reply = await reader.read()
    writer.close()
    head, _, text = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    return int(json.loads(text)["usage"]["completion_tokens"])


async def _all(host: str, port: int) -> list[int]:
    return await asyncio.gather(*(_ask(host, port, i) for i in range(CONNECTIONS)))


def test_three_thousand_calls_are_held_and_answered(start: Callable[..., Any]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * CONNECTIONS), hard))
    client = start(lengths="lognormal", min_length=50, max_length=65_536, latency_min_s=6.0, latency_max_s=7.0)
    host, port = client.simulator.url.removeprefix("http://").split(":")
    try:
        tokens = asyncio.run(_all(host, int(port)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    summary = client.simulator.summary()
    assert summary["max_running"] == summary["complete"] == summary["prompts_complete"] == CONNECTIONS
    assert summary["tokens_billed"] == sum(tokens)
    assert psutil.Process(client.simulator.pid).memory_info().rss < 200 * 2**20
