"""How fast an export is written, with how much memory, and whether twice gives the same bytes. Made-up rows of 1,000 tokens.

    python -m ops.bench.export [--rows 1000000] [--folder /tmp]        8 GB of disk for a million rows
"""

import argparse
import hashlib
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from models.states import Grade
from models.tokens.row import Span
from producer.export import ExportRow, Options, Vocabulary, export
from producer.shards import MARK

SIZE, PROMPT, TOKENS, KINDS = 151_936, 200, 1_000, 500
SPANS = (Span("reasoning", 0, 300), Span("content", 300, TOKENS - PROMPT))


def rows(n: int) -> Iterator[ExportRow]:
    pool = np.random.default_rng(1).integers(0, SIZE, (KINDS, TOKENS), dtype=np.int32)
    for i in range(n):
        ids = pool[i % KINDS]
        yield ExportRow(
            id=f"B1/{i}", key=str(i), primary_id=f"B1/{i}", dataset="B1", turn=0, prompt={"messages": [], "tools": None},
            prompt_ids=ids[:PROMPT], completion_ids=ids[PROMPT:], spans=SPANS, grade=Grade.ENGINE, finish_reason="stop",
            model="m", provider="P", quantization="fp8", temperature=0.6, sampling={"temperature": 0.6}, cost_usd=0.001,
            prompt_tokens=PROMPT, completion_tokens=TOKENS - PROMPT, sample_id=i + 1, fingerprint="f",
            created_at="2026-12-01T10:00:00+00:00")


def once(n: int, folder: Path) -> str:
    """Write it, say what it took, and give the hash of what the manifest says of all files."""
    began, cpu = time.perf_counter(), time.process_time()
    export(rows(n), folder / "out", Options(Vocabulary(SIZE)))
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    load = os.getloadavg()[0]
    print(f"{n:,} rows: {n / took:,.0f} rows/s, {n / cpu:,.0f} rows per CPU second, peak {peak} MB, machine's load {load:.1f}")
    files = json.loads((folder / "out" / MARK).read_text())["files"]
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        first, second = (once(given.rows, Path(folder)) for _ in range(2))
    print(f"twice: {'the same bytes' if first == second else 'OTHER BYTES'} ({first[:16]})")


if __name__ == "__main__":
    main()
