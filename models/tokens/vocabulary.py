"""Text to ids and back, for the two kinds of vocabulary there are: tiktoken's and tokenizers' byte-level BPE.

Three ways to encode, since they differ exactly where rows go wrong:
- `encode`: as an engine treats a rendered prompt; marker text becomes marker ids, the published normaliser is applied;
- `encode_ordinary`: marker text stays text, the normaliser is applied;
- `spell`: marker text stays text and nothing is normalised, so that decode(spell(text)) is the text, always, where the
  vocabulary is `complete`.
"""

import json
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from models.blob import Ids
from models.errors import ProfileError
from models.tokens import gguf
from models.tokens.profile import Profile, Tiktoken

NEVER_IN_UTF8 = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})


def whole(text: str) -> str:
    """The text with lone surrogates replaced, as every UTF-8 engine sees it."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Codec(Protocol):
    def encode(self, text: str) -> list[int]: ...
    def encode_ordinary(self, text: str) -> list[int]: ...
    def spell(self, text: str) -> Ids: ...
    def pieces(self, text: str) -> list[str]: ...


class Vocabulary:
    """added: marker text -> id. hidden: ids that decoding leaves out. `table[id]`: the id's bytes, b"" where there are none."""

    def __init__(self, size: int, base: dict[bytes, int], added: dict[str, int], hidden: Iterable[int], codec: Codec) -> None:
        self.size, self.added, self.hidden, self.codec = size, added, frozenset(hidden), codec
        self.table: list[bytes] = [b""] * size
        for token, i in base.items():
            self.table[i] = token
        for text, i in added.items():
            self.table[i] = text.encode()
        self.marker = re.compile("|".join(map(re.escape, sorted(added, key=len, reverse=True))) or r"(?!)")
        self.encode, self.encode_ordinary, self.spell = codec.encode, codec.encode_ordinary, codec.spell

    @cached_property
    def id_of(self) -> dict[bytes, int]:
        """bytes -> id: one to one, since markers are never spelled by one base token."""
        return {token: i for i, token in enumerate(self.table) if token}

    @cached_property
    def complete(self) -> bool:
        """Whether every byte has an id; SmolLM2's does not, and what it cannot spell is silently left out."""
        return all(bytes([b]) in self.id_of for b in range(256) if b not in NEVER_IN_UTF8)

    @cached_property
    def half_characters(self) -> dict[str, list[int]]:
        """Text -> the ids that spell it and then begin a character they do not finish ("" left out)."""
        found: dict[str, list[int]] = {}
        for i, token in enumerate(self.table):
            head = _without_cut(token)
            if head and head != token:
                found.setdefault(head.decode("utf-8", "ignore"), []).append(i)
        return found

    def decode(self, ids: Iterable[int], hidden: bool = True) -> bytes:
        """The ids' bytes; without `hidden`, special tokens have no text, as in an engine's answer."""
        table = self.table
        if hidden:
            return b"".join([table[i] for i in ids])
        return b"".join([table[i] for i in ids if i not in self.hidden])

    def stable(self, text: str) -> str:
        """The beginning of the text whose ids no following text can change.

        White space at the end may join what follows, a word may grow, and a contraction may reach one piece back.
        """
        pieces = self.codec.pieces(text.rstrip())[:-2]
        while pieces and pieces[-1].isspace():
            pieces.pop()
        return "".join(pieces)


def _without_cut(token: bytes) -> bytes:
    """The token without an unfinished UTF-8 character at its end; b"" if it is not text otherwise."""
    for n in range(min(4, len(token) + 1)):
        try:
            head = token[: len(token) - n]
            head.decode("utf-8")
        except UnicodeDecodeError:
            continue
        return head
    return b""


class TiktokenCodec:
    def __init__(self, encoding: Any, rules: Tiktoken, pattern: str) -> None:
        self.encoding, self.rules, self.pattern = encoding, rules, pattern

    def encode(self, text: str) -> list[int]:
        return [i for piece in self._pieced(whole(text)) for i in self.encoding.encode(piece, allowed_special="all")]

    def encode_ordinary(self, text: str) -> list[int]:
        return [i for piece in self._pieced(whole(text)) for i in self.encoding.encode_ordinary(piece)]

    def spell(self, text: str) -> Ids:
        """Straight into an array: a list of the same ids costs half as much again."""
        found = [self.encoding.encode_to_numpy(piece, disallowed_special=()) for piece in self._pieced(whole(text))]
        return (found[0] if len(found) == 1 else np.concatenate(found)).view(np.int32)

    def _pieced(self, text: str) -> list[str]:
        """Very long texts and runs are cut as Moonshot's own tokenizer cuts them; this changes ids only there."""
        run, size = self.rules.run_chars, self.rules.piece_chars
        if run is None or size is None or len(text) <= run:
            return [text]
        return [piece for at in range(0, len(text), size) for piece in cut_runs(text[at:at + size], run)]

    def pieces(self, text: str) -> list[str]:
        import regex

        return regex.findall(self.pattern, whole(text), flags=regex.V1)


def cut_runs(text: str, limit: int) -> Iterable[str]:
    """The text in pieces none of which has more than `limit` white-space or other characters in a row."""
    start, begin, space = 0, 0, text[:1].isspace()
    for i, character in enumerate(text):
        if character.isspace() != space:
            begin, space = i, not space
        elif i - begin >= limit:
            yield text[start:i]
            start = begin = i
    yield text[start:]


