"""How prompts and answers are counted and numbered: by the simulator's own rule, or as a model profile does."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from models.tokens.profile import load
from models.tokens.template import render
from models.tokens.vocabulary import open_vocabulary
from ops.simulator import answers, corpus


class Prompt(NamedTuple):
    """opened: the answer begins with the mark of thought. json_ids: gives the ids, "1,2,3"."""

    tokens: int
    opened: bool
    json_ids: Callable[[], bytes]


class Counting(Protocol):
    corpus: corpus.Corpus

    def prompt(self, asked: Any, tools: Any, thinking: bool, digest: bytes) -> Prompt:
        """Messages or a text. ProfileError where the template refuses them."""


def of_ids(ids: Sequence[int], marks: corpus.Marks) -> Prompt:
    """A prompt that came as ids."""
    opened = bool(marks.open.id) and int(marks.open.id[:-1]) not in ids[-2:]
    return Prompt(len(ids), opened, lambda: ",".join(map(str, ids)).encode())


class Own:
    """A piece is a token, four characters of a prompt are one. Prompt ids are synthetic, and differ from prompt to prompt."""

    def __init__(self, seed: int) -> None:
        self.corpus = corpus.synthetic(seed)

    def prompt(self, asked: Any, tools: Any, thinking: bool, digest: bytes) -> Prompt:
        tokens = max(5, answers.prompt_tokens(asked))

        def ids() -> bytes:
            head = [corpus.FIRST_ID + int.from_bytes(digest[i:i + 2], "big") for i in range(0, 8, 2)]
            return b"".join(b"%d," % i for i in head) + self.corpus.slice(head[0], tokens - 4)[1][:-1]

        return Prompt(tokens, False, ids)


class Profiled:
    """Real ids of a real vocabulary: every count, and every text, is what the model's tokenizer says."""

    def __init__(self, name: str, tokenizers: Path | None, seed: int) -> None:
        """ProfileError when the profile's files do not resolve."""
        self._profile = load(name, tokenizers=tokenizers)
        self._vocabulary, template = open_vocabulary(self._profile)
        self._template = self._profile.template_text or template or ""
        think = self._profile.think
        ids = self._vocabulary.added
        marks = corpus.Marks(corpus.mark("", ids[self._profile.stop]))
        if think is not None:
            opens, closes = (corpus.mark(text, ids[text]) for text in (think.open, think.close))
            marks = marks._replace(open=opens, close=closes)
        self.corpus = corpus.tokenized(seed, self._vocabulary.codec.pieces, self._vocabulary.encode_ordinary, marks)

    def prompt(self, asked: Any, tools: Any, thinking: bool, digest: bytes) -> Prompt:
        text = asked if isinstance(asked, str) else render(self._profile, self._template, asked, tools, thinking)
        return of_ids(self._vocabulary.encode(text), self.corpus.marks)
