"""Files of rows as people have them, local or remote, streamed: JSONL or one JSON array, plain or compressed, and Parquet.

What a file is, its first bytes say and not its name. Memory is bounded by the longest row allowed, not by the file.
"""

import bz2
import codecs
import gzip
import io
import json
import lzma
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn, cast

import zstandard

from models.urls import url_of
from producer.refusals import Refusal
from producer.remote import opened

MAX_ROW_BYTES = 32 * 1024 * 1024
CHUNK = 1 << 16
BOM = b"\xef\xbb\xbf"
WIDE = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")  # UTF-16 and UTF-32
DAMAGE = (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError)


class Record(NamedTuple):
    """One row before anybody looked at its meaning. `value` is whatever JSON it held."""

    line: int
    value: Any


def records(path: Path) -> Iterator[Record | Refusal]:
    """Every row of a file in order, or why it is none. Never raises for what the file holds; line 0 is the whole file."""
    name = url_of(path) or str(path)
    try:
        with opened(path) as raw:
            file = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, raw), CHUNK)
            magic = file.peek(8)[:8]
            if magic.startswith(b"PAR1"):
                yield from _parquet(name, file if url_of(path) else path)
            elif magic.startswith(b"PK\x03\x04"):
                yield Refusal(name, 0, "a zip archive; unpack it first", "format")
            else:
                yield from _text(name, _unpacked(file, magic))
    except DAMAGE as error:
        code = "unreadable" if isinstance(error, OSError) and error.errno else "damaged"
        yield Refusal(name, 0, f"the file cannot be read to its end: {type(error).__name__}", code)


def _unpacked(file: io.BufferedReader, magic: bytes) -> io.BufferedReader:
    stream: Any = file
    if magic.startswith(b"\x1f\x8b"):
        stream = gzip.GzipFile(fileobj=file)
    elif magic.startswith(b"\x28\xb5\x2f\xfd"):
        stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    elif magic.startswith(b"BZh"):
        stream = bz2.BZ2File(file)
    elif magic.startswith(b"\xfd7zXZ\x00"):
        stream = lzma.LZMAFile(file)  # noqa: SIM115 (closed with `file`)
    return stream if stream is file else io.BufferedReader(stream, CHUNK)


def _text(name: str, stream: io.BufferedReader) -> Iterator[Record | Refusal]:
    start = stream.peek(CHUNK)[:CHUNK]
    if start.startswith(WIDE) or b"\x00" in start[:4]:
        yield Refusal(name, 0, "encoding: the file is UTF-16 or UTF-32; save it as UTF-8", "encoding")
        return
    rows = _array(name, stream) if start.removeprefix(BOM).lstrip()[:1] == b"[" else _lines(name, stream)
    empty = True
    for row in rows:
        empty = False
        yield row
    if empty:
        yield Refusal(name, 0, "the file is empty", "empty")


def _lines(name: str, stream: IO[bytes]) -> Iterator[Record | Refusal]:
    number = 0
    while line := stream.readline(MAX_ROW_BYTES + 1):
        number += 1
        if len(line) > MAX_ROW_BYTES and not line.endswith(b"\n"):
            _skip_line(stream)
            yield Refusal(name, number, f"the line is longer than {MAX_ROW_BYTES} bytes", "line_too_long")
        elif line := line.removeprefix(BOM).strip(b" \t\r\n"):
            yield _parsed(name, number, line)


def _skip_line(stream: IO[bytes]) -> None:
    while (part := stream.readline(CHUNK)) and not part.endswith(b"\n"):
        pass


def _parsed(name: str, number: int, line: bytes) -> Record | Refusal:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return Refusal(name, number, f"byte {error.start + 1} of the line is not UTF-8", "bad_encoding")
    try:
        return Record(number, STRICT.decode(text))
    except ValueError as error:
        return _bad_json(name, number, error)
    except RecursionError:
        return Refusal(name, number, "the row is nested too deeply", "too_deep")


def _bad_json(name: str, number: int, error: ValueError) -> Refusal:
    # JSONDecodeError's own text holds no part of the row, but other ValueErrors of the parser do (int's digits).
    cause = f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else str(error)[:80]
    return Refusal(name, number, f"not valid JSON: {cause}", "bad_json")


def _array(name: str, stream: IO[bytes]) -> Iterator[Record | Refusal]:
    """The elements of one JSON array. A syntax error ends the file, since nothing says where the next element begins."""
    scanner = _Scanner(codecs.getreader("utf-8-sig")(stream))
    number = 0
    try:
        scanner.take()
        while scanner.next_char() != "]":
            if number and scanner.take() != ",":
                raise ValueError("a comma or the end of the array is missing")
            number += 1
            yield scanner.element(name, number)
        scanner.take()
        if scanner.next_char():
            yield Refusal(name, number + 1, "not valid JSON: text after the end of the array", "bad_json")
    except UnicodeDecodeError:
        yield Refusal(name, number + 1, "a byte is not UTF-8", "bad_encoding")
    except RecursionError:
        yield Refusal(name, number, "the row is nested too deeply", "too_deep")
    except ValueError as error:
        yield _bad_json(name, max(number, 1), error)


class _Scanner:
    """A window over the text of an array that grows only while one element does not fit in it."""

    def __init__(self, text: codecs.StreamReader) -> None:
        self.text, self.window, self.at = text, "", 0

    def _grow(self) -> bool:
        rest = self.window[self.at:]
        more = self.text.read(max(CHUNK, len(rest)))
        self.window, self.at = rest + more, 0
        return bool(more)

    def next_char(self) -> str:
        """The next character that is not white space, not taken; "" at the end."""
        while True:
            while self.at < len(self.window) and self.window[self.at] in " \t\r\n":
                self.at += 1
            if self.at < len(self.window):
                return self.window[self.at]
            if not self._grow():
                return ""

    def take(self) -> str:
        char = self.next_char()
        self.at += 1
        return char

    def element(self, name: str, number: int) -> Record | Refusal:
        self.next_char()
        while True:
            try:
                value, self.at = STRICT.raw_decode(self.window, self.at)
                return Record(number, value)
            except json.JSONDecodeError:
                if len(self.window) - self.at > MAX_ROW_BYTES or not self._grow():
                    raise
            except ValueError as error:  # well formed, but with a value we refuse: the next element can be found
                _, self.at = json.JSONDecoder().raw_decode(self.window, self.at)
                return _bad_json(name, number, error)


def _parquet(name: str, source: Path | IO[bytes]) -> Iterator[Record | Refusal]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        yield Refusal(name, 0, "Parquet needs pyarrow: pip install 'draftmill[parquet]'", "format")
        return
    number = 0
    try:
        with parquet.ParquetFile(source) as file:
            for batch in file.iter_batches(batch_size=256):
                for value in batch.to_pylist():
                    number += 1
                    yield Record(number, value)
    except pyarrow.ArrowException as error:
        yield Refusal(name, 0, f"the file cannot be read to its end: {type(error).__name__}", "damaged")
        return
    if not number:
        yield Refusal(name, 0, "the file is empty", "empty")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _int(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError("a number does not fit in 64 bits")
    return int(text)


# What Python's parser lets through and other readers of the same row do not.
STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_constant, parse_float=_float, parse_int=_int)
