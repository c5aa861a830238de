"""A real `draftmill flower` over a seeded fleet, for tests that look at its pages."""

import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg

from models.settings import environment
from ops import port

REPOSITORY = Path(__file__).parents[3]
DEADLINE_S = 60


@dataclass
class Board:
    """url: of Flower. database: of the fleet it shows."""

    url: str
    database: str
    password: str

    def client(self, **more: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, auth=("draftmill", self.password), timeout=30, **more)

    def rows(self, sql: str, *values: Any) -> list[Any]:
        with psycopg.connect(self.database.replace("+psycopg", "")) as connection:
            cursor = connection.execute(sql, values)
            return cursor.fetchall() if cursor.description else []


@contextmanager
def serving(database: str, redis_url: str, home: Path, *flags: str) -> Iterator[Board]:
    password, at = secrets.token_urlsafe(8), port.free()
    log = home / "flower.log"
    env = environment(DRAFTMILL_DATABASE_URL=database, DRAFTMILL_REDIS_URL=redis_url, DRAFTMILL_FLOWER_PASSWORD=password,
                      DRAFTMILL_FLOWER_PORT=str(at), DRAFTMILL_HOME=str(home))
    with log.open("w") as out, subprocess.Popen([sys.executable, "-P", "-m", "ops", "flower", *flags], env=env, cwd=REPOSITORY,
                                                stdout=out, stderr=subprocess.STDOUT) as process:
        board = Board(f"http://127.0.0.1:{at}", database, password)
        try:
            _wait(board, process, log)
            yield board
        finally:
            process.kill()


def _wait(board: Board, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{board.url}/healthcheck", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError(f"Flower did not start: {log.read_text()[-2000:]}")


def token(page: str) -> str:
    """The anti-forgery token of a page's forms."""
    return re.findall(r'name="_xsrf" value="([^"]+)"', page)[0]


def words(page: str) -> str:
    """A page's text as a person reads it: no tags, white space folded."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"<title>[^<]*</title>", "", page))).strip()
