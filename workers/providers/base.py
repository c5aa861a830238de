"""The contract between a worker and whatever answers prompts.

    Ask -> Provider.ask -> Exchange (what came over the wire) -> verdict.judge -> Verdict (with an Answer)

A provider never raises for what the other side or the network did: that is an Exchange with a `fault`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from models.answer import Answer
from models.blob import Ids
from workers.providers.listing import Listed


class Fault(StrEnum):
    """What the transport did, translated once from foreign exceptions (`http`)."""

    REFUSED = "refused"                # no connection: nothing was sent, nothing can be billed
    DNS = "dns"
    POOL = "pool"                      # our own side ran out of something
    CLOSED = "closed"                  # closed before any response: possibly billed
    RESET = "reset"                    # after headers, or in the body
    CUT = "cut"                        # body shorter than promised
    IDLE = "idle"                      # no data for too long
    DEADLINE = "deadline"              # the total deadline of the attempt
    PROTOCOL = "protocol"              # not HTTP
    ENCODING = "encoding"              # a Content-Encoding that the body does not keep to its end, or that nobody asked for
    TOO_LARGE = "too_large"            # the body passed its bound
    KEY = "key"                        # our key cannot be read: nothing was sent
    CANCELLED = "cancelled"            # our own shutdown or budget stop


@dataclass(frozen=True, slots=True)
class Limits:
    connect_s: float = 10.0
    first_byte_s: float = 0.0          # 0: only the total deadline counts (non-streaming replies come at the end)
    idle_s: float = 60.0               # between data events of a stream; comments and blank lines do not count
    total_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Ask:
    """One call. `messages` are sent exactly as given. `prefix_ids`: continue from these (engines only)."""

    model: str
    messages: list[dict[str, Any]]
    max_tokens: int
    tools: list[dict[str, Any]] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)     # temperature, top_p, seed, ...
    routing: Mapping[str, Any] = field(default_factory=dict)      # OpenRouter's `provider` object
    reasoning: Mapping[str, Any] | None = None
    thinking: bool | None = None       # the template's switch, for engines
    thinking_key: str = "enable_thinking"
    ignore: tuple[str, ...] = ()       # providers to leave out this time
    stream: bool = False
    limits: Limits = Limits()
    prompt_ids: Ids | None = None      # for engines that take ids
    prefix_ids: Ids | None = None
    expected_prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """What a body says is wrong, or what is wrong with the body. Texts are the other side's and are never logged.

    kind: error | bad_json | not_json | empty_body | bad_schema | no_choices | no_message | stream_truncated.
    code: the numeric code of an error object; type: its error_type, type or textual code, lower-case.
    availability: `availability.code`; retryable: `availability.retryable`; hints: wait hints found in the body.
    """

    kind: str
    code: int | None = None
    type: str = ""
    message: str = field(default="", repr=False)
    provider: str = ""
    limit_source: str = ""
    availability: str = ""
    retryable: bool | None = None
    moderated: bool = False
    resets: bool = False
    hints: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Exchange:
    """All that came back. `body` is the bytes after content decoding (for a stream: the events as received).

    dialect: which door was asked, such as openrouter or sglang/generate. received_at: seconds since the epoch on our
    clock when the head came, to read dates by; 0 when none came.
    """

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)         # lower-case names
    body: bytes = b""
    fault: Fault | None = None
    fault_text: str = ""
    streamed: bool = False
    elapsed_s: float = 0.0
    first_byte_s: float | None = None
    answer: Answer | None = None       # where the dialect could read one, also from a partial stream
    problem: Problem | None = None     # what the body says is wrong, or what is wrong with it
    dialect: str = ""
    received_at: float = 0.0


class Provider(Protocol):
    kind: str

    async def ask(self, ask: Ask) -> Exchange: ...

    async def hosts(self, model: str) -> tuple[Listed, ...]:
        """Who serves the model, as last listed; () where nobody is listed or the listing cannot be read. Never raises."""

    def cancels(self, hosts: Sequence[Listed]) -> bool:
        """Whether a stream that is left ends there, and its bill with it, whichever of these hosts serves it."""

    def stop(self, wanted: Callable[[Ask], bool]) -> int:
        """End the calls in flight that are wanted gone; each returns with Fault.CANCELLED and what it had. How many."""

    async def aclose(self) -> None: ...
