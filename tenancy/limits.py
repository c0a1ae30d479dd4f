"""Limits: meters, scopes and windows, and how one limit is counted. Pure values; `tenancy.quota` decides on many limits together.

Three algorithms (a generic cell rate for rates, a counter per calendar period, a gauge for what is open now) work on one
integer of state each, and a fourth (rolling windows) on one integer per hour, so that a Lua twin can do the same arithmetic: every
intermediate stays below 2**53.
"""

import re
from difflib import get_close_matches
from enum import Enum, IntEnum
from functools import lru_cache
from importlib import resources
from typing import Final

import msgspec

from tenancy.money import NANO, nanousd_of, shown_dollars

MINUTE_US: Final = 60_000_000
MAX_AMOUNT: Final = 10**15
"""Largest amount of a calendar counter: a million dollars in nano-dollars."""
MAX_RATE: Final = 100_000_000
"""Largest amount per minute, and the most that one request may cost of it: times a minute in microseconds it stays below 2**53."""


OTHER_LABEL: Final = "(other)"
"""Label of the end user that stands for all end users of a tenant beyond the bound."""
MOST_LABELS: Final = 10_000
"""End users of a tenant that have counters of their own, by default."""


class Meter(IntEnum):
    """The quantity that is counted. The value is the place in `Amounts.vector()`."""

    REQUESTS = 0
    INPUT_TOKENS = 1
    OUTPUT_TOKENS = 2
    TOKENS = 3
    UNITS = 4
    """Tokens weighted by what they cost a GPU (`tenancy.prices`)."""
    COST_NANOUSD = 5
    """Money in nano-dollars, as it is counted; people call this meter `cost_usd` and write dollars (`meter_name`)."""
    CONCURRENT_REQUESTS = 6
    AUDIO_SECONDS = 7
    """Seconds of recordings that are transcribed and of speech that is made."""
    AUDIO_BYTES = 8


MONEY_METER: Final = "cost_usd"
"""The public name of the meter of money: its amounts are written in dollars."""
MONEY_ALIAS: Final = "cost_nanousd"
"""The older public name of the meter of money, still accepted: its amounts are written in whole nano-dollars."""


def meter_name(meter: Meter) -> str:
    """The meter as the commands, files and the admin API call it."""
    return MONEY_METER if meter is Meter.COST_NANOUSD else meter.name.lower()


METERS_BY_NAME: Final = {meter_name(meter): meter for meter in Meter} | {MONEY_ALIAS: Meter.COST_NANOUSD}
"""Meters by each name that is accepted for them."""


def counted(meter: str, written: int | str) -> int:
    """An amount as it is counted, of one as files and the admin API write it: dollars as text for `cost_usd`, whole numbers for the rest.

    Args:
        meter: the meter's name as it was written, one of `METERS_BY_NAME`.

    Raises:
        ValueError: the amount is in the wrong form for this name; the message says what to write, without the name of the field.
    """
    if isinstance(written, str):
        if meter == MONEY_METER:
            return nanousd_of(written, MAX_AMOUNT)
        whole = f"whole nano-dollars; name it {MONEY_METER} to write dollars as text" if meter == MONEY_ALIAS else "a whole number"
        raise ValueError(f"{written[:32]!r} is text, and {meter} takes {whole}")
    if not 0 <= written <= MAX_AMOUNT:
        raise ValueError(f"{written} is no amount; write a whole number from 0 to {MAX_AMOUNT}")
    if meter == MONEY_METER:
        raise ValueError(
            f'{written} is a bare number, and {meter} takes dollars as text: write "{written}.00" for {shown_dollars(written * NANO)}, '
            f"or name the meter {MONEY_ALIAS} for whole nano-dollars"
        )
    return written


def shown_amount(meter: Meter, amount: int) -> str:
    """An amount of a meter for a reader: money in dollars, other amounts as plain numbers."""
    return shown_dollars(amount) if meter is Meter.COST_NANOUSD else str(amount)


class Window(Enum):
    """The time over which a meter is counted."""

    NOW = "now"
    """The number open at the same time; for `CONCURRENT_REQUESTS` only."""
    MINUTE = "minute"
    """Any minute: a generic cell rate, without edges."""
    HOUR = "hour"
    """An hour of the clock, UTC."""
    DAY = "day"
    """A calendar day, UTC or of the limit's time zone, as `WEEK` and `MONTH` are."""
    WEEK = "week"
    """A calendar week, from Monday on."""
    MONTH = "month"
    EVER = "ever"


MAX_ROLLING_DAYS: Final = 366
ROLLING_FORM: Final = "rolling-Nd"
"""How a rolling window is written, with its number of days for `N`."""
_ROLLING: Final = re.compile(r"rolling-([1-9][0-9]{0,2})d")


