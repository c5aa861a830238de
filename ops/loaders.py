"""What a trainer's own loader makes of an export's token rows. Run as a script by an interpreter that has the trainer:

    python loaders.py specforge|speculators EXPORT TRUTH LONGEST [TOKENIZER]
    python loaders.py specforge-chat EXPORT TRUTH LONGEST TOKENIZER TEMPLATE

TRUTH: JSONL of input_ids and loss_mask, from the database. Prints one line; exit 0: the same rows, 1: others, 3: no such
trainer here. The chat form is only measured: how many of its rows get their ids by the trainer's own rendering. Nothing of
ours is imported, since nothing of ours is installed there.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

Pair = tuple[list[int], list[int]]


def digest(ids: Iterable[int], mask: Iterable[int]) -> bytes:
    return hashlib.blake2b(json.dumps([[int(i) for i in ids], [int(m) for m in mask]]).encode(), digest_size=16).digest()


def specforge(export: Path, longest: int, _: str) -> Iterator[Pair]:
    from specforge.data.prompt_builder import prepare_prompt_tasks  # type: ignore[import-not-found]

    for file in sorted((export / "tokens").rglob("*.jsonl")):
        for task in prepare_prompt_tasks(file, None, chat_template=None, max_length=longest, is_preformatted=False,
                                         train_only_last_turn=False, cache_dir=None, cache_key=None, num_proc=None):
            yield task["payload"]["input_ids"], task["payload"]["loss_mask"]


def measured(wanted: "Counter[bytes]", export: Path, longest: int, tokenizer: str, template: str) -> str:
    """The trainer shuffles and drops names, so what counts is whether ids are those of any row."""
    from specforge.data.prompt_builder import prepare_prompt_tasks

    # By name: the library is the trainer's, in its own interpreter; ours is touched by models.tokens alone.
    words = import_module("transformers").AutoTokenizer.from_pretrained(tokenizer)
    rows = equal = nearly = 0
    for file in sorted((export / "specforge").rglob("*.jsonl")):
        with tempfile.TemporaryDirectory() as cache:
            tasks = prepare_prompt_tasks(file, words, chat_template=template, max_length=longest + 1_024, is_preformatted=False,
                                         train_only_last_turn=True, cache_dir=cache, cache_key="k", num_proc=None)
            for task in tasks:
                ids = list(task["payload"]["input_ids"])
                rows += 1
                equal += digest(ids, ()) in wanted
                nearly += any(digest(ids[:-n], ()) in wanted for n in (1, 2))
    return f"specforge renders {rows:,} conversations ({template}): {equal:,} with the same ids, {nearly:,} with more at the end"


def speculators(export: Path, longest: int, tokenizer: str) -> Iterator[Pair]:
    import speculators as _installed  # type: ignore[import-not-found]  # noqa: F401
    from datasets import load_from_disk  # type: ignore[import-not-found]

    for folder in sorted((export / "tokens").iterdir()):
        with tempfile.TemporaryDirectory() as work:
            # Its cache is keyed by path and would outlive an export that was made anew.
            environment = {**os.environ, "HF_HOME": f"{work}/hf", "HF_HUB_OFFLINE": "1"}
            command = [str(Path(sys.executable).with_name("speculators")), "prepare-data", "--model", tokenizer,
                       "--data", str(folder), "--output", f"{work}/out", "--seq-length", str(longest), "--no-skip-token-freq",
                       "--num-preprocessing-workers", "1"]
            done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if done.returncode:
                raise RuntimeError(f"prepare-data ended with {done.returncode}")
            for row in load_from_disk(f"{work}/out").with_format(None):
                yield row["input_ids"], row["loss_mask"]


def main(trainer: str, export: str, truth: str, longest: str, tokenizer: str = "", template: str = "") -> int:
    wanted: Counter[bytes] = Counter()
    with open(truth, encoding="utf-8") as file:
        for line in file:
            row: dict[str, Any] = json.loads(line)
            wanted[digest(row["input_ids"], () if template else row["loss_mask"])] += 1
    if template:
        try:
            print(measured(wanted, Path(export), int(longest), tokenizer, template))
        except ModuleNotFoundError:
            return 3
        except Exception as error:  # noqa: BLE001  (as below)
            print(f"specforge cannot render the conversations: {type(error).__name__}")
        return 0
    load = {"specforge": specforge, "speculators": speculators}[trainer]
    try:
        found = Counter(digest(*pair) for pair in load(Path(export), int(longest), tokenizer))
    except ModuleNotFoundError:
        return 3
    except Exception as error:  # noqa: BLE001  (whatever a trainer raises is its answer)
        print(f"{trainer} cannot load it: {type(error).__name__}")
        return 1
    missing, more = (wanted - found).total(), (found - wanted).total()
    print(f"{trainer}: {found.total() - more:,} of {wanted.total():,} rows identical" + (f", {more:,} others" if more else ""))
    return 1 if missing or more else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
