"""Usage events as rows of the ledger, and what they add to its totals. No statement is run here (`tenancy.stores.sql.ledger` does).

Most events of a batch differ in their id, time and numbers only, so a batch is grouped by everything else: texts are checked, cut and
digested once for each `UsageGroup` and not once for each event, and sums are built per group. What is left for each event is one look-up
and one tuple.
"""

import datetime as dt
import functools
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

from tenancy.limits import OTHER_LABEL
from tenancy.periods import QUARTER_S
from tenancy.stores.sql.schema import QUARTER_AMOUNTS, USAGE_AMOUNTS, USAGE_LABELS
from tenancy.usage import FREE_CLOSING, FREE_OUTCOMES, UsageEvent, day_of
from tenancy.wal_frames import MAX_NUMBER, MAX_TEXT, tamed

QUARTER_MS: Final = QUARTER_S * 1000
COUNTS: Final = ("requests", "free_requests")
_OWN: Final = ("request_id", "seq", "at_unix_ms", *USAGE_AMOUNTS, "duration_ms")
_OTHERS: Final = ("endpoint", "pool", "revision", "outcome", "closing", "price_id", "priority_class", "asked_model", "steps", "reported")
EVENT_COLUMNS: Final = (*_OWN, "day", "bucket", *USAGE_LABELS, *_OTHERS)
"""Columns of `usage_event`, in the order of `event_rows`."""
TOTAL_COLUMNS: Final = ("day", "bucket", *USAGE_LABELS, *COUNTS, *USAGE_AMOUNTS)
"""Columns of `usage_total`, in the order of `total_rows`."""
QUARTER_COLUMNS: Final = ("begins_s", "bucket", "day", *COUNTS, *QUARTER_AMOUNTS)
"""Columns of `usage_quarter`, in the order of `quarter_rows`."""
_TENANT: Final = USAGE_LABELS.index("tenant")
_END_USER: Final = USAGE_LABELS.index("end_user")
_QUARTER_SUMS: Final = (0, 1, *(len(COUNTS) + USAGE_AMOUNTS.index(name) for name in QUARTER_AMOUNTS))
"""Places, in the sums of a group, of those that quarters have."""
_OTHERS_FROM: Final = 1 + len(USAGE_LABELS)
_OUTCOME: Final = _OTHERS_FROM + _OTHERS.index("outcome")
_CLOSING: Final = _OTHERS_FROM + _OTHERS.index("closing")
_CLASS_TEXT: Final = 16
"""Characters of a class's name that are kept."""

Key = tuple[Any, ...]
"""The quarter of an hour since 1970, `USAGE_LABELS` and `_OTHERS` of an event."""


class UsageGroup:
    """Events of one quarter of an hour whose texts, but for their ids, are the same."""

    __slots__ = ("_fixed", "bucket", "crowded", "day", "free", "labels", "quarter_s", "sums", "texts")

    def __init__(self, key: Key) -> None:
        self.day = _day_of_quarter(key[0])
        self.quarter_s: int = key[0] * QUARTER_S
        self.labels: tuple[str, ...] = key[1:_OTHERS_FROM]
        self.texts: tuple[str, ...] = key[_OTHERS_FROM:]
        self.free = int(key[_CLOSING] == FREE_CLOSING and key[_OUTCOME] in FREE_OUTCOMES)
        """1 for events that count towards no limit."""
        self.bucket = _digest(self.labels)
        self.crowded = False
        self.sums: list[int] = []
        """`COUNTS` and `USAGE_AMOUNTS` of the events that `summed` was given."""
        self._fixed: tuple[Any, ...] = ()

    @property
    def end_user(self) -> str:
        """The end user's label; empty for none."""
        return self.labels[_END_USER]

    @property
    def tenant(self) -> str:
        """The tenant's name."""
        return self.labels[_TENANT]

    @property
    def total_labels(self) -> tuple[str, ...]:
        """The labels of the row of totals that the events are added to."""
        return _without_end_user(self.labels) if self.crowded else self.labels

    def crowd(self) -> None:
        """Add these events to the totals of `OTHER_LABEL`; their rows keep their end user. To be called before `fixed`."""
        self.crowded = True
        self.bucket = _digest(self.total_labels)

    def fixed(self, day_as_text: bool) -> tuple[Any, ...]:
        """The part of a row of `usage_event` that is the same for all events."""
        if not self._fixed:
            self._fixed = (_day(self.day, day_as_text), self.bucket, *self.labels, *self.texts)
        return self._fixed


Entry = tuple[UsageEvent, UsageGroup]


def grouped(events: Iterable[UsageEvent]) -> tuple[list[Entry], list[UsageGroup]]:
    """Each event, within bounds, with its group, and the groups in the order of their first events. Of events with the same id only the
    first is taken."""
    entries: dict[str, Entry] = {}
    groups: dict[Key, UsageGroup] = {}
    for event in events:
        key = _key(event)
        group = groups.get(key)
        if group is None or not _numbers_are_bounded(event):
            event = _bounded(event, key)
            key = _key(event)
            group = groups.get(key)
            if group is None:
                group = groups[key] = UsageGroup(key)
        request_id = event.request_id
        if len(request_id) > MAX_TEXT or "\0" in request_id:
            event = tamed(event)
            request_id = event.request_id
        if request_id not in entries:
            entries[request_id] = (event, group)
    return list(entries.values()), list(groups.values())


