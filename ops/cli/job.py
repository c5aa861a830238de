"""The main job: run, up, enqueue, forecast."""

from pathlib import Path
from typing import Annotated

import typer

from ops.cli.options import Decontaminate, Dedup, Home, Partition, PlanFile, Prompts, app, settings_of


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
    dedup: Dedup = None,
    decontaminate: Decontaminate = None,
) -> None:
    """Start everything, answer all prompts within their budgets, export, and say what came of it. Run it again to resume."""
    from ops.planning import Flags, planned
    from ops.run import run as run_plan

    flags = Flags(
        prompts=prompts, partition=partition, output_dir=output_dir, plan=plan, api_key_file=api_key_file, kind=kind,
        base_url=base_url, model=model, profile=profile, short_concurrency=short_concurrency,
        short_max_tokens=short_max_tokens, long_concurrency=long_concurrency, long_max_tokens=long_max_tokens,
        token_budget=token_budget, money_budget=money_budget, budget_mode=budget_mode, turns=turns,
        run_money_budget=run_money_budget, dedup=dedup, decontaminate=decontaminate,
    )  # fmt: skip
    raise typer.Exit(run_plan(settings_of(home), planned(flags), short_workers, long_workers, mix=mix_settings, export=export))


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

    settings = settings_of(home)
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
    dedup: Dedup = None,
    decontaminate: Decontaminate = None,
) -> None:
    """Put prompts into the database and fill the queues; workers take them from there."""
    import asyncio

    from ops.planning import Flags, planned
    from ops.run import put_in

    flags = Flags(
        prompts=prompts, partition=partition, plan=plan, api_key_file=api_key_file, kind=kind, base_url=base_url,
        model=model, profile=profile, short_max_tokens=short_max_tokens, long_max_tokens=long_max_tokens,
        token_budget=token_budget, turns=turns, dedup=dedup, decontaminate=decontaminate,
    )  # fmt: skip
    for result in asyncio.run(put_in(settings_of(home), planned(flags), mix=mix_settings)):
        typer.echo(result)


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
        prompts=prompts, partition=partition, plan=plan, api_key_file=api_key_file, kind=kind, base_url=base_url,
        model=model, profile=profile, token_budget=token_budget, money_budget=money_budget,
    )  # fmt: skip
    raise typer.Exit(look_ahead(settings_of(home), planned(flags), Console(), samples))
