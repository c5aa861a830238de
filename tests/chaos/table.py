"""The table of results in docs/reliability.md, written anew by `make chaos`; several processes may write into it."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from tests.chaos.fleet import Outcome

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
HEAD = ["| fault | promise | measured |", "|---|---|---|"]


def note(name: str, promise: str, measured: Outcome | str) -> None:
    """At once: what was measured stays, also when the suite is cut off."""
    if isinstance(measured, Outcome) and not measured.kept:
        measured = f"**broken**: {measured}"
    _rewrite(lambda before: {**before, name: f"| {name} | {promise} | {measured} |"})


def clear() -> None:
    _rewrite(lambda _: {})


def _rewrite(change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    path = os.environ.get("CHAOS_TABLE")
    if not path:
        return
    with Path(path).open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        before, _, rest = file.read().partition(BEGIN)
        old, _, after = rest.partition(END)
        known = {line.split("|")[1].strip(): line for line in old.splitlines() if line.startswith("| ")}
        known.pop("fault", None)
        lines = [line for _, line in sorted(change(known).items())]
        file.seek(0)
        file.write("\n".join([f"{before}{BEGIN}", *HEAD, *lines, f"{END}{after}"]))
        file.truncate()
