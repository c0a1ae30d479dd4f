"""What is told of decisions."""

import pytest

from tenancy.decisions import limit_statuses, over_soft_limit, refusal
from tenancy.limits import MINUTE_US, Amounts, Level, Limit, Meter, Scope, Window, line_of
from tenancy.rates import Calendar, CompiledGroup, compile_group, compile_line

NOW_US = 1_795_219_200_000_000
CALENDAR = Calendar()
CALENDAR.turn_to(NOW_US)
WANTS = Amounts(5, 5, cost_nanousd=5).vector()


def of(*limits: tuple[Meter, Window, int]) -> CompiledGroup:
    return compile_group(compile_line(line_of(Limit(Scope(Level.TENANT, "t"), *each), 0.0)) for each in limits)


RATE = (Meter.TOKENS, Window.MINUTE, 60)
SMALL = (Meter.INPUT_TOKENS, Window.MINUTE, 4)
DAY = (Meter.TOKENS, Window.DAY, 100)
EVER = (Meter.COST_NANOUSD, Window.EVER, 100)
SLOTS = (Meter.CONCURRENT_REQUESTS, Window.NOW, 2)


@pytest.mark.parametrize(
    ("limits", "heres", "told", "wait_us"),
    [
        ([RATE, DAY, EVER, SLOTS], [MINUTE_US, 0, 0, 0], RATE, 10_000_000),
        ([RATE, DAY, EVER, SLOTS], [MINUTE_US, 95, 0, 2], DAY, 86_400_000_000),
        ([RATE, DAY, EVER, SLOTS], [MINUTE_US, 95, 96, 2], EVER, None),
        ([RATE, DAY, EVER, SLOTS], [MINUTE_US, 0, 0, 2], RATE, 10_000_000),
        ([RATE, DAY, EVER, SLOTS], [0, 0, 0, 2], SLOTS, None),
        ([RATE, SMALL, DAY, EVER, SLOTS], [MINUTE_US, 0, 95, 96, 2], SMALL, None),
    ],
)
def test_of_several_refusing_limits_the_one_that_lasts_longest_is_told(
    limits: list[tuple[Meter, Window, int]], heres: list[int], told: tuple[Meter, Window, int], wait_us: int | None
) -> None:
    refused = refusal(of(*limits), WANTS, heres, NOW_US, CALENDAR.ends_us)
    assert (refused.line.limit.meter, refused.line.limit.window, refused.line.amount) == told
    assert refused.wait_us == wait_us
    assert refused.never is (told == SMALL)


def test_what_remains_and_when_all_of_it_is_there_again() -> None:
    shown = limit_statuses(of(RATE, DAY, EVER, SLOTS), WANTS, [15_000_000, 40, 100, 1], NOW_US, CALENDAR.ends_us)
    assert [(standing.remaining, standing.reset_us) for standing in shown] == [(45, 15_000_000), (60, 86_400_000_000), (0, 0), (1, 0)]
    beyond = limit_statuses(of(RATE, DAY, EVER, SLOTS), WANTS, [90_000_000, 400, 101, 3], NOW_US, CALENDAR.ends_us)
    assert [standing.remaining for standing in beyond] == [0, 0, 0, 0]


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize(
    ("meter", "window", "below", "at"),
    [
        (Meter.TOKENS, Window.MINUTE, 9_000_000, 10_000_000),
        (Meter.TOKENS, Window.DAY, 9, 10),
        (Meter.CONCURRENT_REQUESTS, Window.NOW, 9, 10),
    ],
)
def test_who_is_at_its_own_soft_threshold_is_told_from_who_is_not(level: Level, meter: Meter, window: Window, below: int, at: int) -> None:
    def over(here: int, soft: int | None) -> bool:
        limit = Limit(Scope(level, "n"), meter, window, 60, soft=soft)
        return over_soft_limit(limit_statuses(compile_group([compile_line(line_of(limit, 0.0))]), WANTS, [here], NOW_US, CALENDAR.ends_us))

    everybodys = level in (Level.GLOBAL, Level.MODEL)
    assert [over(below, 10), over(at, 10), over(at, None)] == [False, not everybodys, False]
