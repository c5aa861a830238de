"""A provider that drifts from the others."""

from dataclasses import replace

import pytest

from models.health import Health, drifted

GOOD = Health("A", calls=300, ok=290, rows=290, mismatched=1, cut=20, refused=2)


@pytest.mark.parametrize(("changes", "reason"), [
    ({"ok": 30, "rows": 30}, "calls that fail"), ({"mismatched": 60}, "counts that do not match"),
    ({"off_plan": 60}, "answers off the plan"),
    ({"cut": 150}, "answers that are cut"), ({"refused": 90}, "answers that are refusals")])
def test_one_that_is_worse_than_the_others_is_left_out_with_the_reason(changes, reason):
    found = drifted([GOOD, replace(GOOD, provider="B"), replace(GOOD, provider="C", **changes)])
    assert list(found) == ["C"]
    assert found["C"].startswith(reason)


def test_what_all_have_in_common_excludes_nobody():
    assert drifted([replace(GOOD, provider=name, mismatched=200, cut=200, refused=100) for name in "ABC"]) == {}


def test_few_calls_say_nothing():
    assert drifted([GOOD, Health("B", calls=20, ok=0, rows=0, mismatched=0, cut=0, refused=0)]) == {}


def test_a_difference_that_may_be_chance_or_does_not_matter_says_nothing():
    assert drifted([GOOD, replace(GOOD, provider="B", calls=40, ok=32, rows=32, mismatched=2, cut=4)]) == {}
    assert drifted([replace(GOOD, calls=100_000, ok=99_000, rows=99_000),
                    replace(GOOD, provider="B", calls=100_000, ok=95_000, rows=95_000, mismatched=4_000, cut=20)]) == {}


def test_the_best_one_stays_and_nobody_drifts_alone():
    assert drifted([]) == {}
    assert drifted([replace(GOOD, ok=0)]) == {}
    left = drifted([replace(GOOD, mismatched=280), replace(GOOD, provider="B", calls=4_000, ok=40, rows=40)])
    assert len(left) <= 1
