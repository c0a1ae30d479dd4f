"""How long answers usually get: never told too short, never more than an eighth too long, and bounded."""

import random
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from domain.lengths import MAX_TOKENS, MEMORY
from tenancy.estimate import MIN_ANSWERS, REFRESH, OutputQuantiles

CAP = 10**9


def noted(lengths: list[int], cap: int = CAP) -> OutputQuantiles:
    quantiles = OutputQuantiles()
    for length in lengths:
        quantiles.note("t", "m", length, cap)
    return quantiles


@given(st.lists(st.integers(0, 100_000), min_size=MIN_ANSWERS, max_size=MEMORY))
def test_95_in_100_answers_stay_within_it_and_it_is_at_most_an_eighth_too_long(lengths: list[int]) -> None:
    told = noted(lengths).usual("t", "m")
    assert told is not None
    known = sorted(lengths[: len(lengths) // REFRESH * REFRESH])
    exact = known[ceil(0.95 * len(known)) - 1]
    assert exact <= told <= exact * 9 / 8


def test_nothing_is_told_of_few_answers_or_of_other_pairs() -> None:
    assert noted([5] * (MIN_ANSWERS - 1)).usual("t", "m") is None
    quantiles = noted([5] * MIN_ANSWERS)
    assert (quantiles.usual("t", "m"), quantiles.usual("t", "other"), quantiles.usual("other", "m")) == (5, None, None)


def test_answers_cut_off_by_their_cap_never_make_it_shorter() -> None:
    """However many small caps a caller sets first: what an uncapped answer takes is not known from them."""
    assert noted([1] * 10_000, cap=1).usual("t", "m") is None
    quantiles = noted([500] * MIN_ANSWERS)
    before = quantiles.usual("t", "m")
    for _ in range(10_000):
        quantiles.note("t", "m", 1, 1)
    assert quantiles.usual("t", "m") == before


def test_answers_cut_off_by_a_higher_cap_make_it_longer() -> None:
    quantiles = noted([50] * MIN_ANSWERS)
    for _ in range(MIN_ANSWERS):
        quantiles.note("t", "m", 1000, 1000)
    assert (quantiles.usual("t", "m") or 0) >= 1000


def test_it_follows_when_answers_change() -> None:
    quantiles = noted([4000] * 5 * MEMORY)
    for _ in range(10 * MEMORY):
        quantiles.note("t", "m", 40, CAP)
    assert 40 <= (quantiles.usual("t", "m") or 0) <= 45


def test_the_pair_unused_for_longest_is_forgotten_first() -> None:
    quantiles = OutputQuantiles(max_pairs=2)
    for model in ("a", "b", "a", "c"):
        for _ in range(MIN_ANSWERS):
            quantiles.note("t", model, 7, CAP)
    assert len(quantiles) == 2
    assert [quantiles.usual("t", model) for model in ("a", "b", "c")] == [7, None, 7]


def test_the_longest_answers_share_a_bucket() -> None:
    assert noted([MAX_TOKENS * 3] * MIN_ANSWERS).usual("t", "m") == MAX_TOKENS


def test_a_steady_tail_is_not_lost_by_forgetting() -> None:
    """Eight in a hundred answers of 2,000 to 4,000 tokens, spread over many lengths, are still the 95th of a hundred later."""
    draw = random.Random(4)
    quantiles = OutputQuantiles()
    for _ in range(20 * MEMORY):
        quantiles.note("t", "m", draw.randint(2000, 4000) if draw.random() < 0.08 else 20, CAP)
    assert (quantiles.usual("t", "m") or 0) >= 2000
