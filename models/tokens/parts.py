"""An answer taken apart into what the model sampled one after the other: thought, content, tool calls."""

from dataclasses import dataclass

from models.answer import Answer, ToolCall
from models.tokens.profile import Profile
from models.tokens.vocabulary import Vocabulary

CUT = "\ufffd"


@dataclass(frozen=True, slots=True)
class Parts:
    """An answer taken apart. form: field | inline | none, where its reasoning was.

    trimmed: text dropped with a cut character, since its ids cannot be known. begun: there was content before that.
    """

    thought: str | None
    content: str
    calls: tuple[ToolCall, ...]
    form: str
    trimmed: str = ""
    begun: bool = False


def part(answer: Answer, profile: Profile, vocabulary: Vocabulary, truncated: bool) -> Parts:
    """Two rewrites happen here: an inline think block is taken out, and one end marker's text at the very end is dropped."""
    thought, content, form = answer.reasoning, answer.content, "field" if answer.reasoning is not None else "none"
    if not truncated and content.endswith(profile.stop):
        content = content[: -len(profile.stop)]
    if thought is None and profile.think and profile.think.close in content:
        thought, content = content.split(profile.think.close, 1)
        thought, form = thought.removeprefix(profile.think.open), "inline"
    last, trimmed, begun = content or thought or "", "", bool(content)
    if truncated and not answer.tool_calls and last.endswith(CUT):
        kept = vocabulary.stable(last.rstrip(CUT))
        trimmed = last[len(kept):]
        thought, content = (thought, kept) if content else (kept, content)
    return Parts(thought, content, answer.tool_calls, form, trimmed, begun)


def edges_of(parts: Parts, truncated: bool, opened: bool) -> dict[str, str]:
    """The edges of an answer's fields at which white space can have been dropped, with the white space that is there."""
    found: dict[str, str] = {}
    tail = "content_cut" if truncated else "tools_gap" if parts.calls else "content_tail"
    if parts.form == "field" and parts.thought:
        found["think_lead"] = lead_of(parts.thought)
        found["think_tail" if parts.begun or parts.calls or not truncated else "think_cut"] = tail_of(parts.thought)
    elif parts.form == "inline" and opened:
        found["inline_lead"] = lead_of(parts.thought or "")
    if parts.content and parts.form == "none" and opened and truncated:
        found["inline_lead"], tail = lead_of(parts.content), "think_cut"
    elif parts.content and parts.form != "inline":
        found["content_lead" if parts.thought is not None or opened else "plain_lead"] = lead_of(parts.content)
    if parts.content:
        found[tail] = tail_of(parts.content)
    # What stands before a dropped cut is not an edge of the field.
    return {name: space for name, space in found.items() if not (parts.trimmed and name.endswith("_cut"))}


def lead_of(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]


def tail_of(text: str) -> str:
    return text[len(text.rstrip()):]