class BpeCodec:
    """`tokenizers` on a tokenizer.json document. Its variants are built when a text first needs them."""

    def __init__(self, document: dict[str, Any], marker: re.Pattern[str]) -> None:
        self.document, self.marker = document, marker

    def _build(self, **changes: Any) -> Any:
        from tokenizers import Tokenizer

        without = {"post_processor": None, "truncation": None, "padding": None}
        return Tokenizer.from_str(json.dumps({**self.document, **without, **changes}))

    @cached_property
    def full(self) -> Any:
        return self._build()

    @cached_property
    def bare(self) -> Any:
        return self._build(added_tokens=[])

    @cached_property
    def plain(self) -> Any:
        return self._build(added_tokens=[], normalizer=None)

    def encode(self, text: str) -> list[int]:
        return _encoded(self.full, whole(text))

    def encode_ordinary(self, text: str) -> list[int]:
        return _encoded(self.bare if self.marker.search(text) else self.full, whole(text))

    def spell(self, text: str) -> Ids:
        normalizer, text = self.full.normalizer, whole(text)
        same = normalizer is None or normalizer.normalize_str(text) == text
        return np.asarray(self.encode_ordinary(text) if same else _encoded(self.plain, text), np.int32)

    def pieces(self, text: str) -> list[str]:
        offsets = [span for _, span in self.plain.pre_tokenizer.pre_tokenize_str(whole(text))]
        return [text[a:b] for a, b in offsets]


def _encoded(tokenizer: Any, text: str) -> list[int]:
    """By the batch call: unlike the single one it lets go of the interpreter's lock, 10 ms for 3,000 tokens."""
    ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def _bytes_of_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: printable Latin-1 stands for itself, the rest from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(rest)}


def open_bpe(profile: Profile, document: dict[str, Any]) -> Vocabulary:
    if "ByteLevel" not in json.dumps(document.get("decoder")) or document["model"].get("type", "BPE") != "BPE":
        raise ProfileError(profile=profile.name, cause="only byte-level BPE vocabularies are known")
    alphabet, entries = _bytes_of_alphabet(), document["added_tokens"]
    added = {t["content"]: t["id"] for t in entries}
    base = {bytes(alphabet[c] for c in token): i for token, i in document["model"]["vocab"].items()
            if token not in added and all(c in alphabet for c in token)}
    marker = re.compile("|".join(map(re.escape, added)) or r"(?!)")
    hidden = [t["id"] for t in entries if t["special"]]
    return Vocabulary(profile.vocab_size, base, added, hidden, BpeCodec(document, marker))


def open_tiktoken(profile: Profile) -> Vocabulary:
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    rules = profile.tiktoken
    if rules is None:
        raise ProfileError(profile=profile.name, cause="it has no [tiktoken] rules for its tiktoken vocabulary")
    ranks = load_tiktoken_bpe(str(profile.file))
    if len(ranks) != rules.base:
        raise ProfileError(profile=profile.name, cause=f"{profile.file.name} has {len(ranks)} tokens, not {rules.base}")
    named = {i: text for text, i in rules.special.items()}
    added = {named.get(i, rules.reserved_name.format(id=i)): i for i in (range(rules.base, rules.base + rules.reserved) or named)}
    pattern = "|".join(rules.pattern)
    encoding = tiktoken.Encoding(profile.name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=added)
    hidden = [i for text, i in added.items() if text not in rules.visible]
    return Vocabulary(profile.vocab_size, ranks, added, hidden, TiktokenCodec(encoding, rules, pattern))


def open_vocabulary(profile: Profile) -> tuple[Vocabulary, str | None]:
    """The vocabulary and the chat template found with it. ProfileError for files and ids that do not resolve."""
    kind, template = profile.found.format if profile.found else "tiktoken", None
    try:
        if kind == "tiktoken":
            vocabulary = open_tiktoken(profile)
        elif kind == "gguf":
            head = gguf.metadata(profile.file)
            vocabulary, template = open_bpe(profile, gguf.document(profile, head)), head.get("tokenizer.chat_template")
        else:
            vocabulary = open_bpe(profile, json.loads(profile.file.read_text(encoding="utf-8")))
        if profile.config_file is not None and profile.config_file.exists():
            text = profile.config_file.read_text(encoding="utf-8")
            template = text if profile.config_file.suffix == ".jinja" else json.loads(text).get("chat_template")
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        cause = f"{profile.file.name} cannot be read: {type(error).__name__}: {error}"
        raise ProfileError(profile=profile.name, cause=cause) from error
    found = vocabulary.added
    wrong = [f"{text!r} is {found.get(text)}, not {i}" for text, i in profile.ids.items() if found.get(text) != i]
    think = [profile.think.open, profile.think.close] if profile.think else []
    wrong += [f"{text!r} is no marker" for text in [profile.stop, *think] if text not in found]
    wrong += [f"{text!r} is no token" for text in profile.ends if text.encode() not in vocabulary.id_of]
    if wrong:
        raise ProfileError(profile=profile.name, cause="ids do not resolve: " + "; ".join(wrong))
    return vocabulary, template
