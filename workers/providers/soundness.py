"""What is odd about an answer that looks like a success: pure, without a tokenizer, and only what can be shown.

The exact check of ids against counts is made later, by whoever holds the tokenizer; these are bounds any tokenizer of
the byte-level BPE family keeps.
"""

import re
import zlib
from collections.abc import Container, Iterator

from models.answer import Answer, ToolCall
from models.names import unpaired
from models.plan import admits
from workers.providers.base import Ask
from workers.providers.pieces import most_pieces, pieces
from workers.providers.reading import END_OF_TURN

MARKER = re.compile(r"<\|[A-Za-z0-9_]{2,40}\|>|<｜[^｜]{2,40}｜>|<(?:end|start)_of_turn>|\[(?:EOS|BOS|EOT|PAD)\]|</?think>")
TOOL_MARKER = re.compile(r"<\|tool_calls?_[a-z_]+\|>")
OPENING = r"(?:<\|(?:im_|start_header|start\|)[a-z_]*|<start_of_turn>|<｜(?:User|Assistant)｜>)"
NEXT_TURN = re.compile("(?:" + "|".join(map(re.escape, END_OF_TURN)) + r")\s*" + OPENING)
NATIVE_ID = re.compile(r"functions\.[^:\s<>|]+:\d+")
HINTS = {"<": ("|", "｜", "/", "s", "e", "t"), "[": ("E", "B", "P")}   # the first two signs of every marker
SPECIALS = 4                  # tokens that may be billed and leave no text (think markers, end of turn); others have a byte
LOOP_WINDOW, LOOP_RATIO = 8_192, 10.0
PROMPT_SLACK = 0.10, 8        # relative, absolute
CAP_SHARE = 0.95              # cut below this share of our own limit: somebody else's limit


def oddities(ask: Ask, answer: Answer, truncated: bool, seen: Container[str] = ()) -> Iterator[str]:
    """Names of what is wrong or unusual, beyond what the reading flagged."""
    text = answer.content + (answer.reasoning or "")
    if "\x00" in text:
        yield "has_nul"
    if "\ufffd" in text or unpaired(text):
        yield "lossy_text"
    if not said(answer):
        yield "no_answer"
    yield from _markers(answer)
    yield from _calls(answer.tool_calls)
    yield from _served(ask, answer)
    if answer.generation_id and answer.generation_id in seen:
        yield "duplicate_generation_id"
    if truncated and loops(text):
        yield "degenerate_repetition"
    if not prompt_fits(ask, answer):
        yield "prompt_tokens_mismatch"
    if not truncated and (answer.usage.completion_tokens or 0) < ask.max_tokens and not count_fits(ask, answer):
        yield "token_count_mismatch"


def said(answer: Answer) -> bool:
    return bool(answer.content.strip() or answer.tool_calls)


def _may_hold_markers(text: str) -> bool:
    """A quarter of what the search for markers costs, and almost always the end of it."""
    return any(rest.startswith(second) for first, second in HINTS.items() for rest in text.split(first)[1:])


def _markers(answer: Answer) -> Iterator[str]:
    if not _may_hold_markers(answer.content) and not _may_hold_markers(answer.reasoning or ""):
        return
    tools = TOOL_MARKER.findall(answer.content)
    if tools:
        yield "tool_markers_in_content"
    if NEXT_TURN.search(answer.content):
        yield "ran_past_eot"
    elif len(MARKER.findall(answer.content)) > len(tools) or MARKER.search(TOOL_MARKER.sub("", answer.reasoning or "")):
        yield "special_literal_in_text"


def _calls(calls: tuple[ToolCall, ...]) -> Iterator[str]:
    if calls:
        yield "tool_calls_rebuilt" if native_text(calls) is not None else "tool_ids_rewritten"


def native_text(calls: tuple[ToolCall, ...]) -> str | None:
    """Calls as Kimi writes them, when every id is the model's own (functions.NAME:N); None when a server renamed one."""
    if not calls or not all(NATIVE_ID.fullmatch(c.id) for c in calls):
        return None
    body = "".join(f"<|tool_call_begin|>{c.id}<|tool_call_argument_begin|>{c.arguments}<|tool_call_end|>" for c in calls)
    return f"<|tool_calls_section_begin|>{body}<|tool_calls_section_end|>"


