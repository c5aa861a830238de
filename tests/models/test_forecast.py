"""The life table: what it may never say, and where a run lands that believes it."""

import heapq
import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.forecast import BUCKETS, bucket, counted, edges, forecast

CAP = 10_240
sizes = st.lists(st.floats(1, CAP - 1), max_size=60)


def examined(*examples):
    return lambda test: settings(deadline=None)(given(*examples)(test))


def said(finished=(), capped=0, cut=(), running=(), cap=CAP):
    bounds = edges(cap)
    return forecast(cap, counted(finished, bounds), capped, counted(cut, bounds), counted(running, bounds))


@examined(st.integers(1, 1_000_000))
def test_edges_rise_from_zero_to_the_cap(cap):
    bounds = edges(cap)
    assert len(bounds) == BUCKETS + 1
    assert bounds[0] == 0
    assert math.isclose(bounds[-1], cap)
    assert all(a < b for a, b in pairwise(bounds))


@examined(st.floats(0, 2 * CAP))
def test_a_size_lies_in_its_bucket(size):
    bounds = edges(CAP)
    b = bucket(size, bounds)
    assert bounds[b] <= size < bounds[b + 1] or (b == BUCKETS - 1 and size >= bounds[-2])


@examined(sizes, st.integers(0, 50), sizes, sizes)
def test_a_forecast_is_never_negative_and_never_above_the_cap_for_each_sample(finished, capped, cut, running):
    f = said(finished, capped, cut, running)
    assert 0 < f.expected <= CAP
    assert sum(running) - 1e-6 <= f.in_flight <= CAP * len(running) + 1e-6
    assert f.sd >= 0
    assert math.isfinite(f.sd)
    assert f.sd <= CAP * (len(running) + 1)


@examined(sizes, st.integers(0, 50), sizes, sizes, st.floats(1, CAP - 1))
def test_one_more_in_flight_is_committed_as_more(finished, capped, cut, running, one):
    before, after = said(finished, capped, cut, running), said(finished, capped, cut, [*running, one])
    assert after.in_flight >= before.in_flight - 1e-6


@examined(sizes, st.integers(0, 50), sizes, sizes)
def test_an_answer_at_the_cap_never_lowers_what_is_expected(finished, capped, cut, running):
    assert said(finished, capped + 1, cut, running).expected >= said(finished, capped, cut, running).expected - 1e-6


@examined(sizes, sizes, st.floats(1, CAP - 1))
def test_a_lost_answer_never_lowers_what_is_expected(finished, cut, lost):
    assert said(finished, 3, [*cut, lost]).expected >= said(finished, 3, cut).expected - 1e-6


@examined(st.floats(1, CAP - 1), st.floats(0, 1))
def test_the_longer_an_answer_has_run_the_more_it_costs_in_the_end(size, share):
    known = [200.0] * 300 + [4_000.0] * 100
    shorter, longer = (said(known, 5, (), [s]).in_flight for s in (size * share, size))
    assert shorter <= longer + 1e-6


def test_nothing_known_costs_nearly_the_cap():
    assert 0.9 * CAP < said().expected <= CAP


def test_many_known_answers_give_their_mean():
    dice = random.Random(1)
    known = [min(CAP - 1, dice.lognormvariate(7, 1)) for _ in range(20_000)]
    assert said(known).expected == pytest.approx(sum(known) / len(known), rel=0.05)


def test_a_tiny_cap_is_no_special_case():
    assert 0 < said([3.0] * 50, 5, (), [1.0, 9.0], cap=10).expected <= 10


# -- where a run lands -------------------------------------------------------------------------------------------------

def lognormal(dice):
    return min(CAP, max(50, dice.lognormvariate(7.4, 1.05)))


def bimodal(dice):
    return min(CAP, max(50, dice.gauss(400, 120) if dice.random() < 0.7 else dice.gauss(8_000, 1_200)))


def landed(draw, budget, in_flight, seed, *, kills=0.0):
    """(tokens stored, most in flight) of a run whose claims believe the forecast: one lane, a refresh each second, 100 tokens/s.

    kills: share of calls that are lost half way and asked again.
    """
    dice, bounds = random.Random(seed), edges(CAP)
    now, stored, committed, expected, most = 0.0, 0.0, 0.0, float(CAP), 0
    running, finished, cut, capped = {}, [], [], 0
    ends = []

    def start(n):
        nonlocal most
        for _ in range(n):
            size = draw(dice)
            lost = dice.random() < kills
            end = now + size * (0.5 if lost else 1.0) / 100
            key = (end, len(finished), dice.random())
            running[key] = (now, size, lost)
            heapq.heappush(ends, key)
        most = max(most, len(running))

    while True:
        f = forecast(CAP, counted(finished, bounds), capped, counted(cut, bounds),
                     counted([min(0.999 * CAP, (now - t) * 100) for t, _, _ in running.values()], bounds))
        committed, expected = stored + f.in_flight + f.sd, f.expected
        until = now + 1.0
        while True:
            n = min(in_flight - len(running), max(0, int((budget - committed) // expected)))
            start(n)
            committed += n * expected
            if not ends or ends[0][0] > until:
                break
            key = heapq.heappop(ends)
            now = key[0]
            _, size, lost = running.pop(key)
            if lost:
                cut.append(size / 2)
            else:
                stored += size
                if size >= CAP:
                    capped += 1
                else:
                    finished.append(size)
        now = until
        if not running and budget - stored < expected:
            return stored, most


@pytest.mark.parametrize("draw", [lognormal, bimodal])
@pytest.mark.parametrize("seed", range(3))
def test_a_million_tokens_at_five_hundred_in_flight_land_within_one_percent(draw, seed):
    stored, most = landed(draw, 1_000_000, 500, seed)
    assert 0.99 <= stored / 1_000_000 <= 1.01
    assert most > 50


@pytest.mark.parametrize("seed", range(2))
def test_lost_calls_do_not_make_it_miss(seed):
    stored, _ = landed(lognormal, 1_000_000, 500, seed, kills=0.2)
    assert 0.99 <= stored / 1_000_000 <= 1.01


@pytest.mark.parametrize("draw", [lognormal, bimodal])
@pytest.mark.parametrize("seed", range(5))
def test_ten_million_tokens_at_two_thousand_in_flight_land_within_one_percent(draw, seed):
    stored, _ = landed(draw, 10_000_000, 2_000, seed)
    assert 0.99 <= stored / 10_000_000 <= 1.01

