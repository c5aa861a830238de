"""One stored generation on its way out of the database."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from models.answer import ToolCall
from models.blob import Ids
from models.conversation import Document
from models.states import Grade
from models.tokens.row import Span


@dataclass(slots=True)  # not frozen: its guard would take a sixth of the time in which a row is written
class ExportRow:
    """prompt_ids int32[p], completion_ids int32[n]; spans as in models.tokens.row. Rows come ordered by sample id.

    id: unique in the export (`dataset/key`); primary_id: of the conversation, likewise. prompt: the sample's document.
    prompt_tokens, completion_tokens: as billed, None where not reported. temperature: as sent, None for the provider's own.
    created_at: ISO 8601 with zone, "" if unknown. fingerprint: of the settings the row was made with.
    """

    id: str
    key: str
    primary_id: str
    dataset: str
    turn: int
    prompt: Document
    prompt_ids: Ids
    completion_ids: Ids
    spans: Sequence[Span]
    grade: Grade
    finish_reason: str
    truncated: bool = False
    trainable: bool = True
    flags: frozenset[str] = frozenset()
    provider: str = ""
    quantization: str = ""
    model: str = ""
    account: str = ""
    temperature: float | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    cost_usd: float = 0.0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    content: str = ""
    reasoning: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    created_at: str = ""
    fingerprint: str = ""
    sample_id: int = 0

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)

    @property
    def cut(self) -> bool:
        """Ended by a limit and not by the model: its ids are true, its text has no end."""
        return self.truncated or self.finish_reason == "length"
