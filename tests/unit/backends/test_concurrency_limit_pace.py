from math import inf

import pytest

from backends.concurrency_limit import AnswerPace


def test_the_engines_counter_says_how_far_apart_tokens_are() -> None:
    pace, made = AnswerPace(), 1000
    assert not pace.heard(20, made, 0.0)
    for at in range(1, 40):
        made += 100  # of 20 sequences in 0.1 s: five each
        pace.heard(20, made, at / 10)
    assert pace.gap_s == pytest.approx(0.02)
    assert pace.best_s == pytest.approx(0.02, rel=0.01)


def test_time_in_which_nobody_decodes_is_no_gap() -> None:
    pace = AnswerPace()
    pace.heard(0, 0, 0.0)
    for at in range(1, 600):
        pace.heard(0, 0, at / 10)
    for at in range(600, 620):
        pace.heard(1, (at - 599) * 5, at / 10)
    assert pace.gap_s == pytest.approx(0.02, rel=0.2)


def test_a_counter_that_begins_anew_says_nothing() -> None:
    pace = AnswerPace()
    pace.heard(10, 5000, 0.0)
    assert not pace.heard(10, 20, 1.0)
    assert pace.heard(10, 520, 2.0)
    assert pace.gap_s == pytest.approx(0.02)


def test_without_a_counter_answers_say_it_once_there_are_enough() -> None:
    pace = AnswerPace()
    for _ in range(9):
        pace.ended(0.04)
    assert (pace.by_answers(), pace.gap_s, pace.best_s) == (False, 0.0, inf)
    pace.ended(0.04)
    assert (pace.by_answers(), pace.gap_s) == (True, pytest.approx(0.04))
    assert not pace.by_answers()
