from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest

from ops.board import charts
from ops.board.charts import Column, Curve, Part

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(("high", "marks"), [
    (0, [0, 1]), (4, [0, 1, 2, 3, 4]), (7, [0, 2, 4, 6, 8]), (100, [0, 25, 50, 75, 100]), (0.03, [0, 0.01, 0.02, 0.03])])
def test_marks_are_round_and_reach_the_highest_value(high, marks):
    assert charts.ticks(high) == pytest.approx(marks)


def test_a_bar_never_passes_its_whole():
    svg = ElementTree.fromstring(charts.bar([Part("a", 0.7, "seven"), Part("b", 0.9, "nine"), Part("c", 0.1, "none")], "B1"))
    drawn = [(r.get("class"), float(r.get("x")), float(r.get("width"))) for r in svg.iter("rect")][1:]
    assert drawn == [("dm-a", 0, 70), ("dm-b", 70, 30)]


def test_words_of_others_cannot_leave_a_chart():
    bad = "</title><script>\"'&"
    svg = charts.bar([Part("a", 1, bad)], bad) + charts.curves([NOON, NOON], [Curve("a", bad, [0, 1])], lambda v: bad, bad)
    svg += charts.columns([Column(bad, [("a", 1)])], lambda v: bad, bad, [bad])
    assert not [e for e in ElementTree.fromstring(f"<all>{svg}</all>").iter() if e.tag == "script"]


def test_a_limit_is_drawn_once_the_curve_comes_near_it():
    times = [NOON + timedelta(minutes=i) for i in range(3)]
    far, near = (charts.curves(times, [Curve("a", "a", [0, 1, top])], str, "a", limit=100) for top in (5, 60))
    assert "dm-limit" not in far
    assert "dm-limit" in near


def test_a_column_is_as_tall_as_its_value():
    svg = ElementTree.fromstring(charts.columns([Column("one", [("a", 1), ("b", 3)]), Column("none", [])], str, "x", ["0"]))
    tall = {r.get("class"): float(r.get("height")) for r in svg.iter("rect")}
    assert tall["dm-b"] == pytest.approx(3 * tall["dm-a"], abs=0.2)
