"""The count of pieces against the regular expression that says what a piece is."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from workers.providers.pieces import most_pieces, pieces
from workers.providers.soundness import least_tokens

PIECE = re.compile(r"[!-/:-@\[-`{-~]?[A-Za-z\u0080-\U0010ffff]+|[0-9]+|[!-/:-@\[-`{-~]+")
MARKERS = ("<|im_end|>", "<|tool_calls_section_begin|>", "<｜end▁of▁sentence｜>", "<start_of_turn>", "<end_of_turn>", "[EOS]",
           "[BOS]", "[EOT]", "[PAD]", "<think>", "</think>")


@given(st.text(st.one_of(st.sampled_from("aZ09 .(<_\n\t\x00\x7f"), st.characters(exclude_categories=()))))
@example("")
@example("((a. .b 12-ab3 _x__y é中 \ud800")
def test_pieces_are_counted_as_the_expression_finds_them(text):
    assert pieces(text.encode("utf-8", "surrogatepass")) == len(PIECE.findall(text))


@given(st.text(st.one_of(st.sampled_from("aZ09 .(<_\n\t\x00\x7f"), st.characters(exclude_categories=()))))
@example("<think>a</think>[EOS]<|im_end|>b")
def test_what_pieces_and_markers_can_be_at_most_is_never_less_than_they_are(text):
    data = text.encode("utf-8", "surrogatepass")
    assert most_pieces(data) >= max(pieces(data), least_tokens(text))


@given(st.lists(st.one_of(st.sampled_from(MARKERS), st.text("ab1 ", max_size=3))))
def test_every_marker_is_one_token_and_parts_the_pieces_around_it(parts):
    text = "".join(f" {part} " for part in parts)
    words = re.sub("|".join(map(re.escape, MARKERS)), " ", text)
    assert least_tokens(text) == len(PIECE.findall(words)) + sum(part in MARKERS for part in parts)
