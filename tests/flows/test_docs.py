"""The pages' own commands, run as they stand: blocks marked `bash run`, in a copy of the examples, beside a standing fleet."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ops.bench.rig import Rig
from ops.simulator.process import Simulator
from tests.test_docs import FENCE, PAGES, ROOT


def runnable() -> list[tuple[str, str]]:
    return [(page.name, body) for page in PAGES for kind, mark, body in FENCE.findall(page.read_text())
            if (kind, mark) == ("bash", "run")]


@pytest.mark.timeout(600)
def test_each_block_marked_to_be_run_runs(rig: Rig) -> None:
    found = runnable()
    assert sum(body.count("draftmill ") for _, body in found) >= 9
    shutil.copytree(ROOT / "examples", rig.folder / "examples")
    with Simulator(profile="smollm2", lengths="uniform", min_length=20, max_length=60, tokens_per_s=200) as simulator:
        # The example's own engine needs minutes of CPU; `make run` and the main job's flow have it.
        plan = rig.folder / "examples/draftmill.toml"
        own = plan.read_text()
        simulated = own.replace('kind = "embedded"', 'kind = "vllm"')
        plan.write_text(simulated.replace('base_url = ""', f'base_url = "{simulator.vllm}"'))
        assert plan.read_text() != own
        rig.start("up")
        rig.wait(lambda: "up; stop with Ctrl-C" in rig.tail(), 240, "the fleet")
        run_blocks(rig, found)
        assert list((rig.folder / "out/kitchen").rglob("*.jsonl"))
        rig.stop()


def run_blocks(rig: Rig, found: list[tuple[str, str]]) -> None:
    binaries = Path(sys.executable).parent
    env = {**rig.environment, "PATH": f"{binaries}:{rig.environment['PATH']}", "COLUMNS": "120"}
    for page, body in found:
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", body], cwd=rig.folder, env=env, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"{page}:\n{body}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert "Traceback" not in done.stdout + done.stderr
