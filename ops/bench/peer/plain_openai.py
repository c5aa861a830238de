"""A plain loop: asyncio and the OpenAI client, a JSON line an answer. Arguments: base URL, prompts, out, in flight."""

import asyncio
import json
import sys
from typing import TextIO

from openai import AsyncOpenAI  # type: ignore[import-not-found]  # in its own environment, never one of ours


async def main(base_url: str, lines: TextIO, file: TextIO, in_flight: int) -> None:
    client = AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=3600)
    slots = asyncio.Semaphore(in_flight)
    async def ask(row: dict[str, str]) -> None:
        async with slots:
            reply = await client.chat.completions.create(
                model="moonshotai/kimi-k2.5", messages=[{"role": "user", "content": row["prompt"]}], max_tokens=10_240)
        file.write(json.dumps({"id": row["id"], "text": reply.choices[0].message.content}) + "\n")
    await asyncio.gather(*(ask(json.loads(line)) for line in lines))

with open(sys.argv[2], encoding="utf-8") as prompts, open(sys.argv[3], "w", encoding="utf-8") as out:
    asyncio.run(main(sys.argv[1], prompts, out, int(sys.argv[4])))
