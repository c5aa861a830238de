"""What a person sees in the terminal: datasets, workers, providers, and the summary of a run. Usable at 80 columns."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from models.store.totals import DatasetTotals, ProviderTotals, WorkerTotals

BAR = 12


def count(n: float | None) -> str:
    """1,234 up to 99,999; then 123k, 1.2M."""
    if n is None:
        return "-"
    if abs(n) < 100_000:
        return f"{n:,.0f}"
    return f"{n / 1000:,.0f}k" if abs(n) < 1_000_000 else f"{n / 1e6:,.2f}M"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}h{m:02}m" if hours else f"{m}m{s:02}s" if m else f"{s}s"


def dollars(usd: float | None) -> str:
    return "-" if usd is None else f"${usd:,.2f}" if usd >= 1 or usd == 0 else f"${usd:.4f}"


def state_of(d: DatasetTotals) -> str:
    if d.state == "closed":
        return f"closed: {d.closed_reason}"
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


def datasets(totals: Sequence[DatasetTotals]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for name in ("dataset", "state", "done", "left", "run", "fail", "tokens", "budget", "spent", "ETA"):
        table.add_column(name, justify="left" if name in ("dataset", "state", "budget") else "right", no_wrap=True,
                         overflow="ellipsis")
    for d in totals:
        state = state_of(d)
        table.add_row(d.name, Text(state, _STYLES.get(state, "yellow")), count(d.done), count(d.queued), count(d.running),
                      Text(count(d.failed), "red" if d.failed else ""), count(d.stored_tokens), budget_bar(d),
                      dollars(d.spent_usd), duration(d.eta_s))
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
        parts += [f"{n} failed: {code}" for code, n in list(d.failures.items())[:3]]
        if parts:
            lines.append(Text.assemble((f"{d.name}: ", "bold"), ", ".join(parts)))
    return Group(*lines)


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
