"""What each kind of evidence is worth, on answers as providers send them."""

from dataclasses import replace

import numpy as np
import pytest

from models.answer import Answer, ToolCall, Usage
from models.states import Grade
from models.tokens.calibrate import Convention, Edge, Offset
from models.tokens.model import Model
from models.tokens.verify import verify

HI = [{"role": "user", "content": "Hi"}]
SHAPES = [f"{s}:{h}{t}" for s in ("end", "cut") for h in ("think", "open", "plain") for t in ("", "+tools")]
EDGES = ("think_lead", "think_tail", "think_cut", "content_lead", "content_tail", "content_cut", "plain_lead", "inline_lead",
         "tools_gap")
THOUGHT, CONTENT = "The user greets me.\nI greet back.\n", "\n\nHello there! 你好 🦅"


def settled(model: Model, **edges: Edge) -> Convention:
    """A provider that bills every token and drops nothing, but for `edges`."""
    return Convention(model.version, {n: edges.get(n, Edge("raw", ("",))) for n in EDGES},
                      {s: Offset(0, 100, 1.0, "counted") for s in SHAPES})


def sampled(model: Model, thought: str | None, content: str, *tail: int) -> list[int]:
    """A Kimi answer's ids: its prompt opens the think block."""
    spell, added = model.vocabulary.spell, model.vocabulary.added
    return [*(spell(thought) if thought is not None else []), added["</think>"], *spell(content), *tail]


def answer(ids: list[int], **fields: object) -> Answer:
    return replace(Answer(content=CONTENT, reasoning=THOUGHT, reasoning_form="field", finish_reason="stop",
                          usage=Usage(prompt_tokens=10, completion_tokens=len(ids))), **fields)  # type: ignore[arg-type]


@pytest.fixture
def prompt(kimi: Model) -> np.ndarray:
    return kimi.prompt_ids(HI)


@pytest.fixture
def ids(kimi: Model) -> list[int]:
    return sampled(kimi, THOUGHT, CONTENT, 163586)


def test_a_text_answer_is_verified_when_one_candidate_has_the_billed_count(kimi, prompt, ids):
    row = kimi.row(answer(ids), prompt, convention=settled(kimi))
    assert (row.grade, row.candidates, row.delta, row.rule) == (Grade.VERIFIED, 1, 0, "")
    assert row.completion_ids.dtype == np.int32
    assert row.completion_ids.tolist() == ids
    assert [s.kind for s in row.spans] == ["reasoning", "marker", "content", "stop"]
    assert verify(row, kimi, answer(ids)) == []


def test_nothing_is_verified_before_the_provider_is_calibrated(kimi, prompt, ids):
    row = kimi.row(answer(ids), prompt)
    assert (row.grade, row.reason) == (Grade.DRIFT, "not calibrated")


def test_a_convention_of_another_profile_version_is_not_used(kimi, prompt, ids):
    row = kimi.row(answer(ids), prompt, convention=replace(settled(kimi), model="kimi-k2.5:older"))
    assert (row.grade, row.reason, row.version) == (Grade.DRIFT, "not calibrated", kimi.version)


def test_the_versions_of_rows_tell_conventions_apart(kimi, prompt, ids):
    one, other = settled(kimi), settled(kimi, think_lead=Edge("stripped", ("\n",)))
    assert kimi.row(answer(ids), prompt, convention=one).version == kimi.version_with(one) != kimi.version_with(other)


@pytest.mark.parametrize(("off", "grade"), [(1, Grade.DRIFT), (-2, Grade.DRIFT), (3, Grade.REJECTED), (-40, Grade.REJECTED)])
def test_a_count_that_differs_is_drift_up_to_a_bound_and_then_rejected(kimi, prompt, ids, off, grade):
    row = kimi.row(answer(ids, usage=Usage(10, len(ids) + off)), prompt, convention=settled(kimi))
    assert (row.grade, row.delta) == (grade, off)
    assert row.reason.startswith("the count differs")


