"""What a person sees in the terminal: datasets, workers, providers, and the summary of a run. Usable at 80 columns."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from models.store.board_requeues import Requeued
from models.store.totals import DatasetTotals, ProviderTotals, WorkerTotals

BAR = 6


def count(n: float | None) -> str:
    """1,234 up to 9,999; then 123k, 1.23M."""
    if n is None:
        return "-"
    if abs(n) < 10_000:
        return f"{n:,.0f}"
    return f"{n / 1000:,.0f}k" if abs(n) < 1_000_000 else f"{n / 1e6:,.2f}M" if abs(n) < 10_000_000 else f"{n / 1e6:,.1f}M"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}h{m:02}m" if hours else f"{m}m{s:02}s" if m else f"{s}s"


def span(range_s: tuple[float, float] | None) -> str:
    """A range of durations, as coarse as it is wide."""
    if range_s is None:
        return ""
    low, high = (_coarse(s) for s in range_s)
    return low if low == high else f"{low} to {high}"


def _coarse(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return f"{minutes}m" if minutes < 90 else f"{minutes / 60:.1f}h" if minutes < 48 * 60 else f"{minutes / 1440:.1f}d"


def dollars(usd: float | None) -> str:
    return "-" if usd is None else f"${usd:,.2f}" if usd >= 0.1 or usd == 0 else f"${usd:.4f}"


def state_of(d: DatasetTotals) -> str:
    if d.state == "closed":
        return {"budget": "at budget", "money": "at money"}.get(d.closed_reason or "", f"closed: {d.closed_reason}")
    return "finished" if d.finished else "running" if d.running else "open"


def budget_bar(d: DatasetTotals) -> Text:
    """Stored (=), committed (-) and free (.) against the token budget."""
    if d.token_budget is None:
        return Text("no budget", style="dim")
    bar = share_bar(d.stored_tokens, max(0, d.reserved_tokens + d.margin_tokens), d.token_budget, BAR)
    return Text.assemble(bar, f" {100 * d.stored_tokens / d.token_budget:.1f}%")


def share_bar(used: float, held: float, whole: float, width: int) -> Text:
    full = min(width, round(width * used / whole))
    more = min(width - full, round(width * held / whole))
    return Text.assemble(("=" * full, "green"), ("-" * more, "yellow"), ("." * (width - full - more), "dim"))


_STYLES = {"finished": "green", "at budget": "green", "running": "cyan", "open": "cyan"}


_WIDTHS = {"dataset": (7, 12), "state": (9, 9), "budget": (12, 13), "ETA": (6, 13)}


def datasets(totals: Sequence[DatasetTotals]) -> Table:
    """Columns that say nothing (no money, no budget, no ETA) are left out, so that 80 columns are enough."""
    money, budgets = any(d.spent_usd for d in totals), any(d.token_budget is not None for d in totals)
    etas = any(d.eta_s is not None for d in totals)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for name, shown in (("dataset", True), ("state", True), ("done", True), ("left", True), ("run", True), ("fail", True),
                        ("tokens", not budgets), ("budget", budgets), ("tok/s", etas), ("ETA", etas), ("spent", money)):
        if shown:
            text = name in ("dataset", "state", "budget")
            least, most = _WIDTHS.get(name, (4, None))
            table.add_column(name, justify="left" if text else "right", no_wrap=True, overflow="ellipsis", min_width=least,
                             max_width=most)
    for d in totals:
        state, pace = state_of(d), count(d.pace) if d.pace and not d.settled else ""
        cells: list[tuple[bool, str | Text]] = [
            (True, d.name), (True, Text(state.partition(":")[0], _STYLES.get(state, "yellow"))), (True, count(d.done)),
            (True, count(d.queued)), (True, count(d.running)), (True, Text(count(d.failed), "red" if d.failed else "")),
            (not budgets, count(d.stored_tokens)), (budgets, budget_bar(d)), (etas, pace),
            (etas, span(d.eta_range_s) or duration(d.eta_s)), (money, dollars(d.spent_usd))]
        table.add_row(*(cell for shown, cell in cells if shown))
    return table


def details(totals: Sequence[DatasetTotals], *, brief: bool = False) -> RenderableType:
    """Tokens, grades, money per million and causes of failure, a line each. brief: only what may want a person's hand."""
    lines = []
    for d in totals:
        parts = [] if brief else _facts(d)
        if d.state == "closed" and d.closed_reason not in ("budget", "money"):
            parts.append(f"closed ({d.closed_reason}); open it again: draftmill open {d.name}")
        parts += [f"{provider} left out ({why})" for provider, why in d.excluded.items()]
        if d.failures:
            parts.append("failed: " + ", ".join(f"{n} {code}" for code, n in list(d.failures.items())[:4]))
        if parts:
            lines.append(Text.assemble((f"{d.name}: ", "bold"), ", ".join(parts)))
    return Group(*lines)


