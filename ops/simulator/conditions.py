"""What can be changed while the simulator runs: `POST /control`. Times here are real seconds from the moment of the request."""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from models.errors import SettingsError
from ops.simulator.behaviour import Behaviour
from ops.simulator.faults import KINDS, mix

FOREVER = float("inf")
_SALT = os.urandom(16)         # keys are only ever held as salted digests


@dataclass(slots=True)
class Outage:
    """A share of all calls is answered with `fault` (a name of `faults.KINDS`) until the end."""

    fault: str
    until: float
    share: float = 1.0
    retry_after_s: float | None = None


class Conditions:
    """Read by every call. `clock` is the loop's."""

    def __init__(self, behaviour: Behaviour, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.faults: Mapping[str, float] = behaviour.faults
        self.host_faults: dict[str, Mapping[str, float]] = {}     # by the host's name
        self.outage: Outage | None = None
        self.stall_until = 0.0
        self.speed = self.length_factor = 1.0
        self.queue = behaviour.queue
        self.credit_usd = behaviour.credit_usd           # in all, spent included
        self.in_flight_usd = behaviour.in_flight_usd
        self.tokens_per_minute = behaviour.tokens_per_minute
        self._capacity = behaviour.capacity
        self._schedule: list[tuple[float, int]] = []
        self._bucket, self._bucket_at = float(behaviour.tokens_per_minute) / 6, clock()
        keys = behaviour.api_keys_file.read_text(encoding="utf-8").split() if behaviour.api_keys_file else []
        self._known = {_mark(key) for key in keys}
        self._seen: set[bytes] = set()
        self._revoked: set[bytes] = set()

    @property
    def capacity(self) -> int:
        """The present capacity, 0 for no limit."""
        while self._schedule and self._schedule[0][0] <= self._clock():
            self._capacity = self._schedule.pop(0)[1]
        return self._capacity

    @property
    def stalled(self) -> bool:
        return self._clock() < self.stall_until

    def present_outage(self) -> Outage | None:
        if self.outage is not None and self._clock() >= self.outage.until:
            self.outage = None
        return self.outage

    def admits_key(self, authorization: str) -> bool:
        mark = _mark(authorization.removeprefix("Bearer ").strip())
        if self._known and mark not in self._known:
            return False
        if len(self._seen) < 10_000:
            self._seen.add(mark)
        return mark not in self._revoked

    def takes_tokens(self, tokens: int) -> bool:
        """The limit of tokens a minute: a bucket of ten seconds' worth, into debt for one call at most."""
        if not self.tokens_per_minute:
            return True
        now, rate = self._clock(), self.tokens_per_minute / 60
        self._bucket = min(10 * rate, self._bucket + (now - self._bucket_at) * rate)
        self._bucket_at = now
        if self._bucket <= 0:
            return False
        self._bucket -= tokens
        return True

    def change(self, wanted: Mapping[str, Any], spent_usd: float) -> None:
        """Apply the verbs of a request in order. SettingsError names what cannot be done; earlier verbs then hold."""
        for verb, value in wanted.items():
            apply = getattr(self, f"_set_{verb}", None)
            if apply is None:
                raise SettingsError(cause=f"/control does not know {verb!r}")
            try:
                if verb == "credit_usd":
                    value = spent_usd + float(value)
                apply(value)
            except (TypeError, ValueError, KeyError, AttributeError) as error:
                raise SettingsError(cause=f"/control cannot set {verb!r}: {error}") from error

    def as_dict(self) -> dict[str, Any]:
        now, outage = self._clock(), self.present_outage()
        return {
            "outage": None if outage is None else {"fault": outage.fault, "for_s": _left(outage.until, now),
                                                   "share": outage.share, "retry_after_s": outage.retry_after_s},
            "stall": {"for_s": _left(self.stall_until, now)} if self.stalled else None,
            "faults": dict(self.faults), "speed": self.speed, "length_factor": self.length_factor,
            "capacity": self.capacity, "queue": self.queue, "capacity_schedule": [[at - now, n] for at, n in self._schedule],
            "tokens_per_minute": self.tokens_per_minute, "credit_usd": self.credit_usd, "in_flight_usd": self.in_flight_usd,
            "keys_seen": len(self._seen), "keys_revoked": len(self._revoked),
        }

    # the verbs

    def _set_outage(self, value: Mapping[str, Any] | None) -> None:
        if value is None:
            self.outage = None
            return
        fault = str(value["fault"])
        if fault not in KINDS:
            raise ValueError(f"no fault is called {fault!r}")
        after = value.get("retry_after_s")
        self.outage = Outage(fault, self._clock() + float(value.get("for_s", FOREVER)), float(value.get("share", 1.0)),
                             None if after is None else float(after))

    def _set_stall(self, value: Mapping[str, Any] | None) -> None:
        self.stall_until = 0.0 if value is None else self._clock() + float(value.get("for_s", FOREVER))

    def _set_faults(self, value: Mapping[str, float] | float) -> None:
        self.faults = mix(float(value)) if isinstance(value, int | float) else _shares(value)

    def _set_host_faults(self, value: Mapping[str, Mapping[str, float]]) -> None:
        self.host_faults = {str(host): _shares(shares) for host, shares in value.items()}

    def _set_revoke_keys(self, value: bool) -> None:
        """All keys presented until now stop working; False: they work again."""
        self._revoked = set(self._seen) if value else set()

    def _set_capacity(self, value: int) -> None:
        self._capacity, self._schedule = int(value), []

    def _set_capacity_schedule(self, value: list[tuple[float, int]]) -> None:
        self._schedule = sorted((self._clock() + float(at), int(capacity)) for at, capacity in value)

    def _set_queue(self, value: bool) -> None:
        self.queue = bool(value)

    def _set_tokens_per_minute(self, value: int) -> None:
        self.tokens_per_minute = int(value)
        self._bucket, self._bucket_at = self.tokens_per_minute / 6, self._clock()

    def _set_credit_usd(self, value: float) -> None:
        self.credit_usd = float(value)

    def _set_in_flight_usd(self, value: float) -> None:
        self.in_flight_usd = float(value)

    def _set_speed(self, value: float) -> None:
        self.speed = _positive(value)

    def _set_length_factor(self, value: float) -> None:
        self.length_factor = _positive(value)


def _shares(value: Mapping[str, float]) -> dict[str, float]:
    shares = {str(k): float(v) for k, v in value.items()}
    if unknown := shares.keys() - KINDS.keys():
        raise ValueError(f"no fault is called {min(unknown)!r}")
    return shares


def _positive(value: float) -> float:
    if not float(value) > 0:
        raise ValueError("it must be above 0")
    return float(value)


def _left(until: float, now: float) -> float | None:
    return None if until == FOREVER else max(0.0, until - now)


def _mark(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=16, key=_SALT).digest()
