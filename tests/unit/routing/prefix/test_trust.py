import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.prefix.trust import MEDIAN_WINDOW, Trust, Trusts

tokens = st.floats(0, 1e6)


@settings(deadline=None)
@given(st.lists(st.tuples(tokens, tokens), max_size=60))
def test_trust_is_a_share(answers: list[tuple[float, float]]) -> None:
    trust = Trust()
    for predicted, actual in answers:
        trust.observe(predicted, actual)
        assert 0 <= trust.share <= 1
        assert not trust.alarm, "fewer than 200 say nothing"


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False), st.floats(0, 1))
def test_the_alarm_is_the_median(rng: random.Random, wrong: float) -> None:
    trust = Trust()
    for _ in range(MEDIAN_WINDOW + 100):
        before = trust.alarm
        trust.observe(1_000, 1_000 * (rng.random() if rng.random() < wrong else 1))
        if before != trust.alarm:
            assert (trust.median_error > 0.2) is trust.alarm


@pytest.mark.req("ROUTERS-12")
def test_a_mismatch_is_alarmed_within_200_answers_and_recovers(record_property: Callable[[str, object], None]) -> None:
    trust, rng = Trust(), random.Random(1)
    for _ in range(MEDIAN_WINDOW):
        length = rng.randrange(500, 20_000)
        trust.observe(length, length - rng.randrange(64))
    assert trust.share == 1.0
    assert not trust.alarm
    asked = 0
    while not trust.alarm:
        trust.observe(5_000, 0)  # another salt: nothing that is predicted is there
        asked += 1
    assert asked == MEDIAN_WINDOW // 2 + 1
    assert trust.share < 0.02
    mended = 0
    while trust.alarm or trust.share < 0.9:
        trust.observe(5_000, 4_990)
        mended += 1
    assert mended <= MEDIAN_WINDOW
    record_property("figure", f"trust below 2 % and alarm after {asked} wrong answers of 200; both over {mended} right ones later")


@pytest.mark.req("ROUTERS-12")
def test_an_index_that_says_zero_while_engines_hit_is_alarmed_too() -> None:
    trust = Trust()
    for _ in range(MEDIAN_WINDOW):
        trust.observe(0, 3_000)
    assert trust.alarm
    assert trust.median_error == 1.0
    assert trust.share == 1.0, "what it does say may be right"


def test_cold_prompts_say_nothing() -> None:
    trust = Trust()
    for _ in range(1_000):
        trust.observe(0, 0)
    assert (trust.share, trust.alarm, trust.median_error) == (1.0, False, 0.0)


def test_half_of_what_is_predicted_is_half_the_trust() -> None:
    trust = Trust()
    for _ in range(300):
        trust.observe(10_000, 5_000)
    assert trust.share == pytest.approx(0.5, abs=0.01)
    assert trust.alarm


def test_one_wrong_answer_does_not_ruin_a_new_backend() -> None:
    trust = Trust()
    trust.observe(4_000, 0)
    assert trust.share > 0.85


def test_every_backend_has_its_own() -> None:
    trusts = Trusts()
    assert trusts.share("a") == 1.0
    for _ in range(100):
        trusts.of("a").observe(4_000, 0)
    assert trusts.share("a") < 0.1
    assert trusts.share("b") == 1.0
    trusts.forget("a")
    trusts.forget("never there")
    assert trusts.share("a") == 1.0
