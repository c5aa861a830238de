"""The same prompts through other tools and through draftmill, all in one run: CPU, most in flight, rows left by a kill -9.

    python -m ops.bench.peers ENVIRONMENTS [--in-flight 500] [--rows 2500] [--specforge SCRIPT]

ENVIRONMENTS holds a virtual environment for each tool, made by `make bench-peers`. CPU is that of all processes between the
first tenth of the answers and the last, so that nobody's start counts. SpecForge's package holds no regenerate script;
give that of a checkout, whose environment is `specforge`.
"""

import argparse
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ops.bench import report
from ops.bench.mill import PARTS, Load, folder, running
from ops.bench.rig import Rig
from ops.bench.usage import machine, usage
from ops.simulator.process import Simulator

HERE = Path(__file__).parent / "peer"
LATENCY, TOKENS = (2.0, 6.0), 2_900
PATIENCE_S = 240.0


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    per_s: float
    cpu_s: float                # for 1,000 answers
    most: int                   # in flight
    answered: int               # by the server, of so many
    wanted: int
    served: int                 # when it was killed ...
    kept: int                   # ... and its rows on disk then

    def row(self) -> list[object]:
        return [self.name, self.per_s, self.cpu_s, self.most, f"{self.answered} of {self.wanted}",
                f"{self.kept} of {self.served}"]


@dataclass(frozen=True, slots=True)
class Tool:
    """command: of (base URL, prompts, out). kept: rows on disk."""

    name: str
    command: Callable[[str, Path, Path], list[str]]
    kept: Callable[[Path], int]


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def curated(out: Path) -> int:
    return sum(lines(path) for path in out.rglob("responses_*.jsonl"))


def tools(environments: Path, in_flight: int, specforge: Path | None) -> Iterator[Tool]:
    def own(environment: str, script: str) -> Callable[[str, Path, Path], list[str]]:
        python = environments / environment / "bin" / "python"
        return lambda url, prompts, out: [str(python), str(HERE / f"{script}.py"), url, str(prompts), str(out), str(in_flight)]

    yield Tool("asyncio + aiohttp (the floor)", own("aiohttp", "plain_aiohttp"), lines)
    yield Tool("asyncio + openai", own("openai", "plain_openai"), lines)
    yield Tool("asyncio + httpx", own("httpx", "plain_httpx"), lines)
    yield Tool("bespokelabs-curator", own("curator", "curator_run"), curated)
    if specforge:
        python = environments / "specforge" / "bin" / "python"
        yield Tool("SpecForge's regenerate script", lambda url, prompts, out: [
            str(python), str(specforge), "--model", "moonshotai/kimi-k2.5", "--concurrency", str(in_flight),
            "--max-tokens", "10240", "--server-address", url.removeprefix("http://").removesuffix("/v1"),
            "--input-file-path", str(prompts), "--output-file-path", str(out)], lines)


@contextmanager
def started(tool: Tool, rows: int, place: Path) -> Iterator[tuple[subprocess.Popen[bytes], Simulator, Path]]:
    prompts, out = place / "prompts.jsonl", place / "out.jsonl"
    prompts.write_text("".join(json.dumps({
        "id": str(n), "prompt": f"Question {n}", "conversations": [{"role": "user", "content": f"Question {n}"}]}) + "\n"
        for n in range(rows)), encoding="utf-8")
    with Simulator(lengths="uniform", min_length=TOKENS // 2, max_length=TOKENS * 3 // 2, reasoning_share=0.0, keepalive_s=0.0,
                   latency_min_s=LATENCY[0], latency_max_s=LATENCY[1], profile="smollm2") as simulator, \
            (place / "log").open("wb") as log:
        url = simulator.openrouter if "SpecForge" not in tool.name else simulator.sglang
        process = subprocess.Popen(tool.command(url, prompts, out), stdout=log, stderr=log, start_new_session=True, cwd=place)
        try:
            yield process, simulator, out
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def timed(pids: Callable[[], list[int]], simulator: Simulator, rows: int, alive: Callable[[], bool]) -> tuple[float, float]:
    """(answers a second, CPU seconds for 1,000) between a tenth of the answers and nine tenths, or until patience ends."""
    end, begun = time.monotonic() + PATIENCE_S, None
    while True:
        done, now = simulator.summary()["complete"], time.monotonic()
        if begun is None and done >= rows / 10:
            begun = now, done, usage(pids()).cpu_s
        if done >= 0.9 * rows or now > end or not alive():
            break
        time.sleep(0.2)
    if begun is None or done <= begun[1]:
        return 0.0, 0.0
    return (done - begun[1]) / (now - begun[0]), 1000 * (usage(pids()).cpu_s - begun[2]) / (done - begun[1])


