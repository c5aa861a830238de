"""Stored rows: export, verify-export, import, calibrate, regrade, verify, audit."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from models.errors import SettingsError
from ops.cli.options import Decontaminate, Dedup, Home, Names, PlanFile, app, engine_of, settings_of


@contextmanager
def closing(engine: Any) -> Iterator[Any]:
    try:
        yield engine
    finally:
        engine.dispose()


@app.command(rich_help_panel="Rows")
def export(
    datasets: Names = None,
    home: Home = None,
    output_dir: Annotated[Path, typer.Option()] = Path("out"),
    to: Annotated[list[str] | None, typer.Option(help="tokens, trl, parquet, messages, specforge, speculators, ...")] = None,
    grade: Annotated[str, typer.Option(help="the lowest grade to take")] = "verified",
    val: Annotated[float, typer.Option(min=0, max=1, help="share of conversations in the validation split")] = 0.05,
    mask_end: Annotated[bool, typer.Option(help="leave the end token out of the loss mask")] = False,
    provider: Annotated[list[str] | None, typer.Option(help="only rows of these")] = None,
    quantization: Annotated[list[str] | None, typer.Option(help="only rows of these")] = None,
    finish: Annotated[list[str] | None, typer.Option(help="only rows that ended so: stop, tool_calls, length")] = None,
    without_flag: Annotated[list[str] | None, typer.Option(help="no rows with these flags")] = None,
    min_length: Annotated[int, typer.Option(min=1, help="tokens of a row, prompt included")] = 1,
    max_length: Annotated[int | None, typer.Option(min=1)] = None,
    metadata: Annotated[list[str] | None, typer.Option(help="FIELD=REGULAR EXPRESSION that the field must match")] = None,
    draft_size: Annotated[list[int] | None, typer.Option(min=1, help="ids in the draft vocabulary")] = None,
    shard_rows: Annotated[int, typer.Option(min=1)] = 100_000,
    hidden_size: Annotated[int | None, typer.Option(min=1, help="of the model, if its profile does not know it")] = None,
    hidden_layers: Annotated[int, typer.Option(min=1, help="whose states a trainer stores")] = 4,
    dedup: Dedup = None,
    near: Annotated[float, typer.Option(min=0.1, max=1, help="what share of 5-word runs makes two prompts one")] = 0.8,
    decontaminate: Decontaminate = None,
    ngram: Annotated[int, typer.Option(min=1, help="words in a row that make a prompt one of those")] = 13,
    plots: Annotated[bool, typer.Option("--plots", help="draw lengths, tokens and dollars over time, grades")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="go on where an export with the same options was killed")] = False,
) -> None:
    """Write rows that trainers load as they are."""
    from ops.exporting import Wish, export_datasets
    from producer.likeness import Rule

    if dedup not in (None, "exact", "near"):
        raise SettingsError(cause=f"--dedup is exact or near, not {dedup!r}")
    settings = settings_of(home)
    rule = Rule(dedup is not None, near if dedup == "near" else None, tuple(decontaminate or ()), ngram)
    wish = Wish(
        tuple(to or ["tokens"]), grade, val, mask_end, tuple(provider or ()), tuple(quantization or ()), tuple(finish or ()),
        tuple(without_flag or ()), min_length, max_length, tuple(metadata or ()), tuple(draft_size or (32_000,)), shard_rows,
        hidden_size, hidden_layers, rule, plots,
    )  # fmt: skip
    with closing(engine_of(settings)) as engine:
        for line in export_datasets(engine, datasets or [], output_dir, wish, settings.home, resume=resume):
            typer.echo(line)


@app.command("verify-export", rich_help_panel="Rows")
def verify_export(
    folder: Annotated[Path, typer.Argument(help="of one dataset: out/B1")],
    home: Home = None,
    decontaminate: Decontaminate = None,
    python: Annotated[list[Path] | None, typer.Option(help="an interpreter that has SpecForge or speculators")] = None,
) -> None:
    """Check an export against the database and, where they are installed, through the trainers' loaders. Exit 1 if it differs."""
    from ops.verifying import verify_export as verified

    settings = settings_of(home)
    well = True
    with closing(engine_of(settings)) as engine:
        for fine, line in verified(engine, folder, settings.home, decontaminate or [], python or []):
            well &= fine
            typer.echo(line if fine else f"WRONG {line}")
    raise typer.Exit(0 if well else 1)


@app.command("import", rich_help_panel="Rows")
def import_(
    dataset: Annotated[str, typer.Argument(help="made from the plan, or from --profile and --model, if it is not there")],
    files: Annotated[list[Path], typer.Argument(help="answers made elsewhere: raw responses, conversations, token rows")],
    plan: PlanFile = None,
    home: Home = None,
    profile: str | None = None,
    model: str | None = None,
) -> None:
    """Take in answers of former runs. A run then asks only for what is missing; importing again changes nothing."""
    from models import plan as plans
    from ops.importing import import_files, plan_of
    from ops.planning import DEFAULT_FILE

    settings = settings_of(home)
    file = plan or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)
    given = plan_of(dataset, model, profile) if model and profile else plans.read(file) if file else None
    with closing(engine_of(settings)) as engine:
        typer.echo(import_files(engine, dataset, files, settings.home, given))


@app.command(rich_help_panel="Rows")
def calibrate(datasets: Names = None, home: Home = None) -> None:
    """Learn how each provider counts and trims, from stored rows; then grade earlier rows by it."""
    from ops.grading import calibrate as learn
    from ops.grading import regrade as grade_again

    settings = settings_of(home)
    engine = engine_of(settings)
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

    settings = settings_of(home)
    for name, looked, changed in grade_again(engine_of(settings), datasets or [], settings.home, every=every):
        typer.echo(f"{name}: {looked} rows graded again, {changed} changed")


@app.command(rich_help_panel="Rows")
def verify(dataset: Annotated[str, typer.Argument()], home: Home = None) -> None:
    """Check every stored row against its own reply: ids, spans, text, counts. Exit 1 when a row is wrong."""
    from ops.grading import verified

    settings = settings_of(home)
    report, unseen = verified(engine_of(settings), dataset, settings.home)
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

    settings = settings_of(home)
    for tally in audited(engine_of(settings), datasets or [], settings.home):
        typer.echo(tally.style)
        for grade in sorted(Grade, reverse=True):
            share = tally.share(grade)
            if share.rows:
                low, high = share.interval
                typer.echo(f"{share.rows:8,} {grade.label:10} {share.share:7.2%} exact ({low:.2%} to {high:.2%})")
