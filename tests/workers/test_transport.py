"""Junk in the queues' lists must neither end a worker nor come back to the next one."""

import json
import signal

import pytest
from kombu.exceptions import OperationalError
from redis import Redis

from models.hint import TASK, hint
from models.settings import Settings
from models.states import Lane
from workers.app import make_app

QUEUE = "short.B1"
KEY = f"draftmill:{QUEUE}"


def envelope(**changes):
    """A good hint with some of its parts replaced; None takes a part away."""
    message = json.loads(hint(QUEUE, "B1", Lane.SHORT, 666))
    for name, value in changes.items():
        part = message["headers"] if name in message["headers"] else message["properties"] \
            if name in message["properties"] else message
        part[name.replace("_", "-") if name.startswith("content") else name] = value
        if value is None:
            del part[name]
    return json.dumps(message)


JUNK = {
    "nothing": b"",
    "not json": b"hello",
    "half a hint": hint(QUEUE, "B1", Lane.SHORT, 666)[:80],
    "bytes": bytes(range(256)),
    "a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtin\x94.",
    "a number": "42",
    "a string": '"short.B1"',
    "null": "null",
    "true": "true",
    "a list": "[1, 2, 3]",
    "an empty list": "[]",
    "an empty object": "{}",
    "deep nesting": "[" * 5_000 + "]" * 5_000,
    "a huge number": "9" * 5_000,
    "no properties": json.dumps({"body": "[]", "headers": {}}),
    "properties a list": json.dumps({"body": "[]", "headers": {}, "properties": []}),
    "no tag": envelope(delivery_tag=None),
    "a tag of another kind": envelope(delivery_tag=["x"]),
    "no body": envelope(body=None),
    "body a number": envelope(body=7),
    "body not json": envelope(body="{"),
    "body of another shape": envelope(body='{"a": 1}'),
    "body too short": envelope(body="[[1]]"),
    "body too long": envelope(body=json.dumps([["x" * 70_000], {}, {}])),
    "no headers": envelope(headers=None),
    "headers a list": envelope(headers=[]),
    "no id": envelope(id=None),
    "id a list": envelope(id=[1]),
    "an unknown task": envelope(task="os.system"),
    "no task": envelope(task=None),
    "a pickled content": envelope(content_type="application/x-python-serialize"),
    "an unknown encoding": envelope(content_encoding="klingon"),
    "too many arguments": envelope(body=json.dumps([[1, 2, 3, 4, 5], {}, {}])),
    "arguments of other kinds": envelope(body=json.dumps([[None, {}, []], {}, {}])),
    "a due time that is none": json.dumps(json.loads(envelope()) | {"headers": {
        "lang": "py", "task": TASK, "id": "x", "eta": "tomorrow"}}),
    "an expiry that is none": json.dumps(json.loads(envelope()) | {"headers": {
        "lang": "py", "task": TASK, "id": "x", "expires": [1]}}),
    "compressed with nothing": json.dumps(json.loads(envelope()) | {"headers": {
        "lang": "py", "task": TASK, "id": "x", "compression": "application/x-gzip"}}),
}


@pytest.fixture
def redis(redis_url):
    with Redis.from_url(redis_url) as redis:
        yield redis


def test_no_kind_of_junk_ends_a_worker_or_keeps_it_from_the_hints_behind_it(crew, redis, redis_url, until):
    worker = crew(redis_url, slots=10, queues=[QUEUE], seconds_each=0.01)
    for n, junk in enumerate(JUNK.values()):
        redis.lpush(KEY, junk, hint(QUEUE, "B1", Lane.SHORT, n))
    until(lambda: set(range(len(JUNK))) <= set(worker.ids("ended")))
    assert worker.process.poll() is None
    assert worker.told("ready") == worker.told("ready")[:1]   # it did not even reconnect
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert redis.llen(KEY) == 0
    assert worker.output().count("dropped_malformed") > 10


def test_junk_does_not_come_back_to_the_next_worker(crew, redis, redis_url, until):
    redis.lpush(KEY, *JUNK.values(), hint(QUEUE, "B1", Lane.SHORT, 1))
    first = crew(redis_url, slots=10, queues=[QUEUE], seconds_each=0.01)
    until(lambda: 1 in first.ids("ended"))
    first.signal(signal.SIGTERM)
    assert first.exit_code() == 0
    leftovers = [key for key in redis.scan_iter() if b"unacked" in key or redis.type(key) == b"list"]
    assert leftovers == []


def test_a_body_of_more_than_64_kilobytes_is_dropped(crew, redis, redis_url, until):
    redis.lpush(KEY, JUNK["body too long"], hint(QUEUE, "B1", Lane.SHORT, 1))
    worker = crew(redis_url, slots=10, queues=[QUEUE], seconds_each=0.01)
    until(lambda: worker.ids("ended") == [1])
    assert "body too long" in worker.output()


def test_a_worker_without_its_broker_asks_again_every_five_seconds(monkeypatch):
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda _s: None)
    pauses = []

    def note(_error, pause):
        pauses.append(pause)

    connection = make_app(Settings(redis_url="redis://127.0.0.1:1")).connection_for_read()
    with pytest.raises(OperationalError):
        connection.ensure_connection(note, max_retries=8)
    assert pauses[:2] == [2, 4]
    assert set(pauses[2:]) == {5}
