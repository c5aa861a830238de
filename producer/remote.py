"""Paths that are no local ones (`s3://`, `gs://`, `hf://` ...), through fsspec and whatever backend of it is installed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from models.errors import SettingsError
from models.urls import url_of


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """For reading, local or not. OSError where it cannot be, SettingsError where the backend is not installed."""
    url = url_of(path)
    if url is None:
        with path.open("rb") as file:
            yield file
        return
    system, root = system_of(url)
    with system.open(root, "rb") as remote:
        yield remote


def system_of(url: str) -> tuple[Any, str]:
    """(the file system, the path in it)."""
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]

        system, root = url_to_fs(url)
    except (ImportError, ValueError) as error:     # no fsspec, no backend for it, or no such protocol
        raise SettingsError(cause=f"{url.split(':')[0]}:// cannot be used here: {error}") from None
    return system, root


def names_in(path: Path) -> list[Path]:
    """What lies in a remote folder, sorted; [] if it is a file. SettingsError if there is no such thing."""
    url = url_of(path)
    assert url is not None
    system, root = system_of(url)
    try:
        if system.isfile(root):
            return []
        return [path / PurePosixPath(name).name for name in sorted(system.ls(root, detail=False))]
    except OSError as error:
        raise SettingsError(cause=f"{url} cannot be read: {type(error).__name__}") from None


def is_folder(path: Path) -> bool:
    url = url_of(path)
    if url is None:
        return path.is_dir()
    system, root = system_of(url)
    return bool(system.isdir(root))


def publish(local: Path, out: Path, mark: str) -> None:
    """Copy the files below `local` to a remote folder. There is no renaming there: the file `mark` goes first and comes last,
    and what an earlier export had and this one has not is removed. Who finds the mark finds a whole export.
    """
    url = url_of(out)
    assert url is not None
    system, root = system_of(url)
    root = root.rstrip("/")
    try:
        before = set(system.find(root)) if system.exists(root) else set()
        theirs = f"{root}/{mark}"
        if before and theirs not in {_bare(system, name) for name in before}:
            raise SettingsError(cause=f"{url} holds files and is not an export (it has no {mark}); it is left as it is")
        if before:
            system.rm_file(theirs)
        files = sorted(f for f in local.rglob("*") if f.is_file() and f.name != mark)
        for file in [*files, local / mark]:
            target = f"{root}/{file.relative_to(local).as_posix()}"
            system.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
            if file.name == mark:
                _clear(system, before, {f"{root}/{f.relative_to(local).as_posix()}" for f in files})
            system.put_file(str(file), target)
    except OSError as error:
        raise SettingsError(cause=f"{url} cannot be written: {type(error).__name__}") from error


def _clear(system: Any, before: set[str], now: set[str]) -> None:
    for name in sorted({_bare(system, n) for n in before} - {_bare(system, n) for n in now}):
        if system.exists(name):
            system.rm_file(name)


def _bare(system: Any, name: str) -> str:
    return str(system._strip_protocol(name))
