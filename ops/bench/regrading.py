"""What grading costs: ten million tokens of stored Kimi answers graded again out of PostgreSQL, as `draftmill regrade` does.

    python -m ops.bench.regrading [--answers 1000] [--tokenizers DIR]

CPU is this process's: reading, unpacking, parsing, grading, packing. PostgreSQL's own is not in it. Ends non-zero when a bound
is missed: 8 ms for an answer of 10,000 tokens, 60 s for ten million tokens.
"""

import argparse
import shutil
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path
from random import Random

from models.base import connect
from models.errors import ProfileError
from models.states import Grade
from models.store.schema import migrate
from models.tokens import profile
from models.tokens.model import Model
from models.tokens.replay import Style
from ops import services
from ops.bench import replies, tokens, truth
from ops.grading import calibrate, graders, regrade
from ops.importing import import_files, plan_of

SIZE = 10_000
DISTINCT = 20           # texts; each answer is read, parsed and encoded anew whatever its text
ANSWER_MS, TEN_MILLION_S = 8.0, 60.0


def main(answers: int = 1000, tokenizers: Path = tokens.BESIDE) -> int:
    """0 when both bounds hold, 1 when one is missed, 2 when the vocabulary is absent."""
    folder = Path(tempfile.mkdtemp(prefix="draftmill-bench-"))
    folder.chmod(0o755)
    try:
        model = Model.open(profile.load("kimi-k2.5", tokenizers=tokenizers))
        (folder / "tokenizers").symlink_to(tokenizers.resolve())
        one_ms = tokens.speed(model, Random(1), SIZE) * 1e3
        print(f"one verified answer of {SIZE:,} tokens: {one_ms:.1f} ms CPU", flush=True)
        with services.start(folder) as running:
            migrate(running.database_url)
            kept, seconds = _graded_again(running.database_url, folder, model, answers)
    except ProfileError as error:
        print(f"{error}. Give the folder of the vocabularies with --tokenizers.")
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    ten_million = seconds * 1e7 / kept
    print(f"{kept:,} tokens of {answers:,} stored answers graded again: {seconds:.1f} s CPU; ten million: {ten_million:.1f} s")
    return int(one_ms > ANSWER_MS or ten_million > TEN_MILLION_S)


def _graded_again(url: str, folder: Path, model: Model, answers: int) -> tuple[int, float]:
    """(tokens of verified answers, CPU seconds)."""
    random = Random(1)
    known = truth.rows(model, random, 150, 0.0, truth.STEADY, False, 1)
    texts = [truth.true_row(model, *tokens.exactly(model, random, SIZE)) for _ in range(DISTINCT)]
    groups = [(replies.ENGINE, known), (Style("raw"), list(islice(cycle(texts), answers)))]
    file = replies.write(folder / "replies.jsonl", replies.lines(model, groups))
    engine = connect(url)
    import_files(engine, "bench", [file], folder, plan_of("bench", "moonshotai/kimi-k2.5", model.profile.name))
    list(calibrate(engine, ["bench"], folder))
    begun = time.process_time()
    list(regrade(engine, ["bench"], folder))
    seconds = time.process_time() - begun
    [grader] = graders(engine, ["bench"], folder)
    kept = [c.n_tokens for c in grader.stored() if c.grade == Grade.VERIFIED]
    engine.dispose()
    if len(kept) != answers:
        raise AssertionError(f"{len(kept)} of {answers} answers are verified")
    return sum(kept), seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--tokenizers", type=Path, default=tokens.BESIDE)
    given = parser.parse_args()
    raise SystemExit(main(given.answers, given.tokenizers))
