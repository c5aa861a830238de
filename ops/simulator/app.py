"""The simulator itself: what calls share, and the server."""

import asyncio
import json
import random
import resource
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from models.errors import ProfileError
from ops.simulator import answers, faults
from ops.simulator.ask import Asked, Unreadable
from ops.simulator.behaviour import Behaviour, Host
from ops.simulator.call import Call
from ops.simulator.conditions import Conditions
from ops.simulator.connection import Connection
from ops.simulator.counting import Counting, Own, Profiled, Prompt, of_ids
from ops.simulator.dialects import Dialect
from ops.simulator.ledger import Ledger, Record
from ops.simulator.prefixes import Prefixes
from ops.simulator.routes import Routes

ENGINE_HOST = Host("engine", "bf16", price=0.0)
BACKLOG = 4_096
GENERATIONS = 200_000          # the youngest that /generation still knows


class Simulator:
    """State that calls share. One per process and loop."""

    def __init__(self, behaviour: Behaviour, loop: asyncio.AbstractEventLoop) -> None:
        self.behaviour, self.loop = behaviour, loop
        self.born = f"{time.time_ns() // 1_000_000:x}"
        self.conditions = Conditions(behaviour, loop.time)
        self.ledger = Ledger(behaviour.ledger_limit, behaviour.ledger)
        self.counting: Counting = (Profiled(behaviour.profile, behaviour.tokenizers, behaviour.seed) if behaviour.profile
                                   else Own(behaviour.seed))
        self.corpus = self.counting.corpus
        self.prefixes = Prefixes(self.corpus)
        self.generations: dict[str, Record] = {}
        self.queue: deque[Call] = deque()
        self.reserved_usd = 0.0
        self.chance = random.Random(behaviour.seed).random
        self.connections: set[Connection] = set()

    # what a call asks

    def fault_of(self, identity: bytes, number: int) -> str:
        if number > self.behaviour.max_faults:
            return ""
        return faults.draw(self.conditions.faults, identity, number)

    def fault_at(self, host: Host, identity: bytes, number: int) -> str:
        return faults.draw(self.conditions.host_faults.get(host.name, {}), identity, number)

    def natural(self, identity: bytes, thinking: bool, opened: bool) -> answers.Natural:
        thinks = thinking and bool(self.corpus.marks.close.id)
        return answers.natural(self.behaviour, identity, thinks=thinks, opened=opened, factor=self.conditions.length_factor)

    def duration(self, answer: answers.Natural, count: int) -> tuple[float, float]:
        """Real seconds to the first token, and to the last."""
        b = self.behaviour
        if b.latency_max_s > 0:
            whole = b.latency_min_s + answer.chance * (b.latency_max_s - b.latency_min_s)
        else:
            whole = b.first_token_s + count / (b.tokens_per_s * answer.pace)
        clock = b.time_scale * self.conditions.speed
        return min(b.first_token_s, whole / 2) / clock, whole / clock

    def price(self, host: Host, prompt_tokens: int, tokens: int) -> float:
        b = self.behaviour
        return round((prompt_tokens * b.prompt_price + tokens * b.completion_price) * host.price, 10)

    def prompt(self, asked: Asked, digest: bytes) -> Prompt:
        """Unreadable if the template refuses it."""
        if isinstance(asked.prompt, list) and isinstance(asked.prompt[0], int):
            return of_ids(asked.prompt, self.corpus.marks)
        try:
            return self.counting.prompt(asked.prompt, asked.body.get("tools"), asked.thinking, digest)
        except ProfileError as error:
            raise Unreadable(str(error)) from None

    def host_for(self, dialect: Dialect, asked: Asked, identity: bytes) -> Host | None:
        if dialect.name != "openrouter":
            return ENGINE_HOST
        wanted = asked.body.get("provider")
        admitted = _admitted(self.behaviour.hosts, json.dumps(wanted, sort_keys=True) if wanted else "")
        return admitted[identity[0] % len(admitted)] if admitted else None

    # limits

    def limit_hit(self, call: Call) -> str:
        """The refusal that a limit of the account demands now, or ""."""
        conditions = self.conditions
        if call.dialect.name == "openrouter":
            if self.ledger.cost_usd >= conditions.credit_usd:
                return "402_credit"
            if 0 < conditions.in_flight_usd < self.reserved_usd + call.reserved:
                return "402_weight" if call.reserved > conditions.in_flight_usd else "402_in_flight"
        if self.full and not conditions.queue:
            return "429"
        return "" if conditions.takes_tokens(call.count) else "429"

    @property
    def full(self) -> bool:
        return 0 < self.conditions.capacity <= self.ledger.running

    def hold(self, call: Call) -> None:
        call.running = True
        self.ledger.start_running()
        self.reserved_usd += call.reserved

    def release(self, call: Call) -> None:
        """Its place is free again."""
        if not call.running:
            return
        call.running = False
        self.ledger.running -= 1
        self.reserved_usd -= call.reserved
        self.advance()

    def advance(self) -> None:
        """Run whoever waits, as far as there is room."""
        while self.queue and not (self.full and self.conditions.queue):
            call = self.queue.popleft()
            if not call.booked:
                call.run()

    # afterwards

    def remember(self, call: Call) -> None:
        if call.dialect.aborts and call.cut is not None and call.answer is not None and not call.cut.stopped:
            self.prefixes.add(call.digest, call.identity, call.answer, call.start_at + call.count)

    def book(self, call: Call, record: Record) -> None:
        self.ledger.book(record)
        if record.billed:
            self.generations[record.generation_id] = record
            if len(self.generations) > GENERATIONS:
                del self.generations[next(iter(self.generations))]

    def keep_alive(self, call: Call) -> None:
        """Blank lines before the JSON, as OpenRouter sends them to whoever waits long."""
        every = self.behaviour.keepalive_s / self.behaviour.time_scale
        if call.dialect.name != "openrouter" or not 0 < every < call.run_s:
            return

        def drip() -> None:
            if call.booked or call.cut is not None or call.fault == "stall":
                return
            if not call.connection.started:
                call.status = 200
                call.connection.start(200, {"content-type": "application/json", **call.names})
            call.connection.chunk(b"\n")
            self.loop.call_later(every, drip)

        self.loop.call_later(every, drip)

    @staticmethod
    @lru_cache(maxsize=256)
    def model_json(model: str) -> bytes:
        return json.dumps(model).encode()

    async def watch_schedule(self) -> None:
        """A capacity that rises lets the queue move although nothing ended."""
        while True:
            await asyncio.sleep(0.05)
            self.advance()

    def close(self) -> None:
        """Book what is under way as hung up, so that the ledger file is whole."""
        for connection in list(self.connections):
            if connection.waiting is not None:
                connection.waiting.gone()
        self.ledger.close()