class Rolling(msgspec.Struct, frozen=True):
    """Any `days` days on end: usage counts for that time, in steps of an hour. In the place of a `Window`."""

    days: int

    def __post_init__(self) -> None:
        if not 1 <= self.days <= MAX_ROLLING_DAYS:
            raise ValueError(f"rolling-{self.days}d: a rolling window has 1 to {MAX_ROLLING_DAYS} days")

    @property
    def value(self) -> str:
        """The window's name, as `Window.value`."""
        return f"rolling-{self.days}d"


LimitWindow = Window | Rolling


def window_named(written: str) -> LimitWindow:
    """The window of a name, `month` or `rolling-30d`.

    Raises:
        ValueError: there is no such window.
    """
    if (rolling := _ROLLING.fullmatch(written)) is not None:
        return Rolling(int(rolling[1]))
    return Window(written)


def window_words() -> list[str]:
    """The names of windows, for messages."""
    return [*(window.value for window in Window), f"{ROLLING_FORM} (N from 1 to {MAX_ROLLING_DAYS})"]


ZONED: Final = frozenset({Window.DAY, Window.WEEK, Window.MONTH})
"""Windows that a time zone can be set for."""
UTC: Final = "UTC"
"""The zone that is kept as none: limits in UTC count in the ledger's own days."""


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """The names of time zones, as IANA lists them (tzdata)."""
    return frozenset(resources.files("tzdata").joinpath("zones").read_text().split())


def zone_named(written: str) -> str:
    """A time zone as a limit keeps it, of its name as it was written: empty for UTC.

    Raises:
        ValueError: there is no such zone.
    """
    if written in ("", UTC):
        return ""
    if written in zone_names():
        return written
    close = get_close_matches(written[:64], zone_names(), n=1, cutoff=0.7)
    hint = f"did you mean {close[0]}?" if close else "write a name of the IANA list, as Europe/Berlin or America/New_York"
    raise ValueError(f"zone {written[:64]!r} is no time zone; {hint}")


class Level(Enum):
    """The kinds of scopes that limits have, from wide to narrow; the tightest limit decides."""

    GLOBAL = "global"
    """All traffic of the gateway; `name` is empty."""
    MODEL = "model"
    """All traffic of one public model name, of every tenant."""
    ORGANISATION = "organisation"
    TENANT = "tenant"
    PROJECT = "project"
    """`name` is `tenant/project`."""
    KEY = "key"
    """`name` is the key's public id."""
    USER = "user"
    """Each end user of a tenant or project separately: `name` is `tenant` or `tenant/project`; the key of the state ends in the digest of
    the label."""


class Scope(msgspec.Struct, frozen=True, order=True):
    """The subject of limits: one organisation, tenant, key and so on."""

    level: Level
    name: str

    def __str__(self) -> str:
        return f"{self.level.value} {self.name}" if self.name else self.level.value


class Limit(msgspec.Struct, frozen=True):
    """One limit, as an operator set it. There is at most one per scope, meter and window.

    `amount` is the hard threshold: tokens, requests, units, or nano-dollars.
    """

    scope: Scope
    meter: Meter
    window: LimitWindow
    amount: int
    burst: int | None = None
    """For `MINUTE`: how much may come at once after a quiet time; None for `amount`, so that any window of a minute admits at
    most twice the amount, and exactly the amount from a standing start."""
    soft: int | None = None
    """Threshold from which replies carry a warning and an event is written; None for none."""
    raised_to: int | None = None
    raised_until_unix: float | None = None
    """A time-limited raise: until then `raised_to` counts in place of `amount`."""
    zone: str = ""
    """For `DAY`, `WEEK` and `MONTH`: the IANA name of the time zone whose calendar counts; empty for UTC."""

    def __post_init__(self) -> None:
        if (self.meter is Meter.CONCURRENT_REQUESTS) is not (self.window is Window.NOW):
            raise ValueError("concurrent requests are limited now, and nothing else is")
        if self.window is Window.MINUTE and self.meter is Meter.COST_NANOUSD:
            raise ValueError("money is limited per hour, day, week or month, over rolling days, or for ever")
        top = MAX_RATE if self.window in (Window.MINUTE, Window.NOW) else MAX_AMOUNT
        for name in ("amount", "burst", "soft", "raised_to"):
            value = getattr(self, name)
            if value is not None and not (0 if name == "amount" else 1) <= value <= top:
                raise ValueError(f"{name} {shown_amount(self.meter, value)}: at most {shown_amount(self.meter, top)}, and not negative")
        if self.burst is not None and self.window is not Window.MINUTE:
            raise ValueError("burst is for limits per minute")
        if (self.raised_to is None) is not (self.raised_until_unix is None):
            raise ValueError("a raise has an amount and an end")
        if self.zone and self.window not in ZONED:
            raise ValueError(f"zone {self.zone[:64]!r}: only limits per day, week or month have a time zone; leave it out")
        if zone_named(self.zone) != self.zone:
            raise ValueError(f"zone {self.zone!r}: leave it out for UTC")

    def effective(self, now_unix: float) -> int:
        """The hard threshold at a moment."""
        if self.raised_to is not None and self.raised_until_unix is not None and now_unix < self.raised_until_unix:
            return max(self.amount, self.raised_to)
        return self.amount


