"""A key that is looked for everywhere after a run with every kind of noise, and is nowhere."""

import base64
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus
from urllib.request import HTTPBasicAuthHandler, HTTPPasswordMgrWithDefaultRealm, build_opener

import pytest

from tests.chaos.fleet import Fleet, until
from tests.flows.job import write_key

KEY = "sk-or-v1-CANARY/7f3a+9b=canary"
PAGES = ("/", "/tasks", "/broker", "/workers", "/datasets", "/dataset/B1", "/requeue", "/api/workers", "/api/tasks?limit=1000",
         "/api/queues/length", "/metrics")
PASSWORD = "only-for-this-test"


def forms(key: str) -> dict[str, bytes]:
    """The key as it is, URL-encoded, and in base64 at each of its three offsets."""
    found = {"plain": key, "url": quote(key, safe=""), "url+": quote_plus(key)}
    for offset in range(3):
        encoded = base64.b64encode(b"x" * offset + key.encode()).decode()
        found[f"base64 at {offset}"] = encoded[4 if offset else 0:].rstrip("=")[:-1]
    return {name: text.encode() for name, text in found.items()}


def hits(places: Iterator[tuple[str, bytes]]) -> tuple[list[str], int]:
    wanted = forms(KEY)
    found, seen = [], 0
    for place, data in places:
        seen += 1
        found += [f"{place}: {name}" for name, form in wanted.items() if form in data]
    return found, seen


def files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """All that the run wrote: logs, PostgreSQL's data and log of writes, Redis's, spools, exports."""
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "key.txt":
            yield str(path), path.read_bytes()


def processes(struck: Fleet) -> Iterator[tuple[str, bytes]]:
    for pid in [*struck.rig.pids(), *struck.services.pids.values()]:
        for name in ("cmdline", "environ", "comm"):
            yield f"/proc/{pid}/{name}", Path(f"/proc/{pid}/{name}").read_bytes()


def database(struck: Fleet) -> Iterator[tuple[str, bytes]]:
    tables = struck.query("select table_name from information_schema.tables where table_schema = 'public'")
    for (table,) in tables:
        for (row,) in struck.query(f'select t::text from "{table}" t'):  # noqa: S608
            yield table, row.encode()


def broker(struck: Fleet) -> Iterator[tuple[str, bytes]]:
    with struck.redis() as client:
        for key in client.keys("*"):
            yield key.decode(), client.dump(key) or b""


def pages(port: int) -> Iterator[tuple[str, bytes]]:
    known = HTTPPasswordMgrWithDefaultRealm()
    known.add_password(None, f"http://127.0.0.1:{port}", "draftmill", PASSWORD)
    opener = build_opener(HTTPBasicAuthHandler(known))
    for page in PAGES:
        try:
            with opener.open(f"http://127.0.0.1:{port}{page}", timeout=20) as reply:
                yield page, reply.read()
        except OSError:
            continue


def test_what_is_looked_for_would_be_found() -> None:
    noise = [base64.b64encode(b"x" * n + b"Bearer " + KEY.encode() + b"\n") for n in range(3)]
    for text in (KEY.encode(), quote(KEY, safe="").encode(), *noise):
        assert hits(iter([("here", b"{" + text + b"}")]))[0]


@pytest.mark.timeout(300)
def test_the_key_is_in_no_log_table_queue_page_export_or_process(
    fleet: Callable[..., Fleet], note: Callable[..., None],
) -> None:
    struck = fleet({"DRAFTMILL_LOG_LEVEL": "DEBUG", "DRAFTMILL_FLOWER_PASSWORD": PASSWORD}, fault_share=0.15)
    plan = struck.plan(400)
    write_key(struck.rig, KEY)
    struck.rig.start("run", "--plan", plan)
    struck.answered(60)
    struck.kill("ops worker", "short")
    struck.simulator.control(revoke_keys=True)
    struck.rests(5)
    places = [*processes(struck), *database(struck), *broker(struck)]
    said = until(lambda: re.search(r"Flower: http://127.0.0.1:(\d+)", struck.rig.tail(100_000)), 60, "Flower")
    looked_at = list(pages(int(said.group(1))))
    assert len(looked_at) >= 5, [page for page, _ in looked_at]
    struck.rig.stop()
    code, out = struck.rig.command("export", "B1", "--grade", "drift")
    assert code == 0, out
    assert list(struck.rig.out.rglob("*.parquet")) or list(struck.rig.out.rglob("*.jsonl*")), "nothing was exported"
    found, seen = hits(iter([*places, *looked_at, *files(struck.folder)]))
    assert found == []
    assert (struck.folder / "key.txt").read_bytes().startswith(KEY.encode()), "another key was used"
    note("secrets: a canary key, logs at DEBUG", "zero hits, also in base64 and URL-encoded",
         f"0 hits in {seen:,} rows, keys, pages, files and process titles")
