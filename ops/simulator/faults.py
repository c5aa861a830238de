"""Everything that can go wrong with one call, by name, and which call it happens to."""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Ending(StrEnum):
    """How the reply of a faulty call ends."""

    REPLY = "reply"        # a whole HTTP response
    SHORT = "short"        # the connection closes inside the body
    RESET = "reset"        # ... or is reset after the headers
    CLOSED = "closed"      # ... or closes before any byte
    STALL = "stall"        # nothing ever comes


@dataclass(frozen=True, slots=True)
class Kind:
    """`early`: before any generation, free of charge, at once. Others come when the answer would have been ready.

    `billed`: a real provider would have charged the whole answer although nobody can read it.
    `again`: asking again may help (what `mix` draws from); others pause or fail what they belong to.
    """

    status: int = 200
    early: bool = False
    billed: bool = False
    again: bool = True
    ending: Ending = Ending.REPLY


def _early(status: int, again: bool = True) -> Kind:
    return Kind(status, early=True, again=again)


KINDS: Mapping[str, Kind] = {
    # rate limits: the hint stands in a different place each time
    "429": _early(429),
    "429_retry_after": _early(429),
    "429_date": _early(429),
    "429_reset": _early(429),
    "429_body": _early(429),
    "429_availability": _early(429),
    "429_edge": _early(429, again=False),
    # money
    "402_credit": _early(402, again=False),
    "402_in_flight": _early(402),
    "402_weight": _early(402, again=False),
    # doors
    "400": _early(400, again=False),
    "401": _early(401, again=False),
    "403_moderation": _early(403, again=False),
    "403_edge": _early(403, again=False),
    "404_routing": _early(404, again=False),
    "404_model": _early(404, again=False),
    "404_html": _early(404, again=False),
    # servers
    "500": _early(500),
    "502": _early(502),
    "503": _early(503),
    "529": _early(529),
    "closed": Kind(early=True, ending=Ending.CLOSED),
    # timeouts: possibly paid
    "408": Kind(408, billed=True),
    "504": Kind(504, billed=True),
    "524": Kind(524, billed=True),
    "stall": Kind(billed=True, ending=Ending.STALL),
    # 200 that is not success
    "error_body": Kind(),
    "choice_error": Kind(),
    "no_choices": Kind(),
    "empty": Kind(),
    "html": Kind(),
    "blank": Kind(billed=True),
    "broken_json": Kind(billed=True),
    # the answer is lost on its way
    "reset": Kind(billed=True, ending=Ending.RESET),
    "short_body": Kind(billed=True, ending=Ending.SHORT),
    "cut": Kind(billed=True, ending=Ending.SHORT),
    # the answer is good, what is said about it is not
    "no_usage": Kind(billed=True, again=False),
    "null_cost": Kind(billed=True, again=False),
    "no_finish": Kind(billed=True, again=False),
    "other_model": Kind(billed=True, again=False),
    "other_template": Kind(billed=True, again=False),      # its usage tells of more prompt than was sent
}

SERVED = frozenset({"no_usage", "null_cost", "no_finish", "other_model", "other_template"})      # the client gets the whole text


def mix(share: float) -> dict[str, float]:
    """`share` of all calls, spread evenly over the kinds that asking again may mend."""
    kinds = [name for name, kind in KINDS.items() if kind.again]
    return dict.fromkeys(kinds, share / len(kinds))


def draw(shares: Mapping[str, float], identity: bytes, number: int) -> str:
    """The fault of call `number` of a prompt, or "". The same for the same identity and number."""
    if not shares:
        return ""
    drawn: int = struct.unpack("<Q", hashlib.blake2b(identity, digest_size=8, salt=number.to_bytes(8, "little")).digest())[0]
    point = drawn / 2**64
    for kind, share in shares.items():
        point -= share
        if point < 0:
            return kind
    return ""
