"""A stored reply read again: for regrading, and for exports that want its text."""

from models.answer import Answer
from workers.providers import KINDS
from workers.providers.engines import Engine
from workers.providers.reading import read


def reread(kind: str, raw: bytes, thinking: bool = True) -> Answer | None:
    """What the reply said, by the rules of today; None when it holds no answer. kind: of the account that was asked."""
    known = KINDS.get(kind)
    shape = known.as_chat if known is not None and issubclass(known, Engine) else None
    return read(raw, thinking=thinking, as_chat=shape)[0]
