"""All that is known of a language model, as data: where its vocabulary lies, its markers with their ids, template, tool grammar.

A profile is one TOML file; a new model needs a profile and no code. `load` finds the file of the vocabulary and checks its
hash; `Model.open` then checks that every token of `[ids]` has the id the profile says.
"""

import hashlib
import importlib.util
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from models.errors import ProfileError
from models.names import checked

FOLDER = Path(__file__).with_name("profiles")


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(Part):
    """One place where the vocabulary may lie: exactly one of path, package, hub. The first that is there is used.

    path: relative to the tokenizers folder or the profile's own. package: an installed Python package. hub: a repository id.
    config: the file beside it that holds the chat template, tokenizer_config.json or a Jinja file.
    """

    format: Literal["tiktoken", "json", "gguf"]
    path: str | None = None
    package: str | None = None
    hub: str | None = None
    revision: str | None = None
    file: str = ""
    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    config: str | None = None


class Tiktoken(Part):
    """What a bare `tiktoken.model` does not say. `visible`: added tokens that decoding keeps as text."""

    pattern: list[str]
    base: int
    special: dict[str, int]
    visible: list[str] = []
    reserved: int = 0
    reserved_name: str = "<|reserved_token_{id}|>"
    piece_chars: int | None = None
    run_chars: int | None = None


class Gguf(Part):
    """The pre-tokenizer that a GGUF only names (`tokenizer.ggml.pre`)."""

    pre: str
    split: list[str] = []
    digits: bool = False
    gpt2_split: bool = False
    normalizer: Literal["NFC"] | None = None


class Template(Part):
    """file: our own Jinja beside the profile, else the source's. switch: the variable that turns thinking on and off."""

    file: str = ""
    switch: str = "enable_thinking"
    thinking: bool = True


class Think(Part):
    open: str
    close: str


class Tools(Part):
    """How the model writes calls. In `call`: {id}, {name}, {arguments}; without {id} an id is the server's own invention."""

    open: str = ""
    close: str = ""
    call: str
    join: str = ""
    gap: str = ""
    id: str = ""


class Profile(Part):
    """ids: added tokens and the ids they must have. stop: the usual end of an answer; ends: all that may end one."""

    name: str
    vocab_size: int
    context: int | None = None          # tokens of prompt and answer together, where known
    hidden_size: int | None = None      # of the model, where it is of one size
    source: list[Source]
    ids: dict[str, int]
    stop: str
    ends: list[str] = []
    bos: str | None = None
    template: Template = Template()
    think: Think | None = None
    tools: Tools | None = None
    tiktoken: Tiktoken | None = None
    gguf: Gguf | None = None
    file: Path = Path()
    found: Source | None = None
    config_file: Path | None = None
    template_text: str | None = None
    digest: str = ""


def names() -> list[str]:
    return sorted(p.stem for p in FOLDER.glob("*.toml"))


def load(name_or_path: str, home: Path | None = None, tokenizers: Path | None = None) -> Profile:
    """The profile with its vocabulary's file found and checked; ProfileError says what is missing or differs.

    tokenizers: a folder to look in first, or the vocabulary's file itself (tokenizer.json, tiktoken.model or GGUF).
    home: draftmill's folder; `home/tokenizers` is looked in next.
    """
    file = Path(name_or_path) if name_or_path.endswith(".toml") else FOLDER / f"{name_or_path}.toml"
    profile = _read(name_or_path, file)
    folders = [tokenizers, home / "tokenizers" if home else None, file.parent]
    source, found = _find(profile, [f for f in folders if f is not None])
    digest = sha256(found) if source.format != "gguf" or source.sha256 else f"{found.stat().st_size}"
    if source.sha256 and digest != source.sha256:
        raise ProfileError(profile=profile.name, cause=f"{found.name} has sha256 {digest[:16]}..., not {source.sha256[:16]}...")
    template = file.parent / profile.template.file if profile.template.file else None
    return profile.model_copy(update={
        "file": found, "found": source, "digest": digest,
        "config_file": found.with_name(source.config) if source.config else None,
        "template_text": template.read_text(encoding="utf-8") if template else None})


def context_of(name_or_path: str) -> int | None:
    """The model's context in tokens without looking for its vocabulary; None where nobody knows it or the profile."""
    try:
        file = Path(name_or_path) if name_or_path.endswith(".toml") else FOLDER / f"{name_or_path}.toml"
        return _read(name_or_path, file).context
    except ProfileError:
        return None


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _read(name: str, file: Path) -> Profile:
    try:
        return Profile.model_validate(_document(file))
    except FileNotFoundError:
        raise ProfileError(profile=name, cause=f"there is no such profile; known: {', '.join(names())}") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProfileError(profile=name, cause=str(error)) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ProfileError(profile=name, cause=f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _document(file: Path) -> dict[str, Any]:
    """The file's tables over those of the profile beside it that it `extends`."""
    document = tomllib.loads(file.read_text(encoding="utf-8"))
    base = document.pop("extends", None)
    return _over(_document(file.with_name(f"{checked(base)}.toml")), document) if base else document


def _over(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    both = {k: _over(base[k], v) for k, v in top.items() if isinstance(v, dict) and isinstance(base.get(k), dict)}
    return {**base, **top, **both}


def _find(profile: Profile, folders: list[Path]) -> tuple[Source, Path]:
    if folders[0].is_file():
        kind = {".gguf": "gguf", ".json": "json"}.get(folders[0].suffix, "tiktoken")
        beside = folders[0].with_name("tokenizer_config.json")
        config = beside.name if kind == "json" and beside.exists() else None
        return Source.model_validate({"format": kind, "path": str(folders[0]), "config": config}), folders[0]
    for source in profile.source:
        found = _locate(source, [f for f in folders if f.is_dir()])
        if found is not None:
            return source, found
    wanted = ", ".join(s.path or s.package or s.hub or "?" for s in profile.source)
    raise ProfileError(profile=profile.name, cause=f"its vocabulary was not found; looked for {wanted}")


def _locate(source: Source, folders: list[Path]) -> Path | None:
    if source.path:
        return next((p for f in folders if (p := f / source.path).is_file()), None)
    if source.package:
        spec = importlib.util.find_spec(source.package)
        places = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
        return next((p for place in places for p in sorted(place.glob(source.file))), None)
    return _from_hub(source) if source.hub else None


def _from_hub(source: Source) -> Path | None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        if source.config:
            hf_hub_download(str(source.hub), source.config, revision=source.revision)
        return Path(hf_hub_download(str(source.hub), source.file, revision=source.revision))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError):
        return None
