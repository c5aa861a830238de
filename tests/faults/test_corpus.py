"""Every case of the corpus over the wire, through the real client."""

import subprocess
import sys
from pathlib import Path


def test_every_reply_stream_transport_fault_and_input_of_the_corpus_is_judged_as_expected(shared: Path) -> None:
    done = subprocess.run([sys.executable, str(Path(__file__).with_name("replay.py")), str(shared / "faults/cases.jsonl")],
                          capture_output=True, text=True, timeout=240, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    assert "131/131 cases met" in done.stdout
