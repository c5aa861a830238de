"""One process each: worker, reaper, flower, metrics, migrate, simulator; and what they log."""

import os
import signal
import sys
from typing import Annotated

import typer

from models.errors import SettingsError
from ops.cli.options import Home, app, settings_of


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
    settings = settings_of(home)
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

    settings = settings_of(home)
    configure(settings.log_level)

    async def until_told() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await reap(settings, stop)

    asyncio.run(until_told())


@app.command(rich_help_panel="Processes")
def flower(
    home: Home = None,
    address: str = "127.0.0.1",
    read_only: Annotated[bool, typer.Option("--read-only", help="look, and change nothing")] = False,
    show_text: Annotated[bool, typer.Option("--show-text", help="show how prompts of failed samples end")] = False,
) -> None:
    """Flower with datasets, requeue, workers, tasks and queues. The user is draftmill; `status` shows the password."""
    os.nice(5)      # where cores are short, workers go first
    from ops.flower import serve

    serve(settings_of(home), address=address, read_only=read_only, show_text=show_text)


@app.command(rich_help_panel="Processes")
def metrics(
    home: Home = None,
    address: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65_535)] = 9464,
    once: Annotated[bool, typer.Option("--once", help="print them and end")] = False,
) -> None:
    """Serve /metrics for Prometheus. Beyond the loopback a scraper must show DRAFTMILL_METRICS_TOKEN as a bearer token."""
    from ops.metrics import Meter, serve

    settings = settings_of(home)
    if once:
        typer.echo(Meter(settings).exposition().decode(), nl=False)
        return
    server = serve(settings, address, port)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    server.serve_forever()


@app.command(rich_help_panel="Processes")
def migrate(home: Home = None) -> None:
    """Bring the database to this version's tables."""
    from models.store.schema import migrate as upgrade

    settings = settings_of(home)
    if settings.database_url is None:
        raise SettingsError(cause="DRAFTMILL_DATABASE_URL is not set")
    upgrade(settings.database_url.get_secret_value())
    typer.echo("the database is up to date")


@app.command(rich_help_panel="Looking")
def logs(
    processes: Annotated[list[str] | None, typer.Argument(help="short, long, reaper, flower, postgres, ...; all if none")] = None,
    home: Home = None,
    level: Annotated[str, typer.Option(help="that one and above: debug, info, warning, error")] = "info",
    dataset: Annotated[list[str] | None, typer.Option(help="only what names it")] = None,
    last: Annotated[int, typer.Option("-n", "--last", min=0, help="so many lines first")] = 50,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="and what comes, until Ctrl-C")] = False,
) -> None:
    """What this home's processes log, as one stream: text in a terminal, JSON elsewhere. Files are bounded to 16 MB each."""
    from ops import journal

    if level not in journal.LEVELS:
        raise SettingsError(cause=f"there is no level {level!r}; it is one of {', '.join(journal.LEVELS)}")
    folder = settings_of(home).home / "logs"
    if not folder.is_dir():
        raise SettingsError(cause=f"there are no logs in {folder}: nothing has run in this home")
    wanted = journal.Filter(processes or (), level, dataset or ())

    def show(line: journal.Line) -> None:
        typer.echo(line.as_text() if sys.stdout.isatty() else line.as_json())

    for line in journal.lines(folder, wanted, last):
        show(line)
    if follow:
        for line in journal.follow(folder, wanted):
            show(line)


@app.command(rich_help_panel="Processes", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def simulator(context: typer.Context) -> None:
    """An HTTP server that answers like OpenRouter and SGLang, with faults and a ledger of its own (for tests)."""
    from ops.simulator.__main__ import behaviour, parser
    from ops.simulator.app import main as serve

    given = parser().parse_args(context.args)
    serve(behaviour(given), given.host, given.port, given.ready_file)
