"""The trainers' own loaders against the database: 600 rows are stored, exported, and compared with what a query of this
file's own finds in PostgreSQL. The two environments (3 GB) are installed by the acceptance script and kept in ~/.cache."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
import zstandard
from sqlalchemy import Engine

from models import blob
from models.base import connect, transaction
from models.conversation import document
from models.plan import Account, DatasetPlan
from models.states import Event, Grade, Lane
from models.store import claims, datasets, rows, samples, settlements
from producer.export import FORMS, Options, Selection, Vocabulary, export

tokenizers = pytest.importorskip("tokenizers")

SIZE, END = 151_936, 151_645
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
WORDS = ["The quick brown fox ", "星空很美，我们去看看。", "🍕🥧👩‍🚀 ", "def f(x):\n    return x\n\n", "naïve\u2028café\u0085 ",
         "\x00nul ", "<think>\nhm\n</think>\n\n", '{"a": 1}', CALL]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trainers(shared: Path) -> list[str]:
    """The command that checks an export; skipped where the environments cannot be installed."""
    command = ["bash", str(shared / "trainers/run_acceptance.sh")]
    ready = subprocess.run([*command, "--install-only"], env={**os.environ, "PYTHON": sys.executable},
                           capture_output=True, text=True, timeout=1_500, check=False)
    if ready.returncode:
        pytest.skip(f"the trainers cannot be installed here: {ready.stderr.strip().splitlines()[-1]}")
    return command


@pytest.fixture
def engine(database: str) -> Any:
    made = connect(database)
    yield made
    made.dispose()


def generation(rng: random.Random, encode: Callable[[str], list[int]], n: int) -> tuple[list[int], list[int], dict[str, Any]]:
    """Prompt ids, completion ids and the columns that differ: reasoning, tool calls, cut rows, illegal merges, long ones."""
    question = "".join(rng.choices(WORDS, k=rng.randint(1, 30)))
    prompt = encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
    body = encode("".join(rng.choices(WORDS, k=rng.randint(1, 400 if n % 50 == 0 else 40))))
    if n % 97 == 0:
        body = [rng.randrange(SIZE - 300) for _ in range(9_000 if n == 97 else 50)]  # no tokenizer would encode this so
    cut = rng.random() < 0.15
    kind = "length" if cut else rng.choice(["stop", "stop", "tool_calls"])
    spans = [["content", 0, len(body)]] + ([] if cut else [["stop", len(body), len(body) + 1]])
    return prompt, body if cut else [*body, END], {
        "finish_reason": kind, "truncated": cut, "trainable": not cut, "flags": "truncated" if cut else "",
        "spans": json.dumps(spans), "sampling": rng.choice(["{}", '{"temperature": 1}', '{"temperature": 0.6}'])}


def reply(kind: str) -> bytes:
    call = {"id": "f:0", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    calls = {"tool_calls": [call]} if kind == "tool_calls" else {}
    message = {"role": "assistant", "content": "hello", "reasoning": "hm", **calls}
    return json.dumps({"id": "g", "model": "m", "provider": "P", "choices": [
        {"index": 0, "finish_reason": kind, "native_finish_reason": kind, "message": message}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1}}).encode()


def fill(engine: Engine, encode: Callable[[str], list[int]], n: int) -> datasets.Dataset:
    """n stored generations of n / 2 conversations, through the store's own verbs."""
    rng = random.Random(n)
    plan = DatasetPlan(profile="qwen3", model="m", account="a")
    with transaction(engine) as connection:
        dataset_id = datasets.put(connection, "B1", plan, {"a": Account()})
        prompt = blob.pack_json(document([{"role": "user", "content": "x"}], tools=TOOLS, metadata={"topic": "星"}))
        samples.add(connection, dataset_id, [
            samples.NewSample(f"{i // 2}#t{i % 2}", str(i // 2), i % 2, Lane.SHORT, None, prompt) for i in range(n)])
        ids = samples.hintable(connection, dataset_id, Lane.SHORT, n)
        taken = claims.claim(connection, [(i, "a") for i in ids], 1, Lane.SHORT)
        assert len(taken) == n
        batch = []
        for number, claim in enumerate(taken.values()):
            prompt_ids, completion, columns = generation(rng, encode, number)
            stored = settlements.Stored(
                grade=int(rng.choice([Grade.ENGINE, Grade.LOGPROBS, Grade.VERIFIED])), version="v", model="m", account="a",
                fingerprint="f", n_prompt=len(prompt_ids), n_tokens=len(completion), prompt_ids=blob.pack_ids(prompt_ids),
                ids=blob.pack_ids(completion), raw=blob.pack_raw(reply(columns["finish_reason"])), **columns)
            batch.append(settlements.Settlement(
                id=claim.id, fence=claim.fence, event=Event.DONE, code="ok", basis="usage", cost_nusd=1_000,
                provider=rng.choice(["", "P"]), quantization=rng.choice(["", "fp8"]), model="m", stored=stored))
        assert len(settlements.settle(connection, batch)) == n
        [dataset] = datasets.every(connection)
    return dataset


def dump_truth(url: str, path: Path) -> int:
    """What PostgreSQL holds, read with a query and a decoder of its own."""
    unpack = zstandard.ZstdDecompressor().decompress
    with psycopg.connect(url.replace("+psycopg", "")) as connection, path.open("w") as file:
        found = connection.execute("select sample_id, prompt_ids, ids from completion").fetchall()
        for sample_id, *blobs in found:
            prompt, completion = (np.frombuffer(unpack(b[1:]), "<i4").tolist() for b in blobs)
            mask = [0] * len(prompt) + [1] * len(completion)
            file.write(json.dumps({"id": str(sample_id), "input_ids": prompt + completion, "loss_mask": mask}) + "\n")
    return len(found)


@pytest.mark.timeout(2_400)
def test_specforge_and_speculators_read_what_the_database_holds(
        trainers: list[str], engine: Engine, database: str, shared: Path, tmp_path: Path) -> None:
    from ops.exporting import rows_of  # opens a model's files, which a default run need not

    tokenizer = tokenizers.Tokenizer.from_file(str(shared / "tokenizers/qwen3/tokenizer.json"))
    dataset = fill(engine, lambda text: tokenizer.encode(text).ids, 600)
    vocabulary = Vocabulary(SIZE, None, frozenset({END}), lambda i: tokenizer.decode(i.tolist(), skip_special_tokens=False))
    options = Options(vocabulary, forms=FORMS, selection=Selection(val_share=0.1), draft_sizes=(32_000, 512),
                      shard_rows=100)
    with transaction(engine) as connection:
        summary = export(rows_of(rows.stored(connection, dataset.id), dataset, chats=True), tmp_path / "export", options)
    assert summary.rows == dump_truth(database, tmp_path / "truth.jsonl") == 600
    assert summary.tally.splits["val"]
    checked = subprocess.run(
        [*trainers, "--truth", str(tmp_path / "truth.jsonl"), "--export", str(tmp_path / "export"),
         "--tokenizer", str(shared / "tokenizers/qwen3")], env={**os.environ, "PYTHON": sys.executable},
        capture_output=True, text=True, timeout=900, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count("600/600 rows identical") == 2
    assert "vocabulary 512 of 151936" in checked.stdout
