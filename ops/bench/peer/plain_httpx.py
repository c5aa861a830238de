"""A plain loop: asyncio and one httpx client, a JSON line an answer. Arguments: base URL, prompts, out, in flight."""

import asyncio
import json
import sys
from typing import TextIO

import httpx


async def main(base_url: str, lines: TextIO, file: TextIO, in_flight: int) -> None:
    slots, limits = asyncio.Semaphore(in_flight), httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None) as client:
        async def ask(row: dict[str, str]) -> None:
            async with slots:
                reply = await client.post(f"{base_url}/chat/completions", json={
                    "model": "moonshotai/kimi-k2.5", "messages": [{"role": "user", "content": row["prompt"]}],
                    "max_tokens": 10_240})
            text = reply.json()["choices"][0]["message"]["content"]
            file.write(json.dumps({"id": row["id"], "text": text}) + "\n")
        await asyncio.gather(*(ask(json.loads(line)) for line in lines))

with open(sys.argv[2], encoding="utf-8") as prompts, open(sys.argv[3], "w", encoding="utf-8") as out:
    asyncio.run(main(sys.argv[1], prompts, out, int(sys.argv[4])))
