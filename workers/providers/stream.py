"""Server-sent events, bytes first, gathered into the document a non-streaming reply would have been.

Only data events are progress: comments and blank lines keep a connection warm and say nothing.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from workers.providers.document import load

DONE = b"[DONE]"
# Once seen, an ending is not undone by a milder one in a later chunk.
SEVERITY = {"error": 4, "content_filter": 3, "abort": 3, "length": 2}


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    reasoning_details: Any = None
    tool_calls: Any = None


class Piece(msgspec.Struct):
    index: int = 0
    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    native_finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: Any = None
    error: Any = None


class Chunk(msgspec.Struct):
    choices: list[Piece] | None = None
    id: str | None = None
    model: str | None = None
    provider: str | None = None
    usage: Any = None
    error: Any = None
    prompt_token_ids: list[int] | None = None


_decoder = msgspec.json.Decoder(Chunk)


def decode(data: bytes) -> Chunk:
    """One event's chunk. msgspec refuses lone surrogates and NaN, which are real, so the standard library reads those.

    Raises ValueError (msgspec's errors are ValueErrors) for what is no chunk at all.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        try:
            return msgspec.convert(load(data), Chunk)
        except msgspec.MsgspecError as error:
            raise ValueError(type(error).__name__) from None


class Events:
    """Cuts bytes into the data of events. Line ends may be LF, CRLF or CR, and chunks may end anywhere."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []    # pieces of one line, joined once its end is here
        self._lines: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._rest.append(data)
        if b"\n" not in data and b"\r" not in data:
            return
        buffer = b"".join(self._rest)
        held = buffer.endswith(b"\r")   # its LF may be in the next chunk
        if b"\r" in buffer:
            buffer = (buffer[:-1] if held else buffer).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = buffer.split(b"\n")
        self._rest = [lines.pop() + (b"\r" if held else b"")]
        for line in lines:
            yield from self._line(line)

    def end(self) -> Iterator[bytes]:
        """What stood without its closing blank line."""
        rest, self._rest = b"".join(self._rest).rstrip(b"\r"), []
        yield from self._line(rest)
        yield from self._line(b"")

    def _line(self, line: bytes) -> Iterator[bytes]:
        if not line:
            if self._lines:
                yield b"\n".join(self._lines)
                self._lines = []
        elif line.startswith(b"data:"):
            self._lines.append(line[5:].removeprefix(b" "))


class Gather:
    """Chunks in, one document out. Text is appended as it came; nothing after [DONE] counts.

    broken: an event that could not be read, so text may be missing.
    """

    def __init__(self) -> None:
        self.events = 0
        self.done = False
        self.broken = False
        self.finish = ""
        self._severity = 0
        self._texts: dict[str, list[str]] = {"content": [], "reasoning": [], "reasoning_content": [], "refusal": []}
        self._details: list[Any] = []
        self._calls: dict[int, dict[str, str]] = {}
        self._ids: list[int] | None = None
        self._logprobs: list[Any] = []
        self._native = ""
        self._choice_error: Any = None
        self._head: dict[str, Any] = {}
        self._unnamed = ["id", "model", "provider", "prompt_token_ids"]
        self._extra = False

    def add(self, data: bytes, cut: bool = False) -> None:
        """`cut`: the stream ended inside this event, so half a chunk is a loss of the stream and not a broken chunk."""
        if self.done or not data or data.isspace():
            return
        self.events += 1
        if data.strip() == DONE:
            self.done = True
            return
        for part in _parts(data):
            try:
                chunk = decode(part)
            except ValueError:
                self.broken = self.broken or not cut
            else:
                self._chunk(chunk)

    def _chunk(self, chunk: Chunk) -> None:
        if chunk.usage is not None:
            self._head["usage"] = chunk.usage
        if chunk.error is not None:
            self._head["error"] = chunk.error
        for name in self._unnamed:      # empty after the first chunk or two: this is the hot path of 100,000 events a second
            value = getattr(chunk, name)
            if value is not None:
                self._head[name] = value
                self._unnamed = [n for n in self._unnamed if n not in self._head]
        for piece in chunk.choices or ():
            if piece.index == 0:
                self._piece(piece)
            else:
                self._extra = True

    def _piece(self, piece: Piece) -> None:
        if piece.delta is not None:
            self._delta(piece.delta)
        if piece.text:
            self._texts["content"].append(piece.text)
        if piece.token_ids is not None:
            self._ids = self._ids or []
            self._ids += piece.token_ids
        if isinstance(piece.logprobs, dict) and isinstance(piece.logprobs.get("content"), list):
            self._logprobs += piece.logprobs["content"]
        if piece.error is not None:
            self._choice_error = piece.error
        if piece.finish_reason and SEVERITY.get(piece.finish_reason, 1) > self._severity:
            self.finish, self._severity = piece.finish_reason, SEVERITY.get(piece.finish_reason, 1)
            self._native = piece.native_finish_reason or ""

    def _delta(self, delta: Delta) -> None:
        if delta.content:
            self._texts["content"].append(delta.content)
        if delta.reasoning:
            self._texts["reasoning"].append(delta.reasoning)
        if delta.reasoning_content:
            self._texts["reasoning_content"].append(delta.reasoning_content)
        if delta.refusal:
            self._texts["refusal"].append(delta.refusal)
        if isinstance(delta.reasoning_details, list):
            self._details += delta.reasoning_details
        if isinstance(delta.tool_calls, list):
            for call in delta.tool_calls:
                self._call(call)

    def _call(self, call: Any) -> None:
        if not isinstance(call, dict):
            self.broken = True
            return
        index = call.get("index")
        kept = self._calls.setdefault(index if isinstance(index, int) else 0, {"id": "", "name": "", "arguments": ""})
        function = call.get("function")
        for name, source in (("id", call), ("name", function), ("arguments", function)):
            value = source.get(name) if isinstance(source, dict) else None
            if isinstance(value, str):
                kept[name] = kept[name] + value if name == "arguments" else kept[name] or value

    @property
    def truncated(self) -> bool:
        """No ending of any kind was seen."""
        return not (self.finish or self.done or "usage" in self._head or "error" in self._head)

    def document(self) -> dict[str, Any]:
        message: dict[str, Any] = {n: "".join(t) for n, t in self._texts.items() if t or n == "content"}
        if self._details:
            message["reasoning_details"] = self._details
        if self._calls:
            message["tool_calls"] = [
                {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
                for _, c in sorted(self._calls.items())]
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": self.finish or None,
                                  "native_finish_reason": self._native or None}
        if self._choice_error is not None:
            choice["error"] = self._choice_error
        if self._ids is not None:
            choice["token_ids"] = self._ids
        if self._logprobs:
            choice["logprobs"] = {"content": self._logprobs}
        return {**self._head, "choices": [choice] + ([{"index": 1}] if self._extra else [])}


def _parts(data: bytes) -> list[bytes]:
    # Some relays forget the blank line between events; joined they are no JSON, one by one they are.
    if b"\n" not in data:
        return [data]
    lines = data.split(b"\n")
    return lines if all(line.startswith(b"{") and line.rstrip().endswith(b"}") for line in lines) else [data]


def gathered(body: bytes) -> Gather:
    """A whole body of events at once."""
    events, gather = Events(), Gather()
    for data in events.feed(body):
        gather.add(data)
    for data in events.end():
        gather.add(data, cut=True)
    return gather
