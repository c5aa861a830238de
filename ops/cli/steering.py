"""Steering what runs: close, open, requeue, limits."""

import json
from pathlib import Path
from typing import Annotated

import typer

from models.errors import SettingsError
from ops.cli.options import Home, app, engine_of, settings_of


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

    with transaction(engine_of(settings_of(home))) as connection:
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
    older_than: Annotated[str | None, typer.Option(help="ended so long ago: 90s, 30m, 2h, 1d; a number alone is seconds")] = None,
    lane: Annotated[str | None, typer.Option(help="run them in this lane")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1)] = None,
    without: Annotated[list[str] | None, typer.Option(help="a provider to leave out from now on; may be repeated")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say how many, and what they can cost at most")] = False,
    undo: Annotated[int | None, typer.Option(help="take a requeue back by its number, as far as unclaimed")] = None,
    records: Annotated[bool, typer.Option("--records", help="only show who asked for what, and what became of it")] = False,
) -> None:
    """Ask again for failed or truncated samples."""
    from models.base import transaction
    from models.store import board_requeues
    from ops import tables
    from producer.requeue import Wish
    from producer.requeue import requeue as requeue_samples
    from producer.requeue import undo as undo_requeue

    engine = engine_of(settings_of(home))
    if undo is not None:
        typer.echo(f"{undo_requeue(engine, undo)} samples are as they were")
        return
    if records:
        with transaction(engine) as connection:
            for record in board_requeues.latest(connection, dataset, 50):
                typer.echo(tables.requeued(record))
        return
    if dataset is None:
        raise SettingsError(cause="name the dataset whose samples are to be asked for again")
    wish = Wish(dataset, tuple(cause or ()), from_lane, provider, truncated, tuple(grade or ()), _seconds(older_than), lane,
                max_tokens, tuple(without or ()))
    bound = requeue_samples(engine, wish, dry_run=dry_run)
    causes = ", ".join(f"{n} {c}" for c, n in bound.causes.items())
    typer.echo(
        f"{bound.count} samples{f' ({causes})' if causes else ''}, at most {bound.max_tokens:,} tokens"
        + (f" and {tables.dollars(bound.max_usd)}" if bound.max_usd is not None else "")
    )
    if not bound.count:
        typer.echo(f"what has failed, and why: draftmill status {dataset}")
    if not dry_run and bound.record is not None:
        typer.echo(f"queued again; take it back with: draftmill requeue --undo {bound.record}")


def _seconds(age: str | None) -> float | None:
    if age is None:
        return None
    unit = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}.get(age[-1:])
    try:
        return float(age[:-1] if unit else age) * (unit or 1)
    except ValueError:
        raise SettingsError(cause=f"--older-than {age!r} is no age; write 90s, 30m, 2h or 1d") from None


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

    settings = settings_of(home)
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
