"""What holds for any answer, whatever its text."""

import numpy as np
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from models.answer import Answer, Usage
from models.states import Grade
from models.tokens.calibrate import Convention, Edge, Offset
from models.tokens.model import Model
from models.tokens.row import Row
from models.tokens.verify import verify

ANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\ufffd"), max_size=60) | st.text(
    st.sampled_from("ab I'sS .!\n\r\t \u3000é推测解🦅👩\u200d1２ि<|>/think"), max_size=60)
EDGES = ("think_lead", "think_tail", "think_cut", "content_lead", "content_tail", "content_cut", "plain_lead", "inline_lead")
SHAPES = ("end:plain", "end:think", "end:open", "cut:plain", "cut:think", "cut:open")


def raw(model: Model) -> Convention:
    """A provider that drops nothing and bills every token."""
    return Convention(model.version, {n: Edge("raw", ("",)) for n in EDGES}, {s: Offset(0, 100, 1.0, "counted") for s in SHAPES})


def asked(model: Model) -> np.ndarray:
    return model.prompt_ids([{"role": "user", "content": "Hi"}])


def whole(model: Model, thought: str, content: str) -> list[int]:
    """The ids of an answer as a model of this profile samples it."""
    spell, rebuilder = model.vocabulary.spell, model.rebuilder
    if rebuilder.close < 0:
        return [*spell(content), rebuilder.stop]
    opened = [] if rebuilder.inside(asked(model)) else [rebuilder.open]
    return [*opened, *spell(thought), rebuilder.close, *spell(content), rebuilder.stop]


def shown(model: Model, thought: str, content: str, ids: list[int], finish: str = "stop", **fields: object) -> Answer:
    """The reply to those ids, its reasoning in a field of its own."""
    form = ("field", thought) if model.profile.think and thought else ("none", None)
    return Answer(content=content, reasoning=form[1], reasoning_form=form[0], finish_reason=finish,
                  usage=Usage(len(asked(model)), len(ids)), **fields)  # type: ignore[arg-type]


def covered(row: Row) -> bool:
    ends = [0, *(s.end for s in row.spans)]
    return [s.start for s in row.spans] == ends[:-1] and ends[-1] == len(row.completion_ids)


def spelled(model: Model, *texts: str) -> bool:
    """Whether the texts have ids that are theirs alone: no marker in them, no byte that the vocabulary lacks."""
    vocabulary = model.vocabulary
    return all(not vocabulary.marker.search(t) and model.decode(vocabulary.spell(t)) == t.encode() for t in texts)


@ANY
@given(thought=TEXTS, content=TEXTS)
@example("Hm. \n", "\n\n 🦅 done.\n")
def test_a_row_rebuilt_from_text_decodes_to_its_text_and_its_spans_cover_it(model, thought, content):
    assume(spelled(model, thought, content))
    ids = whole(model, thought, content)
    answer = shown(model, thought, content, ids)
    row = model.row(answer, asked(model), convention=raw(model))
    assert covered(row)
    if row.grade is Grade.VERIFIED:
        assert row.completion_ids.tolist() == ids
    think, rebuilder = model.profile.think, model.rebuilder
    inner = [i for i in row.completion_ids.tolist() if i not in (rebuilder.open, rebuilder.close, rebuilder.stop)]
    assert model.decode(inner).decode() == (thought if think else "") + content
    assert verify(row, model, answer) == []


@ANY
@given(thought=TEXTS, content=TEXTS)
def test_a_row_of_an_engine_keeps_its_ids_and_they_are_its_text(model, thought, content):
    assume(spelled(model, thought, content))
    ids = whole(model, thought, content)
    answer = shown(model, thought, content, ids, completion_ids=np.asarray(ids, np.int32))
    row = model.row(answer, asked(model))
    assert (row.grade, row.completion_ids.tolist()) == (Grade.ENGINE, ids)
    assert covered(row)
    assert verify(row, model, answer) == []


def inside_a_character(model: Model, ids: list[int]) -> list[int]:
    """Lengths at which a cut leaves an unfinished character at the end of the text."""
    return [n for n in range(1, len(ids)) if model.decode(ids[:n]).decode("utf-8", "replace").endswith("\ufffd")]


ODD = st.sampled_from(["🦅", "👩\u200d💻", "🇯🇵", "\U00020bb7", "推𠮷", "☃\ufe0f", "ꙮ", "\U0001f9ff"])


@ANY
@given(before=TEXTS, odd=ODD, after=TEXTS, pick=st.integers(0, 9), in_thought=st.booleans(), held=st.booleans())
@example("a bird ", "🦅", "", 0, False, False)
@example("done.\n\n", "🦅", "", 0, True, True)
@example("\t\t0:", "🦅", "", 0, False, False)
def test_trimming_a_cut_character_invents_no_token(model, before, odd, after, pick, in_thought, held):
    """What is kept of the cut answer is a beginning of what was sampled, unless its grade says that it may not be."""
    in_thought &= model.profile.think is not None
    text = before + odd + after
    assume(spelled(model, text))
    head = [i for i in whole(model, "" if in_thought else "Hm.\n", "")[:-1] if not in_thought or i != model.rebuilder.close]
    body = model.vocabulary.spell(text).tolist()
    places = inside_a_character(model, body)
    assume(places)
    body = body[:places[pick % len(places)]]
    sampled, text = head + body, model.decode(body).decode("utf-8", "replace")
    seen = text.rstrip("\ufffd") if held else text
    assume(seen and "\ufffd" not in seen.rstrip("\ufffd"))
    answer = shown(model, seen if in_thought else "Hm.\n", "" if in_thought else seen, sampled, "length")
    row = model.row(answer, asked(model), convention=raw(model), truncated=True)
    kept = row.completion_ids.tolist()
    assert covered(row)
    assert not set(kept) & model.end_ids
    assert row.grade < Grade.VERIFIED
    assert verify(row, model, answer, truncated=True) == []
    if not held:
        assert row.grade <= Grade.DRIFT
        assert kept == sampled[:len(kept)]
