"""What all our pages in Flower share: its login, its look, and errors that tell nothing they should not."""

import asyncio
import logging
import traceback
from base64 import b64decode
from collections.abc import Awaitable
from typing import Any
from urllib.parse import urlparse

from flower.views import BaseHandler
from tornado.web import HTTPError, RequestHandler

from models.errors import BrokerAway
from ops import tables
from ops.board.look import Look, Problem
from workers.shared import Limits

log = logging.getLogger(__name__)
POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'; form-action 'self'"
WORDS = {"count": tables.count, "duration": tables.duration, "dollars": tables.dollars, "state_of": tables.state_of}
REDIS_S = 3.0


class Page(BaseHandler):  # type: ignore[misc]
    """A page of ours. Says nothing of errors but what they are called."""

    look: Look
    limits_of: Limits
    read_only: bool
    show_text: bool
    page: str = ""

    def initialize(self, look: Look, limits_of: Limits, read_only: bool, show_text: bool) -> None:
        self.look, self.limits_of, self.read_only, self.show_text = look, limits_of, read_only, show_text

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Content-Security-Policy", POLICY)
        self.set_header("Referrer-Policy", "same-origin")
        self.set_header("Cache-Control", "no-store")

    def check_xsrf_cookie(self) -> None:
        """Flower checks the token only where people log in by OAuth; these forms always carry it."""
        site, origin = self.request.headers.get("Sec-Fetch-Site"), self.request.headers.get("Origin")
        if site not in (None, "same-origin", "none") or (origin and urlparse(origin).netloc != self.request.host):
            raise HTTPError(403, "This came from another site; nothing was changed.")
        RequestHandler.check_xsrf_cookie(self)

    def show(self, template: str, **values: Any) -> None:
        self.render(template, page=self.page, read_only=self.read_only, Problem=Problem, **WORDS, **values)

    def who(self) -> str:
        """For the record of what a person did: the login, and from where."""
        user = self.current_user
        if not isinstance(user, str):
            scheme, _, credentials = self.request.headers.get("Authorization", "").partition(" ")
            user = b64decode(credentials).decode(errors="replace").split(":")[0] if scheme == "Basic" else "somebody"
        return f"{user[:60]} at {self.request.remote_ip} (page)"

    async def limits(self) -> Any:
        """By account, or a Problem."""
        try:
            return await asyncio.wait_for(self.limits_of.states(), REDIS_S)
        except (BrokerAway, TimeoutError):
            return Problem("Redis cannot be reached, so limits are not known. Nothing is lost: PostgreSQL holds the truth.")

    async def together(self, **asked: Awaitable[Any]) -> dict[str, Any]:
        return dict(zip(asked, await asyncio.gather(*asked.values()), strict=True))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, HTTPError):
            place = traceback.extract_tb(tb)[-1]     # its words may hold what no log should
            log.error("board: %s failed: %s in %s:%s", self.request.path, typ.__name__, place.filename, place.lineno)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        if status_code == 401:
            super().write_error(status_code, **kwargs)
            return
        if not hasattr(self, "_current_user"):
            self.current_user = None
        error = kwargs.get("exc_info", (None, None, None))[1]
        said = error.log_message if isinstance(error, HTTPError) and error.log_message else None
        self.set_status(status_code)
        self.show("problem.html", status=status_code, said=said or "This page cannot be shown now; try again in a moment.")
