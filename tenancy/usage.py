"""What the ledger is asked: to take events, to forget old ones, and what was used by whom. Ports and values.

Days are UTC days of the calendar. Sums come from totals that are kept per day; single events are there for as long as the
retention keeps them.
"""

import base64
import datetime as dt
from collections.abc import Collection, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from tenancy.limits import Amounts, Level, Scope
from tenancy.usage_event import UsageEvent

By = Literal["day", "organisation", "tenant", "project", "key", "user", "model", "lora"]
BY: Final[tuple[By, ...]] = ("day", "organisation", "tenant", "project", "key", "user", "model", "lora")
"""What usage can be divided by, in the order of columns."""
PAGE_ROWS: Final = 500
MAX_PAGE_ROWS: Final = 5_000
MAX_SPENT: Final = 100_000
"""Scopes of one level, or end users, whose spending is read at once."""


class LedgerAway(Exception):
    """The ledger's database cannot be asked now; the message says why. What was to be written may be written again."""


class RowsRefused(Exception):
    """The database takes at least one of these rows under no circumstances; nothing of the batch was written."""


class BadCursor(ValueError):
    """Not a cursor of this query."""


class Sums(msgspec.Struct, frozen=True):
    """What was used, added up."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    units: int = 0
    """Weighted tokens."""
    cost_nanousd: int = 0


SUMS: Final = tuple(Sums.__struct_fields__)


class Row(msgspec.Struct, frozen=True):
    """One line of an answer: the labels it is for, in the order of `columns`, and its sums."""

    labels: tuple[str, ...]
    sums: Sums


class Filter(msgspec.Struct, frozen=True):
    """Which usage is meant; None for any."""

    first_day: dt.date | None = None
    last_day: dt.date | None = None
    """Included."""
    organisation: str | None = None
    tenant: str | None = None
    project: str | None = None
    key: str | None = None
    user: str | None = None
    model: str | None = None
    lora: str | None = None


class Page(msgspec.Struct, frozen=True):
    """Some rows, and where the next begin; None at the end."""

    rows: tuple[Row, ...]
    next: str | None


class EventPage(msgspec.Struct, frozen=True):
    """Some events in the order they were booked, and where the next begin; None when there are no more by now."""

    events: tuple[UsageEvent, ...]
    next: str | None


class Written(msgspec.Struct, frozen=True):
    """What became of a batch."""

    booked: int
    repeated: int
    """Were there already."""
    expired: int = 0
    """Of days that the retention has dropped: whether they were there cannot be told any more, so they are not booked."""
    crowded: int = 0
    """Of them all: whose end user is one too many of its tenant's that day, so that their totals are those of `(other)`."""


class UsageStore(Protocol):
    """The ledger's rows, for who writes them."""

    async def write(self, events: Sequence[UsageEvent]) -> Written:
        """Book events: all of them or, when it raises, perhaps none. Booking one again changes nothing.

        Raises:
            LedgerAway: try again later.
            RowsRefused: never try again.
        """
        ...

    async def prepare(self, today: dt.date) -> None:
        """Make room for the days to come. Raises LedgerAway."""
        ...

    async def prune(self, first_kept: dt.date) -> int:
        """Drop the events of days before this one, in constant memory and a week of them at most; the totals stay. Returns how many
        rows or partitions were dropped. Raises LedgerAway."""
        ...


class UsageTotals(Protocol):
    """What was used, added up."""

    async def totals(self, by: Sequence[By], where: Filter, after: str | None = None, limit: int = PAGE_ROWS) -> Page:
        """Sums per combination of labels, sorted by them. Raises LedgerAway, BadCursor."""
        ...


class UsageQueries(UsageTotals, Protocol):
    """What was used, for who asks."""

    async def spent(self, scope: Scope, since: dt.date | None, label: str = "") -> Sums:
        """All that counts towards limits of a scope since the beginning of a day, or ever; `label` is the end user of a scope of users.
        Raises LedgerAway."""
        ...

    async def events(self, where: Filter, after: str | None = None, limit: int = PAGE_ROWS) -> EventPage:
        """Single events. Raises LedgerAway, BadCursor."""
        ...


class Spent(msgspec.Struct, frozen=True, gc=False):
    """What counts towards limits of one scope."""

    name: str
    """Of the scope (`tenancy.limits.Scope.name`)."""
    label: str
    """The end user's, for scopes of users; else empty."""
    amounts: Amounts


class SpendReader(Protocol):
    """What counts towards limits, of many scopes at once."""

    async def spent_by(
        self, level: Level, names: Collection[str], since: dt.date | None, before: dt.date | None = None, most: int = MAX_SPENT
    ) -> list[Spent]:
        """What was used since the beginning of a day (None: ever) and before that of another, by each scope of a level that used
        anything, or by each end user of these scopes: the `most` that spent the most. Names that nobody asked for may be among
        them. Raises LedgerAway."""
        ...

    async def booked(self, request_ids: Collection[str]) -> set[str]:
        """Which of these requests are in it. Raises LedgerAway."""
        ...


def columns(by: Sequence[By]) -> tuple[str, ...]:
    """The label columns of an answer. A project or a user is one of a tenant, so the tenant stands beside it.

    Raises:
        ValueError: something that usage is not divided by.
    """
    for name in by:
        if name not in BY:
            raise ValueError(f"usage is not divided by {name!r}; write some of {', '.join(BY)}")
    asked = set(by)
    if asked & {"project", "user"}:
        asked.add("tenant")
    return tuple(name for name in BY if name in asked)


def to_cursor(place: Sequence[Any]) -> str:
    """A place in a sorted answer as opaque text."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def from_cursor(cursor: str, kinds: Sequence[type]) -> list[Any]:
    """The place behind a cursor.

    Raises:
        BadCursor: it was not made by `to_cursor` from values of these kinds.
    """
    try:
        place = msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=list[Any])
        if len(place) != len(kinds):
            raise BadCursor("the cursor belongs to another question")
        values: list[Any] = [msgspec.convert(value, kind) for value, kind in zip(place, kinds, strict=True)]
    except (ValueError, msgspec.MsgspecError, UnicodeError):
        raise BadCursor("is no cursor of this question; leave it out to begin at the start") from None
    # what no store could look for: texts with a NUL, and numbers beyond 64 bits
    if any("\0" in value if isinstance(value, str) else isinstance(value, int) and abs(value) >= 2**63 for value in values):
        raise BadCursor("is no cursor of this question; leave it out to begin at the start")
    return values


def first_of_month(day: dt.date) -> dt.date:
    """The day a month's counters begin at."""
    return day.replace(day=1)


def day_of(at_unix_ms: int) -> dt.date:
    """The UTC day of a moment; what no calendar has becomes its first or last day."""
    try:
        return (dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=at_unix_ms)).date()
    except OverflowError:
        return dt.date.max if at_unix_ms > 0 else dt.date.min
