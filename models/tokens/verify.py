"""A stored row held against its own reply: what `draftmill verify` asks of every row."""

from dataclasses import replace

from models.answer import Answer
from models.states import Grade
from models.tokens.calibrate import FAR
from models.tokens.evidence import Evidence, tells
from models.tokens.model import Model
from models.tokens.parts import part
from models.tokens.row import Row


def verify(row: Row, model: Model, answer: Answer, truncated: bool = False) -> list[str]:
    """What is wrong with the row, [] when nothing is: ids in range, spans cover, decode equals text, count, version."""
    ids = row.completion_ids.tolist()
    prompt = row.prompt_ids
    problems = [] if _in_range(ids, model) and _in_range(prompt.tolist(), model) else ["ids out of range"]
    if not _covered(row):
        problems.append("spans do not cover the completion")
    if not row.version.startswith(model.version):
        problems.append("graded with another version of the profile")
    if not problems and row.grade > Grade.REJECTED and not _same_text(ids, model, answer, truncated):
        problems.append("the ids decode to another text")
    billed = answer.usage.completion_tokens
    if row.grade >= Grade.VERIFIED and (billed is None or abs(billed - len(ids)) > (0 if row.grade == Grade.ENGINE else FAR)):
        problems.append("the count is not the billed one")
    return problems


def _in_range(ids: list[int], model: Model) -> bool:
    return not ids or (min(ids) >= 0 and max(ids) < model.vocab_size)


def _covered(row: Row) -> bool:
    ends = [0, *(s.end for s in row.spans)]
    return ends[-1] == len(row.completion_ids) and all(
        s.start == end and s.end > s.start for s, end in zip(row.spans, ends, strict=False))


def _same_text(ids: list[int], model: Model, answer: Answer, truncated: bool) -> bool:
    parts = part(answer, model.profile, model.vocabulary, truncated)
    if parts.trimmed and answer.completion_ids is None:     # ids of the cut character's neighbours were left out
        answer = replace(answer, reasoning=parts.thought, content=parts.content)
    return tells(Evidence(model.rebuilder, answer, truncated), ids)
