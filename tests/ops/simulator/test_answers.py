import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.simulator import answers, corpus
from ops.simulator.behaviour import Behaviour, Lengths

TEXTS = corpus.synthetic(1)


def natural(number: int, *, opened: bool = False, **options: object) -> answers.Natural:
    return answers.natural(Behaviour(**options), number.to_bytes(8, "big"), opened=opened)


def lengths(**options: object) -> list[int]:
    return sorted(natural(i, **options).length for i in range(4_000))


def test_a_prompt_has_one_digest_whatever_the_order_of_its_keys() -> None:
    assert answers.digest([{"role": "user", "content": "é"}]) == answers.digest([{"content": "é", "role": "user"}])
    assert answers.digest([{"role": "user", "content": "a\ud800"}]) != answers.digest([{"role": "user", "content": "a"}])


def test_the_same_prompt_has_the_same_answer_and_another_has_another() -> None:
    assert natural(7) == natural(7)
    assert len({(a.reasoning_at, a.content_at, a.length) for a in map(natural, range(1_000))}) == 1_000


def test_uniform_lengths_fill_their_range() -> None:
    found = lengths(lengths=Lengths.UNIFORM, min_length=100, max_length=2_000)
    assert found[0] in range(100, 110)
    assert found[-1] in range(1_990, 2_001)
    assert 1_000 < found[2_000] < 1_100


def test_lognormal_lengths_are_heavy_tailed_around_their_median() -> None:
    found = lengths()
    assert 1_650 < found[2_000] < 1_950
    assert 0.02 < sum(n > 10_240 for n in found) / 4_000 < 0.05
    assert 2_500 < sum(min(n, 10_240) for n in found) / 4_000 < 3_000


def test_bimodal_lengths_have_two_humps_and_a_share_at_the_cap() -> None:
    found = lengths(lengths=Lengths.BIMODAL, min_length=50, max_length=10_050, cap_share=0.1)
    assert not [n for n in found if 3_000 < n < 7_000]
    assert 0.4 < sum(n < 3_000 for n in found) / 4_000 < 0.5
    assert 0.08 < sum(n == 10_050 for n in found) / 4_000 < 0.12


def test_a_fixed_length_is_exact_with_all_its_marks() -> None:
    for opened in (False, True):
        assert natural(1, opened=opened, lengths=Lengths.FIXED, max_length=77).length == 77


@given(number=st.integers(0, 10_000), cuts=st.lists(st.integers(1, 400), max_size=20), opened=st.booleans(),
       reasoning=st.sampled_from([0.0, 0.5]))
def test_parts_of_an_answer_join_to_the_whole(number: int, cuts: list[int], opened: bool, reasoning: float) -> None:
    answer = natural(number, opened=opened, lengths=Lengths.UNIFORM, min_length=2, max_length=900, reasoning_share=reasoning)
    whole, parts, begin = answers.cut(TEXTS, answer, answer.length), [], 0
    for limit in [*cuts, answer.length]:
        if begin < answer.length:
            parts.append(answers.cut(TEXTS, answer, limit, begin))
            begin += parts[-1].tokens
    for field in ("reasoning", "content", "sampled"):
        assert b"".join(getattr(p, field) for p in parts) == getattr(whole, field)
    assert b",".join(p.ids for p in parts) == whole.ids
    assert sum(p.reasoning_tokens for p in parts) == whole.reasoning_tokens == answer.reasoning
    assert [p.stopped for p in parts] == [False] * (len(parts) - 1) + [True]
    assert len(whole.ids.split(b",")) == whole.tokens == answer.length


@pytest.mark.parametrize("start", [0, corpus.SIZE - 3])
def test_a_slice_wraps_around_and_has_as_many_pieces_as_ids(start: int) -> None:
    count = 2 * corpus.SIZE + 5
    text, ids = TEXTS.slice(start, count)
    at = [(start + i) % corpus.SIZE for i in range(count)]
    assert json.loads(b'"%b"' % text) == "".join(TEXTS.pieces[i] for i in at)
    assert json.loads(b"[%b]" % ids[:-1]) == [TEXTS.ids[i] for i in at]


def test_the_texts_hold_code_emoji_chinese_and_line_separators() -> None:
    assert {"🦅", "我们", "\n    ", "\\", '"', "\u2028"} <= set(TEXTS.pieces)
