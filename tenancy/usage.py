"""Ports and values of the ledger: to book usage, to drop old rows, and to query.

A block by a guard rule comes with the usage of its request and is written to the audit in the same transaction, so that it is there
exactly once, and no request waits for it.

`UsageEvent` is one row: what one request used and cost, written once and never changed. `UsageStore` books rows and drops old ones,
`UsageTotals` and `UsageQueries` read, `SpendReader` reads what counts towards limits.

Days are UTC days of the calendar. Sums come from totals that are kept per day, and for periods that begin within a day (hours, days of
other time zones, rolling windows) from totals of quarters of an hour, which are kept for a year; single events are there for as long as the
retention keeps them.
"""

import base64
import datetime as dt
from collections.abc import Collection, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from domain.faults import SOURCE, Source
from domain.usage import NO_USAGE, Usage
from tenancy.limits import MAX_ROLLING_DAYS, Amounts, Level, Scope

FREE_CLOSING: Final = "release"
FREE_OUTCOMES: Final = frozenset(kind.value for kind, source in SOURCE.items() if source is not Source.CALLER)
"""A request that was closed with nothing and ended this way failed through no fault of its caller: limits on requests do not count
it (`gateway.request.holds.OpenHold.charged`)."""

LOST: Final = "lost"
"""Outcome and closing of a request whose process died meanwhile. It counts as a request, as it does where its hold was reaped."""


