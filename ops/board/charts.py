"""Charts as inline SVG: no script, colours by CSS class, every mark with a title that says its value."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from xml.sax.saxutils import escape, quoteattr

W, H = 560.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 10.0, 10.0, 24.0


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of a bar: its share of the whole bar, a CSS class, what a pointer is told."""

    kind: str
    share: float
    title: str


def bar(parts: Sequence[Part], label: str) -> str:
    """A stacked bar of 100 x 10; shares beyond the whole are cut."""
    x, drawn = 0.0, []
    for part in parts:
        width = min(100 * part.share, 100 - x)
        if width > 0:
            drawn.append(f'<rect class="dm-{part.kind}" x="{x:.2f}" y="0" width="{max(width, 0.6):.2f}" height="10">'
                         f"<title>{escape(part.title)}</title></rect>")
        x += max(0.0, width)
    return (f'<svg class="dm-bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label={quoteattr(label)}>'
            f'<rect class="dm-rest" x="0" y="0" width="100" height="10"/>{"".join(drawn)}</svg>')


def spark(values: Sequence[float], label: str) -> str:
    if not any(values):
        return ""
    high = max(values)
    step = 100 / max(1, len(values) - 1)
    points = " ".join(f"{i * step:.1f},{27 - 25 * v / high:.1f}" for i, v in enumerate(values))
    return (f'<svg class="dm-spark" viewBox="0 0 100 28" preserveAspectRatio="none" role="img" aria-label={quoteattr(label)}>'
            f'<polygon class="dm-area" points="0,28 {points} 100,28"/><polyline class="dm-line" points="{points}"/></svg>')


def ticks(high: float, n: int = 4) -> list[float]:
    """Round values from 0 up to at least `high`."""
    if high <= 0:
        return [0.0, 1.0]
    raw = high / n
    power = 10 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    return [i * step for i in range(math.ceil(high / step - 1e-9) + 1)]


@dataclass(frozen=True, slots=True)
class Curve:
    kind: str
    name: str
    values: Sequence[float]


Words = Callable[[float], str]


def _frame(high: float, words: Words) -> tuple[list[str], float]:
    marks = ticks(high)
    lines = []
    for mark in marks:
        y = _y(mark, marks[-1])
        lines.append(f'<line class="dm-grid" x1="{LEFT}" x2="{W - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
                     f'<text class="dm-tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{escape(words(mark))}</text>')
    return lines, marks[-1]


def _y(value: float, high: float) -> float:
    return H - BOTTOM - (H - BOTTOM - TOP) * value / high


def _svg(body: Sequence[str], label: str) -> str:
    return (f'<svg class="dm-chart" viewBox="0 0 {W:.0f} {H:.0f}" role="img" aria-label={quoteattr(label)}>'
            f'{"".join(body)}</svg>')


def clock(at: datetime, span_s: float) -> str:
    return at.strftime("%d %b" if span_s > 4 * 86_400 else "%d %H:%M" if span_s > 86_400 else "%H:%M")


def curves(times: Sequence[datetime], drawn: Sequence[Curve], words: Words, label: str, limit: float | None = None) -> str:
    """Lines over time, the first with its area; limit: a dashed line, only if the curves come near it."""
    top = max((max(c.values, default=0) for c in drawn), default=0)
    near = limit is not None and top > 0.4 * limit
    body, high = _frame(max(top, limit or 0) if near else top, words)
    span = (times[-1] - times[0]).total_seconds()
    xs = [LEFT + (W - LEFT - RIGHT) * ((t - times[0]).total_seconds() / span if span else 1) for t in times]
    for i in range(6):
        at = times[0] + (times[-1] - times[0]) * i / 5
        x = LEFT + (W - LEFT - RIGHT) * i / 5
        anchor = "start" if i == 0 else "end" if i == 5 else "middle"
        body.append(f'<text class="dm-tick" x="{x:.1f}" y="{H - 7}" text-anchor="{anchor}">{clock(at, span)}</text>')
    if near and limit is not None:
        y = _y(limit, high)
        body.append(f'<line class="dm-limit" x1="{LEFT}" x2="{W - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    for i, curve in enumerate(drawn):
        points = " ".join(f"{x:.1f},{_y(v, high):.1f}" for x, v in zip(xs, curve.values, strict=True))
        if i == 0:
            body.append(f'<polygon class="dm-fill-{curve.kind}" '
                        f'points="{xs[0]:.1f},{H - BOTTOM} {points} {xs[-1]:.1f},{H - BOTTOM}"/>')
        body.append(f'<polyline class="dm-stroke-{curve.kind}" points="{points}"><title>{escape(curve.name)}: '
                    f"{escape(words(curve.values[-1]))}</title></polyline>")
    return _svg(body, label)


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    parts: Sequence[tuple[str, float]]      # (kind, value), from the bottom up


def columns(drawn: Sequence[Column], words: Words, label: str, below: Sequence[str]) -> str:
    """Stacked columns side by side; below: words under the axis, evenly spread from its left to its right end."""
    body, high = _frame(max((sum(v for _, v in c.parts) for c in drawn), default=0), words)
    width = (W - LEFT - RIGHT) / max(1, len(drawn))
    for i, column in enumerate(drawn):
        x, y, rects = LEFT + i * width, H - BOTTOM, []
        for kind, value in column.parts:
            tall = (H - BOTTOM - TOP) * value / high
            if tall > 0:
                y -= tall
                rects.append(f'<rect class="dm-{kind}" x="{x + 0.6:.1f}" y="{y:.1f}" width="{width - 1.2:.1f}" '
                             f'height="{tall:.1f}"/>')
        if rects:
            body.append(f"<g>{''.join(rects)}<title>{escape(column.title)}</title></g>")
    for i, word in enumerate(below):
        x = LEFT + (W - LEFT - RIGHT) * i / max(1, len(below) - 1)
        anchor = "start" if i == 0 else "end" if i == len(below) - 1 else "middle"
        body.append(f'<text class="dm-tick" x="{x:.1f}" y="{H - 7}" text-anchor="{anchor}">{escape(word)}</text>')
    return _svg(body, label)
