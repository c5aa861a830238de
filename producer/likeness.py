"""Prompts that say what another one says: the same, nearly the same, or what a file of reference prompts holds.

    exact           the same messages and tools
    near            5-word shingles that overlap (Jaccard, estimated by MinHash) from a bound on
    contaminated    a run of n words that stands in a reference prompt too, or all of a shorter one

What was seen is kept in a temporary file, so memory is the same for a thousand prompts and for ten million. The same prompts
in the same order always give the same answers.
"""

import json
import re
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.conversation import Message
from models.errors import SettingsError
from producer.prompts import Refusal, read
from producer.scratch import Scratch

SHINGLE = 5
BANDS, ROWS = 12, 5             # of equal shingles 0.8, 99% are found; of 0.5, a third are looked at and told apart
BOILERPLATE = 10                # n-grams that stand in more references than this say nothing
CANDIDATES = 50
CHUNK = 4_096
CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
WORD = re.compile(rf"[{CJK}]|[^\W{CJK}]+")       # scripts without spaces: each character is a word

Hashes = NDArray[np.uint64]
_SEEDS = np.random.default_rng(7).integers(1, 2**63, (BANDS * ROWS, 1), dtype=np.uint64)
_TABLES = """
create table kept (id integer primary key, name text unique, sketch blob);
create table exact (digest blob primary key, id integer) without rowid;
create table band (hash integer, id integer, primary key (hash, id)) without rowid;
create table refused (name text primary key, code text, cause text, other text) without rowid;
create table reference (id integer primary key, name text);
create table whole (digest blob primary key, id integer) without rowid;
create table gram (hash integer primary key, id integer, n integer);
begin;
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """near: the Jaccard index from which on two prompts are one; None: only the same. against: files of reference prompts."""

    exact: bool = False
    near: float | None = None
    against: tuple[Path, ...] = ()
    ngram: int = 13

    def __bool__(self) -> bool:
        return self.exact or self.near is not None or bool(self.against)


class Match(NamedTuple):
    """code: same_prompt, near_prompt, contaminated. other: the name of what it is like; cause holds no prompt."""

    code: str
    cause: str
    other: str


class Likeness(Scratch):
    """Use as a context manager. Names are of conversations: all turns and answers of one get the answer of the first."""

    def __init__(self, rule: Rule) -> None:
        super().__init__("likeness", _TABLES)
        self.rule = rule

    def learn(self) -> Iterator[Refusal]:
        """Read the reference files; rows that are no prompts come out as refusals. SettingsError for a file without any."""
        for path in map(Path, self.rule.against):
            found = 0
            for item in read(path):
                if isinstance(item, Refusal):
                    yield item
                else:
                    found += 1
                    self._refer(f"{path.name}:{item.line}", words(item.messages))
            if not found:
                raise SettingsError(cause=f"{path} holds no prompts to compare with")

    def known(self, name: str, messages: Sequence[Message], tools: Any) -> None:
        """A prompt that is taken already, whatever it is like."""
        if not self._is_kept(name):
            self._keep(name, _digest(messages, tools), self._sketch(messages))

    def match(self, name: str, messages: Sequence[Message], tools: Any) -> Match | None:
        """Why this prompt is one too many, or None; then it is remembered."""
        before = self._db.execute("select code, cause, other from refused where name = ?", (name,)).fetchone()
        if before is not None:
            return Match(*before)
        if self._is_kept(name):
            return None
        digest, sketch = _digest(messages, tools), self._sketch(messages)
        found = self._contaminated(messages) or self._same(digest) or self._near(sketch)
        if found is None:
            self._keep(name, digest, sketch)
        else:
            self._db.execute("insert into refused values (?, ?, ?, ?)", (name, *found))
        return found

    def _is_kept(self, name: str) -> bool:
        return self._db.execute("select 1 from kept where name = ?", (name,)).fetchone() is not None

    def _keep(self, name: str, digest: bytes, sketch: Hashes | None) -> None:
        packed = None if sketch is None else sketch.tobytes()
        row = self._db.execute("insert into kept (name, sketch) values (?, ?)", (name, packed)).lastrowid
        self._db.execute("insert or ignore into exact values (?, ?)", (digest, row))
        if sketch is not None:
            self._db.executemany("insert or ignore into band values (?, ?)", [(h, row) for h in _bands(sketch)])

    def _same(self, digest: bytes) -> Match | None:
        if not self.rule.exact and self.rule.near is None:
            return None
        found = self._db.execute("select name from exact join kept using (id) where digest = ?", (digest,)).fetchone()
        return Match("same_prompt", f"the same prompt as {found[0]}", found[0]) if found else None

    def _sketch(self, messages: Sequence[Message]) -> Hashes | None:
        said = words(messages) if self.rule.near is not None else []
        return sketch(shingles(said, SHINGLE)) if said else None

    def _near(self, mine: Hashes | None) -> Match | None:
        if mine is None or self.rule.near is None:
            return None
        bands = _bands(mine)
        found = self._db.execute(
            f"select distinct kept.id, name, sketch from band join kept using (id) where hash in ({','.join('?' * BANDS)}) "  # noqa: S608
            f"order by kept.id limit {CANDIDATES}", bands)
        best, other = 0.0, ""
        for _, name, theirs in found:
            share = float(np.mean(np.frombuffer(theirs, np.uint64) == mine))
            if share > best:
                best, other = share, name
        return Match("near_prompt", f"nearly the same prompt as {other} ({best:.0%})", other) if best >= self.rule.near else None

    def _refer(self, name: str, said: list[str]) -> None:
        if not said:
            return
        row = self._db.execute("insert into reference (name) values (?)", (name,)).lastrowid
        self._db.execute("insert or ignore into whole values (?, ?)", (_of_words(said), row))
        if len(said) >= self.rule.ngram:
            self._db.executemany("insert into gram values (?, ?, 1) on conflict (hash) do update set n = n + 1",
                                 [(h, row) for h in _signed(np.unique(shingles(said, self.rule.ngram)))])

    def _contaminated(self, messages: Sequence[Message]) -> Match | None:
        if not self.rule.against:
            return None
        said = words(messages)
        if not said:
            return None
        cause = "it is the reference prompt"
        found = self._db.execute(
            "select name from whole join reference using (id) where digest = ?", (_of_words(said),)).fetchone()
        if found is None and len(said) >= self.rule.ngram:
            cause = f"{self.rule.ngram} words in a row stand in"
            found = self._gram(_signed(np.unique(shingles(said, self.rule.ngram))))
        return Match("contaminated", f"{cause} {found[0]}", found[0]) if found else None

    def _gram(self, hashes: list[int]) -> Any:
        for start in range(0, len(hashes), 500):
            part = hashes[start:start + 500]
            found = self._db.execute(
                f"select name from gram join reference using (id) where hash in ({','.join('?' * len(part))}) "  # noqa: S608
                f"and n <= {BOILERPLATE} order by id limit 1", part).fetchone()
            if found:
                return found
        return None


def words(messages: Sequence[Message]) -> list[str]:
    """What the user said, without case, signs and spacing."""
    text = "\n".join(m["content"] for m in messages if m["role"] == "user")
    return WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def shingles(said: list[str], n: int) -> Hashes:
    """A hash of every n words in a row, uint64[len - n + 1]; one hash where there are fewer words, and one at least."""
    each = np.array([zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in said], dtype=np.uint64)
    n = min(n, len(each))
    total = np.zeros(len(each) - n + 1, dtype=np.uint64)
    for at in range(n):
        total = total * np.uint64(0x9E3779B97F4A7C15) + each[at:at + len(total)]
    return _mixed(total)


def sketch(hashes: Hashes) -> Hashes:
    """MinHash: uint64[60]; the share of equal places estimates the Jaccard index of two sets."""
    least = np.full(BANDS * ROWS, 2**64 - 1, dtype=np.uint64)
    for start in range(0, len(hashes), CHUNK):
        np.minimum(least, _mixed(hashes[None, start:start + CHUNK] ^ _SEEDS).min(axis=1), out=least)
    return least


def _mixed(x: Hashes) -> Hashes:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _bands(of: Hashes) -> list[int]:
    parts = of.reshape(BANDS, ROWS)
    total = np.arange(BANDS, dtype=np.uint64)
    for row in range(ROWS):
        total = total * np.uint64(0x9E3779B97F4A7C15) + parts[:, row]
    return _signed(_mixed(total))


def _signed(hashes: Hashes) -> list[int]:
    return [int(h) for h in hashes.view(np.int64).tolist()]


def _digest(messages: Sequence[Message], tools: Any) -> bytes:
    return blake2b(json.dumps([messages, tools or None], sort_keys=True).encode(), digest_size=16).digest()


def _of_words(said: list[str]) -> bytes:
    return blake2b(" ".join(said).encode("utf-8", "surrogatepass"), digest_size=16).digest()
