"""Which rows of the database become rows of an export: filters, what makes a row unsound, prompts that are one too many."""

from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from models.conversation import question_of
from producer.likeness import Likeness, Rule
from producer.rows import ExportRow
from producer.selection import Selection, Vocabulary, end_tokens, unsound

LEFT_OUT = "left_out.tsv"       # beside the data, under a name that no trainer takes for data


class Sieve:
    """Use as a context manager, anew for each pass: what is left out for its prompt depends on the rows before it.

    report: a file for one line per row left out for its prompt (id, reason, the other prompt's name), made with the first one.
    """

    def __init__(self, selection: Selection, vocabulary: Vocabulary, mask_end: bool, rule: Rule, report: Path | None) -> None:
        self.selection, self.vocabulary, self.mask_end, self.report = selection, vocabulary, mask_end, report
        self.likeness = Likeness(rule) if rule else None
        self.reported = 0
        self._file: TextIO | None = None

    def __enter__(self) -> Self:
        for refusal in self.likeness.learn() if self.likeness is not None else ():
            self._tell(f"{Path(refusal.file).name}:{refusal.line}", refusal.code, "a reference that is no prompt")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.likeness is not None:
            self.likeness.__exit__(kind, error, trace)
        if self._file is not None:
            self._file.close()

    def judged(self, row: ExportRow, checked: bool = False) -> tuple[str | None, int]:
        """(why the row is left out, or None; how many ids its mask covers). checked: as in `unsound`."""
        reason = self.selection.unwanted(row) or unsound(row, self.vocabulary, checked)
        if reason is not None:
            return reason, 0
        covered = len(row.completion_ids) - (end_tokens(row, self.vocabulary) if self.mask_end else 0)
        if not covered:
            return "nothing_supervised", 0
        return (None, covered) if self.likeness is None else (self._alike(self.likeness, row), covered)

    def _alike(self, likeness: Likeness, row: ExportRow) -> str | None:
        match = likeness.match(question_of(row.primary_id), row.prompt["messages"], row.prompt["tools"])
        if match is None:
            return None
        self._tell(row.id, match.code, match.other)
        return match.code

    def _tell(self, *cells: str) -> None:
        if self.report is None:
            return
        if self._file is None:
            self._file = self.report.open("x", encoding="utf-8", newline="\n")
        self._file.write("\t".join(c.replace("\t", " ").replace("\n", " ") for c in cells) + "\n")
        self.reported += 1
