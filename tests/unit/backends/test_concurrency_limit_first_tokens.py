from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.concurrency_limit import FIXED_TOKENS, LEAST_TOKENS, FirstTokens


def learned(*prompts: float, per_token: float, before: float = 0.0, of_all: float = 1.0) -> FirstTokens:
    firsts = FirstTokens()
    for tokens in prompts:
        firsts.add(tokens, before * of_all, (FIXED_TOKENS + tokens + before) * per_token)
    firsts.learn(of_all)
    return firsts


def test_before_anything_came_there_is_no_bound() -> None:
    assert FirstTokens().room == inf


@given(st.lists(st.floats(1, 1e5), min_size=1, max_size=20), st.floats(1e-6, 1e-2))
def test_room_is_seconds_of_prefill_within_bounds(prompts: list[float], per_token: float) -> None:
    room = learned(*prompts, per_token=per_token).room
    assert room >= LEAST_TOKENS
    assert room == pytest.approx(LEAST_TOKENS) or 0.3 <= room * per_token * (1 + 1e-9) <= 0.8 * (1 + 1e-6)


@given(st.floats(0, 1e5), st.floats(0.1, 1))
def test_what_was_before_a_prompt_is_no_slowness_of_the_engine(before: float, of_all: float) -> None:
    free, queued = learned(500, 700, per_token=1e-5), learned(500, 700, per_token=1e-5, before=before, of_all=of_all)
    assert queued.room == pytest.approx(free.room)


def test_a_window_is_judged_when_it_has_enough_and_then_begins_anew() -> None:
    firsts = FirstTokens()
    for _ in range(10):
        assert not firsts.enough
        firsts.add(100, 0.0, 0.1)
    assert firsts.enough
    firsts.learn(1.0)
    assert (firsts.enough, firsts.count, firsts.usual) == (False, 0, 100)
