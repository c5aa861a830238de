"""The floor: asyncio and aiohttp without a limit, a JSON line an answer. Arguments: base URL, prompts, out, in flight."""

import asyncio
import json
import sys
from typing import TextIO

import aiohttp


async def main(base_url: str, lines: TextIO, file: TextIO, in_flight: int) -> None:
    slots, connector = asyncio.Semaphore(in_flight), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        async def ask(row: dict[str, str]) -> None:
            body = {"model": "moonshotai/kimi-k2.5", "messages": [{"role": "user", "content": row["prompt"]}],
                    "max_tokens": 10_240}
            async with slots, session.post(f"{base_url}/chat/completions", json=body) as reply:
                text = (await reply.json())["choices"][0]["message"]["content"]
            file.write(json.dumps({"id": row["id"], "text": text}) + "\n")
        await asyncio.gather(*(ask(json.loads(line)) for line in lines))

with open(sys.argv[2], encoding="utf-8") as prompts, open(sys.argv[3], "w", encoding="utf-8") as out:
    asyncio.run(main(sys.argv[1], prompts, out, int(sys.argv[4])))
