import pytest

from routing.warmth import SLOW_START_FROM, SLOW_START_S, share


@pytest.mark.parametrize(
    ("since", "now", "expected"),
    [
        (None, 0.0, 1.0),
        (100.0, 100.0, SLOW_START_FROM),
        (100.0, 100.0 + SLOW_START_S / 2, 0.55),
        (100.0, 100.0 + SLOW_START_S, 1.0),
        (100.0, 1e9, 1.0),
    ],
)
def test_a_straight_line_from_a_tenth_to_all(since: float | None, now: float, expected: float) -> None:
    assert share(since, now) == pytest.approx(expected)


def test_a_clock_of_another_moment_never_makes_a_negative_share() -> None:
    assert share(100.0, 99.0) == SLOW_START_FROM
