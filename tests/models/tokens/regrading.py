"""Grades the same thousand text replies, going on after those that an earlier process had finished.

    regrading.py TOKENIZERS OUT
"""

import hashlib
import json
import sys
from pathlib import Path
from random import Random

from models.tokens import profile
from models.tokens.model import Model, Sample
from models.tokens.replay import STYLES, replay
from ops.bench import truth


def main(tokenizers: Path, out: Path) -> None:
    model = Model.open(profile.load("kimi-k2.5", tokenizers=tokenizers))
    rows = truth.rows(model, Random(7), 1000, 1e-4, truth.VARIED_HABITS, False, 3)
    cut = [row.spans[-1].kind != "stop" for row in rows]
    answers = [replay(model.rebuilder, row, c, STYLES[0]) for row, c in zip(rows, cut, strict=True)]
    conventions = model.learn([Sample(a, r.prompt_ids, c) for a, r, c in zip(answers, rows, cut, strict=True)], rows)
    done = out.read_text().count("\n") if out.exists() else 0
    with out.open("a" if done else "w") as stream:
        for answer, row, c in list(zip(answers, rows, cut, strict=True))[done:]:
            found = model.row(answer, row.prompt_ids, convention=conventions[answer.finish_reason], truncated=c)
            digest = hashlib.sha256(found.completion_ids.tobytes()).hexdigest()
            stream.write(json.dumps([int(found.grade), found.candidates, found.rule, found.reason, found.version, digest]) + "\n")
            stream.flush()
            print(digest, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
