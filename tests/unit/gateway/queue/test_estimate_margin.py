import random

import pytest

from gateway.queue.estimate import FADE_S, LEAST_MISSED, MISSED, ForecastMargin
from routing.fair_queue import RANKS

GRAIN_S = 0.1


def ended(caution: ForecastMargin, predicted_s: float, real_s: float, *, held: int = 0, served: bool = True, now: float = 0.0) -> None:
    caution.waited(2, held, predicted_s, real_s, GRAIN_S, 0, served=served, now=now)


def bound(caution: ForecastMargin, predicted_s: float = 1.0, held: int | None = 0, rank: int = 2, now: float = 0.0) -> float:
    return caution.bound_s(rank, held, predicted_s, GRAIN_S, now)


def test_a_prediction_is_believed_until_a_wait_was_over() -> None:
    assert bound(ForecastMargin(RANKS)) == pytest.approx(1.0)
    assert bound(ForecastMargin(RANKS), held=None) == pytest.approx(1.0)


@pytest.mark.parametrize("served_share", [1.0, 0.5, 0.1])
def test_as_many_wait_longer_than_their_bound_as_may(served_share: float) -> None:
    caution, dice, over = ForecastMargin(RANKS), random.Random(3), []
    for _ in range(6000):
        if dice.random() > served_share:
            caution.refused(2)
            continue
        real_s = dice.lognormvariate(0.5, 0.8)
        over.append(real_s > bound(caution))
        ended(caution, 1.0, real_s)
    late = over[len(over) // 2 :]
    assert sum(late) / len(late) == pytest.approx(max(LEAST_MISSED, MISSED * served_share), abs=0.06)


def test_kinds_and_ranks_learn_for_themselves() -> None:
    caution = ForecastMargin(RANKS)
    for _ in range(20):
        ended(caution, 1.0, 9.0, held=0, served=False)
        ended(caution, 1.0, 0.5, held=2048)
    assert bound(caution, held=0) > 5.0
    assert bound(caution, held=2048) < 1.0
    assert bound(caution, held=None) == bound(caution, held=2048), "where nobody has looked, the best case decides"
    assert bound(caution, rank=0) == pytest.approx(1.0)


def test_a_wait_that_was_cut_off_and_that_the_bound_forbids_by_now_says_nothing() -> None:
    caution = ForecastMargin(RANKS)
    for _ in range(10):
        ended(caution, 1.0, 1.5, served=False)
    assert 1.5 < bound(caution) < 2.5
    before = bound(caution)
    ended(caution, 1.0, 1.5, served=False)
    assert bound(caution) == before


def test_where_many_wait_the_bound_falls_slowly_and_rises_at_once() -> None:
    few, many = ForecastMargin(RANKS), ForecastMargin(RANKS)
    for caution, others in ((few, 0), (many, 400)):
        for _ in range(6):
            caution.waited(2, 0, 1.0, 9.0, GRAIN_S, others, served=False, now=0.0)
    assert bound(few) == bound(many) > 2.0
    for caution, others in ((few, 0), (many, 400)):
        for _ in range(10):
            caution.waited(2, 0, 1.0, 0.1, GRAIN_S, others, served=True, now=0.0)
    assert bound(few) < 1.2 < bound(many)


def test_what_nobody_confirms_is_forgotten() -> None:
    caution = ForecastMargin(RANKS)
    for _ in range(20):
        ended(caution, 1.0, 9.0, served=False)
    assert bound(caution, now=5 * FADE_S) == pytest.approx(1.0, abs=0.05)


def test_short_waits_are_told_apart_no_finer_than_the_grain() -> None:
    """A critical request that is predicted to wait a millisecond and waits fifty is no reason to refuse others."""
    caution = ForecastMargin(RANKS)
    for _ in range(100):
        ended(caution, 0.001, 0.05)
    assert bound(caution, 0.001) <= 0.06
