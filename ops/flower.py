"""Flower on the run's broker, on the loopback and behind a password unless told otherwise on purpose."""

from typing import Any, ClassVar

from flower import command
from flower.app import Flower, rewrite_handler
from flower.urls import settings as flower_settings
from tornado.ioloop import PeriodicCallback

from models.errors import SettingsError
from models.settings import Settings
from ops.board.routes import routes
from ops.board.templating import Loader
from workers.app import make_app

USER = "draftmill"
ASK_EVERY_MS = 10_000


class FreshFlower(Flower):  # type: ignore[misc]
    """Flower with our pages.

    It asks workers for their queues once, at its start, when there may be none yet; this one goes on asking.
    """

    pages: ClassVar[list[Any]] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"template_loader": Loader(flower_settings["template_path"]), **kwargs})
        prefix = self.options.url_prefix
        self.add_handlers(".*", [rewrite_handler(page, prefix) if prefix else page for page in self.pages])

    def start(self) -> None:
        PeriodicCallback(self.update_workers, ASK_EVERY_MS).start()
        super().start()


def serve(settings: Settings, *, address: str = "127.0.0.1", read_only: bool = False, show_text: bool = False) -> None:
    """Blocks. show_text: prompts of failed samples are shown. SettingsError when others could reach it without a password."""
    password = settings.flower_password.get_secret_value() if settings.flower_password else ""
    if not password and address not in ("127.0.0.1", "localhost", "::1"):
        raise SettingsError(cause="Flower on an address that others reach needs DRAFTMILL_FLOWER_PASSWORD")
    arguments = ["flower", f"--address={address}", f"--port={settings.flower_port}", "--max_tasks=20000",
                 "--inspect_timeout=3000", "--purge_offline_workers=300", "--natural_time=true", "--logging=warning"]
    if password:
        arguments.append(f"--basic_auth={USER}:{password}")  # inside the process: never on a command line
    if read_only:
        arguments.append("--read_only")
    FreshFlower.pages = routes(settings, read_only=read_only, show_text=show_text)
    command.Flower = FreshFlower
    make_app(settings).start(arguments)
