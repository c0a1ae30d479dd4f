import pytest
from pydantic import ValidationError

from backends.concurrency_limit import LimitBounds
from gateway.config.pools import ConcurrencyLimitSettings


def test_limits_are_found_unless_they_are_off() -> None:
    assert ConcurrencyLimitSettings().bounds() == LimitBounds()
    assert ConcurrencyLimitSettings(enabled=False).bounds() is None


def test_what_is_written_bounds_them() -> None:
    assert ConcurrencyLimitSettings(min_requests=4, max_requests=32, token_gap_s=0.05).bounds() == LimitBounds(4, 32, gap_s=0.05)


def test_bounds_that_cross_are_refused_with_both_numbers() -> None:
    with pytest.raises(ValidationError, match="min_requests is 64 and max_requests 8"):
        ConcurrencyLimitSettings(min_requests=64, max_requests=8)


def test_room_is_kept_of_limits_that_are_found_only() -> None:
    assert ConcurrencyLimitSettings(kept_free=0.25).bounds() == LimitBounds()
    with pytest.raises(ValidationError, match="kept_free is a share of the limits that are found, and enabled: false finds none"):
        ConcurrencyLimitSettings(enabled=False, kept_free=0.25)
    with pytest.raises(ValidationError, match=r"less than or equal to 0\.9"):
        ConcurrencyLimitSettings(kept_free=1.0)
