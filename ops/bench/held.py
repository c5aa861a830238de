"""Held and cost: one short and one long worker against a simulator that counts what is in flight.

    python -m ops.bench.held [--short 2000] [--long 500] [--seconds 30] [--latency 2 10] [--profile smollm2]

CPU is the whole of a process (getrusage as /proc has it) over the run, divided by its answers.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.bench.rig import Rig
from ops.simulator.process import Simulator

TICKS = os.sysconf("SC_CLK_TCK")
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1024**2


@dataclass(frozen=True, slots=True)
class Usage:
    cpu_s: float
    rss_mb: float


def usage(pids: list[int]) -> Usage:
    """CPU and memory of these processes together."""
    cpu = rss = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        cpu += (int(fields[11]) + int(fields[12])) / TICKS
        rss += int(fields[21]) * PAGE_MB
    return Usage(cpu, rss)


def measure(short: int, long: int, seconds: float, latency: tuple[float, float], profile: str, tokenizers: Path | None,
            tokens: int) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="draftmill-bench-"))
    folder.chmod(0o755)
    rig = Rig(folder)
    options: dict[str, Any] = {"profile": profile, **({"tokenizers": tokenizers} if tokenizers else {})}
    if tokenizers:
        (folder / "home").mkdir()
        (folder / "home" / "tokenizers").symlink_to(tokenizers.resolve())
    rows = int((short + long) / (sum(latency) / 2) * seconds * 1.3) + 2 * (short + long)
    try:
        with Simulator(lengths="uniform", min_length=tokens // 2, max_length=tokens * 3 // 2, latency_min_s=latency[0],
                       latency_max_s=latency[1], reasoning_share=0.0, keepalive_s=0.0, **options) as simulator:
            share = long / (short + long)
            rig.prompts("B1", [{"id": str(i), "prompt": f"Question {i}", **({"lane": "long"} if i * share % 1 < share else {})}
                               for i in range(rows)])
            plan = rig.plan({"output_dir": "out", "accounts": {"sim": {
                "kind": "openrouter", "base_url": simulator.openrouter, "slow_start": False}}, "datasets": {"B1": {
                    "prompts": "prompts/B1.jsonl", "profile": profile, "model": "moonshotai/kimi-k2.5", "account": "sim",
                    "routing": {"quantizations": ["int4", "fp8", "fp4"]}, "promote": False,
                    "short": {"max_tokens": 10_240, "concurrency": short}, "long": {"max_tokens": 16_384, "concurrency": long}}}})
            rig.start("run", "--plan", str(plan), "--no-export")
            parts: dict[str, Callable[[], list[int]]] = {
                "worker short": lambda: rig.pids("worker", "short"), "worker long": lambda: rig.pids("worker", "long"),
                "postgres": lambda: rig.pids("postgres"), "valkey": lambda: rig.pids("valkey")}
            rig.wait(lambda: simulator.summary()["in_flight"] >= 0.99 * (short + long), 120, "all in flight")
            before, at, begun = {n: usage(p()) for n, p in parts.items()}, simulator.summary()["complete"], time.monotonic()
            time.sleep(seconds)
            after, done = {n: usage(p()) for n, p in parts.items()}, simulator.summary()["complete"] - at
            series = simulator.summary(series=True)["series"]
            lags = [w["facts"] for w in _workers(rig)]
        return {"samples": done, "samples_per_s": done / (time.monotonic() - begun), "series": series, "facts": lags,
                "cpu_ms": {n: 1000 * (after[n].cpu_s - before[n].cpu_s) / max(1, done) for n in parts},
                "rss_mb": {n: after[n].rss_mb for n in parts}}
    finally:
        rig.kill_everything()
        shutil.rmtree(folder, ignore_errors=True)


def _workers(rig: Rig) -> list[dict[str, Any]]:
    found = rig.query("select name, facts from worker where stopped_at is null")
    return [{"name": name, "facts": facts} for name, facts in found]


def main() -> None:
    parser = argparse.ArgumentParser("ops.bench.held")
    parser.add_argument("--short", type=int, default=2_000)
    parser.add_argument("--long", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--latency", type=float, nargs=2, default=(2.0, 10.0))
    parser.add_argument("--profile", default="smollm2")
    parser.add_argument("--tokenizers", type=Path)
    parser.add_argument("--tokens", type=int, default=2_900)
    given = parser.parse_args()
    found = measure(given.short, given.long, given.seconds, tuple(given.latency), given.profile, given.tokenizers, given.tokens)
    held = [s["in_flight"] for s in found["series"]]
    print(f"held (most, by second): {held}")
    print(f"{found['samples']} samples, {found['samples_per_s']:.0f}/s; CPU ms a sample: "
          + ", ".join(f"{n} {v:.2f}" for n, v in found["cpu_ms"].items()))
    print("RSS MB: " + ", ".join(f"{n} {v:.0f}" for n, v in found["rss_mb"].items()))
    print("facts: ", found["facts"])


if __name__ == "__main__":
    main()
