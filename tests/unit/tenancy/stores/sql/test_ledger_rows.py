"""Rows and sums of a batch, without a database: what is grouped adds up to what each event says."""

import datetime as dt
import random
from collections import Counter
from typing import Any

from domain.usage import Usage
from tenancy.limits import OTHER_LABEL
from tenancy.stores.sql.ledger_rows import (
    EVENT_COLUMNS,
    QUARTER_COLUMNS,
    TOTAL_COLUMNS,
    event_rows,
    grouped,
    quarter_rows,
    summed,
    total_rows,
)
from tenancy.usage import FREE_CLOSING, FREE_OUTCOMES, UsageEvent
from tenancy.wal_frames import MAX_NUMBER, MAX_TEXT, tamed
from tests.usage_events import FIRST_DAY, FIRST_MS, event, random_event

EVENTS = [random_event(n, random.Random(n)) for n in range(500)]
SUMS = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "units", "cost_nanousd")


def sums(events: list[UsageEvent]) -> Counter[str]:
    counted: Counter[str] = Counter(requests=len(events))
    for each in events:
        usage = each.usage
        values = (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens, each.units, each.cost_nanousd)
        counted.update(dict(zip(SUMS, values, strict=True)))
    return counted


def added(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for row in rows:
        named = dict(zip(columns, row, strict=True))
        total.update({name: named[name] for name in ("requests", *SUMS) if name in named})
    return total


def test_totals_and_quarters_add_up_to_the_events() -> None:
    entries, groups = grouped(EVENTS)
    some = summed(entries, groups)
    totals, quarters = total_rows(some, day_as_text=False), quarter_rows(some, day_as_text=False)
    assert added(TOTAL_COLUMNS, totals) == sums(EVENTS)
    in_quarters = added(QUARTER_COLUMNS, quarters)
    assert in_quarters == Counter({name: value for name, value in sums(EVENTS).items() if name in in_quarters})
    assert len({row[:2] for row in totals}) == len(totals), "a statement of SQL may not touch a row twice"
    assert len({row[:2] for row in quarters}) == len(quarters)


def test_only_the_events_that_are_given_are_summed() -> None:
    entries, groups = grouped(EVENTS)
    summed(entries, groups)
    some = summed(entries[::7], groups)
    assert added(TOTAL_COLUMNS, total_rows(some, day_as_text=False)) == sums(EVENTS[::7])


def test_a_row_is_its_event() -> None:
    entries, _ = grouped(EVENTS[:50])
    for n, (row, (kept, group)) in enumerate(zip(event_rows(entries, 10, day_as_text=True), entries, strict=True), 11):
        named = dict(zip(EVENT_COLUMNS, row, strict=True))
        assert (named["seq"], named["request_id"], named["bucket"]) == (n, kept.request_id, group.bucket)
        assert (named["organisation"], named["tenant"], named["end_user"], named["lora"]) == (
            kept.organisation,
            kept.tenant,
            kept.user,
            kept.lora,
        )
        assert (named["closing"], named["steps"], named["reported"]) == (kept.closing, kept.steps, kept.reported)
        assert named["day"] == str(FIRST_DAY + dt.timedelta(days=(kept.at_unix_ms - FIRST_MS) // 86_400_000))


def test_the_same_id_is_taken_once_and_texts_and_numbers_are_bounded() -> None:
    odd = event(1, user="a\0b" * 1000, usage=Usage(2**70, -3), cost_nanousd=2**62)
    long_id = event("x" * 1000)
    entries, groups = grouped([odd, odd, long_id, event(2)])
    assert [kept for kept, _ in entries] == [tamed(odd), tamed(long_id), event(2)]
    assert max(len(kept.request_id) for kept, _ in entries) == MAX_TEXT
    assert len(groups) == 2 and summed(entries, groups)[0].sums[2] == MAX_NUMBER


def test_a_number_beyond_reason_in_a_known_group_is_bounded_too() -> None:
    entries, groups = grouped([event(1, units=5), event(2, units=-5), event(3, units=2**65)])
    assert len(groups) == 1
    assert summed(entries, groups)[0].sums[6] == 5 + MAX_NUMBER


def test_requests_that_count_towards_no_limit_are_counted_apart() -> None:
    failed = [event(n, closing=FREE_CLOSING, outcome=outcome) for n, outcome in enumerate(sorted(FREE_OUTCOMES))]
    entries, groups = grouped([*failed, event("left", closing=FREE_CLOSING, outcome="ok"), event("paid", outcome=min(FREE_OUTCOMES))])
    (row,) = total_rows(summed(entries, groups), day_as_text=False)
    free = TOTAL_COLUMNS.index("free_requests")
    assert (row[free - 1], row[free]) == (len(failed) + 2, len(failed))


def test_a_crowded_end_user_is_added_to_the_others_and_keeps_its_row() -> None:
    entries, groups = grouped([event(1, user="ann"), event(2, user="bob"), event(3, user="eve")])
    for group in groups[1:]:
        group.crowd()
    rows = total_rows(summed(entries, groups), day_as_text=False)
    place = TOTAL_COLUMNS.index("end_user")
    assert sorted((row[place], row[TOTAL_COLUMNS.index("requests")]) for row in rows) == [(OTHER_LABEL, 2), ("ann", 1)]
    events = event_rows(entries, 0, day_as_text=False)
    assert [row[EVENT_COLUMNS.index("end_user")] for row in events] == ["ann", "bob", "eve"]
