"""The arithmetic of one limit: what a cost is in microseconds, which calendar period a moment is in, what is left. Pure.

A rate limit's state is the time at which all of it is available again (the theoretical arrival time, TAT, of a generic cell rate
algorithm); `ahead` is how far that lies in the future. Everything is an integer below 2**53, and the Lua twin
(`tenancy/stores/valkey/lua/`) does the same steps in the same order.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from tenancy.grant import digest_of_label
from tenancy.limits import MAX_RATE, MINUTE_US, OTHER_LABEL, Group, LimitLine, LimitWindow, Rolling, Window
from tenancy.periods import QUARTER_S, period_around

DAY_US: Final = 86_400_000_000
QUARTER_US: Final = QUARTER_S * 1_000_000
MAX_COUNT: Final = 2**53 - 1
"""Calendar counters stop here: the Lua twin has no exact numbers above."""
MAX_AHEAD_US: Final = MAX_RATE * MINUTE_US
"""How far a rate can be in debt: the largest cost at the lowest rate, 190 years."""

AT_MOST: Final = 8192
"""Plans, and lines, that are kept compiled."""

RATE: Final = 0
DAY: Final = 1
MONTH: Final = 2
EVER: Final = 3
NOW: Final = 4
HOUR: Final = 5
WEEK: Final = 6
KINDS: Final = {
    Window.MINUTE: RATE,
    Window.DAY: DAY,
    Window.MONTH: MONTH,
    Window.EVER: EVER,
    Window.NOW: NOW,
    Window.HOUR: HOUR,
    Window.WEEK: WEEK,
}
"""Kinds of limits without a time zone, by window. Windows with a zone and rolling ones have the kinds from `len(KINDS)` on (`kind_of`)."""

HOUR_US: Final = 3_600_000_000
HOURS_A_DAY: Final = 24
KEPT_US: Final = {
    Window.MINUTE: HOUR_US,
    Window.HOUR: HOUR_US,
    Window.DAY: DAY_US,
    Window.WEEK: 7 * DAY_US,
    Window.MONTH: 31 * DAY_US,
    Window.EVER: MAX_COUNT,
    Window.NOW: HOUR_US,
}
"""How long after a request an end user counts towards the bound on its tenant's end users, by the windows of its limits: as long as its
state may matter; an hour longer where a time zone is set, whose clocks may go back."""


def kept_us(line: LimitLine) -> int:
    """As `KEPT_US`, of one line."""
    window = line.window
    if isinstance(window, Rolling):
        return leaves_us(0, window.days)
    return KEPT_US[window] + (HOUR_US if line.limit.zone else 0)


OTHERS: Final = digest_of_label(OTHER_LABEL)
"""Digest of the label that all end users beyond the bound share."""


class CompiledLimit(msgspec.Struct, frozen=True, gc=False):
    """A limit line, compiled: everything is worked out that no request changes."""

    kind: int
    meter: int
    key: str
    amount: int
    burst: int
    burst_us: int
    each_us: int
    """Microseconds that one of a rate costs, where that is a whole number; else 0."""
    soft: int
    line: LimitLine


class CompiledGroup(NamedTuple):
    """A group, compiled: its lines in the order they are counted in (rates, calendar counters, gauges, rolling windows), and what counting
    needs of each."""

    lines: tuple[CompiledLimit, ...]
    rates: tuple[tuple[int, str, int, int, int, int], ...]
    """Meter, key, amount, burst, burst_us, each_us."""
    cells: tuple[tuple[int, int, str, int], ...]
    """Kind, meter, key, amount."""
    gauges: tuple[tuple[str, int], ...]
    """Key, amount."""
    rolling: tuple[tuple[int, int, str, int], ...] = ()
    """Days, meter, key, amount. The last lines of a plan."""
    label: str = ""
    """Digest of the end user whose lines are among them, with keys that end in it; empty for none."""
    keep_us: int = 0
    """How long that end user counts towards the bound on its tenant's end users."""


_further: list[tuple[LimitWindow, str]] = []
"""Windows and time zones by kind, from `len(KINDS)` on: as many as limits of this process ever named, at most three for each zone and one
for each number of rolling days."""
_kinds: dict[tuple[LimitWindow, str], int] = {(window, ""): kind for window, kind in KINDS.items()}


