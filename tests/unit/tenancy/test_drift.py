"""Counters against the ledger: what is asked, what is compared, and what is done about it."""

import datetime as dt
import random

from hypothesis import given
from hypothesis import strategies as st

from domain.usage import Usage
from tenancy.drift import TOLERATED, CounterComparison, Drift, added, asked_of, figures_of, judged, spent_in, today_at
from tenancy.grant import digest_of_label
from tenancy.limits import Amounts, Level, Limit, Meter, Scope, Window
from tenancy.seeds import Seed
from tenancy.usage import Spent
from tests.usage_events import event

NOW = dt.datetime(2026, 3, 31, 23, 59, tzinfo=dt.UTC).timestamp()
TODAY = today_at(NOW)
DAY, MONTH = TODAY.period(Window.DAY), TODAY.period(Window.MONTH)


def limit(level: Level, name: str, meter: Meter, window: Window) -> Limit:
    return Limit(Scope(level, name), meter, window, 100)


def test_periods_begin_where_the_calendar_says() -> None:
    begins = [TODAY.begins_s(window) for window in (Window.HOUR, Window.DAY, Window.WEEK, Window.MONTH)]
    assert [dt.datetime.fromtimestamp(begin or 0, dt.UTC).strftime("%m-%d %H:%M") for begin in begins] == [
        "03-31 23:00", "03-31 00:00", "03-30 00:00", "03-01 00:00"
    ]  # fmt: skip
    assert TODAY.begins_s(Window.EVER) is None
    assert TODAY.settled_before == dt.date(2026, 2, 1)
    assert today_at(dt.datetime(2026, 1, 31, tzinfo=dt.UTC).timestamp()).settled_before == dt.date(2025, 12, 1)


def test_ten_thousand_limits_are_few_questions() -> None:
    limits = [("acme", limit(Level.KEY, f"k{n}", Meter.TOKENS, window)) for n in range(10_000) for window in (Window.DAY, Window.MONTH)]
    asked = asked_of(limits)
    assert set(asked) == {(Level.KEY, Window.DAY, ""), (Level.KEY, Window.MONTH, "")}
    figures = figures_of(asked, {question: [Spent("k7", "", Amounts(3, 4))] for question in asked}, TODAY)
    found = {seed.key: seed.settled for seed in figures["acme"]}
    assert len(found) == 20_000 and sum(found.values()) == 14
    assert found["key:k7:tokens:month"] == 7


def test_every_meter_and_scope_has_its_own_figure() -> None:
    scope = Scope(Level.TENANT, "acme")
    meters = [meter for meter in Meter if meter is not Meter.CONCURRENT_REQUESTS]
    limits = [("acme", Limit(scope, meter, Window.MONTH, 100)) for meter in meters]
    spent = {
        (Level.TENANT, Window.MONTH, ""): [Spent("acme", "", Amounts(1, 2, 4, 5, 6, 7, 8)), Spent("other", "", Amounts(9, 9, 9, 9, 9))]
    }
    figures = figures_of(asked_of(limits), spent, TODAY)
    assert set(figures) == {"acme"}
    assert {seed.key: (seed.period, seed.settled) for seed in figures["acme"]} == {
        f"tenant:acme:{meter.name.lower()}:month": (MONTH, value) for meter, value in zip(meters, (6, 1, 2, 3, 4, 5, 7, 8), strict=True)
    }


def test_end_users_are_those_who_used_something() -> None:
    limits = [("acme", limit(Level.USER, "acme/app", Meter.REQUESTS, Window.DAY))]
    spent = {(Level.USER, Window.DAY, ""): [Spent("acme/app", "ann", Amounts(1, 1)), Spent("acme/lab", "bob", Amounts(1, 1))]}
    expected = Seed(f"user:acme/app:requests:day:{digest_of_label('ann')}", Window.DAY, DAY, 1)
    assert figures_of(asked_of(limits), spent, TODAY) == {"acme": [expected]}


def test_answers_about_different_days_add_up() -> None:
    some, more = [Spent("a", "", Amounts(1, 2, 3, 4, 5))], [Spent("a", "", Amounts(10, 20, 30, 40, 50)), Spent("b", "", Amounts(1, 1))]
    assert added(some, more) == [Spent("a", "", Amounts(11, 22, 33, 44, 55)), more[1]]


def test_events_count_as_the_ledger_counts_them() -> None:
    noon = int(NOW * 1000)
    events = [
        event("a", at_unix_ms=noon, user="ann", usage=Usage(1, 2), units=3, cost_nanousd=4),
        event("b", at_unix_ms=noon, outcome="no_backend", closing="release"),
        event("c", at_unix_ms=noon - 86_400_000, usage=Usage(100, 0)),
    ]
    assert spent_in(events, Level.TENANT, TODAY.begins_s(Window.DAY)) == [Spent("acme", "", Amounts(1, 2, 3, 4, 1))]
    assert spent_in(events, Level.GLOBAL, None) == [Spent("", "", Amounts(101, 2, 3, 4, 2))]
    assert spent_in(events, Level.USER, TODAY.begins_s(Window.DAY)) == [
        Spent(name, "ann", Amounts(1, 2, 3, 4, 1)) for name in ("acme", "acme/default")
    ]
    names = [spent_in(events[:1], level, None)[0].name for level in (Level.MODEL, Level.ORGANISATION, Level.PROJECT, Level.KEY)]
    assert names == ["m", "", "acme/default", "k1"]


def test_what_counters_missed_is_added_when_seen_twice() -> None:
    missing = CounterComparison(1, ledger=1000, settled=900)
    assert judged(None, missing) is None
    assert judged(CounterComparison(1, 900, 900), missing) is None
    assert judged(CounterComparison(0, 900, 800), missing) is None, "another period"
    assert judged(CounterComparison(1, 900, 850), missing) == Drift(0.05, 1000, None)
    assert judged(CounterComparison(1, 900, 850), CounterComparison(1, 1000, 996)) is None, "within what is tolerated"


def test_what_counts_without_having_been_used_goes_when_a_minute_has_not_explained_it() -> None:
    before = CounterComparison(1, ledger=900, settled=1000)
    assert judged(before, CounterComparison(1, 1000, 1100)) is None, "it was only on its way"
    assert judged(before, CounterComparison(1, 950, 1030)) == Drift(0.05, 980, 1030)
    assert judged(before, CounterComparison(1, 950, 940)) == Drift(0.05, 950, 940), "never below the ledger"


@given(seed=st.integers(0, 10**6), lag=st.integers(0, 59), rate=st.integers(1, 50))
def test_requests_under_way_are_no_drift(seed: int, lag: int, rate: int) -> None:
    """Any traffic whose events reach the ledger within a minute of their settlement, in any order."""
    rng = random.Random(seed)
    settled_at = [(rng.uniform(0, 300), rng.randrange(100)) for _ in range(rate * 10)]
    booked_at = [(at + rng.uniform(0, lag), amount) for at, amount in settled_at]
    before = None
    for second in range(0, 300, 60):
        ledger = sum(amount for at, amount in booked_at if at <= second)
        settled = sum(amount for at, amount in settled_at if at <= second + 0.5)
        now = CounterComparison(1, ledger, settled)
        assert judged(before, now) is None
        before = now


@given(share=st.floats(0.006, 0.9), spent=st.integers(1000, 10**15))
def test_any_loss_above_what_is_tolerated_is_found_and_mended(share: float, spent: int) -> None:
    lost = CounterComparison(1, spent, spent - int(spent * share) - 1)
    drift = judged(lost, lost)
    assert drift is not None and drift.right == spent and drift.share > TOLERATED
