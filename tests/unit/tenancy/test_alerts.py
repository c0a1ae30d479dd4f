"""Which thresholds of a limit are reached, and which alert is the same as another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenancy.alerts import REARM_BELOW, alert_id, fallen, is_told, period_of, reached
from tenancy.hold import LimitUsage
from tenancy.limits import Level, Limit, LimitWindow, Meter, Rolling, Scope, Window, line_of

NOW = 1_800_000_000.0
PERCENTS = (50, 80, 100)


def usage(used: int, amount: int = 1_000, *, held: int = 0, window: LimitWindow = Window.DAY, reset_s: float = 3600.0) -> LimitUsage:
    limit = Limit(Scope(Level.TENANT, "acme"), Meter.COST_NANOUSD, window, amount)
    return LimitUsage(line_of(limit, NOW), used, held, max(0, amount - used), int(reset_s * 1e6))


@pytest.mark.parametrize(
    ("used", "held", "found"), [(499, 0, []), (500, 0, [50]), (800, 0, [50, 80]), (1_000, 0, [50, 80, 100]), (900, 150, [50]), (0, 0, [])]
)
def test_percentages_are_reached_by_what_was_used_and_not_by_reservations(used: int, held: int, found: list[int]) -> None:
    assert reached(usage(used, held=held), PERCENTS) == found


def test_a_limit_of_nothing_has_no_percentages() -> None:
    assert reached(usage(5, amount=0), PERCENTS) == []


@given(st.integers(0, 10**15), st.integers(1, 10**15), st.lists(st.integers(1, 1000), min_size=1, max_size=5))
def test_no_percentage_is_reached_and_fallen_at_once(used: int, amount: int, percents: list[int]) -> None:
    found = usage(used, amount)
    assert not set(reached(found, percents)) & set(fallen(found, percents))


def test_a_period_is_the_same_whenever_it_is_looked_at() -> None:
    ids = {period_of(usage(1, reset_s=3600.0 - late), NOW + late) for late in (0.0, 1.0, 29.0, 1800.0, 3599.9)}
    assert ids == {f"{int(NOW) + 3600}"}


def test_a_rolling_window_has_no_periods_and_is_told_about() -> None:
    found = usage(1, window=Rolling(30))
    assert (period_of(found, NOW), is_told(found.line.limit, [Meter.COST_NANOUSD])) == ("rolling", True)


def test_a_limit_for_ever_has_one_period() -> None:
    assert period_of(usage(1, window=Window.EVER, reset_s=0), NOW) == "ever"


def test_another_period_percentage_or_amount_is_another_alert() -> None:
    line = usage(1).line
    same = alert_id(line, "1", 50)
    assert same == alert_id(line, "1", 50)
    others = {alert_id(line, "2", 50), alert_id(line, "1", 80), alert_id(usage(1, amount=2_000).line, "1", 50)}
    assert len({same, *others}) == 4


@pytest.mark.parametrize(
    ("level", "name", "meter", "window", "told"),
    [
        (Level.TENANT, "acme", Meter.COST_NANOUSD, Window.MONTH, True),
        (Level.KEY, "k", Meter.COST_NANOUSD, Window.EVER, True),
        (Level.TENANT, "acme", Meter.TOKENS, Window.DAY, False),
        (Level.USER, "acme", Meter.COST_NANOUSD, Window.DAY, False),
        (Level.TENANT, "acme", Meter.CONCURRENT_REQUESTS, Window.NOW, False),
    ],
)
def test_limits_that_are_told(level: Level, name: str, meter: Meter, window: Window, told: bool) -> None:
    assert is_told(Limit(Scope(level, name), meter, window, 10), {Meter.COST_NANOUSD, Meter.CONCURRENT_REQUESTS}) is told


def test_a_rolling_window_is_told_again_once_it_was_clearly_below() -> None:
    assert fallen(usage(int(800 * REARM_BELOW)), (80,)) == []
    assert fallen(usage(int(800 * REARM_BELOW) - 1), (80,)) == [80]
