"""Rows with known ids as reply documents in OpenRouter's shape, with the prompts they answer: what `draftmill import` reads."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from models.tokens.model import Model
from models.tokens.replay import Style, replay
from models.tokens.row import Row

ENGINE = Style("engine")      # sends the ids too


def lines(model: Model, groups: Iterable[tuple[Style, list[Row]]]) -> Iterator[dict[str, Any]]:
    """Rows of an import: each group's in the habits of its style, whose name is the provider's. Rows get prompts of their own."""
    asked = 0
    for style, rows in groups:
        for row in rows:
            prompt = f"Question {asked}"
            ids = model.prompt_ids([{"role": "user", "content": prompt}])
            reply = document(model, replace(row, prompt_ids=ids), style, f"gen-{asked}")
            yield {"id": f"q{asked}", "prompt": prompt, "response": reply}
            asked += 1


def document(model: Model, row: Row, style: Style, name: str) -> dict[str, Any]:
    answer = replay(model.rebuilder, row, row.spans[-1].kind != "stop", style)
    message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
    if answer.reasoning is not None:
        message["reasoning"] = answer.reasoning
        message["reasoning_details"] = [{"type": "reasoning.text", "text": answer.reasoning, "format": "unknown", "index": 0}]
    if answer.tool_calls:
        message["tool_calls"] = [{"type": "function", "index": n, "id": c.id, "function": {
            "name": c.name, "arguments": c.arguments}} for n, c in enumerate(answer.tool_calls)]
    usage = answer.usage
    return {
        "id": name, "provider": style.name, "model": model.profile.name, "object": "chat.completion", "created": 1,
        "choices": [{"index": 0, "logprobs": None, "finish_reason": answer.finish_reason,
                     "native_finish_reason": answer.finish_reason, "message": message,
                     **({"token_ids": row.completion_ids.tolist()} if style == ENGINE else {})}],
        "usage": {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens, "cost": 0.001,
                  "total_tokens": (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)}}


def write(file: Path, found: Iterable[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in found), encoding="utf-8")
    return file
