"""The pages' own commands, run as they stand: blocks marked `bash run`, in a copy of the examples, beside a standing fleet."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ops.bench.rig import Rig
from tests.test_docs import FENCE, PAGES, ROOT


def runnable() -> list[tuple[str, str]]:
    return [(page.name, body) for page in PAGES for kind, mark, body in FENCE.findall(page.read_text())
            if (kind, mark) == ("bash", "run")]


@pytest.mark.timeout(400)
def test_each_block_marked_to_be_run_runs(rig: Rig) -> None:
    found = runnable()
    assert sum(body.count("draftmill ") for _, body in found) >= 9
    shutil.copytree(ROOT / "examples", rig.folder / "examples")
    rig.start("up", "--plan", "examples/draftmill.toml")
    rig.wait(lambda: rig.log.exists() and "up; stop with Ctrl-C" in rig.tail(), 240, "the fleet")
    binaries = Path(sys.executable).parent
    env = {**rig.environment, "PATH": f"{binaries}:{rig.environment['PATH']}", "COLUMNS": "120"}
    for page, body in found:
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", body], cwd=rig.folder, env=env, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"{page}:\n{body}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert "Traceback" not in done.stdout + done.stderr
    assert list((rig.folder / "out/kitchen").rglob("*.jsonl"))
    rig.stop()
