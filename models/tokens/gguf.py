"""The tokenizer inside a GGUF file, as a tokenizer.json document. Only the header is read, never the weights.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (little-endian, version 2 and 3).
"""

import struct
from pathlib import Path
from typing import Any, BinaryIO

from models.errors import ProfileError
from models.tokens.profile import Profile

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
NORMAL, CONTROL, USER = 1, 3, 4  # tokenizer.ggml.token_type


def metadata(file: Path) -> dict[str, Any]:
    """All key-value pairs of the header. ProfileError for anything that is not a GGUF or is cut short."""
    try:
        with file.open("rb") as stream:
            magic, version, _, pairs = struct.unpack("<4sIQQ", stream.read(24))
            if magic != b"GGUF" or version not in (2, 3):
                raise ProfileError(profile=file.name, cause=f"not a GGUF of version 2 or 3 (magic {magic!r})")
            return {_string(stream): _value(stream, _scalar(stream, "<I")) for _ in range(pairs)}
    except (OSError, struct.error, UnicodeDecodeError, KeyError) as error:
        raise ProfileError(profile=file.name, cause=f"its GGUF header cannot be read: {error}") from error


def _scalar(stream: BinaryIO, code: str) -> Any:
    return struct.unpack(code, stream.read(struct.calcsize(code)))[0]


def _string(stream: BinaryIO) -> str:
    return stream.read(_scalar(stream, "<Q")).decode("utf-8")


def _value(stream: BinaryIO, kind: int) -> Any:
    if kind == STRING:
        return _string(stream)
    if kind != ARRAY:
        return _scalar(stream, SCALARS[kind])
    item, count = struct.unpack("<IQ", stream.read(12))
    if item in (STRING, ARRAY):
        return [_value(stream, item) for _ in range(count)]
    code = SCALARS[item]
    data = stream.read(count * struct.calcsize(code))
    return list(struct.unpack(f"<{count}{code[1]}", data))


def document(profile: Profile, head: dict[str, Any]) -> dict[str, Any]:
    """tokenizer.json for a byte-level BPE GGUF; the pre-tokenizer, which a GGUF only names, comes from the profile."""
    rules = profile.gguf
    if rules is None or head.get("tokenizer.ggml.model") != "gpt2" or head.get("tokenizer.ggml.pre") != rules.pre:
        raise ProfileError(profile=profile.name, cause=f"{profile.file.name}: pre-tokenizer {head.get('tokenizer.ggml.pre')!r} "
                           f"of a {head.get('tokenizer.ggml.model')!r} vocabulary is not the profile's")
    tokens, types = head["tokenizer.ggml.tokens"], head["tokenizer.ggml.token_type"]
    added = [{"id": i, "content": tokens[i], "special": t == CONTROL, "normalized": False, "single_word": False,
              "lstrip": False, "rstrip": False} for i, t in enumerate(types) if t in (CONTROL, USER)]
    return {
        "version": "1.0", "added_tokens": added,
        "normalizer": {"type": rules.normalizer} if rules.normalizer else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _pre_tokenizers(profile)},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        # Markers too: an added token that the model does not know is given a new id behind all others.
        "model": {"type": "BPE", "vocab": {tokens[i]: i for i, t in enumerate(types) if t in (NORMAL, CONTROL, USER)},
                  "merges": [m.split(" ", 1) for m in head["tokenizer.ggml.merges"]]}}


def _pre_tokenizers(profile: Profile) -> list[dict[str, Any]]:
    rules = profile.gguf
    assert rules is not None
    digits = [{"type": "Digits", "individual_digits": True}] if rules.digits else []
    splits = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in rules.split]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": rules.gpt2_split}
    return [*digits, *splits, level]
