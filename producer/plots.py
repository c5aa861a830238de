"""What is in an export, drawn: `plots/*.png` beside the data. Needs the extra `plots`, which is loaded only when asked for."""

import io
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any

from models.errors import SettingsError
from models.states import Grade
from producer.shards import Shard, write_file
from producer.tally import Tally

FOLDER = "plots"
TITLES = {"lengths": "Row lengths", "time": "Tokens and dollars over time", "grades": "Grades per provider"}
BLUE, ORANGE = "#3b6ea5", "#d9822b"
# From what is surest to what is least sure.
SHADES = {Grade.ENGINE: "#1b5e3f", Grade.LOGPROBS: "#3f9163", Grade.VERIFIED: "#8cc5a2", Grade.AMBIGUOUS: "#f0d584",
          Grade.DRIFT: "#e39a5b", Grade.REJECTED: "#b5483c"}
BINS = 40


def available() -> None:
    """SettingsError, before anything is written, where matplotlib is not installed."""
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        raise SettingsError(cause="plots need matplotlib: pip install 'draftmill[plots]'") from None


def draw(root: Path, tally: Tally) -> Iterator[Shard]:
    """The plots there is something to show in. The same rows give the same bytes with the same matplotlib."""
    from matplotlib.figure import Figure

    parts: list[tuple[str, Callable[[Any, Tally], None], bool]] = [
        ("lengths", _lengths, bool(tally.lengths)), ("time", _time, bool(tally.minutes)), ("grades", _grades, True)]
    for name, fill, wanted in parts:
        if wanted:
            figure = Figure(figsize=(8, 4), dpi=110, layout="constrained")
            figure.suptitle(TITLES[name])
            fill(figure, tally)
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", metadata={"Software": None})
            yield write_file(root, f"{FOLDER}/{name}.png", buffer.getvalue())


def _axes(figure: Any, rows: int = 1, row: int = 1) -> Any:
    axes = figure.add_subplot(rows, 1, row)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _lengths(figure: Any, tally: Tally) -> None:
    axes = _axes(figure)
    lengths, counts = list(tally.lengths.keys()), list(tally.lengths.values())
    axes.hist(lengths, bins=BINS, weights=counts, color=BLUE)
    for name, at in tally.percentiles().items():
        axes.axvline(at, color=ORANGE, linewidth=1)
        axes.text(at, 1.0, f" {name} {at:,}", transform=axes.get_xaxis_transform(), fontsize=8, va="top", rotation=90)
    axes.set_xlabel("tokens of a row, prompt included")
    axes.set_ylabel("rows")


def _time(figure: Any, tally: Tally) -> None:
    """Both added up; stretches without a row are level."""
    minutes = sorted(tally.minutes)
    first = datetime.fromisoformat(minutes[0])
    hours = [(datetime.fromisoformat(m) - first) / timedelta(hours=1) for m in minutes]
    tokens = accumulate(tally.minutes[m] / 1e6 for m in minutes)
    dollars = accumulate(tally.minutes_nusd[m] / 1e9 for m in minutes)
    for row, (name, sums, colour) in enumerate((("supervised tokens, millions", tokens, BLUE), ("dollars", dollars, ORANGE)), 1):
        axes = _axes(figure, 2, row)
        axes.step(hours, list(sums), where="post", color=colour)
        axes.set_ylabel(name, fontsize=8)
        axes.set_ylim(bottom=0)
    axes.set_xlabel(f"hours since {minutes[0].replace('T', ' ')} UTC")


def _grades(figure: Any, tally: Tally) -> None:
    axes = _axes(figure)
    providers = sorted(tally.providers, key=lambda p: (tally.providers[p], p))
    left = [0] * len(providers)
    for grade in sorted(Grade, reverse=True):
        counts = [tally.grades_of_provider[p, grade.label] for p in providers]
        if any(counts):
            axes.barh(range(len(providers)), counts, left=left, color=SHADES[grade], label=grade.label)
            left = [a + b for a, b in zip(left, counts, strict=True)]
    axes.set_yticks(range(len(providers)), [p.replace("$", r"\$") for p in providers])
    axes.set_xlabel("rows")
    figure.legend(loc="outside lower center", frameon=False, fontsize=8, ncols=len(Grade))
