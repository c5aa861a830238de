"""Looking: status, providers, doctor."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from models.errors import SettingsError
from ops.cli.options import Home, Names, PlanFile, app, engine_of, settings_of


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

    settings = settings_of(home)
    engine = engine_of(settings)

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
    found = hosts.listed(settings_of(home), name, account, model or chosen.model)
    Console().print(hosts.table(found, chosen))


@app.command(rich_help_panel="Looking")
def doctor(
    home: Home = None,
    plan: PlanFile = None,
    worker_: Annotated[bool, typer.Option("--worker", help="only: is a worker of this machine alive?")] = False,
) -> None:
    """Check services, settings, keys, profiles and limits, and name the remedy for what is wrong."""
    from ops.doctor import examine, worker_alive

    settings = settings_of(home)
    if worker_:
        raise typer.Exit(0 if worker_alive(settings) else 1)
    findings = examine(settings, plan)
    for finding in findings:
        typer.echo(f"{finding.mark} {finding.what}" + (f"\n    {finding.remedy}" if finding.remedy else ""))
    raise typer.Exit(1 if any(f.bad for f in findings) else 0)