def kind_of(window: LimitWindow, zone: str = "") -> int:
    """The kind of a limit: a number that stands for its window and time zone in this process."""
    kind = _kinds.get((window, zone))
    if kind is None:
        kind = _kinds[window, zone] = len(KINDS) + len(_further)
        _further.append((window, zone))
    return kind


def is_dated(kind: int) -> bool:
    """Whether periods of a kind are named by their end, in seconds since 1970: hours, weeks, and everything in a time zone. Days and
    months in UTC have running numbers."""
    return kind > NOW and not days_of(kind)


def days_of(kind: int) -> int:
    """The days of a rolling window; 0 for every other kind."""
    if kind < len(KINDS):
        return 0
    window = _further[kind - len(KINDS)][0]
    return window.days if isinstance(window, Rolling) else 0


def cost_us(n: int, amount: int) -> int:
    """Microseconds that `n` of a rate of `amount` a minute cost, rounded up."""
    return -(-(n if n < MAX_RATE else MAX_RATE) * MINUTE_US // amount)


def room_us(burst: int, amount: int) -> int:
    """Microseconds that a rate may run ahead, for `burst` at once.

    The cost of one is rounded up, so the room includes the roundings of `burst` single requests, as long as `burst + 1` together
    still don't fit: up to 7,745 a minute exactly `burst` single requests pass, above a few in ten thousand fewer, and never more.
    """
    return max(cost_us(burst, amount), min(burst * cost_us(1, amount), cost_us(burst + 1, amount) - 1))


def compile_line(line: LimitLine) -> CompiledLimit:
    """Compile a limit line."""
    kind = kind_of(line.window, line.limit.zone)
    amount = line.amount
    rate = kind == RATE and amount > 0
    return CompiledLimit(
        kind,
        line.meter,
        line.key,
        amount,
        line.burst,
        room_us(line.burst, amount) if rate else 0,
        MINUTE_US // amount if rate and not MINUTE_US % amount else 0,
        line.soft,
        line,
    )


def _has_period(kind: int) -> bool:
    return kind not in (RATE, NOW) and not days_of(kind)


def compile_group(lines: Iterable[CompiledLimit]) -> CompiledGroup:
    """Put compiled lines in the order they are counted in."""
    ordered = sorted(lines, key=lambda line: (days_of(line.kind), line.kind == NOW, line.kind))
    return CompiledGroup(
        tuple(ordered),
        tuple((line.meter, line.key, line.amount, line.burst, line.burst_us, line.each_us) for line in ordered if line.kind == RATE),
        tuple((line.kind, line.meter, line.key, line.amount) for line in ordered if _has_period(line.kind)),
        tuple((line.key, line.amount) for line in ordered if line.kind == NOW),
        tuple((days, line.meter, line.key, line.amount) for line in ordered if (days := days_of(line.kind))),
    )


def shared_plan(own: CompiledGroup) -> CompiledGroup:
    """The plan for an end user beyond the bound: its own lines count in the state that all end users beyond the bound share. Callers
    see them as the limits per end user that they are."""
    tail = ":" + own.label
    return compile_group(
        msgspec.structs.replace(line, key=line.key[: -len(own.label)] + OTHERS) if line.key.endswith(tail) else line for line in own.lines
    )


def left_of_rate(line: CompiledLimit, ahead_us: int) -> int:
    """The largest `n` that a rate would let pass now."""
    if ahead_us >= line.burst_us:
        return 0
    return min(line.burst, (line.burst_us - ahead_us) * line.amount // MINUTE_US)


def month_of(day: int) -> int:
    """The month, counted since year 0, of a day, counted since 1970 (Howard Hinnant, chrono-compatible low-level date algorithms)."""
    z = day + 719_468
    era = z // 146_097
    doe = z - era * 146_097
    yoe = (doe - doe // 1_460 + doe // 36_524 - doe // 146_096) // 365
    doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
    return (yoe + era * 400) * 12 + (5 * doy + 2) // 153 + 2


def first_day_of(month: int) -> int:
    """The day since 1970 on which a month of `month_of` begins (same source)."""
    year, place = divmod(month - 2, 12)
    era, yoe = divmod(year, 400)
    return era * 146_097 + yoe * 365 + yoe // 4 - yoe // 100 + (153 * place + 2) // 5 - 719_468


def leaves_us(hour: int, days: int) -> int:
    """When the usage of an hour ends to count in a rolling window: so late that no `days` days on end ever exceed the amount."""
    return (hour + HOURS_A_DAY * days + 1) * HOUR_US


class _ByKind(dict[int, int]):
    """A number for each kind of calendar limit. Those of kinds that are not always worked out are worked out when asked for."""

    __slots__ = ("_calendar",)

    def __init__(self, calendar: "Calendar") -> None:
        self._calendar = calendar

    def __missing__(self, kind: int) -> int:
        self._calendar.work_out(kind)
        return self[kind]


class Calendar:
    """The periods around a moment, by kind; worked out once a quarter of an hour, at which any zone's period may begin."""

    __slots__ = ("ends_us", "from_us", "periods", "until_us")

    def __init__(self) -> None:
        self.from_us = self.until_us = 0
        """The time that `periods` and `ends_us` hold for; the end is not part of it."""
        self.periods: dict[int, int] = _ByKind(self)
        """The number of the day and of the month, 0 for ever, the end of each dated period (`is_dated`) in seconds, and of rolling windows
        the number of the hour."""
        self.ends_us: dict[int, int] = _ByKind(self)
        """When each period ends, and of rolling windows when usage of this hour ends to count; 0 where it never does."""

    def turn_to(self, now_us: int) -> None:
        """Move to the periods around `now_us`."""
        if not self.from_us <= now_us < self.until_us:
            self.from_us = now_us // QUARTER_US * QUARTER_US
            self.until_us = self.from_us + QUARTER_US
            day = now_us // DAY_US
            month = month_of(day)
            self.periods.clear()
            self.ends_us.clear()
            self.periods.update({RATE: 0, DAY: day, MONTH: month, EVER: 0, NOW: 0})
            self.ends_us.update({RATE: 0, DAY: (day + 1) * DAY_US, MONTH: first_day_of(month + 1) * DAY_US, EVER: 0, NOW: 0})

    def is_over(self, period: int, now_us: int) -> bool:
        """Whether a period is over, of whatever kind it is: the ends of dated ones are far above the numbers of days and months."""
        return period * 1_000_000 <= now_us and period not in (0, self.periods[DAY], self.periods[MONTH])

    def work_out(self, kind: int) -> None:
        """Add the period of a dated kind, or the hour of a rolling window."""
        window: LimitWindow
        if kind >= len(KINDS):
            window, zone = _further[kind - len(KINDS)]
        else:
            window, zone = (Window.HOUR if kind == HOUR else Window.WEEK), ""
        if isinstance(window, Rolling):
            self.periods[kind] = hour = self.from_us // HOUR_US
            self.ends_us[kind] = leaves_us(hour, window.days)
            return
        end_s = period_around(window, zone, self.from_us // 1_000_000)[1]
        self.periods[kind] = end_s
        self.ends_us[kind] = end_s * 1_000_000


class Prepared:
    """Compiled plans of groups, by identity: a group is built once per configuration and looked up by every request.

    At most `AT_MOST` are kept, because a tenant with limits per end user brings a group for every label. At the bound all of them
    are dropped, and compiled again when they are asked for.
    """

    __slots__ = ("_lines", "plans")

    def __init__(self) -> None:
        self.plans: dict[int, tuple[Group, CompiledGroup]] = {}
        """By the id of the group, which is kept beside its plan so that its id stays taken."""
        self._lines: dict[int, CompiledLimit] = {}

    def plan(self, group: Group) -> CompiledGroup:
        """The compiled plan of a group."""
        prepared = self.plans.get(id(group))
        if prepared is None:
            if len(self.plans) >= AT_MOST or len(self._lines) >= AT_MOST:
                self.plans.clear()
                self._lines.clear()
            group_plan = compile_group(self._line(line) for line in group.lines)
            if group.label:
                own = [line.line for line in group_plan.lines if line.key.endswith(":" + group.label)]
                group_plan = group_plan._replace(label=group.label, keep_us=max(map(kept_us, own)))
            prepared = self.plans[id(group)] = (group, group_plan)
        return prepared[1]

    def _line(self, line: LimitLine) -> CompiledLimit:
        prepared = self._lines.get(id(line))
        if prepared is None:
            prepared = self._lines[id(line)] = compile_line(line)
        return prepared
