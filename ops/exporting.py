"""`draftmill export` and `verify-export`: rows of the database, through the producer's export, one folder per dataset."""

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from models import blob
from models.base import transaction
from models.errors import ExportRefused, SettingsError
from models.states import Grade
from models.store import datasets as store
from models.store import rows as stored
from models.store import spending, totals
from models.store.datasets import NUSD, Dataset
from models.tokens import profile
from models.tokens.model import Model
from models.tokens.row import Span
from models.urls import url_of
from producer.dialects import DIALECTS
from producer.export import Options, Selection, Summary, Vocabulary, export_from
from producer.likeness import Rule
from producer.remote import publish
from producer.rows import ExportRow
from producer.shards import MARK
from workers.providers.reread import reread


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line said; () and None mean any. metadata: `field=regular expression`."""

    forms: tuple[str, ...] = ("tokens",)
    grade: str = "verified"
    val_share: float = 0.05
    mask_end: bool = False
    providers: tuple[str, ...] = ()
    quantizations: tuple[str, ...] = ()
    finish_reasons: tuple[str, ...] = ()
    without_flags: tuple[str, ...] = ()
    min_length: int = 1
    max_length: int | None = None
    metadata: tuple[str, ...] = ()
    draft_sizes: tuple[int, ...] = (32_000,)
    shard_rows: int = 100_000
    hidden_size: int | None = None
    hidden_layers: int = 4
    likeness: Rule = field(default_factory=Rule)
    plots: bool = False

    def selection(self) -> Selection:
        """SettingsError for a grade that there is not, or an expression that is none."""
        return Selection(
            _grade(self.grade), _some(self.providers), _some(self.quantizations), _some(self.finish_reasons),
            frozenset(self.without_flags), self.min_length, self.max_length, dict(map(_pattern, self.metadata)), self.val_share)


def _some(names: tuple[str, ...]) -> frozenset[str] | None:
    return frozenset(names) or None


def _pattern(given: str) -> tuple[str, re.Pattern[str]]:
    name, equals, pattern = given.partition("=")
    try:
        if name and equals:
            return name, re.compile(pattern)
        cause = "is not FIELD=EXPRESSION"
    except re.error as error:
        cause = f"is no regular expression: {error.msg}"
    raise SettingsError(cause=f"--metadata {given!r} {cause}")


def _grade(label: str) -> Grade:
    try:
        return Grade.of(label)
    except KeyError:
        raise SettingsError(cause=f"there is no grade {label!r}; there are {', '.join(g.label for g in Grade)}") from None


def known(engine: Engine, names: list[str]) -> list[Dataset]:
    """The named datasets, or all. SettingsError for a name that there is not."""
    with transaction(engine) as connection:
        found = {d.name: d for d in store.every(connection)}
    for name in names:
        if name not in found:
            raise SettingsError(cause=f"there is no dataset {name!r}, only {', '.join(sorted(found)) or 'none at all'}")
    return [found[name] for name in names or sorted(found)]


def export_datasets(
    engine: Engine, names: list[str], output_dir: Path, wish: Wish, home: Path, *, resume: bool = False
) -> Iterator[str]:
    """Lines for people: what of each dataset was written where, or why nothing was. resume: go on where one was killed."""
    for dataset in known(engine, names):
        out = output_dir / dataset.name
        remote = url_of(out)
        place = home / "exports" / dataset.name if remote else out      # made whole here, then copied
        try:
            summary = exported(engine, dataset, place, wish, home, resume=resume)
            if remote:
                publish(place, out, MARK)
                shutil.rmtree(place)
            yield from _told(dataset.name, remote or str(out), summary)
        except ExportRefused as error:
            yield f"{dataset.name}: {error}"


def exported(engine: Engine, dataset: Dataset, out: Path, wish: Wish, home: Path, *, resume: bool = False) -> Summary:
    options = options_of(engine, dataset, wish, home)
    with transaction(engine) as connection:
        def source(after: int, until: str) -> Iterator[ExportRow]:
            found = stored.stored(connection, dataset.id, after=after, until=until)
            return rows_of(found, dataset, chats=_needs_text(options.forms))
        return export_from(source, stored.now(connection), out, options, resume=resume)


def _told(name: str, out: str, summary: Summary) -> Iterator[str]:
    tally = summary.tally
    splits = ", ".join(f"{split} {n:,}" for split, n in sorted(tally.splits.items()))
    size = f"{tally.supervised:,} supervised tokens, longest row {summary.longest:,}"
    yield f"{name}: {summary.rows:,} rows in {out} ({splits}; {size})"
    left = ", ".join(f"{reason} {n:,}" for reason, n in tally.left_out.most_common())
    if left:
        yield f"  left out: {left}"
    for form, found in sorted(summary.rates.items()):
        kept = f"{found['equal']:,} of {found.total():,} rows keep their ids when rendered again"
        yield f"  {form}: {kept}, {found['longer']:,} more only get something behind them"
    for n, share in summary.coverage.items():
        yield f"  a draft vocabulary of {n:,} ids covers {share:.2%} of the supervised tokens"


def _needs_text(forms: tuple[str, ...]) -> bool:
    return any(form in DIALECTS for form in forms)


def options_of(engine: Engine, dataset: Dataset, wish: Wish, home: Path, facts: Mapping[str, Any] | None = None) -> Options:
    """Of an export; ProfileError where the vocabulary does not resolve. facts: instead of those of the database."""
    model = Model.open(profile.load(dataset.plan.profile, home))

    def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> Any:
        return model.whole_ids(messages, tools, dataset.plan.thinking)

    vocabulary = Vocabulary(
        model.vocab_size, model.bos_id, frozenset(model.end_ids), lambda ids: model.decode(ids).decode("utf-8", "replace"))
    return Options(
        vocabulary, wish.forms, wish.selection(), wish.mask_end, wish.draft_sizes, wish.shard_rows,
        hidden_size=wish.hidden_size or model.profile.hidden_size, hidden_layers=wish.hidden_layers,
        render=render if _needs_text(wish.forms) else None, likeness=wish.likeness, plots=wish.plots,
        facts=_facts(engine, dataset, model) if facts is None else facts)


def _facts(engine: Engine, dataset: Dataset, model: Model) -> dict[str, Any]:
    """What the rows themselves do not say. Sums of the whole dataset, since what was wasted belongs to no row."""
    with transaction(engine) as connection:
        [sums] = totals.datasets(connection, [dataset.name])
        spending.add(connection, [sums])
    return {
        "dataset": dataset.name, "model": dataset.plan.model, "tokens": model.version, "fingerprint": dataset.fingerprint,
        "tokenizer_sha256": model.profile.digest, "template_sha256": model.template_sha256,
        "dataset_settings": dataset.plan.fingerprint(),
        "dataset_spent_usd": sums.spent_usd, "dataset_billed_tokens": sums.billed_tokens,
        "dataset_stored_tokens": sums.stored_tokens, "dataset_wasted_tokens": sums.waste_tokens,
        "dataset_waste": {kind: n for kind, n in sums.waste.items() if n["tokens"] or n["usd"]}}


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
        sample_id=c.sample_id,
    )
