"""JSON as the world sends it."""

import json
from typing import Any


def load(text: bytes) -> Any:
    """Reads NaN, raw control characters, lone surrogates, any length of number. ValueError if none.

    Bytes that are no UTF-8 become lone surrogates, so that the text is marked and never bought again.
    """
    encoding = json.detect_encoding(text)
    try:
        if encoding.startswith("utf-8"):
            decoded = text.decode("utf-8", "surrogateescape")
        else:
            decoded = text.decode(encoding, "surrogatepass")
        return json.loads(decoded, strict=False, parse_int=_int)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _int(digits: str) -> int | float:
    return int(digits) if len(digits) <= 18 else float(digits)   # int() refuses 4,300 digits and more
