"""The story of one call: refused or admitted, generated, delivered or lost, and in any case booked once."""

import asyncio
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ops.simulator import answers, faults
from ops.simulator.ask import UNLIMITED, Asked
from ops.simulator.behaviour import Host
from ops.simulator.connection import Connection
from ops.simulator.delivery import Stream, deliver
from ops.simulator.dialects import Dialect, Reply
from ops.simulator.faults import KINDS
from ops.simulator.ledger import Record
from ops.simulator.refusals import Refusal, bad_request, engine_error, refusal

if TYPE_CHECKING:
    from ops.simulator.app import Simulator


class Call:
    """Driven by timers of the loop and by the connection; never a task.

    begin -> refuse -> book                          (early)
    begin -> [queued] -> run -> due -> deliver -> book
    the client leaves at any time -> book at once, the generation holding its place until it would have ended
    """

    __slots__ = ("answer", "asked", "billed", "booked", "connection", "count", "cut", "dialect", "digest", "fault",
                 "first_s", "host", "identity", "number", "prompt", "reserved", "run_at", "run_s", "running", "seq", "sim",
                 "start_at", "started", "status", "timer")

    def __init__(self, sim: "Simulator", connection: Connection, dialect: Dialect, asked: Asked) -> None:
        self.sim, self.connection, self.dialect, self.asked = sim, connection, dialect, asked
        self.digest, self.identity, self.answer, self.start_at = _known(sim, asked)
        self.prompt = sim.prompt(asked, self.digest)
        self.started = time.time()
        self.seq, self.number = sim.ledger.arrive(int.from_bytes(self.digest, "big"), self.started)
        self.host: Host | None = None
        self.cut: answers.Cut | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.fault, self.status, self.count = "", 0, 0
        self.run_at = self.run_s = self.first_s = self.reserved = 0.0
        self.billed = self.running = self.booked = False
        connection.waiting = self

    # before any generation

    def begin(self, authorization: str) -> None:
        sim, conditions = self.sim, self.sim.conditions
        if not conditions.admits_key(authorization):
            return self.refuse("401")
        wanted = self.asked.max_tokens if self.asked.max_tokens < UNLIMITED else 0
        if self.prompt.tokens + wanted > (context := sim.behaviour.context_length):
            return self._send_refusal("context", bad_request(
                f"The context length is {context} tokens; prompt and max_tokens ask for more", "context_length_exceeded"))
        outage = conditions.present_outage()
        hit = outage is not None and sim.chance() < outage.share
        fault = outage.fault if outage is not None and hit else sim.fault_of(self.identity, self.number)
        if fault and KINDS[fault].early:
            return self.refuse(fault, outage.retry_after_s if outage is not None and hit else None)
        self.fault = "stall" if conditions.stalled else fault
        return self._admit()

    def _admit(self) -> None:
        sim = self.sim
        self.host = host = sim.host_for(self.dialect, self.asked, self.identity)
        if host is None:
            return self.refuse("404_routing")
        self.fault = self.fault or sim.fault_at(host, self.identity, self.number)
        if self.fault and KINDS[self.fault].early:
            return self.refuse(self.fault)
        self.answer = answer = self.answer or sim.natural(self.identity, self.asked.thinking, self.prompt.opened)
        limit = min(self.asked.max_tokens, host.max_completion_tokens)
        self.count = max(0, min(limit, answer.length - self.start_at))
        self.reserved = sim.price(host, self.prompt.tokens, min(limit, sim.behaviour.max_length))
        if (kind := sim.limit_hit(self)):
            return self.refuse(kind)
        if sim.conditions.queue and sim.full:
            sim.queue.append(self)
            return None
        return self.run()

    def refuse(self, kind: str, retry_after_s: float | None = None) -> None:
        if KINDS[kind].ending is faults.Ending.REPLY:
            return self._send_refusal(kind, refusal(kind, retry_after_s))
        self.fault = kind
        self.after(self.sim.behaviour.refusal_s, self.break_off)
        return None

    def _send_refusal(self, kind: str, refused: Refusal) -> None:
        self.fault = kind
        if self.dialect.name != "openrouter":
            refused = engine_error(refused)
        self.after(self.sim.behaviour.refusal_s, lambda: self._respond(refused))

    def _respond(self, refused: Refusal) -> None:
        self.status = refused.status
        self.connection.respond(refused.status, refused.body, {**refused.headers, **self.names}, self.delivered)

    # generation

    def run(self) -> None:
        sim = self.sim
        assert self.answer is not None
        sim.hold(self)
        self.run_at = sim.loop.time()
        self.first_s, self.run_s = sim.duration(self.answer, self.count)
        if self.asked.stream:
            Stream(self)
        else:
            self.timer = sim.loop.call_later(self.run_s, self.due)
            sim.keep_alive(self)

    def due(self) -> None:
        """The answer is ready. Whoever has left does not hear of it."""
        self.sim.release(self)
        if self.booked or self.connection.closed:
            return
        if self.sim.conditions.stalled:
            self.fault = "stall"
        self.billed = self.costs
        if self.fault == "stall":
            return
        assert self.answer is not None
        self.cut = answers.cut(self.sim.corpus, self.answer, max(1, self.count), self.start_at)
        self.sim.remember(self)
        deliver(self)

    def reply(self, cut: answers.Cut) -> Reply:
        assert self.host is not None
        sim = self.sim
        ids = b"" if self.dialect.name == "openrouter" else self.prompt.json_ids()
        model = "another/model" if self.fault == "other_model" else self.asked.model
        return Reply(
            id=self.generation_id, model=sim.model_json(model), created=int(self.started), host=self.host.name, cut=cut,
            prompt_tokens=self.prompt.tokens, cost=self.cost(cut.tokens), asked=self.asked.body,
            prompt_ids=ids, fault=self.fault)

    def cost(self, tokens: int) -> float:
        if self.host is None or self.dialect.name != "openrouter":
            return 0.0
        return self.sim.price(self.host, self.prompt.tokens, tokens)

    @property
    def generation_id(self) -> str:
        return f"gen-{self.sim.born}-{self.seq:08d}"

    @property
    def names(self) -> dict[str, str]:
        """The header that names the generation before any body, whatever becomes of it."""
        return {"x-generation-id": self.generation_id}

    # ends

    def gone(self) -> None:
        """The client hung up. What a provider goes on generating is billed all the same."""
        if self.running and self.cancels:
            self._stop_early()
        elif self.running:
            self.billed = self.costs
            if self.asked.stream:
                self.sim.loop.call_at(self.run_at + self.run_s, self.sim.release, self)
        self.book(finished=False, hung_up=True)

    @property
    def costs(self) -> bool:
        """A generation that ends as this one will is charged."""
        return not self.fault or KINDS[self.fault].billed

    @property
    def cancels(self) -> bool:
        return self.dialect.aborts or (self.asked.stream and self.host is not None and self.host.cancels)

    def _stop_early(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.count = self.generated
        self.billed = self.costs and self.count > 0
        self.sim.release(self)

    @property
    def generated(self) -> int:
        """Tokens until now."""
        passed, whole = self.sim.loop.time() - self.run_at - self.first_s, self.run_s - self.first_s
        return max(0, min(self.count, int(self.count * passed / whole))) if whole > 0 else self.count

    def break_off(self, reset: bool = False) -> None:
        """End the connection from this side, inside or before a reply."""
        self.connection.drop(reset)
        self.book(finished=False)

    def delivered(self) -> None:
        self.book(finished=True)

    def book(self, finished: bool, hung_up: bool = False) -> None:
        if self.booked:
            return
        self.booked = True
        complete = finished and self.status == 200 and (not self.fault or self.fault in faults.SERVED)
        self.sim.book(self, Record(
            seq=self.seq, prompt=int.from_bytes(self.digest, "big"), sample=self.asked.sample, call=self.number,
            started=self.started, ended=time.time(), dialect=self.dialect.name, stream=self.asked.stream,
            max_tokens=self.asked.max_tokens, status=self.status, fault=self.fault,
            prompt_tokens=self.prompt.tokens if self.billed else 0, completion_tokens=self.count if self.billed else 0,
            cost=self.cost(self.count) if self.billed else 0.0, billed=self.billed, finished=finished, complete=complete,
            hung_up=hung_up, provider=self.host.name if self.host else "", generation_id=self.generation_id))

    def after(self, delay_s: float, then: Callable[[], None], scaled: bool = True) -> None:
        """Do the next thing later, unless the call is over by then. `scaled`: in simulated seconds."""
        self.timer = self.sim.loop.call_later(delay_s / self.sim.behaviour.time_scale if scaled else delay_s, self._step, then)

    def _step(self, then: Callable[[], None]) -> None:
        if not self.booked:
            then()


def _known(sim: "Simulator", asked: Asked) -> tuple[bytes, bytes, answers.Natural | None, int]:
    """Digest and identity of the prompt; and, where its ids go on from an answer that was cut, that answer and the place."""
    if isinstance(asked.prompt, list) and (found := sim.prefixes.find(asked.prompt)) is not None:
        return found
    digest = answers.digest(asked.prompt)
    return digest, digest + struct.pack("<qQ", sim.behaviour.seed, asked.seed & (2**64 - 1)), None, 0