def _facts(d: DatasetTotals) -> list[str]:
    parts = [f"{count(d.stored_tokens)} tokens"] if d.stored_tokens else []
    parts += [f"{n} {grade}" for grade, n in sorted(d.grades.items(), key=lambda g: -g[1])]
    if d.usd_per_million is not None:
        parts.append(f"{dollars(d.usd_per_million)} per million useful tokens")
    if d.reserved_usd:
        parts.append(f"{dollars(d.reserved_usd)} reserved")
    if d.saved_tokens:
        parts.append(f"{count(d.saved_tokens)} tokens saved by going on")
    return parts + waste(d)


def waste(d: DatasetTotals) -> list[str]:
    """Billed and not useful, by kind, dearest first."""
    kinds = sorted((w["tokens"], w["usd"], kind) for kind, w in d.waste.items() if w["tokens"] or w["usd"])
    return [f"wasted on {kind}: {count(tokens)} tokens" + (f" ({dollars(usd)})" if usd else "")
            for tokens, usd, kind in reversed(kinds)]


def workers(rows: Sequence[WorkerTotals]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for name in ("worker", "lane", "in flight", "of", "heartbeat", "loop lag", "token wait"):
        table.add_column(name, justify="left" if name in ("worker", "lane") else "right", no_wrap=True)
    for w in rows:
        table.add_row(w.name, w.lane, count(w.in_flight), count(w.concurrency), f"{w.heartbeat_age_s:.0f}s ago",
                      f"{w.facts.get('lag_ms', 0)} ms", f"{w.facts.get('token_wait_ms', 0)} ms")
    return table


def providers(rows: Sequence[ProviderTotals]) -> Group:
    return Group(_calls(rows), Text(), _health(rows))


def _health(rows: Sequence[ProviderTotals]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for name in ("dataset", "provider", "429", "5xx", "refusals", "tokens/s", "grades"):
        table.add_column(name, justify="left" if name in ("dataset", "provider", "grades") else "right", no_wrap=name != "grades")
    for p in rows:
        table.add_row(p.dataset, p.provider, count(p.limited), count(p.server_errors), count(p.refusals), count(p.tokens_per_s),
                      ", ".join(f"{grade} {100 * n / sum(p.grades.values()):.0f}%" for grade, n in reversed(p.grades.items())))
    return table


def _calls(rows: Sequence[ProviderTotals]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for name in ("dataset", "provider", "quant", "calls", "ok", "refused", "broken", "cut", "p50", "p95", "spent"):
        table.add_column(name, justify="left" if name in ("dataset", "provider", "quant") else "right", no_wrap=True)
    for p in rows:
        table.add_row(p.dataset, p.provider, p.quantization, count(p.calls), count(p.ok), count(p.refused), count(p.broken),
                      count(p.truncated), duration(p.p50_s), duration(p.p95_s), dollars(p.cost_usd))
    return table


def line(d: DatasetTotals) -> str:
    """One dataset as plain text, for logs and pipes."""
    budget = f" of {count(d.token_budget)}" if d.token_budget is not None else ""
    pace = f", {count(d.pace)} tokens/s, {span(d.eta_range_s)} left" if d.eta_range_s else ""
    return (f"{d.name}: {state_of(d)}, {d.done} done, {d.queued} left, {d.running} running, {d.failed} failed, "
            f"{count(d.stored_tokens)}{budget} tokens, {dollars(d.spent_usd)}{pace}")


def requeued(r: Requeued) -> str:
    """A record of a requeue as plain text: when, who, what, and what became of it."""
    what = ", ".join(f"{k.replace('_', ' ')} {' '.join(v) if isinstance(v, list) else v}" for k, v in r.what.items())
    became = ", ".join(f"{n} {k}" for k, n in (("done", r.done), ("running", r.running), ("waiting", r.unclaimed),
                                             ("failed again", r.failed)) if n)
    return f"{r.id}: {duration(r.ago_s)} ago, {r.who}: {r.count} samples ({what}): {'taken back' if r.undone else became or '-'}"
