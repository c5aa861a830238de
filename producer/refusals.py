"""Rows that were not taken in: one `Refusal` each, counted, and written to a rejects file without their text."""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one row is left out. `line` counts from 1 (element or row number in arrays and Parquet); 0 is the whole file.

    code: a label for counting: bad_json, bad_encoding, bad_unicode, bad_content, bad_row, bad_id, bad_lane, bad_max_tokens,
    bad_tools, bad_metadata, empty_conversation, no_user_turn, unsupported_role, special_token, duplicate,
    duplicate_id_conflict, prompt_too_long, line_too_long, too_deep; of a file: empty, encoding, unreadable, format, damaged;
    of a prompt beside others: same_prompt, near_prompt, contaminated.
    cause: one sentence that holds nothing of the row's text. match: the name of the other prompt, "" where there is none.
    """

    file: str
    line: int
    cause: str
    code: str
    match: str = ""


class Rejects:
    """Writes refusals to `path` (JSONL), made anew by each reading and only if there is one. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.codes: Counter[str] = Counter()
        self._file: TextIO | None = None

    def __enter__(self) -> Self:
        self.path.unlink(missing_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def total(self) -> int:
        return self.codes.total()

    def write(self, refusal: Refusal) -> None:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("w", encoding="utf-8")
        self.codes[refusal.code] += 1
        self._file.write(json.dumps(asdict(refusal), ensure_ascii=True) + "\n")