def test_unknown_white_space_is_ambiguous_however_well_the_count_fits(kimi, prompt, ids):
    stripped = answer(ids, content=CONTENT.strip(), reasoning=THOUGHT.strip())
    unknown = settled(kimi, think_tail=Edge("unknown", ("", "\n")), content_lead=Edge("unknown", ("", "\n", "\n\n")))
    row = kimi.row(stripped, prompt, convention=unknown)
    assert row.grade is Grade.AMBIGUOUS
    assert row.candidates > 1
    assert row.rule


def test_known_white_space_is_put_back(kimi, prompt, ids):
    stripped = answer(ids, content=CONTENT.strip(), reasoning=THOUGHT.strip())
    known = settled(kimi, think_tail=Edge("stripped", ("\n",)), content_lead=Edge("stripped", ("\n\n",)))
    row = kimi.row(stripped, prompt, convention=known)
    assert row.grade is Grade.VERIFIED
    assert row.completion_ids.tolist() == ids


def test_reasoning_inside_content_is_taken_out(kimi, prompt, ids):
    inline = answer(ids, content=f"<think>{THOUGHT}</think>{CONTENT}", reasoning=None, reasoning_form="inline")
    row = kimi.row(inline, prompt, convention=settled(kimi))
    assert (row.grade, row.completion_ids.tolist()) == (Grade.VERIFIED, ids)


def test_one_end_marker_at_the_end_of_the_text_is_dropped(kimi, prompt, ids):
    row = kimi.row(answer(ids, content=CONTENT + "<|im_end|>"), prompt, convention=settled(kimi))
    assert (row.grade, row.completion_ids.tolist()) == (Grade.VERIFIED, ids)


@pytest.mark.parametrize("as_tokens", [True, False])
def test_the_count_says_whether_marker_text_was_a_token(kimi, prompt, as_tokens):
    text = "It writes <|tool_call_begin|> first."
    body = kimi.vocabulary.encode(text) if as_tokens else kimi.vocabulary.spell(text).tolist()
    ids = [*sampled(kimi, THOUGHT, ""), *body, 163586]
    row = kimi.row(answer(ids, content=text), prompt, convention=settled(kimi))
    assert (row.grade, row.completion_ids.tolist()) == (Grade.VERIFIED, ids)
    assert ("spelled out" in row.rule) is not as_tokens


def test_marker_text_that_the_count_does_not_resolve_is_rejected(kimi, prompt):
    ids = sampled(kimi, THOUGHT, "It writes <|im_end|> last.", 163586)
    given = answer(ids, content="It writes <|im_end|> last.", usage=Usage(10, len(ids) - 2))
    row = kimi.row(given, prompt, convention=settled(kimi))
    assert (row.grade, row.reason) == (Grade.REJECTED, "marker text that the count does not resolve")


def cut(kimi: Model, text: str, keep: int) -> tuple[list[int], Answer]:
    ids = sampled(kimi, THOUGHT, text)[:keep]
    shown = kimi.decode(ids).decode("utf-8", "replace").split("</think>", 1)
    return ids, answer(ids, reasoning=shown[0], content=shown[1], finish_reason="length")


def test_a_cut_answer_has_no_end_token(kimi, prompt):
    ids, given = cut(kimi, "One sentence. Then another one", -1)
    row = kimi.row(given, prompt, convention=settled(kimi), truncated=True)
    assert (row.grade, row.completion_ids.tolist(), row.spans[-1].kind) == (Grade.VERIFIED, ids, "content")


def test_an_answer_cut_inside_its_thought_has_no_think_marker(kimi, prompt):
    ids = kimi.vocabulary.spell("Let me think about this for a while, since").tolist()
    given = answer(ids, reasoning="Let me think about this for a while, since", content="", finish_reason="length")
    row = kimi.row(given, prompt, convention=settled(kimi), truncated=True)
    assert (row.grade, row.completion_ids.tolist(), [s.kind for s in row.spans]) == (Grade.VERIFIED, ids, ["reasoning"])


