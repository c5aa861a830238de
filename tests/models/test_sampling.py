"""Sampling settings of one sample."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from models.plan import Choice, Sampling
from models.sampling import drawn


def test_fixed_values_are_sent_as_they_are_and_unset_ones_not_at_all():
    assert drawn(Sampling(temperature=0.7, top_k=40, seed=1), "k") == {"temperature": 0.7, "top_k": 40, "seed": 1}
    assert drawn(Sampling(), "k") == {}
    assert drawn(Sampling(temperature=0.0), "k") == {"temperature": 0.0}


@given(st.text())
def test_a_key_always_draws_the_same(key):
    sampling = Sampling(temperature=[Choice(value=0.2), Choice(value=1.0)], reasoning_effort=[Choice(value="low")])
    assert drawn(sampling, key) == drawn(sampling, key)
    assert drawn(sampling, key)["reasoning_effort"] == "low"


def test_weights_are_the_shares_of_many_keys():
    sampling = Sampling(temperature=[Choice(value=0.2, weight=1), Choice(value=0.6, weight=2), Choice(value=1.0, weight=7)])
    counts = Counter(drawn(sampling, f"key-{i}")["temperature"] for i in range(10_000))
    assert all(abs(counts[v] - share) < 300 for v, share in ((0.2, 1_000), (0.6, 2_000), (1.0, 7_000)))


def test_two_settings_of_one_sample_are_drawn_independently():
    halves = [Choice(value=0.0), Choice(value=1.0)]
    sampling = Sampling(temperature=halves, top_p=halves)
    pairs = Counter((d["temperature"], d["top_p"]) for d in (drawn(sampling, f"key-{i}") for i in range(4_000)))
    assert len(pairs) == 4
    assert min(pairs.values()) > 800


def test_an_empty_list_is_no_setting():
    assert drawn(Sampling(temperature=[]), "k") == {}


def test_each_answer_to_one_prompt_has_a_seed_of_its_own():
    sampling = Sampling(seed=7)
    assert [drawn(sampling, key)["seed"] for key in ("x", "x#a1", "x#a2#t3", "x#t3", "x#a")] == [7, 8, 9, 7, 7]