def event_rows(entries: Sequence[Entry], after: int, *, day_as_text: bool) -> list[tuple[Any, ...]]:
    """Rows of `usage_event`, numbered from `after` + 1 on.

    Args:
        day_as_text: whether the database's driver wants days as text.
    """
    rows = []
    fixed: tuple[Any, ...] = ()
    last: UsageGroup | None = None
    for seq, (event, group) in enumerate(entries, after + 1):
        if group is not last:
            last = group
            fixed = group.fixed(day_as_text)
        usage = event.usage
        rows.append(
            (
                event.request_id,
                seq,
                event.at_unix_ms,
                usage.prompt_tokens,
                usage.completion_tokens,
                usage.cached_tokens,
                usage.reasoning_tokens,
                event.units,
                event.cost_nanousd,
                usage.audio_seconds,
                usage.audio_bytes,
                event.duration_ms,
                *fixed,
            )
        )
    return rows


def summed(entries: Iterable[Entry], groups: Sequence[UsageGroup]) -> list[UsageGroup]:
    """Those of the groups that have any of these events, with the sums of these events."""
    for group in groups:
        group.sums = [0] * (len(COUNTS) + len(USAGE_AMOUNTS))
    for event, group in entries:
        sums, usage = group.sums, event.usage
        sums[0] += 1
        sums[2] += usage.prompt_tokens
        sums[3] += usage.completion_tokens
        sums[4] += usage.cached_tokens
        sums[5] += usage.reasoning_tokens
        sums[6] += event.units
        sums[7] += event.cost_nanousd
        sums[8] += usage.audio_seconds
        sums[9] += usage.audio_bytes
    for group in groups:
        group.sums[1] = group.sums[0] * group.free
    return [group for group in groups if group.sums[0]]


def total_rows(groups: Iterable[UsageGroup], *, day_as_text: bool) -> list[tuple[Any, ...]]:
    """What the sums of these groups add to `usage_total`: one row for each day and bucket."""
    rows: dict[Key, tuple[UsageGroup, list[int]]] = {}
    for group in groups:
        _add(rows, (group.day, group.bucket), group, group.sums)
    return [(_day(group.day, day_as_text), group.bucket, *group.total_labels, *sums) for group, sums in rows.values()]


def quarter_rows(groups: Iterable[UsageGroup], *, day_as_text: bool) -> list[tuple[Any, ...]]:
    """What the sums of these groups add to `usage_quarter`: one row for each quarter of an hour and bucket."""
    rows: dict[Key, tuple[UsageGroup, list[int]]] = {}
    for group in groups:
        _add(rows, (group.quarter_s, group.bucket), group, [group.sums[place] for place in _QUARTER_SUMS])
    return [(group.quarter_s, group.bucket, _day(group.day, day_as_text), *sums) for group, sums in rows.values()]


def _add(rows: dict[Key, tuple[UsageGroup, list[int]]], key: Key, group: UsageGroup, sums: list[int]) -> None:
    known = rows.get(key)
    if known is None:
        rows[key] = (group, list(sums))
    else:
        known[1][:] = map(int.__add__, known[1], sums)


def _key(event: UsageEvent) -> Key:
    return (
        event.at_unix_ms // QUARTER_MS,
        event.organisation,
        event.tenant,
        event.project,
        event.key_id,
        event.user,
        event.model,
        event.lora,
        event.endpoint,
        event.pool,
        event.revision,
        event.outcome,
        event.closing,
        event.price_id,
        event.priority_class[:_CLASS_TEXT],
        event.asked_model,
        event.steps,
        event.reported,
    )


def _bounded(event: UsageEvent, key: Key) -> UsageEvent:
    """The event without texts that Postgres refuses and numbers that overflow; only a log of another version may have them."""
    texts = "".join(key[1:])
    if len(texts) <= MAX_TEXT and "\0" not in texts and _numbers_are_bounded(event):
        return event
    return tamed(event)


def _numbers_are_bounded(event: UsageEvent) -> bool:
    usage = event.usage
    return (
        0 <= usage.prompt_tokens <= MAX_NUMBER
        and 0 <= usage.completion_tokens <= MAX_NUMBER
        and 0 <= usage.cached_tokens <= MAX_NUMBER
        and 0 <= usage.reasoning_tokens <= MAX_NUMBER
        and 0 <= usage.audio_seconds <= MAX_NUMBER
        and 0 <= usage.audio_bytes <= MAX_NUMBER
        and 0 <= event.at_unix_ms <= MAX_NUMBER
        and 0 <= event.units <= MAX_NUMBER
        and 0 <= event.cost_nanousd <= MAX_NUMBER
        and 0 <= event.duration_ms <= MAX_NUMBER
    )


@functools.lru_cache(maxsize=1024)
def _day_of_quarter(quarter: int) -> dt.date:
    return day_of(quarter * QUARTER_MS)


def _day(day: dt.date, as_text: bool) -> dt.date | str:
    return day.isoformat() if as_text else day


def _without_end_user(labels: tuple[str, ...]) -> tuple[str, ...]:
    return (*labels[:_END_USER], OTHER_LABEL, *labels[_END_USER + 1 :])


def _digest(labels: tuple[str, ...]) -> bytes:
    return hashlib.blake2b("\0".join(labels).encode(), digest_size=16).digest()