def test_the_tail_of_a_cut_character_is_trimmed_and_the_row_is_drift(kimi, prompt):
    ids, given = cut(kimi, "One sentence. Then a bird 🦅", -1)
    assert given.content.endswith("\ufffd")
    row = kimi.row(given, prompt, convention=settled(kimi), truncated=True)
    assert (row.grade, row.reason) == (Grade.DRIFT, "cut inside a character")
    assert 0 < len(row.completion_ids) < len(ids)
    assert row.completion_ids.tolist() == ids[:len(row.completion_ids)]


def test_a_cut_that_may_hide_half_a_character_is_ambiguous(kimi, prompt):
    ids, given = cut(kimi, "a bird 🦅", -2)
    assert kimi.decode(ids[-1:]) == b" \xf0\x9f"
    row = kimi.row(replace(given, content="a bird "), prompt, convention=settled(kimi), truncated=True)
    assert row.grade is Grade.AMBIGUOUS


@pytest.mark.parametrize(("fields", "reason"), [
    ({"usage": Usage(10, None)}, "no usage"),
    ({"finish_reason": "content_filter"}, "finish reason content_filter"),
    ({"finish_reason": ""}, "finish reason missing"),
    ({"reasoning": None, "reasoning_form": "hidden"}, "reasoning is hidden"),
    ({"content": "a \ufffd b"}, "a replacement character stands in the text"),
    ({"content": "a \udc80 b"}, "a lone surrogate stands in the text"),
])
def test_what_cannot_be_rebuilt_is_rejected_with_its_reason(kimi, prompt, ids, fields, reason):
    row = kimi.row(answer(ids, **fields), prompt, convention=settled(kimi))
    assert (row.grade, row.reason) == (Grade.REJECTED, reason)


def test_text_that_the_vocabulary_cannot_spell_is_rejected(smollm2):
    given = Answer(content="a \U00040000 b", finish_reason="stop", usage=Usage(5, 6))
    row = smollm2.row(given, smollm2.prompt_ids(HI), convention=settled(smollm2))
    assert (row.grade, row.reason) == (Grade.REJECTED, "the vocabulary cannot spell the text")


CALLS = (ToolCall("functions.look:0", "look", '{"city": "Tokyo"}'), ToolCall("functions.now:1", "now", "{}"))
SECTION = ("<|tool_calls_section_begin|>"
           '<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{"city": "Tokyo"}<|tool_call_end|>'
           "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>")


def called(kimi: Model, **fields: object) -> tuple[list[int], Answer]:
    ids = [*sampled(kimi, THOUGHT, "\n\nBoth."), *kimi.vocabulary.encode(SECTION), 163586]
    return ids, answer(ids, content="\n\nBoth.", tool_calls=CALLS, finish_reason="tool_calls", **fields)


def test_parsed_calls_with_the_models_own_ids_are_exact(kimi, prompt):
    ids, given = called(kimi)
    row = kimi.row(given, prompt, convention=settled(kimi))
    assert (row.grade, row.completion_ids.tolist()) == (Grade.VERIFIED, ids)
    assert [s.kind for s in row.spans] == ["reasoning", "marker", "content", "tools", "stop"]


def test_calls_with_the_servers_ids_are_never_verified_and_the_rule_says_why(kimi, prompt):
    ids, given = called(kimi)
    renamed = replace(given, tool_calls=tuple(replace(c, id="call_9f3a") for c in CALLS))
    row = kimi.row(renamed, prompt, convention=settled(kimi))
    assert (row.grade, row.rule) == (Grade.AMBIGUOUS, "call ids rebuilt from 0")
    assert row.completion_ids.tolist() == ids


