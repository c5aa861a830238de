"""The `draftmill` command. Each verb reads its settings, calls the room that does the work, and says what came of it."""

import json
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from models.errors import DraftmillError, SettingsError
from models.settings import Settings, load

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Exact-token training rows for EAGLE-3 draft models, from any endpoint, within a budget.",
)

Prompts = Annotated[Path | None, typer.Argument(help="a file of prompts, or a folder of them (one dataset each)")]
PlanFile = Annotated[
    Path | None, typer.Option("--plan", help="a draftmill.toml [./draftmill.toml if no prompts are named]")
]
Partition = Annotated[str | None, typer.Option(help="one dataset by name, or all")]
Home = Annotated[Path | None, typer.Option(help="where services and their data live [.draftmill]")]
Names = Annotated[list[str] | None, typer.Argument(help="datasets; all if none is named")]


def _settings(home: Path | None = None, **overrides: Any) -> Settings:
    return load(home=home, **overrides)


def _engine(settings: Settings) -> Any:
    from models.base import connect

    if settings.database_url is None:
        raise SettingsError(cause="no database: set DRAFTMILL_DATABASE_URL, or start `draftmill up` in this folder")
    return connect(settings.database_url.get_secret_value())


@app.command(rich_help_panel="The main job")
def run(
    prompts: Prompts = None,
    partition: Partition = None,
    plan: PlanFile = None,
    home: Home = None,
    output_dir: Annotated[Path | None, typer.Option(help="where exports go [out]")] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="a file with the account's key")] = None,
    kind: Annotated[str | None, typer.Option(help="openrouter, sglang, vllm, llamacpp or embedded")] = None,
    base_url: Annotated[str | None, typer.Option(help="the endpoint, e.g. http://127.0.0.1:30000/v1")] = None,
    model: Annotated[str | None, typer.Option(help="as the endpoint calls it")] = None,
    profile: Annotated[str | None, typer.Option(help="model profile: kimi-k2.5, qwen3, smollm2, ... or a TOML file")] = None,
    short_concurrency: Annotated[int | None, typer.Option(min=1)] = None,
    short_max_tokens: Annotated[int | None, typer.Option(min=1)] = None,
    long_concurrency: Annotated[int | None, typer.Option(min=1)] = None,
    long_max_tokens: Annotated[int | None, typer.Option(min=1)] = None,
    token_budget: Annotated[int | None, typer.Option(min=1, help="stored tokens per dataset")] = None,
    money_budget: Annotated[float | None, typer.Option(help="dollars per dataset")] = None,
    run_money_budget: Annotated[float | None, typer.Option(help="dollars of all datasets together")] = None,
    budget_mode: Annotated[str | None, typer.Option(help="strict or forecast")] = None,
    turns: Annotated[str | None, typer.Option(help="last, or all: regenerate every assistant turn")] = None,
    short_workers: Annotated[int, typer.Option(min=0, help="worker processes of the short lane")] = 1,
    long_workers: Annotated[int, typer.Option(min=0)] = 1,
    mix_settings: Annotated[bool, typer.Option(help="allow rows made with other settings in one dataset")] = False,
    export: Annotated[bool, typer.Option(help="write the export at the end")] = True,
) -> None:
    """Start everything, answer all prompts within their budgets, export, and say what came of it. Run it again to resume."""
    from ops.planning import Flags, planned
    from ops.run import run as run_plan

    flags = Flags(
        prompts,
        partition,
        output_dir,
        plan,
        api_key_file,
        kind,
        base_url,
        model,
        profile,
        short_concurrency,
        short_max_tokens,
        long_concurrency,
        long_max_tokens,
        token_budget,
        money_budget,
        budget_mode,
        turns,
        run_money_budget,
    )
    raise typer.Exit(run_plan(_settings(home), planned(flags), short_workers, long_workers, mix=mix_settings, export=export))


@app.command(rich_help_panel="The main job")
def up(
    plan: PlanFile = None,
    home: Home = None,
    short_workers: Annotated[int, typer.Option(min=0)] = 1,
    long_workers: Annotated[int, typer.Option(min=0)] = 1,
    short_concurrency: Annotated[int, typer.Option(min=1)] = 2_000,
    long_concurrency: Annotated[int, typer.Option(min=1)] = 500,
    flower_: Annotated[bool, typer.Option("--flower/--no-flower")] = True,
) -> None:
    """Start services, workers, the reaper and Flower under one supervisor; Ctrl-C stops them all, data stay."""
    from models import plan as plans
    from ops.run import up as start_up

    settings = _settings(home)
    known = plans.read(plan) if plan else plans.Plan()
    raise typer.Exit(
        start_up(
            settings,
            known,
            {"short": (short_workers, short_concurrency), "long": (long_workers, long_concurrency)},
            flower=flower_,
        )
    )


