"""What the commands share: the application, options that several take, settings and the database."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from models.errors import SettingsError

if TYPE_CHECKING:   # reading settings imports pydantic: half of what `--help` would cost
    from models.settings import Settings

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
Dedup = Annotated[str | None, typer.Option(help="ask once what is asked twice: exact, or near for nearly the same too")]
Decontaminate = Annotated[
    list[Path] | None, typer.Option(help="a file of prompts that must not be asked, such as a benchmark's; may be repeated")
]
Home = Annotated[Path | None, typer.Option(help="where services and their data live [.draftmill]")]
Names = Annotated[list[str] | None, typer.Argument(help="datasets; all if none is named")]


def settings_of(home: Path | None = None, **overrides: Any) -> "Settings":
    from models.settings import load

    settings = load(home=home, **overrides)
    if settings.traces_url is not None:
        from ops import tracing

        tracing.configure(settings)
    return settings


def engine_of(settings: "Settings") -> Any:
    from models.base import connect

    if settings.database_url is None:
        raise SettingsError(cause="no database: set DRAFTMILL_DATABASE_URL, or start `draftmill up` in this folder")
    return connect(settings.database_url.get_secret_value())
