"""A prompt that kills its worker ends after three deaths; its neighbours are answered."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.fleet import ROWS_OF, Fleet, check_sums

ROWS = 200
# What Python imports first in each process: the model's tokenizer dies of one prompt, as a bug in native code would.
DEADLY = """
import importlib.abc, importlib.util, os, signal, sys

class Deadly(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "models.tokens.model":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def poisoned(module):
            load(module)
            ids = module.Model.prompt_ids
            def prompt_ids(self, messages, *rest, **more):
                if "Question 77 of B1:" in str(messages):
                    os.kill(os.getpid(), signal.SIGSEGV)
                return ids(self, messages, *rest, **more)
            module.Model.prompt_ids = prompt_ids
        spec.loader.exec_module = poisoned
        return spec

sys.meta_path.insert(0, Deadly())
"""


@pytest.mark.timeout(300)
def test_a_prompt_that_kills_its_worker_ends_as_poison_and_blames_no_neighbour(
    fleet: Callable[..., Fleet], undisturbed: Callable[..., dict[str, str]], note: Callable[..., None], tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(DEADLY)
    struck = fleet({"PYTHONPATH": str(tmp_path)})
    struck.start(rows=ROWS, in_flight=60)
    failed = "select key, reason, crashes from sample where state = 3"
    ended = struck.rig.wait(lambda: bool(struck.query(failed)), 200, "the prompt's end")
    assert struck.rig.process is not None
    assert struck.rig.process.wait(200) == 0, struck.rig.tail()
    assert struck.query(failed) == [("B1-77", "poison", 3)]
    check_sums(struck)
    found, expected = dict(struck.query(ROWS_OF)), undisturbed(ROWS)
    assert found == {k: v for k, v in expected.items() if k != "B1-77" and int(k.rpartition("-")[2]) < ROWS}
    blamed = struck.query("select count(*) from sample where state = 2 and crashes >= 3")
    told = struck.rig.tail(1_000_000)
    deaths = told.count(f"ended ({-signal.SIGSEGV:d})")
    twice = struck.simulator.summary()["paid_twice"]
    assert blamed == [(0,)]
    assert deaths == 3, told
    assert twice <= 3 * 60
    note("worker: a prompt that kills it", "failed as poison after 3 deaths, its neighbours answered",
         f"{deaths} deaths, ended {ended:.0f} s after the start; {ROWS - 1} neighbours answered; "
         f"paid twice {twice} (at most 180)")