def check_soft(limit: Limit) -> None:
    """Raise ValueError for a soft threshold that can never be reached. Called for limits that are being set, not for stored ones:
    older versions accepted any threshold."""
    if limit.soft is None:
        return
    soft = shown_amount(limit.meter, limit.soft)
    if limit.soft > limit.amount:
        most = shown_amount(limit.meter, limit.amount)
        raise ValueError(f"soft {soft}: above the amount, {most}, so that it would never be reached; set it lower")
    if limit.burst is not None and limit.soft > limit.burst:
        raise ValueError(f"soft {soft}: above the burst, {limit.burst}, so that it would never be reached; set it lower")


Vector = tuple[int, int, int, int, int, int, int, int, int]
"""Amounts by `Meter`."""


class Amounts(msgspec.Struct, frozen=True, gc=False):
    """The amounts that one request uses, or may use at most."""

    input_tokens: int = 0
    output_tokens: int = 0
    units: int = 0
    """Weighted tokens (`tenancy.prices`)."""
    cost_nanousd: int = 0
    requests: int = 1
    audio_seconds: int = 0
    audio_bytes: int = 0

    @property
    def tokens(self) -> int:
        """Input plus output."""
        return self.input_tokens + self.output_tokens

    def vector(self, concurrent: int = 1) -> Vector:
        """The amounts by `Meter`; `concurrent` is 0 for a request that is over."""
        return (
            self.requests,
            self.input_tokens,
            self.output_tokens,
            self.input_tokens + self.output_tokens,
            self.units,
            self.cost_nanousd,
            concurrent,
            self.audio_seconds,
            self.audio_bytes,
        )


UNUSED: Final = Amounts(requests=0)
"""The amounts of a request that counts as if it had not been sent."""


class LimitLine(msgspec.Struct, frozen=True):
    """A limit as it is counted: one piece of state, one rule.

    `key` names the state within its group; a counter store adds the period of a calendar counter to it.
    """

    key: str
    meter: int
    window: LimitWindow
    amount: int
    """The threshold in force."""
    burst: int
    """For `MINUTE`; else 0."""
    soft: int
    """0 for none."""
    limit: Limit


class Group(msgspec.Struct, frozen=True):
    """Limits whose state lies in one place and that are decided on in one step; `tag` is the hash tag of its keys."""

    tag: str
    lines: tuple[LimitLine, ...]
    meters: int = 0
    """A bit for each `Meter` that a line counts; computed from the lines."""
    label: str = ""
    """Digest of the end user whose lines are among them, with keys that end in it; empty for none."""

    def __post_init__(self) -> None:
        meters = 0
        for line in self.lines:
            meters |= 1 << line.meter
        msgspec.structs.force_setattr(self, "meters", meters)


def bits(*meters: Meter) -> int:
    """A bit for each of these meters, as in `Group.meters`."""
    return sum(1 << meter for meter in set(meters))


def state_key(scope: Scope, meter: Meter, window: LimitWindow, label: str = "") -> str:
    """The name of a limit's state: `level:name:meter:window`, and for one end user the digest of the label behind it. Counter stores
    and databases keep it, so it has the internal name of the meter (`cost_nanousd`); people see `public_id`."""
    own = f"{scope.level.value}:{scope.name}:{meter.name.lower()}:{window.value}"
    return f"{own}:{label}" if label else own


def public_id(scope: Scope, meter: Meter, window: LimitWindow) -> str:
    """The public id of a limit, `level:name:meter:window`: as `state_key`, but with the meter's public name."""
    return f"{scope.level.value}:{scope.name}:{meter_name(meter)}:{window.value}"


def counter_key(limit: Limit, label: str = "") -> str:
    """The name of the state that a calendar limit counts in: `state_key` with the time zone behind the window. A limit that moves to
    another zone begins with another state, which is set from the ledger as a new limit's is."""
    key = state_key(limit.scope, limit.meter, limit.window)
    if limit.zone:
        key = f"{key}@{limit.zone}"
    return f"{key}:{label}" if label else key


def line_of(limit: Limit, now_unix: float, label: str = "") -> LimitLine:
    """The line of a limit, with the amount in force at a moment."""
    amount = limit.effective(now_unix)
    key = counter_key(limit)
    if limit.window is Window.MINUTE:
        # a rate's state is a time, of which one request costs more or less with another amount: a limit that was used up for a minute
        # would stay used up for that minute after a raise, so each amount has a state of its own
        key = f"{key}={amount}"
    return LimitLine(
        key=f"{key}:{label}" if label else key,
        meter=int(limit.meter),
        window=limit.window,
        amount=amount,
        burst=(limit.burst or amount) if limit.window is Window.MINUTE else 0,
        soft=limit.soft or 0,
        limit=limit,
    )
