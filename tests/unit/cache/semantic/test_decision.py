"""The decision by a threshold, and the guard that is asked on the way."""

import pytest

from cache.semantic.decision import ThresholdDecider, guard_of, unguarded
from cache.semantic.ports import Neighbour, Question

PARTITION = bytes(32)


def neighbour(text: str, similarity: float) -> Neighbour:
    return Neighbour(
        Question(partition=PARTITION, owner="o", key=text.encode(), text=text, vector=b"", kept_at=0, expires_at=1), similarity
    )


def test_a_threshold_gives_from_its_value_on() -> None:
    decider = ThresholdDecider(0.9)
    for similarity, exploit in ((0.9, True), (0.89, False)):
        decision = decider.decide(PARTITION, "q", [neighbour("kept", similarity)], 0.5, 0.0, unguarded)
        assert (decision.exploit, decision.reason) == (exploit, "threshold" if exploit else "below")
    assert decider.decide(PARTITION, "q", [], 0.5, 0.0, unguarded).reason == "none"


def test_a_neighbour_that_differs_is_passed_over() -> None:
    asked = "How do I pay 20 euros?"
    near = [neighbour("How do I pay 30 euros?", 0.99), neighbour("How do I pay 20 euros", 0.95)]
    decision = ThresholdDecider(0.9).decide(PARTITION, asked, near, 0.5, 0.0, guard_of(asked))
    assert decision.exploit
    assert decision.neighbour is near[1]
    assert ThresholdDecider(0.9).decide(PARTITION, asked, near[:1], 0.5, 0.0, guard_of(asked)).reason == "numbers"


def test_a_threshold_refuses_near_copies() -> None:
    asked = "Which river flows from Berlin through Hamburg into the sea"
    kept = neighbour("Which river flows from Hamburg through Berlin into the sea", 0.999)
    guard = guard_of(asked)
    assert guard(kept, True)
    assert not ThresholdDecider(0.9).decide(PARTITION, asked, [kept], 0.5, 0.0, guard).exploit


def test_password_reset_steps_pass_the_strict_guard() -> None:
    assert guard_of("How do I reset my password?")(neighbour("Password reset steps", 0.8), True) == ""


@pytest.mark.parametrize("threshold", [0.0, -1.0, 1.01])
def test_thresholds_have_a_range(threshold: float) -> None:
    with pytest.raises(ValueError, match="similarity"):
        ThresholdDecider(threshold)
