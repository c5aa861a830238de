"""Paths that stand for URLs. A `Path` of `s3://bucket/key` has lost a slash (`s3:/bucket/key`); here it is found again."""

import re
from pathlib import Path

URL = re.compile(r"([a-z][a-z0-9+.-]+):/+(.+)", re.DOTALL)
LOCAL = ("file", "local")


def url_of(path: Path) -> str | None:
    """The URL that this path stands for, None for a local one."""
    found = URL.fullmatch(path.as_posix())
    return f"{found[1]}://{found[2]}" if found and found[1] not in LOCAL else None
