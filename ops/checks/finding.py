"""One thing that doctor found."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """level: ok, note or bad. remedy: what to do, "" when nothing is to be done."""

    level: str
    what: str
    remedy: str = ""

    @property
    def bad(self) -> bool:
        return self.level == "bad"

    @property
    def mark(self) -> str:
        return {"ok": "ok  ", "note": "note", "bad": "BAD "}[self.level]


def ok(what: str) -> Finding:
    return Finding("ok", what)


def note(what: str, remedy: str = "") -> Finding:
    return Finding("note", what, remedy)


def bad(what: str, remedy: str) -> Finding:
    return Finding("bad", what, remedy)
