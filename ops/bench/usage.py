"""CPU and memory of processes as /proc has them, and how fast the machine is just now."""

import os
import platform
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from models.settings import environment

TICKS = os.sysconf("SC_CLK_TCK")
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1024**2


@dataclass(frozen=True, slots=True)
class Usage:
    """cpu_s: user and system time, of children that have ended too. rss_mb: of the largest of the processes."""

    cpu_s: float
    rss_mb: float


def usage(roots: Iterable[int]) -> Usage:
    """Of these processes and all that descend from them."""
    cpu = rss = 0.0
    for fields in _tree(set(roots)):
        cpu += sum(map(int, fields[11:15])) / TICKS
        rss = max(rss, int(fields[21]) * PAGE_MB)
    return Usage(cpu, rss)


def _tree(pids: set[int]) -> list[list[str]]:
    stats, children = dict[int, list[str]](), defaultdict[int, list[int]](list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            stats[int(entry.name)] = fields
            children[int(fields[1])].append(int(entry.name))
    found, waiting = set[int](), list(pids)
    while waiting:
        pid = waiting.pop()
        if pid in stats and pid not in found:
            found.add(pid)
            waiting += children[pid]
    return [stats[pid] for pid in found]


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def spent(*arguments: str, **env: str) -> tuple[float, float]:
    """Seconds, and of CPU, that a command of ours takes."""
    begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "ops", *arguments], env=environment(**env), check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - begun, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def yardstick() -> float:
    """CPU milliseconds of a fixed piece of work: what a busy neighbour on the same core adds to every figure."""
    begun = time.process_time()
    sum(n * n % 7 for n in range(200_000))
    return (time.process_time() - begun) * 1e3


def machine() -> str:
    """One line for people; a yardstick that differs much between its best and its middle tells of busy neighbours."""
    marks = sorted(yardstick() for _ in range(15))
    model = next((line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PHYS_PAGES") * PAGE_MB / 1024
    load = os.getloadavg()[0]
    return (f"{os.cpu_count()} cores ({model}), {memory:.0f} GB, Python {platform.python_version()}, "
            f"load {load:.1f}, yardstick {marks[0]:.1f} ms at best, {marks[7]:.1f} in the middle")
