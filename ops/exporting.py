"""`draftmill export`: rows of the database, through the producer's export, into one folder per dataset."""

from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Engine

from models import blob
from models.base import transaction
from models.errors import ExportRefused, SettingsError
from models.states import Grade
from models.store import datasets as store
from models.store import rows as stored
from models.store.datasets import NUSD, Dataset
from models.tokens import profile
from models.tokens.model import Model
from models.tokens.row import Span
from producer.export import Options, Selection, Vocabulary, export
from producer.rows import ExportRow
from workers.providers.reread import reread


def export_datasets(
    engine: Engine, names: list[str], output_dir: Path, forms: list[str], grade: str, val_share: float, mask_end: bool, home: Path
) -> Iterator[str]:
    """A line per dataset: what was written where, or why nothing was."""
    with transaction(engine) as connection:
        known = {d.name: d for d in store.every(connection)}
    for name in names or sorted(known):
        if name not in known:
            raise SettingsError(cause=f"there is no dataset {name!r}, only {', '.join(sorted(known)) or 'none at all'}")
        try:
            yield _exported(engine, known[name], output_dir / name, forms, grade, val_share, mask_end, home)
        except ExportRefused as error:
            yield f"{name}: {error}"


def _exported(
    engine: Engine, dataset: Dataset, out: Path, forms: list[str], grade: str, val_share: float, mask_end: bool, home: Path
) -> str:
    model = Model.open(profile.load(dataset.plan.profile, home))
    vocabulary = Vocabulary(
        model.vocab_size, model.bos_id, frozenset(model.end_ids), lambda ids: model.decode(ids).decode("utf-8", "replace")
    )
    options = Options(
        vocabulary,
        tuple(forms),
        Selection(min_grade=_grade(grade), val_share=val_share),
        mask_end,
        facts={"dataset": dataset.name, "model": dataset.plan.model, "tokens": model.version, "fingerprint": dataset.fingerprint},
    )
    chats = any(form != "tokens" for form in forms)
    with transaction(engine) as connection:
        summary = export(rows_of(stored.stored(connection, dataset.id), dataset, chats=chats), out, options)
    return f"{dataset.name}: {summary.tally.rows:,} rows in {out}"


def _grade(label: str) -> Grade:
    try:
        return Grade.of(label)
    except KeyError:
        raise SettingsError(cause=f"there is no grade {label!r}; there are {', '.join(g.label for g in Grade)}") from None


def rows_of(found: Iterator[object], dataset: Dataset, *, chats: bool) -> Iterator[ExportRow]:
    """chats: also read content, reasoning and tool calls from the raw replies."""
    for row in found:
        yield _row(row, dataset, chats)


def _row(c, dataset: Dataset, chats: bool) -> ExportRow:  # type: ignore[no-untyped-def]
    prompt = blob.unpack_json(c.prompt)
    account = dataset.accounts.get(c.account)
    answer = reread(account.kind if account else "openrouter", blob.unpack_raw(c.raw)) if chats else None
    temperature = c.sampling.get("temperature")
    return ExportRow(
        id=f"{dataset.name}/{c.key}",
        key=c.key,
        primary_id=f"{dataset.name}/{c.primary_id}",
        dataset=dataset.name,
        turn=c.turn,
        prompt=prompt,
        prompt_ids=blob.unpack_ids(c.prompt_ids),
        completion_ids=blob.unpack_ids(c.ids),
        spans=[Span(*s) for s in c.spans],
        grade=Grade(c.grade),
        finish_reason=c.finish_reason,
        truncated=c.truncated,
        trainable=c.trainable,
        flags=frozenset(c.flags),
        provider=c.provider,
        quantization=c.quantization,
        model=c.model,
        account=c.account,
        temperature=None if temperature is None else float(temperature),
        sampling=c.sampling,
        cost_usd=c.cost_nusd / NUSD,
        prompt_tokens=c.billed_prompt_tokens,
        completion_tokens=c.billed_tokens,
        content=answer.content if answer else "",
        reasoning=answer.reasoning if answer else None,
        tool_calls=answer.tool_calls if answer else (),
        metadata=prompt.get("metadata") or {},
        created_at=c.created_at.isoformat(),
        fingerprint=c.fingerprint,
    )