def half_done(simulator: Simulator, rows: int, alive: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while simulator.summary()["complete"] < rows / 2 and time.monotonic() < end and alive():
        time.sleep(0.05)


def measured(tool: Tool, rows: int) -> Result:
    with folder() as place, started(tool, rows, place) as (process, simulator, out):
        per_s, cpu_s = timed(lambda: [process.pid], simulator, rows, lambda: process.poll() is None)
        summary = simulator.summary()
    with folder() as place:
        with started(tool, rows, place) as (process, simulator, out):
            half_done(simulator, rows, lambda: process.poll() is None)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            served = simulator.summary()["complete"]
        kept = tool.kept(out)
    return Result(tool.name, per_s, cpu_s, summary["max_in_flight"], summary["complete"], rows, served, kept)


def ours(profile: str, in_flight: int, rows: int) -> Result:
    """Worker, reaper, supervisor, Flower, PostgreSQL and Valkey together; rows are committed, with ids and grades."""
    load = Load(in_flight, 0, {"B1": rows}, LATENCY, profile, TOKENS)
    with running(load) as mill:
        per_s, cpu_s = timed(lambda: _all(mill.rig), mill.simulator, rows, lambda: mill.rig.pids() != [])
        summary = mill.simulator.summary()
    with running(load) as mill:
        half_done(mill.simulator, rows, lambda: mill.rig.pids() != [])
        mill.rig.kill_everything()
        served = mill.simulator.summary()["complete"]
        with mill.rig.services():
            kept = int(mill.rig.query("select count(*) from completion")[0][0])
    return Result(f"draftmill, {profile} ids", per_s, cpu_s, summary["max_in_flight"], summary["complete"], rows, served, kept)


def _all(rig: Rig) -> list[int]:
    return sorted({*rig.pids(), *rig.pids(*PARTS["PostgreSQL"])})


def main() -> None:
    parser = argparse.ArgumentParser("ops.bench.peers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("environments", type=Path)
    parser.add_argument("--in-flight", type=int, default=500)
    parser.add_argument("--rows", type=int, default=2_500)
    parser.add_argument("--specforge", type=Path, help="scripts/regenerate_train_data.py of a checkout")
    given = parser.parse_args()
    about, found = machine(), list[Result]()
    for tool in tools(given.environments.resolve(), given.in_flight, given.specforge and given.specforge.resolve()):
        found.append(measured(tool, given.rows))
        print(*found[-1].row(), sep=" | ", flush=True)
    for profile in ("smollm2", "kimi-k2.5"):
        found.append(ours(profile, given.in_flight, given.rows))
        print(*found[-1].row(), sep=" | ", flush=True)
    head = ["tool", "samples/s", "CPU s for 1,000", "most in flight", "answered", "rows on disk after kill -9"]
    note = "" if given.specforge else ("\n\nSpecForge's regenerate script was not measured: its package on PyPI does not hold "
                                       "it. `make bench-peers SPECFORGE=SCRIPT` takes that of a checkout.")
    report.write("peers", report.table(head, [r.row() for r in found]) + note, about)


if __name__ == "__main__":
    main()
