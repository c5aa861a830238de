"""Calibrate, regrade, verify, audit: stored replies read again, offline and unpaid.

`calibrate` learns each provider's counting convention from stored rows; `regrade` recomputes ids and grades of all rows that an
older profile or convention graded. Both may run at any time, also while workers write: they replace only what they read.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from models import blob
from models.answer import Answer
from models.base import transaction
from models.errors import SettingsError
from models.states import Grade
from models.store import calibrations, datasets, rows
from models.store.calibrations import Key
from models.store.datasets import Dataset
from models.tokens import profile
from models.tokens.audit import Report, Silent, Tally, audit, silent
from models.tokens.calibrate import Convention
from models.tokens.model import Model, Sample
from models.tokens.row import Row, Span
from models.tokens.verify import verify
from workers.providers.reread import reread
from workers.rebuild import graded

SAMPLES = 400           # of one provider are enough to learn from
TRUE_ROWS = 2_000
BATCH = 256


class Grader:
    """One dataset's rows with its model. ProfileError when the model's files do not resolve."""

    def __init__(self, engine: Engine, dataset: Dataset, home: Path) -> None:
        self._engine, self.dataset = engine, dataset
        self.model = Model.open(profile.load(dataset.plan.profile, home))

    def stored(self) -> Iterator[Any]:
        with transaction(self._engine) as connection:
            yield from rows.stored(connection, self.dataset.id)

    def answer(self, c: Any) -> Answer | None:
        """The reply as the provider client reads it today; the whole of an answer that went on from a prefix."""
        found = self._read(c)
        if found is None or "continued" not in c.flags:
            return found
        ids = blob.unpack_ids(c.ids)
        text = self.model.vocabulary.decode(ids.tolist(), hidden=False).decode("utf-8", "replace")
        return replace(found, completion_ids=ids, sampled_text=text, content=text, reasoning=None,
                       usage=replace(found.usage, completion_tokens=len(ids), prompt_tokens=c.n_prompt))

    def graded(self, c: Any, convention: Convention | None) -> Row | None:
        """The row as a worker would store it today; None where the reply holds no answer any more."""
        found, prompt_ids, prefix_ids = self._read(c), blob.unpack_ids(c.prompt_ids), None
        if found is None:
            return None
        if "continued" in c.flags and found.completion_ids is not None:
            ids = blob.unpack_ids(c.ids)
            prefix_ids = ids[:len(ids) - len(found.completion_ids)]
            found = replace(found, completion_ids=ids)
        return graded(self.model, found, prompt_ids, prefix_ids, convention, c.truncated)

    def _read(self, c: Any) -> Answer | None:
        account = self.dataset.accounts.get(c.account)
        return reread(account.kind if account else "openrouter", blob.unpack_raw(c.raw), self.dataset.plan.thinking is not False)

    def key(self, c: Any) -> Key:
        return (self.dataset.plan.profile, self.dataset.plan.model, c.provider, c.finish_reason)


def graders(engine: Engine, names: Iterable[str], home: Path) -> list[Grader]:
    """Of the named datasets, or of all. SettingsError for a name that there is not."""
    with transaction(engine) as connection:
        known = {d.name: d for d in datasets.every(connection)}
    wanted = list(names) or sorted(known)
    for name in wanted:
        if name not in known:
            raise SettingsError(cause=f"there is no dataset {name!r}, only {', '.join(sorted(known)) or 'none at all'}")
    return [Grader(engine, known[name], home) for name in wanted]


def row_of(c: Any) -> Row:
    return Row(blob.unpack_ids(c.prompt_ids), blob.unpack_ids(c.ids), tuple(Span(*s) for s in c.spans), Grade(c.grade),
               c.candidates, c.rule, c.delta, c.prompt_delta, c.reason, c.version)


def calibrate(engine: Engine, names: Iterable[str], home: Path) -> Iterator[tuple[Key, Convention, bool]]:
    """Learn and keep each provider's convention: (key, convention, whether it is new)."""
    with transaction(engine) as connection:
        before = calibrations.newest(connection)
    for (model_key, model), providers in _evidence(graders(engine, names, home)).items():
        true = [row for _, found in providers.values() for row in found]
        for provider, (samples, _) in sorted(providers.items()):
            if not samples:
                continue
            for finish, convention in sorted(model.learn(samples, true[:TRUE_ROWS]).items()):
                key = (*model_key, provider, finish)
                new = key not in before or before[key].version != convention.version
                if new:
                    with transaction(engine) as connection:
                        calibrations.put(connection, key, convention, len(samples))
                yield key, convention, new


