"""What a person sees in the terminal: datasets, workers, providers, and the summary of a run. Usable at 80 columns."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

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
    stored = min(BAR, round(BAR * d.stored_tokens / d.token_budget))
    held = min(BAR - stored, round(BAR * max(0, d.reserved_tokens + d.margin_tokens) / d.token_budget))
    share = 100 * d.stored_tokens / d.token_budget
    return Text.assemble(("=" * stored, "green"), ("-" * held, "yellow"), ("." * (BAR - stored - held), "dim"), f" {share:.1f}%")


_STYLES = {"finished": "green", "running": "cyan", "open": "cyan"}


_WIDTHS = {"dataset": 8, "state": 9, "tokens": 6, "budget": 13, "spent": 6, "ETA": 6}


def datasets(totals: Sequence[DatasetTotals]) -> Table:
    """Columns that say nothing (no money, no budget, no ETA) are left out, so that 80 columns are enough."""
    money, budgets = any(d.spent_usd for d in totals), any(d.token_budget is not None for d in totals)
    etas = any(d.eta_s is not None for d in totals)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for name, shown in (("dataset", True), ("state", True), ("done", True), ("left", True), ("run", True), ("fail", True),
                        ("tokens", True), ("budget", budgets), ("spent", money), ("ETA", etas)):
        if shown:
            text = name in ("dataset", "state", "budget")
            table.add_column(name, justify="left" if text else "right", no_wrap=True, overflow="ellipsis",
                             min_width=_WIDTHS.get(name, 5))
    for d in totals:
        state = state_of(d)
        cells: list[tuple[bool, str | Text]] = [
            (True, d.name), (True, Text(state, _STYLES.get(state, "yellow"))), (True, count(d.done)), (True, count(d.queued)),
            (True, count(d.running)), (True, Text(count(d.failed), "red" if d.failed else "")),
            (True, count(d.stored_tokens)), (budgets, budget_bar(d)), (money, dollars(d.spent_usd)), (etas, duration(d.eta_s))]
        table.add_row(*(cell for shown, cell in cells if shown))
    return table


def details(totals: Sequence[DatasetTotals]) -> RenderableType:
    """Grades, rate, money per million and causes of failure, a line each."""
    lines = []
    for d in totals:
        parts = [f"{n} {grade}" for grade, n in sorted(d.grades.items(), key=lambda g: -g[1])]
        if d.tokens_per_s:
            parts.append(f"{count(d.tokens_per_s)} tokens/s")
        if d.usd_per_million is not None:
            parts.append(f"{dollars(d.usd_per_million)} per million useful tokens")
        if d.reserved_usd:
            parts.append(f"{dollars(d.reserved_usd)} reserved")
        if d.saved_tokens:
            parts.append(f"{count(d.saved_tokens)} tokens saved by going on")
        parts += waste(d)
        parts += [f"{provider} left out ({why})" for provider, why in d.excluded.items()]
        parts += [f"{n} failed: {code}" for code, n in list(d.failures.items())[:3]]
        if parts:
            lines.append(Text.assemble((f"{d.name}: ", "bold"), ", ".join(parts)))
    return Group(*lines)


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


def providers(rows: Sequence[ProviderTotals]) -> Table:
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
    return (f"{d.name}: {state_of(d)}, {d.done} done, {d.queued} left, {d.running} running, {d.failed} failed, "
            f"{count(d.stored_tokens)}{budget} tokens, {dollars(d.spent_usd)}")