@lru_cache(maxsize=256)
def _admitted(hosts: tuple[Host, ...], wanted: str) -> tuple[Host, ...]:
    """The hosts that a `provider` object (JSON) admits; those of `order` alone while any of them is left."""
    routing: dict[str, Any] = json.loads(wanted) if wanted else {}

    def named(field: str) -> set[str]:
        return {str(name).split("/")[0].lower().replace(" ", "-") for name in routing.get(field) or []}

    only, ignore, order, quantizations = named("only"), named("ignore"), named("order"), routing.get("quantizations")
    left = tuple(h for h in hosts if (not only or h.slug in only) and h.slug not in ignore
                 and (not quantizations or h.quantization in quantizations))
    first = tuple(h for h in left if h.slug in order)
    return first if first or (order and routing.get("allow_fallbacks") is False) else left


async def serve(behaviour: Behaviour, host: str = "127.0.0.1", port: int = 0, *, ready: "asyncio.Future[str] | None" = None,
                stop: asyncio.Event | None = None) -> None:
    """Serve until `stop` is set (or for ever). `ready` gets the URL once connections are accepted."""
    loop = asyncio.get_running_loop()
    simulator = Simulator(behaviour, loop)
    routes = Routes(simulator)
    server = await loop.create_server(lambda: Connection(routes.handle, simulator.connections), host, port, backlog=BACKLOG)
    watch = asyncio.create_task(simulator.watch_schedule())
    address = server.sockets[0].getsockname()
    if ready is not None:
        ready.set_result(f"http://{address[0]}:{address[1]}")
    try:
        await (stop or asyncio.Event()).wait()
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
        server.close()
        simulator.close()


async def _serve_until_signalled(behaviour: Behaviour, host: str, port: int, ready_file: Path | None) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    ready: asyncio.Future[str] = loop.create_future()
    ready.add_done_callback(lambda done: _announce(done.result(), ready_file))
    await serve(behaviour, host, port, ready=ready, stop=stop)


def _announce(url: str, ready_file: Path | None) -> None:
    line = json.dumps({"url": url, "openrouter": f"{url}/api/v1", "sglang": f"{url}/sglang", "vllm": f"{url}/vllm",
                       "llamacpp": f"{url}/llamacpp"})
    print(line, flush=True)
    if ready_file is not None:
        half = ready_file.with_name(ready_file.name + ".part")
        half.write_text(line + "\n", encoding="utf-8")
        half.replace(ready_file)


def main(behaviour: Behaviour, host: str = "127.0.0.1", port: int = 0, ready_file: Path | None = None) -> None:
    """Serve in this process until SIGTERM or SIGINT; prints one JSON line with the URLs when ready."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if sys.platform == "linux":
        import uvloop

        uvloop.run(_serve_until_signalled(behaviour, host, port, ready_file))
    else:
        asyncio.run(_serve_until_signalled(behaviour, host, port, ready_file))
