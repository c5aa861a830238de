"""Who was in hand when a worker died."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from workers.hands import SLOTS, Hands, left_by_the_dead

REPO = Path(__file__).parents[2]
KILLED = """
import os, signal, sys
from pathlib import Path
from workers.hands import Hands
hands = Hands(Path(sys.argv[1]), 41)
with hands.hold(5):
    pass
with hands.hold(7), hands.hold(2**40):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def dead(folder):
    return [(worker, held) for _, worker, held in left_by_the_dead(folder)]


@pytest.fixture
def hands(tmp_path):
    hands = Hands(tmp_path, 3)
    yield hands
    hands.close()


def test_what_was_in_hand_survives_a_kill(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, tmp_path], cwd=REPO, timeout=60, check=False)
    assert dead(tmp_path) == [(41, [7, 2**40])]


def test_the_living_are_not_told_as_dead(hands, tmp_path):
    with hands.hold(5):
        assert dead(tmp_path) == []


def test_a_worker_that_ended_in_peace_leaves_nothing(tmp_path):
    Hands(tmp_path, 3).close()
    assert list(tmp_path.iterdir()) == []


def test_slots_are_used_again(hands, tmp_path):
    for sample in range(10 * SLOTS):
        with hands.hold(sample + 1):
            pass
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "3.hands").write_bytes(hands.path.read_bytes())
    assert dead(tmp_path / "copy") == [(3, [])]


def test_threads_hold_beside_each_other_and_more_than_there_are_slots(hands, tmp_path):
    def work(sample):
        with hands.hold(sample):
            return sample

    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(work, range(1, 2_001))) == list(range(1, 2_001))
    held = [hands.hold(n) for n in range(1, SLOTS + 5)]
    for h in held:
        h.__enter__()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "3.hands").write_bytes(hands.path.read_bytes())
    [(_, found)] = dead(tmp_path / "copy")
    assert found == list(range(1, SLOTS + 1))
    for h in held:
        h.__exit__(None, None, None)
    assert len(hands._free) == SLOTS


def test_an_exception_lets_go(hands):
    with pytest.raises(ValueError), hands.hold(5):
        raise ValueError
    assert len(hands._free) == SLOTS


def test_a_torn_file_is_read_as_far_as_it_goes(tmp_path):
    (tmp_path / "9.hands").write_bytes((5).to_bytes(8, "little") + b"\x01\x02")
    (tmp_path / "10.hands").write_bytes(b"")
    assert dead(tmp_path) == [(10, []), (9, [5])]


def test_a_worker_under_a_new_name_holds_under_it(hands, tmp_path):
    with hands.hold(5):
        hands.rejoin(4)
        with hands.hold(6):
            (tmp_path / "copy").mkdir()
            (tmp_path / "copy" / hands.path.name).write_bytes(hands.path.read_bytes())
            assert dead(tmp_path / "copy") == [(4, [5, 6])]
    assert [path.name for path in tmp_path.glob("*.hands")] == ["4.hands"]
    assert dead(tmp_path) == []
