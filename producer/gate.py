"""What is kept out at enqueue, before it costs: prompts that cannot fit, that were asked already, that a benchmark holds."""

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from models.blob import unpack_json
from models.conversation import question_of
from models.errors import ProfileError
from models.plan import DatasetPlan
from models.store.prompts import Stored
from models.tokens import profile
from producer.lanes import too_long
from producer.likeness import Likeness, Rule
from producer.prompts import Prompt
from producer.refusals import Refusal


def rule_of(plan: DatasetPlan) -> Rule:
    return Rule(plan.dedup is not None, plan.near if plan.dedup == "near" else None, tuple(plan.decontaminate), plan.ngram)


class Gate:
    """One dataset's. Use as a context manager.

    home: where the vocabulary is looked for when only counting tells whether a prompt fits; without it, or without the
    vocabulary, 5 characters count as a token.
    """

    def __init__(self, plan: DatasetPlan, home: Path | None = None) -> None:
        self.plan, self._home = plan, home
        self.context = plan.context_tokens if plan.context_tokens is not None else profile.context_of(plan.profile)
        rule = rule_of(plan)
        self.likeness = Likeness(rule) if rule else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.likeness is not None:
            self.likeness.__exit__(kind, error, trace)

    def learn(self) -> Iterator[Refusal]:
        """The reference prompts; refusals are rows there that are none."""
        if self.likeness is not None:
            yield from self.likeness.learn()

    @property
    def remembers(self) -> bool:
        """Whether it must be told of the prompts that the dataset holds already."""
        return self.likeness is not None and (self.likeness.rule.exact or self.likeness.rule.near is not None)

    def known(self, sample: Stored) -> None:
        if self.likeness is not None and sample.turn == 0:
            document = unpack_json(sample.prompt)
            self.likeness.known(question_of(sample.primary_id), document["messages"], document["tools"])

    def refusal(self, file: str, prompt: Prompt) -> Refusal | None:
        if self.context is not None:
            long = too_long(file, prompt, self.plan, self.context, self._count)
            if long is not None:
                return long
        if self.likeness is None:
            return None
        match = self.likeness.match(prompt.primary_id, prompt.messages, prompt.tools)
        return None if match is None else Refusal(file, prompt.line, match.cause, match.code, match.other)

    @cached_property
    def _count(self) -> Callable[[Prompt], int] | None:
        from models.tokens.model import Model  # opens a vocabulary, which most readings need not

        if self._home is None:
            return None
        try:
            model = Model.open(profile.load(self.plan.profile, self._home))
        except ProfileError:
            return None
        return lambda p: len(model.prompt_ids(p.messages, p.tools, self.plan.thinking))
