import pytest

from domain import retry_after
from domain.faults import Retry


def waits(retry: Retry) -> float:
    assert retry.should
    assert retry.after_s is not None
    return retry.after_s


@pytest.mark.parametrize("draw", [0.0, 0.5, 1.0])
def test_the_wait_for_an_overloaded_model_is_the_predicted_one_spread_over_half_as_long_again_and_never_above_ninety_seconds(
    draw: float,
) -> None:
    assert waits(retry_after.of_overload(20.0, draw)) == 20.0 * (1.0 + 0.5 * draw)
    assert waits(retry_after.of_overload(0.0, draw)) == waits(retry_after.of_missing_engine(draw)) == 1.0 + 4.0 * draw
    assert waits(retry_after.of_overload(1e9, draw)) == 60.0 * (1.0 + 0.5 * draw)


@pytest.mark.parametrize(("header", "expected_s"), [(b"7", 7.0), (b"0.5", 0.5), (b"100000", 120.0)])
def test_a_busy_engines_own_header_is_taken_up_to_two_minutes(header: bytes, expected_s: float) -> None:
    assert waits(retry_after.of_busy_engine(header)) == expected_s


@pytest.mark.parametrize("header", [None, b"", b"soon", b"0", b"-3", b"nan", b"Wed, 21 Oct 2026 07:28:00 GMT"])
def test_an_engines_header_that_is_no_positive_number_of_seconds_is_replaced_by_one_second(header: bytes | None) -> None:
    assert retry_after.of_busy_engine(header) is retry_after.SOON


def test_a_rate_limit_is_waited_for_exactly_and_the_others_are_spread() -> None:
    assert waits(retry_after.of_rate_limit(1_500_000)) == 1.5
    assert [waits(retry_after.of_concurrency_limit(draw)) for draw in (0.0, 1.0)] == [0.5, 1.5]
    assert [waits(retry_after.of_unknown_spend(draw)) for draw in (0.0, 1.0)] == [5.0, 10.0]
