"""A whole run against a simulator, watched: what is in flight as the server counts it, CPU and memory of every part."""

import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.bench.rig import Rig
from ops.bench.usage import Usage, usage
from ops.simulator.process import Simulator

FULL_WITHIN_S = 45.0     # or it never will be
VOCABULARIES = Path(__file__).parents[3] / "shared" / "tokenizers"
# The command itself names its workers too, and everything descends from it.
PARTS = {"short": ("ops worker short",), "long": ("ops worker long",), "PostgreSQL": ("postgres", " -D "), "Redis": ("valkey",)}


@dataclass(frozen=True, slots=True)
class Load:
    """rows: samples per dataset. tokens: mean of an answer. latency: seconds of an answer, uniform. simulator: more options."""

    short: int
    long: int
    rows: Mapping[str, int]
    latency: tuple[float, float]
    profile: str = "smollm2"
    tokens: int = 2_900
    short_workers: int = 1
    start_at_most: bool = True
    simulator: Mapping[str, Any] = field(default_factory=dict)
    tokenizers: Path = VOCABULARIES

    @property
    def needs_vocabulary(self) -> bool:
        return self.profile.startswith(("kimi", "qwen"))


@dataclass(frozen=True, slots=True)
class Mark:
    """How things stood at a moment: complete answers by the server's count, use by part."""

    at: float
    complete: int
    parts: Mapping[str, Usage]


class Mill:
    def __init__(self, rig: Rig, simulator: Simulator, load: Load) -> None:
        self.rig, self.simulator, self.load = rig, simulator, load

    def first_call(self) -> float:
        """Seconds from now until the server has a call."""
        return self.rig.wait(lambda: self.simulator.summary()["in_flight"] > 0, 120, "a first call")

    def mark(self) -> Mark:
        parts = {name: usage(self.rig.pids(*words)) for name, words in PARTS.items()}
        parts["simulator"] = usage([self.simulator.pid])
        return Mark(time.monotonic(), self.simulator.summary()["complete"], parts)

    def in_flight(self) -> list[int]:
        """Most at once, by second since the first call."""
        series = self.simulator.summary(series=True)["seconds"]
        if not series:
            return []
        by_second, counts = {s["second"]: s["in_flight"] for s in series}, list[int]()
        for n in range(min(by_second), max(by_second) + 1):
            counts.append(by_second.get(n, counts[-1] if counts else 0))    # nothing came or ended in that second
        return counts

    def facts(self) -> dict[str, dict[str, Any]]:
        """By worker, what it last told of itself: lag_ms (of its event loop), token_wait_ms, ..."""
        return dict(self.rig.query("select name, facts from worker where stopped_at is null and died_at is null"))

    def filled(self, share: float = 0.99, deadline_s: float = FULL_WITHIN_S) -> bool:
        """Whether so much of what was asked for came to be in flight; AssertionError when nothing ever was."""
        wanted = share * (self.load.short + self.load.long)
        try:
            self.rig.wait(lambda: self.simulator.summary()["in_flight"] >= wanted, deadline_s, "all in flight")
        except AssertionError:
            if not self.in_flight():
                raise
            return False
        return True


def per_sample(before: Mark, after: Mark) -> dict[str, float]:
    """CPU milliseconds a complete answer, by part."""
    done = max(1, after.complete - before.complete)
    return {n: 1000 * (after.parts[n].cpu_s - before.parts[n].cpu_s) / done for n in after.parts}


@contextmanager
def folder() -> Iterator[Path]:
    found = Path(tempfile.mkdtemp(prefix="draftmill-bench-"))
    found.chmod(0o755)
    try:
        yield found
    finally:
        shutil.rmtree(found, ignore_errors=True)


@contextmanager
def running(load: Load, **env: str) -> Iterator[Mill]:
    """From the start of the command. At the end everything it started is killed, also where a bench is told to stop."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with folder() as place:
        rig, options = Rig(place, **env), dict[str, Any](load.simulator)
        if load.needs_vocabulary:
            options |= {"profile": load.profile, "tokenizers": load.tokenizers}
            (place / "home").mkdir()
            (place / "home" / "tokenizers").symlink_to(load.tokenizers.resolve())
        else:
            options |= {"profile": load.profile}
        with Simulator(lengths="uniform", min_length=load.tokens // 2, max_length=load.tokens * 3 // 2, reasoning_share=0.0,
                       latency_min_s=load.latency[0], latency_max_s=load.latency[1], keepalive_s=0.0, **options) as simulator:
            try:
                rig.start("run", "--plan", str(_plan(rig, simulator, load)), "--no-export",
                          "--short-workers", str(load.short_workers), "--long-workers", str(int(load.long > 0)))
                yield Mill(rig, simulator, load)
            finally:
                rig.kill_everything()


def _plan(rig: Rig, simulator: Simulator, load: Load) -> Path:
    share = load.long / (load.short + load.long)
    for name, n in load.rows.items():
        rig.prompts(name, [{"id": f"{name}-{i}", "prompt": f"Question {i} of {name}",
                            **({"lane": "long"} if i * share % 1 < share else {})} for i in range(n)])
    account = {"kind": "openrouter", "base_url": simulator.openrouter, "slow_start": not load.start_at_most}
    return rig.plan({"output_dir": "out", "accounts": {"sim": account}, "datasets": {name: {
        "prompts": f"prompts/{name}.jsonl", "profile": load.profile, "model": "moonshotai/kimi-k2.5", "account": "sim",
        "routing": {"quantizations": ["int4", "fp8", "fp4"]}, "promote": False,
        "short": {"max_tokens": 10_240, "concurrency": load.short},
        "long": {"max_tokens": 16_384, "concurrency": max(1, load.long)}} for name in load.rows}})