def _served(ask: Ask, answer: Answer) -> Iterator[str]:
    if answer.model and not same_model(ask.model, answer.model):
        yield "wrong_model"
    name, precisions = _plain(answer.provider), ask.routing.get("quantizations")
    if answer.quantization and precisions and not admits(precisions, answer.quantization):
        yield "excluded_provider"
        return
    if not name:
        return
    ignored = {_plain(n) for n in (*ask.ignore, *ask.routing.get("ignore", ()))}
    only = {_plain(n) for n in ask.routing.get("only") or ()}
    if any(_alike(name, n) for n in ignored) or (only and not any(_alike(name, n) for n in only)):
        yield "excluded_provider"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.split("/")[0].lower())


def _alike(name: str, other: str) -> bool:
    """One and the same, or one a longer form of the other (Novita, NovitaAI)."""
    longer, shorter = (name, other) if len(name) >= len(other) else (other, name)
    return name == other or (len(shorter) >= 5 and longer.startswith(shorter))


def same_model(asked: str, served: str) -> bool:
    """The same name, without its vendor or variant, or with a date behind it."""
    asked, served = (re.sub(r":[a-z]+$", "", m.lower().rsplit("/", 1)[-1]) for m in (asked, served))
    return re.fullmatch(re.escape(asked) + r"(?:[-@]\d{4}(?:\d{2,4}|-\d{2}-\d{2})?)?", served) is not None


def loops(text: str) -> bool:
    """Whether the end of a text says the same again and again: 8 KiB of prose pack 2 to 4 times, a loop 30 and more."""
    tail = text[-LOOP_WINDOW:].encode("utf-8", "surrogatepass")
    return len(tail) >= 512 and len(tail) / len(zlib.compress(tail)) >= LOOP_RATIO


def prompt_fits(ask: Ask, answer: Answer) -> bool:
    """The prompt as billed against our own rendering: a dropped system prompt or another template shows here."""
    billed, expected = answer.usage.prompt_tokens, ask.expected_prompt_tokens
    if expected is None or billed is None or not (billed or answer.usage.completion_tokens):
        return True
    expected += 0 if ask.prefix_ids is None else len(ask.prefix_ids)
    relative, absolute = PROMPT_SLACK
    return abs(billed - expected) <= max(relative * expected, absolute)


def count_fits(ask: Ask, answer: Answer) -> bool:
    """Whether the billed count can belong to this text: with ids they must agree, without them bounds must hold."""
    billed = answer.usage.completion_tokens
    if not billed:
        return True
    if answer.completion_ids is not None:
        new = len(answer.completion_ids) - (len(ask.prefix_ids) if ask.prefix_ids is not None else 0)
        return abs(new - billed) <= 1     # one engine's list was off by one at the end token
    if answer.flags & {"extra_choices", "reasoning_hidden", "reasoning_conflict", "tool_calls_unreadable"}:
        return True
    text = f"{answer.reasoning or ''}\n{answer.content}\n{_call_text(answer.tool_calls)}"
    data, enough = text.encode("utf-8", "surrogatepass"), 1.1 * billed
    return billed <= len(data) + SPECIALS and (most_pieces(data) <= enough or least_tokens(text) <= enough)


def _call_text(calls: tuple[ToolCall, ...]) -> str:
    return native_text(calls) or "".join(f"{'<|tool_call_begin|>' * 8}{c.id}{c.name}{c.arguments}" for c in calls)


def least_tokens(text: str) -> int:
    """Every piece is at least one token, every marker may be one."""
    markers = 0
    if _may_hold_markers(text):
        text, markers = MARKER.subn(" ", text)
    return markers + pieces(text.encode("utf-8", "surrogatepass"))


def estimated_tokens(text: str) -> int:
    """A guess for the ledger where no count came: 3.5 bytes a token, never under the pieces, never 0 for some text."""
    return max(least_tokens(text), -(-2 * len(text.encode("utf-8", "surrogatepass")) // 7)) if text else 0