@app.command(rich_help_panel="The main job")
def enqueue(
    prompts: Prompts = None,
    partition: Partition = None,
    plan: PlanFile = None,
    home: Home = None,
    profile: str | None = None,
    model: str | None = None,
    kind: str | None = None,
    base_url: str | None = None,
    api_key_file: Path | None = None,
    token_budget: int | None = None,
    turns: str | None = None,
    short_max_tokens: int | None = None,
    long_max_tokens: int | None = None,
    mix_settings: bool = False,
) -> None:
    """Put prompts into the database and fill the queues; workers take them from there."""
    import asyncio

    from ops.planning import Flags, planned
    from ops.run import put_in

    flags = Flags(
        prompts,
        partition,
        None,
        plan,
        api_key_file,
        kind,
        base_url,
        model,
        profile,
        None,
        short_max_tokens,
        None,
        long_max_tokens,
        token_budget,
        None,
        None,
        turns,
    )
    for result in asyncio.run(put_in(_settings(home), planned(flags), mix=mix_settings)):
        typer.echo(
            f"{result.dataset}: {result.rows} rows, {result.new} new, {result.refused.total()} refused"
            + (f" (see {result.rejects})" if result.rejects else "")
        )


@app.command(rich_help_panel="The main job")
def forecast(
    prompts: Prompts = None,
    partition: Partition = None,
    plan: PlanFile = None,
    home: Home = None,
    api_key_file: Annotated[Path | None, typer.Option(help="a file with the account's key")] = None,
    kind: str | None = None,
    base_url: str | None = None,
    model: str | None = None,
    profile: str | None = None,
    token_budget: int | None = None,
    money_budget: float | None = None,
    samples: Annotated[int, typer.Option("-n", min=1, help="prompts of each dataset to answer first")] = 50,
) -> None:
    """Answer a few prompts of each dataset, and say what all will cost, take and give. A run goes on from there."""
    from rich.console import Console

    from ops.forecasting import forecast as look_ahead
    from ops.planning import Flags, planned

    flags = Flags(
        prompts, partition, None, plan, api_key_file, kind, base_url, model, profile,
        token_budget=token_budget, money_budget=money_budget,
    )  # fmt: skip
    raise typer.Exit(look_ahead(_settings(home), planned(flags), Console(), samples))


@app.command(rich_help_panel="Processes")
def worker(
    lane: Annotated[str, typer.Argument(help="short or long")],
    home: Home = None,
    concurrency: Annotated[int | None, typer.Option("-c", "--concurrency", min=1, help="requests in flight [2000, 500]")] = None,
    name: Annotated[str | None, typer.Option("-n", help="as Flower shows it [lane-pid]")] = None,
) -> None:
    """Run one worker process of a lane. Start as many as you like, on any machine that reaches both services."""
    from models.states import Lane
    from ops.logs import configure
    from workers.tasks import work

    if lane not in ("short", "long"):
        raise SettingsError(cause=f"there is no lane {lane!r}; it is short or long")
    settings = _settings(home)
    configure(settings.log_level)
    raise typer.Exit(
        work(settings, Lane.of(lane), concurrency or (2_000 if lane == "short" else 500), name or f"{lane}-{os.getpid()}")
    )


@app.command(rich_help_panel="Processes")
def reaper(home: Home = None) -> None:
    """Close datasets at their budget, rescue samples of dead workers, refill queues. One leads; more may stand by."""
    import asyncio

    from ops.logs import configure
    from workers.reaper import reap

    settings = _settings(home)
    configure(settings.log_level)

    async def until_told() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await reap(settings, stop)

    asyncio.run(until_told())


@app.command(rich_help_panel="Processes")
def flower(home: Home = None, address: str = "127.0.0.1", read_only: bool = False) -> None:
    """Flower with workers, tasks and queues. The user is draftmill; `status` shows the password."""
    from ops.flower import serve

    serve(_settings(home), address=address, read_only=read_only)


