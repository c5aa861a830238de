"""The `draftmill` command. Each verb reads its settings, calls the room that does the work, and says what came of it."""

import sys

import typer

from models.errors import DraftmillError
from ops.cli import job, looking, processes, rows, steering  # noqa: F401
from ops.cli.options import app


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
