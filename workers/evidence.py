"""One exchange as evidence: what a verdict may be founded on, gathered once."""

import re
from dataclasses import dataclass

from models.answer import Answer
from workers.providers import reading, soundness, waiting
from workers.providers.base import Ask, Exchange, Problem
from workers.ruling import Billed, History

# Textual codes of errors that carry no number.
STATUS_OF = (
    (r"rate.?limit|too.?many.?requests", 429), (r"overloaded", 529), (r"insufficient.?quota|payment|billing", 402),
    (r"authentication|unauthorized|invalid.?api.?key", 401), (r"permission|forbidden", 403),
    (r"context.?length|context.?size|invalid.?request|bad.?request|max.?tokens|token.?limit|value.?error", 400),
    (r"not.?found", 404), (r"timeout|timed.?out", 504), (r"unavailable", 502), (r"refusal|content.?policy|moderation", 403))


@dataclass(frozen=True, slots=True)
class Case:
    """status: the HTTP status, or that of an error inside a 2xx body, 0 where none is named. words: type and message."""

    ask: Ask
    exchange: Exchange
    history: History
    answer: Answer
    problem: Problem
    status: int
    words: str
    hint_s: float | None

    @classmethod
    def of(cls, ask: Ask, exchange: Exchange, history: History) -> "Case":
        answer, problem = exchange.answer, exchange.problem
        if answer is None and problem is None and exchange.status is not None:
            answer, problem = reading.read(exchange.body, exchange.headers.get("content-type", ""))
        problem = problem or Problem("")
        status = exchange.status or 0
        if status < 300:
            status = _inner_status(problem)
        now = exchange.received_at or float("inf")
        return cls(ask, exchange, history, answer or Answer(), problem, status, f"{problem.type} {problem.message}".lower(),
                   waiting.hint_s(exchange.headers, problem.hints, now))

    def says(self, pattern: str) -> bool:
        return re.search(pattern, self.words) is not None

    @property
    def complete(self) -> bool:
        """A stream that said how it ended lost nothing when its connection broke afterwards."""
        return self.exchange.streamed and self.problem.kind == "" and self.answer.finish_reason != ""

    @property
    def is_json(self) -> bool:
        return self.problem.kind == "error"

    @property
    def html(self) -> bool:
        return self.problem.kind == "not_json" or "html" in self.exchange.headers.get("content-type", "")

    @property
    def partly_answered(self) -> bool:
        return (self.exchange.status or 0) < 300 and (bool(self.text) or self.answer.finish_reason == "error")

    @property
    def names_own_limit(self) -> bool:
        return waiting.names_a_limit(self.exchange.headers, self.problem.hints)

    @property
    def provider(self) -> str:
        return self.problem.provider or self.answer.provider

    @property
    def text(self) -> str:
        return self.answer.content + (self.answer.reasoning or "")

    def unpaid(self) -> Billed:
        """Nothing was generated, or what was is insured. A cost that the reply names is booked all the same."""
        return Billed(cost_usd=self.answer.usage.cost_usd or 0.0)

    def reported(self) -> Billed:
        """As `usage` says, else an estimate: never zero for some text."""
        usage = self.answer.usage
        insured = self.answer.finish_reason == "error" and not usage.completion_tokens    # a generation that broke is free
        if insured or (usage.completion_tokens is not None and (usage.completion_tokens or not self.text)):
            return Billed(usage.prompt_tokens or self._prompt_tokens(0), usage.completion_tokens or 0, usage.cost_usd or 0.0,
                          "usage", cost_known=insured or usage.cost_usd is not None)
        return self.estimated()

    def estimated(self) -> Billed:
        """Possibly or surely paid and not reported: the text that came, else what such an answer is expected to take."""
        expected = self.ask.max_tokens if self.history.expected_tokens is None else self.history.expected_tokens
        tokens = soundness.estimated_tokens(self.text) or min(expected, self.ask.max_tokens)
        return Billed(self._prompt_tokens(1), tokens, self.answer.usage.cost_usd or 0.0, "estimate",
                      cost_known=bool(self.answer.usage.cost_usd))

    def _prompt_tokens(self, least: int) -> int:
        known = self.ask.expected_prompt_tokens
        if known is not None or not least:
            return known or 0
        return max(least, soundness.estimated_tokens(str(self.ask.messages)))


def _inner_status(problem: Problem) -> int:
    if problem.kind != "error":
        return 0
    if problem.code is not None and 300 <= problem.code < 600:
        return problem.code
    return next((status for pattern, status in STATUS_OF if re.search(pattern, problem.type)), 500)