@app.command(rich_help_panel="Processes")
def migrate(home: Home = None) -> None:
    """Bring the database to this version's tables."""
    from models.store.schema import migrate as upgrade

    settings = _settings(home)
    if settings.database_url is None:
        raise SettingsError(cause="DRAFTMILL_DATABASE_URL is not set")
    upgrade(settings.database_url.get_secret_value())
    typer.echo("the database is up to date")


@app.command(rich_help_panel="Looking")
def status(
    datasets: Names = None,
    home: Home = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="again every two seconds")] = False,
    providers: Annotated[bool, typer.Option("--providers", help="a table per provider")] = False,
) -> None:
    """Datasets, budgets, money, workers."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from models.base import transaction
    from models.store import spending, totals
    from ops import tables

    settings = _settings(home)
    engine = _engine(settings)

    def look() -> Any:
        with transaction(engine) as connection:
            found = totals.datasets(connection, datasets or None)
            spending.add(connection, found)
            fleet = totals.workers(connection)
            served = totals.providers(connection, datasets or None) if providers else []
        if as_json:
            return json.dumps(
                {
                    "datasets": [d.as_json() for d in found],
                    "workers": [asdict(w) for w in fleet],
                    "providers": [asdict(p) for p in served],
                }
            )
        parts: list[Any] = [tables.datasets(found), tables.details(found), Text(), tables.workers(fleet)]
        if providers:
            parts += [Text(), tables.providers(served)]
        if settings.flower_password is not None:
            parts.append(
                Text(
                    f"\nFlower: http://127.0.0.1:{settings.flower_port} user draftmill, password "
                    f"{settings.flower_password.get_secret_value()}",
                    style="dim",
                )
            )
        return Group(*parts)

    if as_json:
        typer.echo(look())
        return
    console = Console()
    if not watch:
        console.print(look())
        return
    with Live(look(), console=console, refresh_per_second=4) as live:
        while True:
            time.sleep(2)
            live.update(look())


@app.command(rich_help_panel="Steering")
def close(datasets: Annotated[list[str], typer.Argument()], home: Home = None) -> None:
    """Stop datasets: no new call for them; what is in flight ends and is kept."""
    _steer(home, datasets, closing=True)


@app.command("open", rich_help_panel="Steering")
def open_(datasets: Annotated[list[str], typer.Argument()], home: Home = None) -> None:
    """Let closed datasets go on."""
    _steer(home, datasets, closing=False)


def _steer(home: Path | None, names: list[str], *, closing: bool) -> None:
    from models.base import transaction
    from models.states import Closed
    from models.store import datasets as store

    with transaction(_engine(_settings(home))) as connection:
        known = {d.name: d for d in store.every(connection)}
        for name in names:
            if name not in known:
                raise SettingsError(cause=f"there is no dataset {name!r}, only {', '.join(sorted(known)) or 'none at all'}")
            changed = (
                store.close(connection, known[name].id, Closed.OPERATOR)
                if closing
                else store.open_again(connection, known[name].id)
            )
            typer.echo(f"{name}: {'closed' if closing else 'open'}" + ("" if changed else " already"))


@app.command(rich_help_panel="Steering")
def requeue(
    dataset: Annotated[str | None, typer.Argument()] = None,
    home: Home = None,
    cause: Annotated[list[str] | None, typer.Option(help="reasons of failure; any if none is given")] = None,
    from_lane: Annotated[str | None, typer.Option(help="only samples of this lane")] = None,
    provider: Annotated[str | None, typer.Option(help="only those last asked of this provider")] = None,
    truncated: Annotated[bool, typer.Option(help="done rows that were cut, instead of failed samples")] = False,
    grade: Annotated[list[str] | None, typer.Option(help="done rows of these grades")] = None,
    older_than: Annotated[float | None, typer.Option(help="seconds since they ended")] = None,
    lane: Annotated[str | None, typer.Option(help="run them in this lane")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say how many, and what they can cost at most")] = False,
    undo: Annotated[int | None, typer.Option(help="take a requeue back by its number, as far as unclaimed")] = None,
) -> None:
    """Ask again for failed or truncated samples."""
    from producer.requeue import Wish
    from producer.requeue import requeue as requeue_samples
    from producer.requeue import undo as undo_requeue

    engine = _engine(_settings(home))
    if undo is not None:
        typer.echo(f"{undo_requeue(engine, undo)} samples are failed again")
        return
    if dataset is None:
        raise SettingsError(cause="name the dataset whose samples are to be asked for again")
    wish = Wish(dataset, tuple(cause or ()), from_lane, provider, truncated, tuple(grade or ()), older_than, lane, max_tokens)
    bound = requeue_samples(engine, wish, dry_run=dry_run)
    causes = ", ".join(f"{n} {c}" for c, n in bound.causes.items())
    typer.echo(
        f"{bound.count} samples{f' ({causes})' if causes else ''}, at most {bound.max_tokens:,} tokens"
        + (f" and ${bound.max_usd:.2f}" if bound.max_usd is not None else "")
    )
    if not dry_run and bound.record is not None:
        typer.echo(f"queued again; take it back with: draftmill requeue --undo {bound.record}")


@app.command(rich_help_panel="Steering")
def limits(
    account: Annotated[str | None, typer.Argument(help="needed to change one")] = None,
    home: Home = None,
    override: Annotated[int | None, typer.Option(min=0, help="fix it at so many calls at once; 0 learns it again")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="end its pause now")] = False,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """How many calls each account takes at once, as learnt or as fixed; a change holds for all workers at once."""
    from rich.console import Console

    from ops import limits as known

    settings = _settings(home)
    if (override is not None or resume) and account is None:
        raise SettingsError(cause="name the account that is to be changed")
    if account is not None and override is not None:
        known.override(settings, account, override or None)
    if account is not None and resume:
        known.resume(settings, account)
    found = {name: s for name, s in known.states(settings).items() if account in (None, name)}
    if as_json:
        typer.echo(json.dumps(found))
    else:
        Console().print(known.table(found))


@app.command(rich_help_panel="Rows")
def export(
    datasets: Names = None,
    home: Home = None,
    output_dir: Annotated[Path, typer.Option()] = Path("out"),
    to: Annotated[list[str] | None, typer.Option(help="tokens, messages, specforge, ...")] = None,
    grade: Annotated[str, typer.Option(help="the lowest grade to take")] = "verified",
    val: Annotated[float, typer.Option(help="share of conversations in the validation split")] = 0.05,
    mask_end: Annotated[bool, typer.Option(help="leave the end token out of the loss mask")] = False,
) -> None:
    """Write rows that trainers load as they are."""
    from ops.exporting import export_datasets

    settings = _settings(home)
    for summary in export_datasets(
        _engine(settings), datasets or [], output_dir, to or ["tokens"], grade, val, mask_end, settings.home
    ):
        typer.echo(summary)


@app.command(rich_help_panel="Rows")
def calibrate(datasets: Names = None, home: Home = None) -> None:
    """Learn how each provider counts and trims, from stored rows; then grade earlier rows by it."""
    from ops.grading import calibrate as learn
    from ops.grading import regrade as grade_again

    settings = _settings(home)
    engine = _engine(settings)
    for (profile, model, provider, finish), convention, new in learn(engine, datasets or [], settings.home):
        state = "settled" if convention.settled else "not settled yet"
        typer.echo(f"{model} ({profile}) by {provider or 'unnamed'}, {finish}: {state}{', new' if new else ''}")
        for line in convention.describe():
            if " of 0 rows" not in line:  # shapes that only follow from others
                typer.echo(f"    {line}")
    for name, looked, changed in grade_again(engine, datasets or [], settings.home):
        typer.echo(f"{name}: {looked} rows graded again, {changed} changed")


@app.command(rich_help_panel="Rows")
def regrade(
    datasets: Names = None,
    home: Home = None,
    every: Annotated[bool, typer.Option("--every", help="also rows that today's rules graded, and engine rows")] = False,
) -> None:
    """Recompute ids and grades from the stored replies. No call is made."""
    from ops.grading import regrade as grade_again

    settings = _settings(home)
    for name, looked, changed in grade_again(_engine(settings), datasets or [], settings.home, every=every):
        typer.echo(f"{name}: {looked} rows graded again, {changed} changed")


@app.command(rich_help_panel="Rows")
def verify(dataset: Annotated[str, typer.Argument()], home: Home = None) -> None:
    """Check every stored row against its own reply: ids, spans, text, counts. Exit 1 when a row is wrong."""
    from ops.grading import verified

    settings = _settings(home)
    report, unseen = verified(_engine(settings), dataset, settings.home)
    for grade, n in sorted(report.grades.items(), reverse=True):
        typer.echo(f"{n:8,} {grade.label}")
    typer.echo(f"completion tokens billed but not kept: {report.drift_percent:+.3f}%")
    for provider, n in sorted(report.rows.items()):
        typer.echo(f"{provider or 'unnamed'}: {report.mismatched[provider]:,} of {n:,} rows differ from their bill or reply")
    if unseen.verified:
        share = f"{unseen.share:.3%} ({unseen.low:.3%} to {unseen.high:.3%})"
        typer.echo(f"verified rows that are silently inexact, estimated: {share}")
    for problem, n in report.problems.most_common():
        typer.echo(f"{n:8,} {problem}")
    raise typer.Exit(1 if report.problems else 0)


@app.command(rich_help_panel="Rows")
def audit(datasets: Names = None, home: Home = None) -> None:
    """How honest the grades are: engine rows graded again without their ids, per habit of a provider."""
    from models.states import Grade
    from ops.grading import audited

    settings = _settings(home)
    for tally in audited(_engine(settings), datasets or [], settings.home):
        typer.echo(tally.style)
        for grade in sorted(Grade, reverse=True):
            share = tally.share(grade)
            if share.rows:
                low, high = share.interval
                typer.echo(f"{share.rows:8,} {grade.label:10} {share.share:7.2%} exact ({low:.2%} to {high:.2%})")


@app.command(rich_help_panel="Looking")
def providers(
    model: Annotated[str | None, typer.Argument(help="author/slug; the plan's if none is given")] = None,
    plan: PlanFile = None,
    dataset: Annotated[str | None, typer.Option(help="whose plan is to choose [the first]")] = None,
    home: Home = None,
    profile: Annotated[str, typer.Option(help="without a plan: by its routing")] = "kimi-k2.5",
    base_url: str | None = None,
    api_key_file: Path | None = None,
) -> None:
    """Who serves a model: quantization, price, limits, uptime, logprobs, and whom the plan admits."""
    from rich.console import Console

    from models import plan as plans
    from models.plan import Account, DatasetPlan
    from ops import hosts

    document = plans.read(plan) if plan else None
    if document is not None:
        chosen = document.datasets.get(dataset) if dataset else next(iter(document.datasets.values()), None)
        if chosen is None:
            raise SettingsError(cause=f"the plan has no dataset {dataset or ''!r}")
        name = chosen.account_names()[0]
        account = document.accounts[name]
    else:
        name = "openrouter"
        account = Account(**({"base_url": base_url} if base_url else {}), api_key_file=api_key_file)
        chosen = DatasetPlan(profile=profile, model=model or "moonshotai/kimi-k2.5", account=name)
    found = hosts.listed(_settings(home), name, account, model or chosen.model)
    Console().print(hosts.table(found, chosen))


@app.command(rich_help_panel="Looking")
def doctor(
    home: Home = None,
    plan: PlanFile = None,
    worker_: Annotated[bool, typer.Option("--worker", help="only: is a worker of this machine alive?")] = False,
) -> None:
    """Check services, settings, keys, profiles and limits, and name the remedy for what is wrong."""
    from ops.doctor import examine, worker_alive

    settings = _settings(home)
    if worker_:
        raise typer.Exit(0 if worker_alive(settings) else 1)
    findings = examine(settings, plan)
    for finding in findings:
        typer.echo(f"{finding.mark} {finding.what}" + (f"\n    {finding.remedy}" if finding.remedy else ""))
    raise typer.Exit(1 if any(f.bad for f in findings) else 0)


@app.command(rich_help_panel="Processes", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def simulator(context: typer.Context) -> None:
    """An HTTP server that answers like OpenRouter and SGLang, with faults and a ledger of its own (for tests)."""
    from ops.simulator.__main__ import behaviour, parser
    from ops.simulator.app import main as serve

    given = parser().parse_args(context.args)
    serve(behaviour(given), given.host, given.port, given.ready_file)


def main() -> None:
    """The console script: errors of ours are one line and a remedy, not a traceback."""
    try:
        app()
    except DraftmillError as error:
        typer.secho(f"draftmill: {error}", fg="red", err=True)
        if error.remedy:
            typer.secho(f"  {error.remedy}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
