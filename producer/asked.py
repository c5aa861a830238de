"""What a dataset has asked, by key and by content: an index on disk, so that memory does not grow with the samples."""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from models.blob import unpack_json
from models.conversation import Document, Message
from models.states import State
from models.store.prompts import Stored
from producer.prompts import encoded
from producer.scratch import Scratch

_TABLES = """
create table sample (id integer primary key, key text unique, primary_id text, turn integer, content blob, state integer,
  generation text, prompt blob);
create index by_content on sample (content, id);
create table rendered (digest blob, id integer, primary key (digest, id)) without rowid;
create table answered (content blob primary key, n integer) without rowid;
begin;
"""


class Known(NamedTuple):
    id: int
    key: str
    primary_id: str
    turn: int
    state: int
    generation: str | None
    packed: bytes

    @property
    def prompt(self) -> Document:
        document: Document = unpack_json(self.packed)
        return document

    @property
    def open(self) -> bool:
        return self.state in (State.QUEUED, State.FAILED)


_COLUMNS = "id, key, primary_id, turn, state, generation, prompt"


class Asked(Scratch):
    """One dataset's samples. Use as a context manager."""

    def __init__(self) -> None:
        super().__init__("asked", _TABLES)

    def add(self, samples: Iterable[Stored], generations: dict[int, str]) -> None:
        rows = []
        for s in samples:
            document = unpack_json(s.prompt)
            content = content_of(document["messages"], document["tools"])
            rows.append((s.id, s.key, s.primary_id, s.turn, content, s.state, generations.get(s.id), s.prompt))
        self._db.executemany("insert or ignore into sample values (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def by_key(self, key: str) -> Known | None:
        found = self._db.execute(f"select {_COLUMNS} from sample where key = ?", (key,)).fetchone()  # noqa: S608
        return Known(*found) if found else None

    def by_content(self, content: bytes) -> list[Known]:
        """In order of id."""
        found = self._db.execute(f"select {_COLUMNS} from sample where content = ? order by id", (content,))  # noqa: S608
        return [Known(*row) for row in found]

    def every(self) -> Iterator[Known]:
        after = -1
        while rows := self._db.execute(
                f"select {_COLUMNS} from sample where id > ? order by id limit 500", (after,)).fetchall():  # noqa: S608
            yield from (Known(*row) for row in rows)
            after = rows[-1][0]

    def render(self, digest: bytes, sample_id: int) -> None:
        self._db.execute("insert or ignore into rendered values (?, ?)", (digest, sample_id))

    def by_rendering(self, digest: bytes) -> Known | None:
        found = self._db.execute(f"select {_COLUMNS} from rendered join sample using (id) where digest = ? order by id",  # noqa: S608
                                 (digest,)).fetchone()
        return Known(*found) if found else None

    def take(self, sample_id: int, generation: str) -> None:
        """It has this answer now."""
        self._db.execute("update sample set state = ?, generation = ? where id = ?", (State.DONE, generation, sample_id))

    def count(self, content: bytes) -> int:
        """How many answers to this were met before this one."""
        row = self._db.execute("insert into answered values (?, 0) on conflict (content) do update set n = n + 1 returning n",
                               (content,)).fetchone()
        return int(row[0])


def content_of(messages: Sequence[Message], tools: Any) -> bytes:
    """sha256 of what is asked: the one that a key without an id begins with, where one turn is wanted."""
    return sha256(encoded([messages, [], tools])).digest()
