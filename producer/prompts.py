"""From a file of rows to prompts: the forms people have, the key of each, and a refusal for every row that is none.

| form | fields |
|---|---|
| chat | `messages` or `conversations`: [{role, content}] or [{from, value}] |
| plain | `prompt`: text or a list of messages |
| Alpaca | `instruction`, `input` |

Beside them: `id`, `system`, `tools`, `metadata`, `lane`, `max_tokens`. Text is taken as it is, white space included.

A key is the given id, else the hash of what is asked plus how often it was asked before (`<hash16>-<n>`), so that the same
file read twice gives the same keys. That needs a memory of 64-bit digests: about 150 bytes a row, which is all that grows.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from models.conversation import Document, Message, document, turn_key
from producer.messages import Malformed, conversation, tools_of, unanswered
from producer.refusals import Refusal, Rejects
from producer.sources import Record, records

__all__ = ["MAX_CHARS", "Prompt", "Refusal", "Rejects", "Seen", "read"]

MAX_CHARS = 4_000_000
MAX_DEPTH = 48
Turns = Literal["last", "all"]
SAME = ("duplicate", "the same id with the same content came before")
CONFLICT = ("duplicate_id_conflict", "the same id with other content came before")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One sample to be: `messages` end before the turn to generate; `later` is the recording from there on (turns = all).

    key is unique in its dataset; primary_id is the conversation's. line as in Refusal.
    chars: of all messages sent, and of `tools` as JSON.
    """

    key: str
    primary_id: str
    messages: list[Message]
    tools: list[dict[str, Any]] | None
    lane: str | None
    max_tokens: int | None
    metadata: dict[str, Any]
    later: list[Message]
    line: int
    chars: int

    def document(self) -> Document:
        return document(self.messages, self.tools, self.later, self.metadata)


@dataclass(slots=True)
class Seen:
    """The keys of one dataset so far, over as many files as it has."""

    given: dict[int, int] = field(default_factory=dict)     # digest of an id -> digest of its content
    asked: dict[int, int] = field(default_factory=dict)     # digest of a content -> how often

    def key(self, given: str | None, content: bytes) -> str:
        """The key, or Malformed for an id that was used before."""
        digest = hashlib.sha256(content).digest()
        short = int.from_bytes(digest[:8])
        if given is None:
            n = self.asked[short] = self.asked.get(short, -1) + 1
            return f"{digest.hex()[:16]}-{n}"
        name = int.from_bytes(hashlib.sha256(given.encode()).digest()[:8])
        before = self.given.get(name)
        if before is not None:
            raise Malformed(*(SAME if before == short else CONFLICT))
        self.given[name] = short
        return given


def read(path: Path, *, max_chars: int = MAX_CHARS, turns: Turns = "last", markers: Collection[str] = (),
         seen: Seen | None = None) -> Iterator[Prompt | Refusal]:
    """Every row of one file, in order, as a prompt or as a refusal; streaming, and nothing is raised for what a file holds.

    turns: `last` answers the last user turn (an assistant turn at the end is dropped); `all` begins at the first.
    markers: texts of the model's own control tokens, which no prompt may hold.
    seen: pass one object for all files of a dataset.
    """
    seen = Seen() if seen is None else seen
    marker = re.compile("|".join(map(re.escape, markers))) if markers else None
    for record in records(path):
        if isinstance(record, Refusal):
            yield record
            continue
        try:
            yield _prompt(record, turns, max_chars, marker, seen)
        except Malformed as error:
            yield Refusal(str(path), record.line, error.cause, error.code)


def _prompt(record: Record, turns: Turns, max_chars: int, marker: re.Pattern[str] | None, seen: Seen) -> Prompt:
    row = record.value
    if not isinstance(row, dict):
        raise Malformed("bad_row", "the row is not a JSON object")
    given = id_of(row.get("id"))
    messages, later = _cut(conversation(row), turns)
    tools = tools_of(row.get("tools"))
    metadata = metadata_of(row.get("metadata"))
    content = encoded([messages, later, tools])
    encoded(metadata)
    lane, max_tokens = _lane(row.get("lane")), _max_tokens(row.get("max_tokens"))
    if marker is not None and (found := marker.search(content.decode())):
        raise Malformed("special_token", f"the text holds the model's control token {found[0]!r}")
    chars = sum(len(m["content"]) for m in messages) + (len(json.dumps(tools)) if tools else 0)
    if chars > max_chars:
        raise Malformed("prompt_too_long", f"the prompt has {chars} characters, more than {max_chars}")
    primary_id = seen.key(given, content)
    key = turn_key(primary_id, 0) if turns == "all" else primary_id
    return Prompt(key, primary_id, messages, tools, lane, max_tokens, metadata, later, record.line, chars)


def _cut(messages: list[Message], turns: Turns) -> tuple[list[Message], list[Message]]:
    """(what is sent, what the recording holds from the turn to generate on)."""
    spoken = [n for n, m in enumerate(messages) if m["role"] in ("user", "tool")]
    if not any(messages[n]["role"] == "user" for n in spoken):
        raise Malformed("no_user_turn", "no user turn to answer")
    end = spoken[-1] + 1
    if turns == "all":
        end = next((n for n, m in enumerate(messages) if m["role"] == "assistant" and n > spoken[0]), len(messages))
    if unanswered(messages[:end]):
        raise Malformed("bad_tools", "a tool call in the history has no result")
    return messages[:end], messages[end:] if turns == "all" else []


def encoded(value: object) -> bytes:
    """Canonical JSON, or Malformed for what JSON or UTF-8 cannot hold (a Parquet date, half of a surrogate pair)."""
    if _depth(value) > MAX_DEPTH:
        raise Malformed("too_deep", f"tools or metadata have more than {MAX_DEPTH} levels")
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise Malformed("bad_unicode", "half of a surrogate pair, which is no character") from error
    except (TypeError, ValueError) as error:
        raise Malformed("bad_row", "tools or metadata hold a value that JSON does not have") from error


def id_of(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Malformed("bad_id", "the id is neither text nor a whole number")
    text = str(value)
    if not 1 <= len(text) <= 200 or CONTROL.search(text):
        raise Malformed("bad_id", "an id has 1 to 200 characters and no control characters")
    encoded(text)
    return text


def _lane(value: object) -> str | None:
    if value is None or value in ("short", "long"):
        return value
    raise Malformed("bad_lane", "the lane is neither 'short' nor 'long'")


def _max_tokens(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1_000_000:
        raise Malformed("bad_max_tokens", "max_tokens is not a whole number from 1 to 1,000,000")
    return value


def metadata_of(value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Malformed("bad_metadata", "metadata is not an object")
    return value


def _depth(value: object) -> int:
    """Levels of nesting, counted up to one more than is allowed."""
    level: list[Any] = [value]
    depth = 0
    while level and depth <= MAX_DEPTH:
        inner = [v for item in level for v in (item.values() if isinstance(item, dict) else item)]
        level, depth = [v for v in inner if isinstance(v, dict | list)], depth + 1
    return depth