class GuardBlock(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a guard rule of the mode `block` did to one request. Holds no text of it."""

    rule: str
    kinds: str
    """What was found, comma-separated."""
    direction: str
    """What the refused text is: `input`, `output`, …"""
    version: str
    """The first digits of the digest of the rules."""
    late: bool = False
    """Whether an answer was cut after the refused text had been sent."""
    model: str = ""
    """The model that was refused, where another one answered in its place; else empty."""


class UsageEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens and money are integers; the request's id makes a row unique, however often it is replayed."""

    request_id: str
    """The gateway's own id, never the caller's."""
    at_unix_ms: int
    """When the request was admitted; its day (UTC) is the day it is billed to."""
    tenant: str
    project: str
    key_id: str
    user: str
    """The end-user label; empty for none."""
    endpoint: str
    model: str
    """Public name."""
    pool: str
    revision: str
    lora: str
    outcome: str
    closing: str
    """`settle`, `estimate` or `release` (`tenancy.hold.Word`), or `lost`."""
    usage: Usage = NO_USAGE
    units: int = 0
    """Weighted tokens."""
    cost_nanousd: int = 0
    price_id: str = ""
    """The version of the price it was charged at; empty for none."""
    duration_ms: int = 0
    organisation: str = ""
    priority_class: str = ""
    """Name of the class (`domain.priority`); empty for rows from before there were classes."""
    asked_model: str = ""
    """The model asked for, where it was overloaded and `model` answered instead."""
    steps: str = ""
    """The steps of its tenant's degradation ladder that were applied, comma-separated."""
    reported: str = ""
    """The engine's own counts of tokens in words, where they are implausible and `usage` is their bound; else empty."""
    blocked: GuardBlock | None = None
    """The guard rule that refused the request or cut its answer. It goes to the audit and not to the ledger's row; None for none."""


By = Literal["day", "organisation", "tenant", "project", "key", "user", "model", "lora"]
BY: Final[tuple[By, ...]] = ("day", "organisation", "tenant", "project", "key", "user", "model", "lora")
"""The labels that usage can be grouped by, in the order of columns."""
PAGE_ROWS: Final = 500
MAX_PAGE_ROWS: Final = 5_000
MAX_SPENT: Final = 100_000
"""Scopes of one level, or end users, whose usage is read at once."""
MAX_SPENT_HOURS: Final = 1_000_000
"""Hours of scopes of one level, or of end users, whose usage is read at once: 100 scopes that were busy in every hour of a year."""


QUARTERS_KEPT_DAYS: Final = MAX_ROLLING_DAYS + 1
"""How long the totals of quarters of an hour are kept: as long as the longest rolling window, which begins within a day."""


class LedgerAway(Exception):
    """The ledger's database cannot be reached now; the message says why. A write may be repeated."""


class RowsRefused(Exception):
    """The database refuses at least one of these rows for good; nothing of the batch was written."""


class BadCursor(ValueError):
    """The cursor does not belong to this query."""


class UsageSums(msgspec.Struct, frozen=True):
    """Sums of usage."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    units: int = 0
    """Weighted tokens."""
    cost_nanousd: int = 0
    audio_seconds: int = 0
    audio_bytes: int = 0


SUMS: Final = tuple(UsageSums.__struct_fields__)


class UsageAnswerRow(msgspec.Struct, frozen=True):
    """One row of an answer: its labels, in the order of `columns`, and its sums."""

    labels: tuple[str, ...]
    sums: UsageSums


class Filter(msgspec.Struct, frozen=True):
    """The usage to select, by label; None for any."""

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
    """Some rows, and the cursor of the next page; None at the end."""

    rows: tuple[UsageAnswerRow, ...]
    next: str | None


class EventPage(msgspec.Struct, frozen=True):
    """Some events in the order they were booked, and the cursor of the next page; None when there are no more by now."""

    events: tuple[UsageEvent, ...]
    next: str | None


class WriteResult(msgspec.Struct, frozen=True):
    """The result of writing a batch, in numbers of events."""

    booked: int
    repeated: int
    """Events that were booked already."""
    expired: int = 0
    """Events of days that the retention has dropped. They may have been booked before, so they are not booked."""
    crowded: int = 0
    """Events, among all of these, whose end user is beyond the bound on its tenant's end users that day; they count in the totals of
    `(other)`."""


class UsageStore(Protocol):
    """The ledger, for the process that writes it."""

    async def write(self, events: Sequence[UsageEvent]) -> WriteResult:
        """Book events: all of them or, when it raises, perhaps none. Booking an event again changes nothing.

        Raises:
            LedgerAway: try again later.
            RowsRefused: never try again.
        """
        ...

    async def prepare(self, today: dt.date) -> None:
        """Create storage for the days to come, and drop totals of quarters of an hour that no period needs any more. Raises LedgerAway."""
        ...

    async def sum_up_blocks(self, now_unix: float) -> int:
        """Write an audit row for each tenant and minute that is over and had more blocks than rows of their own
        (`tenancy.guard_blocks`). Returns how many rows were written. Raises LedgerAway."""
        ...

    async def prune(self, first_kept: dt.date) -> int:
        """Drop the events of days before this one, in constant memory and a week of them at most; the totals stay. Returns how many
        rows or partitions were dropped. Raises LedgerAway."""
        ...


class UsageTotals(Protocol):
    """Usage, added up."""

    async def totals(self, by: Sequence[By], where: Filter, after: str | None = None, limit: int = PAGE_ROWS) -> Page:
        """Sums per combination of labels, sorted by them. Raises LedgerAway, BadCursor."""
        ...


class UsageQueries(UsageTotals, Protocol):
    """Usage, for readers."""

    async def spent(self, scope: Scope, since: dt.date | None, label: str = "") -> UsageSums:
        """Usage that counts towards limits of a scope since the beginning of a day, or ever; `label` is the end user, for a scope of end
        users. Raises LedgerAway."""
        ...

    async def events(self, where: Filter, after: str | None = None, limit: int = PAGE_ROWS) -> EventPage:
        """Single events. Raises LedgerAway, BadCursor."""
        ...


class Spent(msgspec.Struct, frozen=True, gc=False):
    """Usage that counts towards limits of one scope."""

    name: str
    """Name of the scope (`tenancy.limits.Scope.name`)."""
    label: str
    """The end user's label, for scopes of end users; else empty."""
    amounts: Amounts
    hour: int = 0
    """The hour since 1970 that these amounts were used in; 0 for amounts of a longer time."""


class SpendReader(Protocol):
    """Usage that counts towards limits, of many scopes at once."""

    async def spent_by(
        self, level: Level, names: Collection[str], since: dt.date | None, before: dt.date | None = None, most: int = MAX_SPENT
    ) -> list[Spent]:
        """Usage since the beginning of the day `since` (None: ever) and before the day `before`, of each scope of a level that has any,
        or of each end user of these scopes: the `most` scopes that spent the most. The answer may have names that were not asked for.
        Raises LedgerAway."""
        ...

    async def spent_since(self, level: Level, names: Collection[str], since_s: int, most: int = MAX_SPENT) -> list[Spent]:
        """As `spent_by`, since a moment in seconds since 1970 that is a whole quarter of an hour and at most `QUARTERS_KEPT_DAYS` ago.
        Raises LedgerAway."""
        ...

    async def spent_per_hour(self, level: Level, names: Collection[str], since_s: int, most: int = MAX_SPENT_HOURS) -> list[Spent]:
        """As `spent_since`, of each hour of the clock separately, since the beginning of an hour: the newest `most` answers. Raises
        LedgerAway."""
        ...

    async def booked(self, request_ids: Collection[str]) -> set[str]:
        """The ids, of these requests, that are in the ledger. Raises LedgerAway."""
        ...


def columns(by: Sequence[By]) -> tuple[str, ...]:
    """The label columns of an answer. A project or a user is one of a tenant, so the tenant stands beside it.

    Raises:
        ValueError: usage cannot be grouped by one of the names.
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
        BadCursor: the cursor was not made by `to_cursor` from values of these kinds.
    """
    try:
        place = msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=list[Any])
        if len(place) != len(kinds):
            raise BadCursor("the cursor belongs to another question")
        values: list[Any] = [msgspec.convert(value, kind) for value, kind in zip(place, kinds, strict=True)]
    except (ValueError, msgspec.MsgspecError, UnicodeError):
        raise BadCursor("is no cursor of this question; leave it out to begin at the start") from None
    # values that no store could look for: texts with a NUL, and numbers beyond 64 bits
    if any("\0" in value if isinstance(value, str) else isinstance(value, int) and abs(value) >= 2**63 for value in values):
        raise BadCursor("is no cursor of this question; leave it out to begin at the start")
    return values


def first_of_month(day: dt.date) -> dt.date:
    """The first day of a day's month, at which the month's counters begin."""
    return day.replace(day=1)


def day_of(at_unix_ms: int) -> dt.date:
    """The UTC day of a moment; the first or last day of the calendar for a moment outside it."""
    try:
        return (dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=at_unix_ms)).date()
    except OverflowError:
        return dt.date.max if at_unix_ms > 0 else dt.date.min
