"""Rows of the database as files that trainers load: one pass, bounded memory, all of it or nothing.

    out/MANIFEST.yaml  README.md            what it is, and the flags for each trainer
    out/tokens/<split>/part-00000.jsonl     the truth: one row per generation
    out/vocab/                              counts, d2t and t2d of the train split
    out/<dialect>/<schema>/<split>/         chat forms, if asked for

The data folders hold data files and nothing else, since trainers take every *.json and *.jsonl below one for data.
The same rows and options give the same bytes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from models.blob import Ids
from models.errors import ExportRefused, SettingsError
from producer import plots
from producer import vocabulary as vocab
from producer.card import card
from producer.checkpoint import EVERY_ROWS, Checkpoint, cleared, dense, packed, sparse, unpacked
from producer.checkpoint import FILE as CHECKPOINT
from producer.dialects import DIALECTS, Render
from producer.forms import TOKENS, TRL, Chats, Folders, Form, Tokens
from producer.likeness import Rule
from producer.manifest import manifest
from producer.parquet import FOLDER as PARQUET
from producer.parquet import Parquet
from producer.rows import ExportRow
from producer.selection import Selection, Vocabulary, all_known
from producer.shards import MARK, Publication, Shard, empty, sealed, write_file
from producer.sieve import LEFT_OUT, Sieve
from producer.tally import Summary, Tally

__all__ = ["FORMS", "ExportRow", "Options", "Selection", "Summary", "Vocabulary", "export", "export_from"]

FORMS = (TOKENS, TRL, PARQUET, *DIALECTS)
BATCH = 512
Source = Callable[[int, str], Iterable[ExportRow]]      # (after this sample id, stored until) -> rows


@dataclass(frozen=True, slots=True)
class Options:
    """forms: of FORMS. mask_end: leave the end-of-turn token out of the mask, as Model-Optimizer and TorchSpec do.

    draft_sizes: larger ones than the vocabulary are left out. hidden_size, hidden_layers: of the target, for the size of its
    hidden states (2 bytes a value). render: a chat to ids, to measure how many rows survive each dialect.
    plots: also draw what is in it (the extra `plots`).
    likeness: which prompts are one too many, or in a file of reference prompts.
    facts: what the caller knows (tokenizer and template hash, waste, settings); JSON, goes into the manifest as it is.
    """

    vocabulary: Vocabulary
    forms: tuple[str, ...] = (TOKENS,)
    selection: Selection = field(default_factory=Selection)
    mask_end: bool = False
    draft_sizes: tuple[int, ...] = (32_000,)
    shard_rows: int = 100_000
    shard_bytes: int = 1 << 30
    hidden_size: int | None = None
    hidden_layers: int = 4
    render: Render | None = None
    likeness: Rule = field(default_factory=Rule)
    plots: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)

    def sieve(self, report: Path | None = None) -> Sieve:
        return Sieve(self.selection, self.vocabulary, self.mask_end, self.likeness, report)

    def settings(self) -> dict[str, Any]:
        """What decides the bytes, JSON-ready."""
        chosen = self.selection
        return {
            "forms": list(self.forms), "mask_end": self.mask_end, "draft_sizes": list(self.draft_sizes),
            "shard_rows": self.shard_rows, "shard_bytes": self.shard_bytes, "plots": self.plots,
            "min_grade": chosen.min_grade.label,
            "val_share": chosen.val_share, "min_length": chosen.min_length, "max_length": chosen.max_length,
            "without_flags": sorted(chosen.without_flags),
            "metadata": {name: pattern.pattern for name, pattern in sorted(chosen.metadata.items())},
            "dedup": {"exact": self.likeness.exact, "near": self.likeness.near},
            "decontaminated": {"against": [path.name for path in self.likeness.against], "ngram": self.likeness.ngram},
            **{name: None if (value := getattr(chosen, name)) is None else sorted(value)
               for name in ("providers", "quantizations", "finish_reasons")},
        }


def export(rows: Iterable[ExportRow], out: Path, options: Options) -> Summary:
    """Writes `out`, replacing an earlier export there. ExportRefused if nothing is left to export or `out` is not ours."""
    _check(options)
    with Publication(out) as publication, _ours(out):
        return _Pass(publication.root, options).whole(rows)


def export_from(source: Source, until: str, out: Path, options: Options, *, resume: bool = False) -> Summary:
    """As `export`, with checkpoints: killed, it goes on from its last one when called with `resume` and the same options.

    until: rows stored later stay out; a resumed export keeps to that of its beginning. Parquet, and prompts compared with
    each other, cannot be gone on with: they begin anew.
    """
    _check(options)
    with Publication(out, resume=resume, kept=CHECKPOINT) as publication, _ours(out):
        work = _Pass(publication.root, options, until)
        saved = Checkpoint.read(publication.root, options.settings()) if resume else None
        if saved is None:
            empty(publication.root)
        else:
            work.restore(saved)
        return work.whole(source(work.after, work.until))


def _check(options: Options) -> None:
    unknown = set(options.forms) - set(FORMS)
    if unknown:
        raise SettingsError(cause=f"no such form: {', '.join(sorted(unknown))}; there are {', '.join(FORMS)}")
    if options.plots:
        plots.available()


@contextmanager
def _ours(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ExportRefused(cause=f"{out}: {error.strerror or type(error).__name__}") from error


class _Pass:
    """One way through the rows. until: "" where there are no checkpoints."""

    def __init__(self, root: Path, options: Options, until: str = "") -> None:
        self.root, self.options, self.until, self.after = root, options, until, 0
        self.forms = {name: _form(name, root, options) for name in options.forms}
        self.tally, self.counts = Tally(timed=options.plots), vocab.Frequencies(options.vocabulary.size)
        self._since = 0

    def whole(self, rows: Iterable[ExportRow]) -> Summary:
        root, options, tally = self.root, self.options, self.tally
        try:
            with options.sieve(root / LEFT_OUT) as sieve:
                self._through(rows, sieve)
            shards = [shard for form in self.forms.values() for shard in form.close()]
            shards += [sealed(root, LEFT_OUT, sieve.reported)] if sieve.reported else []
        except BaseException:
            for form in self.forms.values():
                form.abort()
            raise
        (root / CHECKPOINT).unlink(missing_ok=True)
        tally.settle()
        if not tally.rows:
            why = ", ".join(f"{name} {n}" for name, n in tally.left_out.most_common()) or "there are none"
            raise ExportRefused(cause=f"no rows to export: {why}")
        counts = self.counts.counts
        sizes = [size for size in options.draft_sizes if size <= options.vocabulary.size] if tally.splits["train"] else []
        shards += [shard for shard, _ in vocab.write(root, counts, sizes)]
        shards += list(plots.draw(root, tally)) if options.plots else []
        summary = _summary(options, tally, shards, self.forms, {size: vocab.coverage(counts, size) for size in sizes})
        made = card(summary).encode()
        summary = replace(summary, shards=(*summary.shards, write_file(root, "README.md", made)))
        write_file(root, MARK, manifest(summary).encode())
        return summary

    def _through(self, rows: Iterable[ExportRow], sieve: Sieve) -> None:
        options, tally, forms = self.options, self.tally, list(self.forms.values())
        source = iter(rows)
        while batch := list(islice(source, BATCH)):
            supervised: list[Ids] = []
            checked = all_known(batch, options.vocabulary.size)
            for row in batch:
                reason, covered = sieve.judged(row, checked)
                if reason is not None:
                    tally.left_out[reason] += 1
                    continue
                split = options.selection.split(row.primary_id)
                for form in forms:
                    form.add(row, split, covered)
                tally.add(row, split, covered)
                if split == "train":
                    supervised.append(row.completion_ids[:covered])
            self.counts.add(supervised)
            self.after = batch[-1].sample_id
            self._since += len(batch)
            if self.until and self._since >= EVERY_ROWS and not options.likeness:
                self._keep()

    def _keep(self) -> None:
        self._since = 0
        states = {name: form.state() for name, form in self.forms.items()}
        if None not in states.values():
            Checkpoint(self.options.settings(), self.after, self.until, packed(self.tally), states,
                       sparse(self.counts.counts)).write(self.root)

    def restore(self, saved: Checkpoint) -> None:
        self.after, self.until = saved.after, saved.until
        self.tally, self.counts.counts = unpacked(saved.tally), dense(saved.counts, self.options.vocabulary.size)
        folders = [state for inner in saved.forms.values() for state in inner["folders"].values()]
        cleared(self.root, {s[0] for f in folders for s in [*f["done"], *([f["open"]] if f["open"] else [])]})
        for name, state in saved.forms.items():
            self.forms[name].restore(state)


def _form(name: str, root: Path, options: Options) -> Form:
    if name == PARQUET:
        return Parquet(root, options.shard_rows, options.vocabulary)
    folders = Folders(root, options.shard_rows, options.shard_bytes)
    if name in (TOKENS, TRL):
        return Tokens(name, folders, options.vocabulary)
    return Chats(name, folders, options.vocabulary, options.render)


def _summary(options: Options, tally: Tally, shards: list[Shard], forms: Mapping[str, Form],
             coverage: Mapping[int, float]) -> Summary:
    chats = {name: form for name, form in forms.items() if isinstance(form, Chats)}
    per_token = None if options.hidden_size is None else options.hidden_size * options.hidden_layers * 2
    return Summary(
        tally=tally, shards=tuple(shards), coverage=coverage, facts=options.facts, settings=options.settings(),
        rates={name: c.survivals for name, c in chats.items() if c.survivals},
        chat_left_out={name: dict(sorted(c.left_out.items())) for name, c in chats.items()},
        vocabulary_size=options.vocabulary.size, hidden_bytes_per_token=per_token)
