"""How an answer leaves: whole, streamed, or broken on its way."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ops.simulator import answers
from ops.simulator.dialects import COMMENT, DONE
from ops.simulator.faults import KINDS, SERVED, Ending
from ops.simulator.refusals import JSON, refusal

if TYPE_CHECKING:
    from ops.simulator.call import Call

EVENTS = {"content-type": "text/event-stream", "cache-control": "no-cache"}
RESET_AFTER_S = 0.05          # so that what was sent arrives before the RST
_OWN_REPLY = frozenset({"408", "504", "524", "html"})
_BEFORE_TEXT = frozenset({"no_choices", "empty", "blank"})
NOTHING = answers.Cut(b"", b"", b"", b"", 0, 0, stopped=True)


def deliver(call: "Call") -> None:
    """The non-streamed reply of a call whose answer is ready."""
    assert call.cut is not None
    connection, fault = call.connection, call.fault
    body = call.dialect.body(call.reply(call.cut))
    headers: Mapping[str, str] = JSON
    call.status = 200
    if fault and fault not in SERVED:
        if KINDS[fault].ending is not Ending.REPLY:
            return _break(call, body)
        if fault in _OWN_REPLY and not connection.started:
            call.status, headers, body = refusal(fault)
        else:
            body = _spoiled(fault, body)
    if connection.started:
        connection.chunk(body)
        connection.end(call.delivered)
    else:
        connection.respond(call.status, body, {**headers, **call.names}, call.delivered)
    return None


def _break(call: "Call", body: bytes) -> None:
    half, connection = body[:len(body) // 2], call.connection
    if call.fault == "short_body" and not connection.started:
        connection.respond(200, half, {**JSON, **call.names}, promised=len(body))
        return call.break_off()
    if not connection.started:
        connection.start(200, {**JSON, **call.names})
    connection.chunk(half)
    if call.fault == "reset":
        return call.after(RESET_AFTER_S, lambda: call.break_off(reset=True))
    return call.break_off()


def _spoiled(fault: str, body: bytes) -> bytes:
    """A body of status 200 that is no answer."""
    match fault:
        case "blank":
            return b"\n" * 40
        case "broken_json":
            return body[:len(body) * 2 // 3]
        case "no_choices" | "empty" | "choice_error":
            return json.dumps(_emptied(fault, json.loads(body))).encode()
        case "error_body":
            return refusal("502").body
    return refusal(fault).body


def _emptied(fault: str, body: dict[str, Any]) -> dict[str, Any]:
    for name in ("completion_tokens", "cost"):
        if name in body.get("usage", {}):
            body["usage"][name] = 0
    if fault == "no_choices":
        return {**body, "choices": []}
    choice = body["choices"][0]
    if "message" in choice:
        choice["message"] = {"role": "assistant", "content": "" if fault == "empty" else choice["message"]["content"][:40]
                             if choice["message"]["content"] else None}
    if fault == "choice_error":
        choice |= {"finish_reason": "error", "error": json.loads(refusal("502").body)["error"]}
    return body


class Stream:
    """Writes what has been generated every `flush_s`, so that thousands of streams cost few writes."""

    __slots__ = ("_end", "_last_comment", "_position", "_reply", "call")

    def __init__(self, call: "Call") -> None:
        assert call.answer is not None
        self.call = call
        call.cut = cut = answers.cut(call.sim.corpus, call.answer, max(1, call.count), call.start_at)
        self._reply = call.reply(cut)
        self._position = 0
        broken = call.fault and call.fault not in SERVED
        self._end = 0 if call.fault in _BEFORE_TEXT else call.count // 2 if broken else call.count
        self._last_comment = call.sim.loop.time()
        if call.fault in _OWN_REPLY:
            call.after(call.run_s, self._respond, scaled=False)
        elif call.dialect.aborts:
            call.after(call.first_s, self._open, scaled=False)
        else:
            self._open()

    def _respond(self) -> None:
        self.call.sim.release(self.call)
        refused = refusal(self.call.fault)
        self.call.status, self.call.billed = refused.status, self.call.costs
        self.call.connection.respond(refused.status, refused.body, {**refused.headers, **self.call.names}, self.call.delivered)

    def _open(self) -> None:
        call = self.call
        call.status = 200
        call.connection.start(200, {**EVENTS, **call.names})
        call.connection.chunk(COMMENT if call.dialect.name == "openrouter" else call.dialect.opening(self._reply))
        self._wait()

    def _wait(self) -> None:
        call = self.call
        left = call.run_at + call.run_s - call.sim.loop.time()
        call.after(max(0.0, min(call.sim.behaviour.flush_s, left)), self._tick, scaled=False)

    def _tick(self) -> None:
        call, now = self.call, self.call.sim.loop.time()
        if call.sim.conditions.stalled:
            call.fault = "stall"
            self._end = min(self._end, self._position)
        ready = min(call.generated, self._end)
        if ready > self._position:
            call.connection.chunk(self._events(ready))
            self._last_comment = now
        elif 0 < call.sim.behaviour.keepalive_s < (now - self._last_comment) * call.sim.behaviour.time_scale \
                and call.dialect.name == "openrouter" and call.fault != "stall":
            call.connection.chunk(COMMENT)
            self._last_comment = now
        if self._position >= self._end and (self._end < call.count or now >= call.run_at + call.run_s):
            self._finish()
        else:
            self._wait()

    def _events(self, until: int) -> bytes:
        """The events of all tokens from the present position on. None spans the end of thought."""
        call, parts, step = self.call, [], self.call.sim.behaviour.event_tokens
        assert call.answer is not None
        if self._position == 0 and call.dialect.name == "openrouter":
            parts.append(call.dialect.opening(self._reply))
        thought = call.answer.thought - call.start_at
        while self._position < until:
            count = min(step, until - self._position)
            if self._position < thought:
                count = min(count, thought - self._position)
            piece = answers.cut(call.sim.corpus, call.answer, count, call.start_at + self._position)
            parts.append(call.dialect.event(self._reply, piece))
            self._position += count
        return b"".join(parts)

    def _finish(self) -> None:
        call, connection, fault = self.call, self.call.connection, self.call.fault
        call.sim.release(call)
        call.billed = call.costs
        if not fault or fault in SERVED:
            call.sim.remember(call)
            connection.chunk(call.dialect.closing(self._reply))
            return connection.end(call.delivered)
        call.count = self._position
        match fault:
            case "stall":
                return None
            case "reset":
                return call.after(RESET_AFTER_S, lambda: call.break_off(reset=True))
            case "cut" | "short_body":
                return call.break_off()
            case "broken_json":
                connection.chunk(call.dialect.closing(self._reply)[:40] + b"\n\n" + DONE)
            case "blank":
                connection.chunk(COMMENT * 3)
            case "no_choices":
                connection.chunk(DONE)
            case "empty":
                connection.chunk(call.dialect.closing(call.reply(NOTHING)))
            case _:
                error = json.loads(refusal("502").body)["error"]
                choice = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
                event = {"id": call.generation_id, "object": "chat.completion.chunk", "error": error, "choices": [choice]}
                connection.chunk(b"data: " + json.dumps(event).encode() + b"\n\n" + DONE)
        return connection.end(call.delivered)
