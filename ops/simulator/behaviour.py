"""What the simulator does, as one frozen value. Everything that changes while it runs is in `conditions`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from models.errors import SettingsError
from ops.simulator.faults import KINDS


class Lengths(StrEnum):
    """How long the natural answers are, in tokens."""

    FIXED = "fixed"              # always max_length
    UNIFORM = "uniform"          # min_length to max_length
    LOGNORMAL = "lognormal"      # around median_length with `spread`; cap_share of all at max_length
    BIMODAL = "bimodal"          # around a tenth and around nine tenths of the range; cap_share of all at max_length


@dataclass(frozen=True, slots=True)
class Host:
    """One provider behind the router. `cancels`: a stream that the client leaves ends, and so does its bill."""

    name: str
    quantization: str
    price: float = 1.0           # times the behaviour's prices
    cancels: bool = False
    max_completion_tokens: int = 262_144

    @property
    def slug(self) -> str:
        return self.name.lower().replace(" ", "-")


HOSTS = (
    Host("Moonshot AI", "int4"),
    Host("Fireworks", "fp8", 1.1, cancels=True),
    Host("Novita", "fp8", 0.9, cancels=True),
    Host("Parasail", "int4", 0.95),
    Host("DeepInfra", "fp4", 0.7, cancels=True),
)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """All options. Lengths in tokens, times in seconds of the simulated clock (divided by `time_scale`), prices in dollars.

    An answer depends on the prompt, the request's own `seed` and `seed` here alone, not on the call, its time or max_tokens.
    """

    seed: int = 1
    # answers
    lengths: Lengths = Lengths.LOGNORMAL
    min_length: int = 50
    max_length: int = 65_536
    median_length: int = 1_800
    spread: float = 0.95                     # sigma of the logarithm
    cap_share: float = 0.0                   # share of answers, beyond those of the distribution, at max_length
    reasoning_share: float = 0.6             # mean share of reasoning in an answer; 0: none
    profile: str = ""                        # count and number tokens as this model profile does
    tokenizers: Path | None = None           # where its vocabulary lies
    context_length: int = 262_144
    # time
    tokens_per_s: float = 60.0               # of one stream; each answer draws 0.8 to 1.25 of it
    first_token_s: float = 0.3
    latency_min_s: float = 0.0               # with latency_max_s > 0: uniform, whatever the length
    latency_max_s: float = 0.0
    refusal_s: float = 0.05                  # until a refusal is sent
    time_scale: float = 1.0
    keepalive_s: float = 20.0                # OpenRouter form: blank lines or comments while waiting; 0: none
    event_tokens: int = 4                    # tokens in one event of a stream
    flush_s: float = 0.25                    # real seconds between writes of a stream
    # faults
    faults: Mapping[str, float] = field(default_factory=dict)     # kind -> share of calls
    max_faults: int = 1_000                  # of one prompt; later calls of it are served
    # limits
    capacity: int = 0                        # more in flight are refused with 429; 0: no limit
    queue: bool = False                      # ... or wait, as an engine makes them
    tokens_per_minute: int = 0
    credit_usd: float = 1_000_000.0
    in_flight_usd: float = 0.0               # 402 above so much reserved by calls in flight; 0: no limit
    prompt_price: float = 0.6e-6
    completion_price: float = 2.5e-6
    hosts: tuple[Host, ...] = HOSTS
    api_keys_file: Path | None = None        # one key a line; without it any key is good
    # ledger
    ledger: Path | None = None               # JSON lines, appended
    ledger_limit: int = 1_000_000            # calls kept in memory (about 0.6 KB each); counts go on beyond

    def __post_init__(self) -> None:
        for kind, share in self.faults.items():
            if kind not in KINDS:
                raise SettingsError(cause=f"no fault is called {kind!r}; there are {', '.join(sorted(KINDS))}")
            if not 0 <= share <= 1:
                raise SettingsError(cause=f"the share of {kind!r} must be between 0 and 1")
        if sum(self.faults.values()) > 1 + 1e-9:
            raise SettingsError(cause="the shares of faults add up to more than 1")
        if not 2 <= self.min_length <= self.max_length:
            raise SettingsError(cause="min_length and max_length must be 2 <= min <= max")
        if min(self.tokens_per_s, self.time_scale, self.flush_s) <= 0 or self.event_tokens < 1:
            raise SettingsError(cause="tokens_per_s, time_scale, flush_s and event_tokens must be above 0")
