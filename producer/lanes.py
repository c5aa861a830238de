"""Which lane a prompt takes, and whether it fits the model's context there."""

from collections.abc import Callable

from models.plan import DatasetPlan
from models.states import Lane
from producer.prompts import Prompt
from producer.refusals import Refusal

CHARS_PER_TOKEN = 5  # prose has fewer, so what this estimate refuses is too long
MOST_BYTES_PER_CHAR = 4
TEMPLATE_TOKENS = 1_000


def lane_of(prompt: Prompt, plan: DatasetPlan) -> Lane:
    """The row's own `lane`, else long from `long_from_chars` characters on, else the dataset's default."""
    if prompt.lane is not None:
        return Lane.of(prompt.lane)
    start = plan.lane_rule.long_from_chars
    return Lane.LONG if start is not None and prompt.chars >= start else Lane.of(plan.lane_rule.default)


def max_tokens_of(prompt: Prompt, plan: DatasetPlan) -> int:
    """The lane's maximum, or less where the row asks for less."""
    most = plan.lane(lane_of(prompt, plan).label).max_tokens
    return most if prompt.max_tokens is None else min(most, prompt.max_tokens)


def too_long(file: str, prompt: Prompt, plan: DatasetPlan, context_tokens: int,
             count: Callable[[Prompt], int] | None = None) -> Refusal | None:
    """A refusal if prompt and longest answer together pass the model's context, before anything is spent on finding out.

    count: exact prompt tokens, asked only where size alone does not decide; without it 5 characters count as one.
    """
    most = max_tokens_of(prompt, plan)
    if prompt.chars * MOST_BYTES_PER_CHAR + TEMPLATE_TOKENS + most <= context_tokens:  # a token is at least one byte
        return None
    tokens = prompt.chars // CHARS_PER_TOKEN if count is None else count(prompt)
    if tokens + most <= context_tokens:
        return None
    cause = f"about {tokens} prompt tokens and up to {most} of answer pass the model's context of {context_tokens}"
    return Refusal(file, prompt.line, cause, "prompt_too_long")
