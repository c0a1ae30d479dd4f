"""The restart policy: back-off grows with a streak, is bounded and jittered, and forgets."""

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.process.children import MAX_RESTART_S, STREAK_WINDOW_S, next_restart


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=16), st.integers(0, 2**32))
def test_every_delay_is_between_a_tenth_of_a_second_and_the_ceiling(ages: list[float], seed: int) -> None:
    now = 1000.0
    restart = next_restart([now, *(now - age for age in ages)], now, random.Random(seed))
    assert 0.1 <= restart.delay_s <= MAX_RESTART_S


def test_delays_double_up_to_the_ceiling() -> None:
    delays = [next_restart([0.0] * ends, 0.0, random.Random(7)).delay_s for ends in range(1, 9)]
    assert [round(later / sooner, 6) for sooner, later in pairwise(delays)][:5] == [2.0] * 5
    assert delays[-1] == delays[-2] <= MAX_RESTART_S


def test_old_ends_are_forgotten() -> None:
    now = 1000.0
    assert next_restart([now - STREAK_WINDOW_S - 1] * 15 + [now], now, random.Random(0)).streak == 1


def test_delays_of_many_workers_are_spread() -> None:
    rng = random.Random(3)
    delays = [next_restart([0.0] * 12, 0.0, rng).delay_s for _ in range(200)]
    assert max(delays) - min(delays) > 0.4 * MAX_RESTART_S
