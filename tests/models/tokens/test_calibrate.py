"""What is learned of a provider from its replies, and what is not believed."""

import json
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from models.answer import Usage
from models.tokens.calibrate import Convention, Offset, learn_edges, learn_offsets, learn_prompt
from models.tokens.model import Sample
from models.tokens.replay import Style, replay
from ops.bench import truth

CLEAN = [("end:think", 0, True)]


def test_an_offset_is_settled_by_95_percent_of_50_rows():
    assert learn_offsets(CLEAN * 50)["end:think"].settled
    assert not learn_offsets(CLEAN * 49)["end:think"].settled
    assert learn_offsets(CLEAN * 57 + [("end:think", 1, True)] * 3)["end:think"].settled
    assert not learn_offsets(CLEAN * 56 + [("end:think", 1, True)] * 4)["end:think"].settled


def test_an_offset_beyond_any_counting_convention_is_not_settled():
    assert not learn_offsets([("end:think", 37, True)] * 100)["end:think"].settled


def test_rows_with_open_white_space_settle_nothing_however_well_they_agree():
    found = learn_offsets([("end:think", 1, False)] * 500)
    assert not found["end:think"].settled
    assert found["end:think"].basis == "none"


def test_while_white_space_is_open_cut_answers_show_whether_the_end_token_is_billed():
    for billed, delta in ((0, 1), (-1, 0)):
        found = learn_offsets([("end:think", delta, False)] * 60 + [("cut:think", 1, False)] * 20)
        assert found["end:think"] == Offset(billed, 60, 1.0, "assumed")
        assert not found["end:think"].settled


def test_rare_shapes_follow_from_a_common_one_that_is_billed_in_full():
    found = learn_offsets(CLEAN * 60)
    assert found["cut:open"] == Offset(0, 0, 0.0, "implied")
    unbilled = learn_offsets([("end:think", -1, True)] * 60)
    assert "cut:open" not in unbilled       # the end token or the marker: nobody knows
    known = learn_offsets([("end:think", -1, True)] * 60 + [("cut:think", 0, True)] * 10)
    assert (known["cut:open"].delta, known["end:open"].delta) == (0, -1)


def test_a_rare_shape_that_disagrees_is_not_implied():
    found = learn_offsets(CLEAN * 60 + [("cut:think", -1, True)] * 5)
    assert not found["cut:think"].settled


def seen(**edges: dict[str, int]) -> dict[str, Counter[str]]:
    return {name: Counter(found) for name, found in edges.items()}


def test_white_space_seen_in_a_text_shows_that_it_is_not_dropped():
    edges = learn_edges(seen(content_lead={"\n\n": 3, "": 40}), {})
    assert edges["content_lead"].mode == edges["content_tail"].mode == "raw"


def test_a_field_whose_end_is_as_sampled_may_still_be_trimmed_at_its_start():
    edges = learn_edges(seen(content_lead={"": 50}, content_tail={"\n": 9, "": 41}), {})
    assert edges["content_tail"].settled
    assert not edges["content_lead"].settled


def test_dropped_white_space_is_known_only_from_rows_with_known_ids():
    texts, true = seen(content_lead={"": 60}), seen(content_lead={"\n\n": 120})
    assert learn_edges(texts, {})["content_lead"].mode == "unknown"
    assert learn_edges(texts, seen(content_lead={"\n\n": 99}))["content_lead"].mode == "unknown"
    known = learn_edges(texts, true)["content_lead"]
    assert (known.mode, known.options, known.settled) == ("stripped", ("\n\n",), True)


def test_a_model_that_varies_its_white_space_leaves_a_trimmed_edge_open():
    edge = learn_edges(seen(content_lead={"": 60}), seen(content_lead={"\n\n": 90, "\n": 30}))["content_lead"]
    assert not edge.settled
    assert edge.options == ("\n\n", "\n", "")


def test_where_a_model_never_puts_white_space_there_is_none_to_drop():
    assert learn_edges(seen(think_lead={"": 60}), seen(think_lead={"": 120}))["think_lead"].settled


def test_where_a_cut_falls_is_not_a_habit():
    assert not learn_edges(seen(content_cut={"": 60}), seen(content_cut={"": 500}))["content_cut"].settled


def test_an_injected_system_prompt_shows_in_the_prompt_counts():
    assert learn_prompt([12] * 60) == Offset(12, 60, 1.0, "counted")
    assert learn_prompt([]) == Offset()


def test_what_a_provider_adds_to_prompts_is_told(kimi):
    rows = truth.rows(kimi, Random(3), 60, 0.0, truth.STEADY, False, 1)
    answers = [replay(kimi.rebuilder, r, False, Style("raw")) for r in rows]
    for added in (0, 12):
        samples = [Sample(replace(a, usage=replace(a.usage, prompt_tokens=len(r.prompt_ids) + added)), r.prompt_ids, False)
                   for a, r in zip(answers, rows, strict=True)]
        [line] = [x for x in kimi.learn(samples)["stop"].describe() if x.startswith("prompts")]
        assert line.startswith(f"prompts: billed - rendered = +{added} in 100% of 60 rows")
        assert ("prompt of its own" in line) is bool(added)


@pytest.mark.parametrize("style", [
    Style("strips", strip=True), Style("raw", stop_billed=False), Style("blind", strip=True, known=False)])
def test_a_convention_survives_json(kimi, style):
    rows = truth.rows(kimi, Random(3), 150, 0.0, truth.STEADY, False, 2)
    cut = [r.spans[-1].kind != "stop" for r in rows]
    samples = [Sample(replay(kimi.rebuilder, r, c, style), r.prompt_ids, c) for r, c in zip(rows, cut, strict=True)]
    for convention in kimi.learn(samples, rows if style.known else ()).values():
        again = Convention.from_json(json.loads(json.dumps(convention.to_json())))
        assert again == convention
        assert again.version == convention.version
        assert convention.describe()
        assert convention.settled is style.known


def test_answers_without_usage_teach_nothing(kimi):
    rows = truth.rows(kimi, Random(3), 60, 0.0, truth.STEADY, False, 2)
    answers = [replay(kimi.rebuilder, r, False, Style("raw")) for r in rows]
    bare = [Sample(replace(a, usage=Usage()), r.prompt_ids, False) for a, r in zip(answers, rows, strict=True)]
    assert not kimi.learn(bare, rows)["stop"].settled