Evidence = dict[str, tuple[list[Sample], list[Row]]]


def _evidence(found: list[Grader]) -> dict[tuple[tuple[str, str], Model], Evidence]:
    """Per model and provider: text-only answers to learn from, and rows whose ids are known."""
    models: dict[tuple[str, str], Model] = {}
    evidence: dict[tuple[str, str], Evidence] = defaultdict(lambda: defaultdict(lambda: ([], [])))
    for grader in found:
        plan = grader.dataset.plan
        models.setdefault((plan.profile, plan.model), grader.model)
        for c in grader.stored():
            samples, true = evidence[plan.profile, plan.model][c.provider]
            if c.grade >= Grade.LOGPROBS:
                if len(true) < TRUE_ROWS:
                    true.append(row_of(c))
            elif len(samples) < SAMPLES and (answer := grader.answer(c)) is not None and answer.completion_ids is None:
                samples.append(Sample(answer, blob.unpack_ids(c.prompt_ids), c.truncated))
    return {(key, models[key]): providers for key, providers in evidence.items()}


def regrade(engine: Engine, names: Iterable[str], home: Path, *, every: bool = False) -> Iterator[tuple[str, int, int]]:
    """(dataset, rows looked at, rows changed). every: also rows that today's rules graded already, and engine rows."""
    with transaction(engine) as connection:
        conventions = calibrations.newest(connection)
    for grader in graders(engine, names, home):
        looked = changed = 0
        wanted = (c for c in grader.stored() if every or _outdated(c, grader, conventions.get(grader.key(c))))
        with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
            while batch := list(islice(wanted, BATCH)):
                found = threads.map(lambda c, g=grader: _regraded(c, g, conventions.get(g.key(c))), batch)
                new = [row for row in found if row is not None]
                looked += len(batch)
                if new:
                    with transaction(engine) as connection:
                        changed += rows.regrade(connection, new)
        yield grader.dataset.name, looked, changed


def _outdated(c: Any, grader: Grader, convention: Convention | None) -> bool:
    usable = convention if convention is not None and convention.model == grader.model.version else None
    return bool(c.grade < Grade.LOGPROBS and c.version != grader.model.version_with(usable))


def _regraded(c: Any, grader: Grader, convention: Convention | None) -> dict[str, Any] | None:
    """The row's new columns; None where the reply holds no answer any more or nothing changed."""
    row = grader.graded(c, convention)
    if row is None or _told(row) == _told(row_of(c)):
        return None
    return {"id": c.sample_id, "fence": c.fence, "grade": int(row.grade), "candidates": min(row.candidates, 32_000),
            "rule": row.rule, "reason": row.reason, "delta": row.delta, "prompt_delta": row.prompt_delta, "version": row.version,
            "n_prompt": len(row.prompt_ids), "n_tokens": len(row.completion_ids), "spans": rows.spans_json(row.spans),
            "prompt_ids": blob.pack_ids(row.prompt_ids), "ids": blob.pack_ids(row.completion_ids)}


def _told(row: Row) -> tuple[Any, ...]:
    """All that is stored of a row, to be compared."""
    return (row.version, row.grade, min(row.candidates, 32_000), row.rule, row.reason, row.delta, row.prompt_delta, row.spans,
            row.prompt_ids.tobytes(), row.completion_ids.tobytes())


def verified(engine: Engine, name: str, home: Path) -> tuple[Report, Silent]:
    """Every stored row of a dataset against its own reply."""
    [grader] = graders(engine, [name], home)
    report, seen = Report(), []
    for c in grader.stored():
        row, answer = row_of(c), grader.answer(c)
        report.add(row, answer or Answer(provider=c.provider),
                   ["the reply holds no answer"] if answer is None else verify(row, grader.model, answer, c.truncated))
        if row.grade < Grade.LOGPROBS:
            seen.append(replace(row, prompt_ids=row.prompt_ids[:0], completion_ids=row.completion_ids[:0]))
    return report, silent(seen)


def audited(engine: Engine, names: Iterable[str], home: Path, limit: int = 5_000) -> list[Tally]:
    """Engine rows with their ids hidden, replayed in each provider's habits. SettingsError where there are no such rows."""
    found = graders(engine, names, home)
    if len({g.model.version for g in found}) > 1:
        raise SettingsError(cause="these datasets are of different models; name those of one")
    true = [row_of(c) for g in found for c in islice((c for c in g.stored() if c.grade == Grade.ENGINE), limit)]
    if not true:
        raise SettingsError(cause="there are no rows with engine ids to audit by; run a few prompts on an engine of the model")
    return audit(found[0].model, true[:limit])
