"""Shell completion: the script that a shell loads, and what it is answered."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DRAFTMILL = Path(sys.executable).with_name("draftmill")


def run(*arguments: str, **env: str) -> str:
    done = subprocess.run([DRAFTMILL, *arguments], env={**os.environ, **env}, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60, check=False)
    return done.stdout


def test_commands_and_options_are_completed() -> None:
    def completed(words: str) -> set[str]:
        return set(run(_DRAFTMILL_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(len(words.split(" ")) - 1)).split())

    assert {"requeue", "regrade"} <= completed("draftmill re")
    assert {"--dry-run", "--cause"} <= completed("draftmill requeue --")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_is_given_a_script(shell: str) -> None:
    assert "_DRAFTMILL_COMPLETE" in run(_DRAFTMILL_COMPLETE=f"source_{shell}")