def test_arguments_a_parser_wrote_anew_are_found_but_not_verified(kimi, prompt):
    ids, given = called(kimi)
    compact = replace(given, tool_calls=(replace(CALLS[0], arguments='{"city":"Tokyo"}'), CALLS[1]))
    row = kimi.row(compact, prompt, convention=settled(kimi))
    if row.completion_ids.tolist() == ids:
        assert (row.grade, row.rule) == (Grade.AMBIGUOUS, "arguments spaced")
    assert row.grade < Grade.VERIFIED


def test_tool_text_left_in_content_is_a_tools_span(kimi, prompt):
    ids, given = called(kimi)
    row = kimi.row(replace(given, content="\n\nBoth." + SECTION, tool_calls=()), prompt, convention=settled(kimi))
    assert (row.grade, row.completion_ids.tolist()) == (Grade.VERIFIED, ids)
    assert [s.kind for s in row.spans] == ["reasoning", "marker", "content", "tools", "stop"]


def test_a_thought_that_goes_straight_to_tools_has_no_think_marker(kimi, prompt):
    ids = [*kimi.vocabulary.spell(THOUGHT), *kimi.vocabulary.encode(SECTION), 163586]
    given = answer(ids, content="", tool_calls=CALLS, finish_reason="tool_calls")
    row = kimi.row(given, prompt, convention=settled(kimi))
    assert (row.completion_ids.tolist(), row.rule) == (ids, "end of thought implied")
    assert (row.grade, row.candidates) == (Grade.AMBIGUOUS, 2)      # or a parser wrote the arguments anew
    as_compact = tuple(replace(c, arguments=c.arguments.replace(" ", "")) for c in CALLS)
    ids = [*kimi.vocabulary.spell(THOUGHT), *kimi.vocabulary.encode(SECTION.replace(": ", ":")), 163586]
    row = kimi.row(answer(ids, content="", tool_calls=as_compact, finish_reason="tool_calls"), prompt, convention=settled(kimi))
    assert (row.grade, row.completion_ids.tolist()) == (Grade.VERIFIED, ids)


def test_true_bytes_of_every_token_are_ids(kimi, prompt, ids):
    listed = tuple(kimi.vocabulary.table[i] for i in ids)
    for items in (listed, listed[:-1], (*listed[:-1], b"")):
        row = kimi.row(answer(ids, token_bytes=items), prompt)
        assert (row.grade, row.completion_ids.tolist()) == (Grade.LOGPROBS, ids)


def test_bytes_show_a_path_that_text_cannot(kimi, prompt):
    ids = [*kimi.vocabulary.spell(THOUGHT), 163607, *[kimi.vocabulary.id_of[c] for c in (b"He", b"ll", b"o")], 163586]
    given = answer(ids, content="Hello", token_bytes=tuple(kimi.vocabulary.table[i] for i in ids))
    assert kimi.row(given, prompt).completion_ids.tolist() == ids


@pytest.mark.parametrize("spoil", [
    lambda items: items[:3] + items[4:],                                        # one is missing
    lambda items: (*items[:2], b"\xef\xbf\xbd", *items[3:]),                    # decoded with replacement first
    lambda items: (*items[:2], items[2] + items[3], *items[4:]),                # two in one item
    lambda items: tuple(i for i in items[items.index(b"</think>") + 1:]),       # content alone, the reasoning has none
])
def test_bytes_that_are_not_the_whole_text_are_not_believed(kimi, prompt, ids, spoil):
    listed = tuple(kimi.vocabulary.table[i] for i in ids)
    row = kimi.row(answer(ids, token_bytes=spoil(listed)), prompt, convention=settled(kimi))
    assert row.grade is Grade.VERIFIED      # by text


def test_a_prompt_that_differs_from_the_bill_says_by_how_much(kimi, prompt, ids):
    row = kimi.row(answer(ids, usage=Usage(len(prompt) + 7, len(ids))), prompt, convention=settled(kimi))
    assert row.prompt_delta == 7
