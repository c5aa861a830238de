"""Looking: status, providers, doctor."""

import contextlib
import json
import time
from pathlib import Path
from typing import Annotated

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
    """Datasets, budgets, money, limits, the last failures, workers."""
    from rich.console import Console
    from rich.text import Text

    from models.errors import StoreAway
    from ops import glance

    settings = settings_of(home)
    looker = glance.Looker(engine_of(settings), settings, datasets or None, providers=providers)
    console = Console()
    if as_json:
        typer.echo(json.dumps(glance.as_json(looker.look())))
        return
    if not watch:
        console.print(glance.render(looker.look()))
        if settings.flower_password is not None:
            password = settings.flower_password.get_secret_value()
            said = f"\nFlower: http://127.0.0.1:{settings.flower_port} user draftmill, password {password}"
            console.print(Text(said, style="dim"))
        return
    with contextlib.suppress(KeyboardInterrupt), glance.screen(console) as show:
        while True:
            try:
                show(looker.look())
            except StoreAway as error:
                console.print(f"{error}; trying again", style="yellow")
            time.sleep(2)


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
