"""Which of our pages Flower serves. Read-only: what would change anything is not there at all."""

from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from tornado.web import StaticFileHandler, url

from models.errors import SettingsError
from models.settings import Settings
from ops.board.detail import Dataset
from ops.board.look import Look
from ops.board.overview import Datasets
from ops.board.steering import Requeue, Steer, Undo
from workers.shared import Limits

NAME = "[A-Za-z0-9._-]+"
STATIC = Path(__file__).with_name("static")


def routes(settings: Settings, *, read_only: bool, show_text: bool) -> list[Any]:
    """SettingsError without services to look at."""
    if settings.database_url is None or settings.redis_url is None:
        raise SettingsError(cause="no services: set DRAFTMILL_DATABASE_URL and DRAFTMILL_REDIS_URL, or start `draftmill up` here")
    redis = Redis.from_url(settings.redis_url.get_secret_value(), socket_timeout=3, socket_connect_timeout=3)
    shared = {"look": Look(settings.database_url.get_secret_value()), "limits_of": Limits(redis, settings.key_prefix),
              "read_only": read_only, "show_text": show_text}
    looking = [url(r"/datasets", Datasets, shared, name="datasets"), url(rf"/dataset/({NAME})", Dataset, shared, name="dataset"),
               url(r"/board/static/(.*)", StaticFileHandler, {"path": str(STATIC)}, name="board-static")]
    steering = [url(rf"/dataset/({NAME})/steer", Steer, shared, name="steer"), url(r"/requeue", Requeue, shared, name="requeue"),
                url(r"/requeue/(\d{1,9})/undo", Undo, shared, name="undo")]
    return looking if read_only else looking + steering
