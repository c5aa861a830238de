"""Paid answers on disk: what comes back after a kill, a torn record, a full disk."""

import asyncio
import errno
import fcntl
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from models import blob
from models.errors import StoreError
from models.states import Event
from models.store.settlements import NextTurn, Settlement
from tests.hand import stored
from workers import spool as room
from workers.spool import Spool, orphaned


def paid(n, **changes):
    return replace(Settlement(n, 1, Event.DONE, "ok", cost_nusd=n, stored=stored(raw=b"\0\xff" * n)), **changes)


@pytest.fixture
def spool(tmp_path):
    spool = Spool(tmp_path, "7")
    yield spool
    spool.close()


def left(folder, name="dead"):
    """What the spool of a dead worker would give, its file being that of the living one."""
    copy = folder / "dead"
    copy.mkdir(exist_ok=True)
    (copy / f"{name}.spool").write_bytes((folder / "7.spool").read_bytes())
    return [s for path, found in orphaned(copy) for s in found]


async def test_what_is_kept_comes_back_as_it_was(spool, tmp_path):
    batch = [paid(1), paid(2, wait_s=1.5, ignore="Acme", status=200, latency_ms=3, next_turn=NextTurn("k#t1", 1, 0, b"\0")),
             Settlement(3, 9, Event.SNOOZE, "rate_limited")]
    await spool.keep(batch)
    assert spool.waiting == 3
    assert left(tmp_path) == batch


async def test_nothing_is_kept_twice(spool, tmp_path):
    await spool.keep([paid(1)])
    await spool.keep([paid(1), paid(2)])
    await asyncio.gather(spool.keep([paid(3)]), spool.keep([paid(3)]), spool.keep([paid(2)]))
    assert [s.id for s in left(tmp_path)] == [1, 2, 3]


async def test_the_file_is_emptied_once_all_is_in_the_database(spool):
    await spool.keep([paid(1), paid(2)])
    spool.settled([paid(1)])
    assert spool.path.stat().st_size > 0
    spool.settled([paid(2), paid(99)])
    assert (spool.waiting, spool.path.stat().st_size) == (0, 0)


async def test_a_torn_record_at_the_end_loses_itself_alone(spool, tmp_path):
    await spool.keep([paid(1), paid(2), paid(3)])
    whole = spool.path.read_bytes()
    ends = [at for at in range(len(whole)) if at > 0]
    for cut in ends[:: max(1, len(ends) // 60)]:
        spool.path.write_bytes(whole[:cut])
        assert [s.id for s in left(tmp_path)] == [1, 2, 3][:len(left(tmp_path))]
    spool.path.write_bytes(whole[:-1])
    assert [s.id for s in left(tmp_path)] == [1, 2]
    spool.path.write_bytes(whole[:-1] + b"?")
    assert [s.id for s in left(tmp_path)] == [1, 2]
    spool.path.write_bytes(whole + bytes(64))               # blocks that were allocated and never written
    assert [s.id for s in left(tmp_path)] == [1, 2, 3]


async def test_a_disk_that_is_full_half_way_hides_no_later_record(spool, tmp_path, monkeypatch):
    await spool.keep([paid(1)])
    real, room_left = os.write, 100

    def write(file, data):
        if len(data) > room_left:
            if room_left == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(file, bytes(data)[:room_left])
        return real(file, data)

    def full(file, data):
        nonlocal room_left
        n = write(file, data)
        room_left -= min(n, room_left)
        return n

    monkeypatch.setattr(room.os, "write", full)
    await spool.keep([paid(2)])
    assert spool.waiting == 1                               # not safe, and not counted as such
    monkeypatch.setattr(room.os, "write", real)
    await spool.keep([paid(2), paid(3)])
    assert [s.id for s in left(tmp_path)] == [1, 2, 3]


async def test_a_short_write_is_continued(spool, tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(room.os, "write", lambda file, data: real(file, bytes(data)[:50]))
    await spool.keep([paid(1), paid(2)])
    assert [s.id for s in left(tmp_path)] == [1, 2]


async def test_the_bound_is_kept(spool, monkeypatch):
    monkeypatch.setattr(room, "MAX_BYTES", 2_000)
    for n in range(1, 40):
        await spool.keep([paid(n)])
    assert spool.path.stat().st_size <= 2_000
    assert 0 < spool.waiting < 39


async def test_a_text_that_no_record_can_hold_keeps_no_other_out(spool, tmp_path):
    await spool.keep([paid(1), paid(2, generation_id="half \ud83d"), paid(3)])
    assert [s.id for s in left(tmp_path)] == [1, 3]


async def test_what_the_database_refused_is_kept_for_a_person(spool, tmp_path):
    spool.quarantine(paid(5, generation_id="NUL \0 and half \ud83d"))
    [file] = tmp_path.glob("refused-5-1.json")
    assert file.stat().st_mode & 0o777 == 0o600
    assert "\\ud83d" in file.read_text()


def test_a_spool_of_the_living_is_not_read(spool, tmp_path):
    assert list(orphaned(tmp_path)) == []


def test_a_spool_is_never_seen_without_its_lock(tmp_path, monkeypatch):
    """Who looks for spools of the dead at that moment would take it away from its worker."""
    seen, real = [], fcntl.flock

    def look_then_lock(file, how):
        seen.append(list(tmp_path.glob("*.spool")))
        real(file, how)

    monkeypatch.setattr(room.fcntl, "flock", look_then_lock)
    spool = Spool(tmp_path, "9")
    assert seen == [[]]
    assert spool.path.exists()
    spool.close()


def test_an_empty_spool_leaves_no_file(tmp_path):
    Spool(tmp_path, "9").close()
    assert list(tmp_path.iterdir()) == []


def test_spools_are_for_their_owner_alone(tmp_path):
    spool = Spool(tmp_path / "spool", "9")
    assert spool.path.stat().st_mode & 0o777 == 0o600
    assert spool.folder.stat().st_mode & 0o777 == 0o700
    spool.close()


def test_a_folder_that_is_not_there_holds_nothing(tmp_path):
    assert list(orphaned(tmp_path / "none")) == []


async def test_a_record_of_another_version_is_told_and_not_lost(spool, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "_encoder", type("Other", (), {"encode": staticmethod(lambda s: b"\x81\xa1x\x01")}))
    await spool.keep([paid(1)])
    with pytest.raises(StoreError, match="another version"):
        left(tmp_path)
    assert (tmp_path / "dead" / "dead.spool").exists()


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from models.states import Event
from models.store.settlements import Settlement
from workers.spool import Spool
spool = Spool(Path(sys.argv[1]), "1")
asyncio.run(spool.keep([Settlement(n, 1, Event.RETRY, "x") for n in range(1, 1001)]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_had_kept_is_there(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, tmp_path], cwd=Path(__file__).parents[2], timeout=60, check=False)
    [(_, found)] = orphaned(tmp_path)
    assert [s.id for s in found] == list(range(1, 1001))


async def test_text_and_ids_survive(spool, tmp_path):
    row = stored(raw=blob.pack_json("NUL \0, half \ud83d"), ids=blob.pack_ids([1, 163_839]))
    await spool.keep([paid(1, stored=row)])
    [back] = left(tmp_path)
    assert blob.unpack_json(back.stored.raw) == "NUL \0, half \ud83d"
    assert blob.unpack_ids(back.stored.ids).tolist() == [1, 163_839]
