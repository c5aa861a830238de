"""Which files make which dataset: a file is one, and so is everything of one name in a folder."""

from pathlib import Path

from models.errors import NameRefused, SettingsError
from models.names import checked
from models.urls import url_of
from producer.remote import is_folder, names_in

FORMS = (".jsonl", ".json", ".ndjson", ".parquet")
PACKED = (".gz", ".zst", ".bz2", ".xz")


def datasets_of(path: Path, partition: str | None = None) -> dict[str, list[Path]]:
    """Names to files, in order of name. A folder gives one dataset per file and per sub-folder (all of its files).

    partition: one of these names, or None or `all` for all. NameRefused for a name that may not be one, SettingsError for
    a path without prompts or two datasets of one name.
    """
    if url_of(path) is None and not path.exists():
        raise SettingsError(cause=f"there are no prompts at {path}")
    found = _folder(path) if is_folder(path) else {_stem(path): [path]}
    if not found:
        raise SettingsError(cause=f"{path} holds no files of prompts ({', '.join(FORMS)})")
    for name in found:
        checked(name)
    if partition is None or partition == "all":
        return dict(sorted(found.items()))
    if checked(partition) not in found:
        raise SettingsError(cause=f"{path} has no dataset {partition!r}, only {', '.join(sorted(found))}")
    return {partition: found[partition]}


def _folder(path: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    names: dict[str, str] = {}
    for entry in _entries(path):
        files = _files(entry)
        if not files:
            continue
        name = entry.name if is_folder(entry) else _stem(entry)
        if other := names.get(name.lower()):
            raise NameRefused(name=name, cause=f"{other!r} in {path} makes a dataset of the same name")
        names[name.lower()] = entry.name
        found[name] = files
    return found


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if url_of(folder) is None else names_in(folder)


def _files(entry: Path) -> list[Path]:
    if entry.name.startswith("."):
        return []
    if is_folder(entry):
        return [f for f in _entries(entry) if not is_folder(f) and _is_prompts(f)]
    return [entry] if _is_prompts(entry) else []


def _is_prompts(file: Path) -> bool:
    return not file.name.startswith(".") and _unpacked(file).suffix in FORMS


def _unpacked(file: Path) -> Path:
    return file.with_suffix("") if file.suffix in PACKED else file


def _stem(file: Path) -> str:
    bare = _unpacked(file)
    return bare.stem if bare.suffix in FORMS else bare.name
