"""The line and the audits behind it."""

from math import exp, inf, isclose
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.semantic.control import FIRST_AUDIT, FIRST_AUDITS, LEAST_PROOF, HitControl, chance_of, wilson
from cache.semantic.pooled import Weighed

DAY = 86_400.0


def control(delta: float = 0.01) -> HitControl:
    return HitControl(delta, 0.03, 7 * DAY)


def weighed(count: int, wrong_below: float) -> list[Weighed]:
    """Scores from 0 to 10, all right from `wrong_below` on, and none below."""
    return [Weighed(10 * place / count, 10 * place / count >= wrong_below, 1.0) for place in range(count)]


def test_without_enough_observations_nothing_is_given() -> None:
    held = control()
    held.redraw([])
    assert held.line == inf
    held.redraw([Weighed(9.0, True, 1.0)] * (LEAST_PROOF - 1))
    assert held.line == inf
    held.redraw([Weighed(3.0, True, 1.0)] * LEAST_PROOF)
    assert held.line == 3.0


def test_a_line_never_asks_for_more_than_a_quarter_of_the_bound() -> None:
    held = control()
    held.redraw([Weighed(30.0, True, 1.0)] * LEAST_PROOF)
    assert isclose(1 / (1 + exp(held.line)), 0.0025)


def test_the_line_is_where_answers_begin_to_be_wrong() -> None:
    held = control()
    held.redraw(weighed(1000, 5.0))
    assert 4.8 < held.line < 5.0


@given(st.integers(0, 10_000), st.floats(0.001, 0.2), st.floats(0.001, 0.2))
def test_a_larger_bound_never_raises_the_line(seed: int, one: float, other: float) -> None:
    chance = Random(seed)
    seen = [Weighed(score := chance.uniform(0, 10), chance.random() < score / 10, chance.random()) for _ in range(300)]
    strict, lax = control(min(one, other)), control(max(one, other))
    strict.redraw(seen)
    lax.redraw(seen)
    assert lax.line <= strict.line


@given(st.integers(0, 10_000))
def test_above_the_line_the_wrong_share_is_within_the_bound(seed: int) -> None:
    chance = Random(seed)
    seen = [Weighed(score := chance.uniform(0, 10), chance.random() < 0.9 + score / 90, 1.0) for _ in range(500)]
    held = control(0.02)
    held.redraw(seen)
    above = [one.right for one in seen if one.score >= held.line]
    assert not above or above.count(False) <= 0.02 * len(above)


def test_old_observations_count_less() -> None:
    held = control()
    held.redraw([Weighed(9.0, True, 0.1)] * (10 * LEAST_PROOF - 1))
    assert held.line == inf


def test_audits_take_a_quarter_first_and_a_small_share_for_ever() -> None:
    held = control()
    for _ in range(FIRST_AUDITS):
        assert held.share() == FIRST_AUDIT
        held.audited(True, 0.0)
    assert held.share() == 0.03


def test_an_audit_that_stands_for_several_weighs_as_much() -> None:
    held = control()
    held.redraw([*weighed(1000, 0.0), Weighed(11.0, False, 1.0)])
    low = held.line
    held.redraw([*weighed(1000, 0.0), Weighed(11.0, False, 40.0)])
    assert low < held.line == inf


def test_too_many_wrong_audits_stop_and_right_ones_start_again() -> None:
    held = control()
    held.audited(False, 0.0)
    assert not held.stopped  # one wrong answer in a hundred is allowed, and may be the first
    held.audited(False, 0.0)
    assert held.stopped
    assert held.share() == 1
    audits = 0
    while held.stopped and audits < 1000:
        held.audited(True, 0.0)
        audits += 1
    assert 20 < audits < 100
    proof = held.proof(0.0)
    assert (proof.wrong, proof.audits) == (2, audits + 2)
    assert proof.lower < 2 / (audits + 2) < proof.upper


def test_audits_lose_half_their_weight_in_a_half_life() -> None:
    held = control()
    for _ in range(10):
        held.audited(True, 0.0)
    assert isclose(held.proof(7 * DAY).audits, 5.0)


@given(st.integers(0, 30), st.integers(1, 200), st.floats(0.001, 0.5))
def test_the_binomial_tail(wrong: int, number: int, share: float) -> None:
    tail = chance_of(wrong, number, share)
    assert 0 <= tail <= 1
    assert chance_of(0, number, share) == 1
    assert chance_of(wrong + 1, number, share) <= tail + 1e-9
    assert isclose(chance_of(1, number, share), 1 - (1 - share) ** number, abs_tol=1e-9)


def test_wilson_by_the_book() -> None:
    lower, upper = wilson(1, 10)
    assert (round(lower, 4), round(upper, 4)) == (0.0179, 0.4042)
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("delta", "audit"), [(0.0, 0.1), (1.0, 0.1), (0.01, 0.0), (0.01, 1.0)])
def test_shares_lie_between_0_and_1(delta: float, audit: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        HitControl(delta, audit, DAY)


def test_audits_of_two_partitions_are_one_proof_that_is_surer() -> None:
    here, there = control(), control()
    for _ in range(50):
        here.audited(True, 0.0)
        there.audited(True, 0.0)
    there.audited(False, 0.0)
    first, second = here.proof(0.0), there.proof(0.0)
    both = first.joined(second)
    assert (both.audits, both.wrong, both.stopped) == (101, 1, False)
    assert both.upper - both.lower < min(first.upper - first.lower, second.upper - second.lower)
    while not there.stopped:
        there.audited(False, 0.0)
    assert first.joined(there.proof(0.0)).stopped
