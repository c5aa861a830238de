import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models.blob import Ids
from models.states import Grade
from models.tokens.row import Span
from producer.export import ExportRow, Options, Selection, Vocabulary

SIZE, BOS, END = 1_000, 1, 2


def ids(*values: int) -> Ids:
    return np.array(values, dtype=np.int32)


def decode(some: Ids) -> str:
    return "".join(f"‹{i}›" for i in some.tolist())


@pytest.fixture
def vocabulary() -> Vocabulary:
    return Vocabulary(size=SIZE, bos_id=BOS, end_ids=frozenset({END}), decode=decode)


@pytest.fixture
def options(vocabulary: Vocabulary) -> Options:
    return Options(vocabulary, draft_sizes=(8, 32), selection=Selection(val_share=0.3), hidden_size=64)


@pytest.fixture
def row() -> Callable[..., ExportRow]:
    """A sound row; keywords change it."""
    plain = ExportRow(
        id="B1/a", key="a", primary_id="B1/a", dataset="B1", turn=0,
        prompt={"messages": [{"role": "user", "content": "Hi"}], "tools": None, "later": [], "metadata": {}, "turn": 0},
        prompt_ids=ids(BOS, 10, 11), completion_ids=ids(20, 21, END), spans=(Span("content", 0, 2), Span("stop", 2, 3)),
        grade=Grade.ENGINE, finish_reason="stop", model="m", provider="p", quantization="fp8", temperature=1.0, content="Hello")

    def made(**changes: Any) -> ExportRow:
        return replace(plain, **changes)
    return made


@pytest.fixture
def many(row: Callable[..., ExportRow]) -> Callable[[int], list[ExportRow]]:
    """n rows of a mixed lot: several turns, cut ones, reasoning, any ids."""
    def made(n: int) -> list[ExportRow]:
        rng, rows = random.Random(n), []
        for i in range(n):
            cut, size = rng.random() < 0.2, rng.randint(1, 40)
            body = [int(rng.paretovariate(0.7)) % (SIZE - 3) + 3 for _ in range(size)]
            spans = [Span("content", 0, size)] + ([] if cut else [Span("stop", size, size + 1)])
            rows.append(row(
                id=f"B{i % 3}/{i // 2}#t{i % 2}", key=f"{i // 2}#t{i % 2}", primary_id=f"B{i % 3}/{i // 2}", dataset=f"B{i % 3}",
                turn=i % 2, prompt_ids=ids(BOS, *(rng.randrange(3, SIZE) for _ in range(rng.randint(1, 30)))),
                completion_ids=ids(*body, *([] if cut else [END])), spans=tuple(spans), truncated=cut, trainable=not cut,
                flags=frozenset({"truncated"} if cut else ()), finish_reason="length" if cut else "stop",
                reasoning="hm" if i % 5 == 0 else None, cost_usd=0.001, temperature=rng.choice([None, 0.6, 1.0]),
                metadata={"topic": rng.choice(["x", "星", 7])}, provider=rng.choice(["p", "q", ""])))
        return rows
    return made
