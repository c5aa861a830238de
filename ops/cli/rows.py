"""Stored rows: export, import, calibrate, regrade, verify, audit."""

from pathlib import Path
from typing import Annotated

import typer

from ops.cli.options import Home, Names, PlanFile, app, engine_of, settings_of


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

    settings = settings_of(home)
    for summary in export_datasets(
        engine_of(settings), datasets or [], output_dir, to or ["tokens"], grade, val, mask_end, settings.home
    ):
        typer.echo(summary)


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
    typer.echo(import_files(engine_of(settings), dataset, files, settings.home, given))


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
