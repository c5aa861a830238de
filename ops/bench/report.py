"""Sections of docs/performance.md, each written by its own bench and replaced by its next run."""

import datetime as dt
from collections.abc import Iterable, Sequence
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, row)) + " |" for row in lines)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def write(name: str, body: str, machine: str, page: Path = PAGE) -> None:
    """Print the section and put it between its marks, with the date; raises ValueError if the page has no such marks."""
    print(body, flush=True)
    text = page.read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    head, mark, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not (mark and closed):
        raise ValueError(f"{page} has no section {name}")
    today = dt.datetime.now(dt.UTC).date()
    page.write_text(f"{head}{begin}{body}\n\nMeasured {today}: {machine}.\n{closed}{tail}", encoding="utf-8")
