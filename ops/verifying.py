"""`draftmill verify-export`: an export held against the database, and against what the trainers' own loaders make of it."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from models.base import transaction
from models.errors import SettingsError
from models.store import rows as stored
from models.store.datasets import Dataset
from models.tokens import profile
from ops import loaders
from ops.exporting import Wish, known, options_of, rows_of
from producer.export import Options
from producer.forms import TOKENS
from producer.likeness import Rule
from producer.shards import MARK
from producer.verify import verify

TRAINERS = ("specforge", "speculators")
# Our profiles -> the templates that SpecForge knows; it has none for K2.5.
SPECFORGE_TEMPLATES = {"kimi-k2": "kimi-k2-instruct", "kimi-k2-thinking": "kimi-k2-thinking", "qwen3": "qwen3-thinking",
                       "deepseek-v3": "deepseek-v3"}


def verify_export(engine: Engine, out: Path, home: Path, against: list[Path], pythons: list[Path]) -> Iterator[tuple[bool, str]]:
    """(whether it is well, a line). against: the reference files of the export, if it had any; their paths are not kept.

    pythons: interpreters that may have a trainer, besides this one and those that the acceptance script installs.
    """
    manifest = _manifest(out)
    [dataset] = known(engine, [str(manifest["facts"].get("dataset", ""))])
    options = options_of(engine, dataset, _wish(manifest, against), home, facts={})
    problems = 0
    with transaction(engine) as connection:
        for problem in verify(rows_of(stored.stored(connection, dataset.id), dataset, chats=False), out, options):
            problems += 1
            yield False, problem
    if not problems:
        yield True, f"{manifest['rows']:,} rows in {len(manifest['files'])} files are those of the database"
    if TOKENS in options.forms:
        yield from _loaded(engine, dataset, out, options, manifest, home, pythons)


def _manifest(out: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((out / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(cause=f"{out} is no export: its {MARK} cannot be read ({type(error).__name__})") from None
    return manifest


def _wish(manifest: dict[str, Any], against: list[Path]) -> Wish:
    given = manifest["settings"]
    wanted = given["decontaminated"]["against"]
    if sorted(wanted) != sorted(path.name for path in against):
        raise SettingsError(cause=f"this export was made with --decontaminate {', '.join(wanted) or '(none)'}; give the same")
    by_name = {path.name: path for path in against}
    dedup, ngram = given["dedup"], given["decontaminated"]["ngram"]
    rule = Rule(dedup["exact"], dedup["near"], tuple(by_name[name] for name in wanted), ngram)
    return Wish(
        tuple(given["forms"]), given["min_grade"], given["val_share"], given["mask_end"], tuple(given["providers"] or ()),
        tuple(given["quantizations"] or ()), tuple(given["finish_reasons"] or ()), tuple(given["without_flags"]),
        given["min_length"], given["max_length"], tuple(f"{name}={pattern}" for name, pattern in given["metadata"].items()),
        likeness=rule)


def _loaded(engine: Engine, dataset: Dataset, out: Path, options: Options, manifest: dict[str, Any], home: Path,
            pythons: list[Path]) -> Iterator[tuple[bool, str]]:
    tokenizer = profile.load(dataset.plan.profile, home).file.parent
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftmill" / "trainer-venvs"
    interpreters = [*pythons, Path(sys.executable), *sorted(cache.glob("*/bin/python"))]
    with tempfile.TemporaryDirectory() as work:
        truth = Path(work) / "truth.jsonl"
        _dump(engine, dataset, options, truth)
        arguments = [str(out), str(truth), str(manifest["longest_row"]), str(tokenizer)]
        for trainer in TRAINERS:
            yield _by(trainer, arguments, interpreters)
        template = SPECFORGE_TEMPLATES.get(dataset.plan.profile)
        if "specforge" in options.forms and template is not None:
            yield _by("specforge-chat", [*arguments, template], interpreters)


def _dump(engine: Engine, dataset: Dataset, options: Options, path: Path) -> None:
    with transaction(engine) as connection, path.open("w", encoding="utf-8") as file, options.sieve() as sieve:
        for row in rows_of(stored.stored(connection, dataset.id), dataset, chats=False):
            reason, covered = sieve.judged(row)
            if reason is None:
                prompt, completion = row.prompt_ids.tolist(), row.completion_ids.tolist()
                mask = [0] * len(prompt) + [1] * covered + [0] * (len(completion) - covered)
                file.write(json.dumps({"input_ids": prompt + completion, "loss_mask": mask}) + "\n")


def _by(trainer: str, arguments: list[str], interpreters: list[Path]) -> tuple[bool, str]:
    for python in interpreters:
        done = subprocess.run([python, loaders.__file__, trainer, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, check=False)
        if done.returncode != 3:
            said = done.stdout.strip().splitlines()
            return done.returncode == 0, said[-1] if said else f"{trainer}: its loader ended with {done.returncode}"
    return True, f"{trainer} is not installed here; its loader was not asked"
