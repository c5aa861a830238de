"""Harm to Redis, with a run under way; each returns when all is mended."""

import base64
import json
import shutil
import time

from tests.chaos.fleet import Fleet

# Among them what unpickles, if anybody unpickled it.
PICKLED = json.dumps({
    "body": base64.b64encode(b"cposix\nsystem\n(S'true'\ntR.").decode(), "headers": {"task": "draftmill.generate", "id": "x"},
    "content-type": "application/x-python-serialize", "content-encoding": "binary",
    "properties": {"delivery_tag": "x", "delivery_info": {}, "body_encoding": "base64"}}).encode()
JUNK = [b"", b"\x00", b"junk", b"[]", b'{"body": 1}', b"\xff\xfe" * 50, b'{"body":"e30=","headers":{},"properties":{}}',
        b"9" * 5_000, PICKLED]


def _empty(fleet: Fleet) -> None:
    shutil.rmtree(fleet.folder / "services/valkey/appendonlydir", ignore_errors=True)


def redis_killed(fleet: Fleet) -> None:
    with fleet.away("valkey"):
        time.sleep(1)
    fleet.recovers()


def redis_killed_and_empty(fleet: Fleet) -> None:
    with fleet.away("valkey"):
        _empty(fleet)
        time.sleep(1)
    fleet.recovers()


def redis_away(fleet: Fleet) -> None:
    with fleet.away("valkey"):
        time.sleep(60)
    fleet.recovers()


def redis_away_and_empty(fleet: Fleet) -> None:
    with fleet.away("valkey"):
        _empty(fleet)
        time.sleep(60)
    fleet.recovers()


def flushall(fleet: Fleet) -> None:
    for _ in range(3):
        with fleet.redis() as client:
            client.flushall()
        fleet.recovers()


def redis_full(fleet: Fleet) -> None:
    with fleet.redis() as client:
        client.config_set("maxmemory", 1)
        time.sleep(15)
        client.config_set("maxmemory", 0)
    fleet.recovers()


def redis_half_open(fleet: Fleet) -> None:
    fleet.broker.block()
    time.sleep(120)
    fleet.broker.cut()
    fleet.broker.mend()
    fleet.recovers()


def redis_slow(fleet: Fleet) -> None:
    fleet.broker.delay(0.2)
    fleet.answered(fleet.rows // 5)
    fleet.broker.mend()


def redis_junk(fleet: Fleet) -> None:
    with fleet.redis() as client:
        queues = [key for key in client.keys("*") if client.type(key) == b"list"]
        for key in [*queues, b"draftmill:short.B1"]:
            client.lpush(key, *JUNK)
            client.rpush(key, *JUNK)
    fleet.answered(fleet.rows // 2)
    [(lives,)] = fleet.query("select count(*) from worker where lane = 0")
    assert lives <= 2, "more than one restart"
    fleet.recovers()
