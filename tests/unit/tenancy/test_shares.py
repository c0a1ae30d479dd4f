"""What a process may decide alone: never more than the limits, and never for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenancy import shares
from tenancy.hold import Refused
from tenancy.limits import Group, Level, Limit, Meter, Scope, Window, line_of
from tenancy.shares import GRACE_DIVISOR, LastKnown, Replicas, alone, closed_for_money, share_of, shares_of

ACME = Scope(Level.TENANT, "acme")


def line(meter, window, amount, **more):
    return line_of(Limit(ACME, meter, window, amount, **more), 0.0)


RPM = line(Meter.REQUESTS, Window.MINUTE, 100)
DAY = line(Meter.TOKENS, Window.DAY, 1000)
MONEY = line(Meter.COST_NANOUSD, Window.MONTH, 5_000_000)
SLOTS = line(Meter.CONCURRENT_REQUESTS, Window.NOW, 10)
EVER = line(Meter.UNITS, Window.EVER, 1000)


@given(st.integers(1, 10**8), st.integers(1, 64), st.integers(1, 10**8))
def test_rates_and_slots_of_all_together_are_the_limit_or_one_each(amount, replicas, burst):
    for meter, window, more in ((Meter.TOKENS, Window.MINUTE, {"burst": burst}), (Meter.CONCURRENT_REQUESTS, Window.NOW, {})):
        whole = line(meter, window, amount, **more)
        share = share_of(whole, replicas, 0)
        assert share.amount >= 1 and share.amount * replicas <= max(amount, replicas)
        assert share.burst * replicas <= max(whole.burst, replicas)
        assert share.key == whole.key and share.limit is whole.limit


@given(st.integers(0, 1000), st.integers(1, 64))
def test_what_was_left_of_a_counter_is_shared_and_nothing_of_nothing(remaining, replicas):
    share = share_of(DAY, replicas, remaining)
    assert remaining - replicas < share.amount * replicas <= remaining


@pytest.mark.req("R45")
@given(st.integers(0, 5_000_000), st.integers(1, 64))
def test_money_has_its_grace_and_never_more_than_was_left(remaining, replicas):
    share = share_of(MONEY, replicas, remaining)
    assert share.amount == min(MONEY.amount // GRACE_DIVISOR, remaining // replicas)
    assert share.amount * replicas <= remaining


def test_a_limit_of_zero_stays_zero():
    for whole in (line(Meter.REQUESTS, Window.MINUTE, 0), line(Meter.CONCURRENT_REQUESTS, Window.NOW, 0)):
        assert share_of(whole, 4, 0).amount == 0
    assert share_of(line(Meter.COST_NANOUSD, Window.DAY, 0), 4, 0).amount == 0


def test_what_was_said_counts_until_its_period_is_over():
    known = LastKnown()
    assert known.remaining(DAY, 0.0) == 1000, "never heard of: untouched"
    known.note(DAY, 40, 60_000_000, now=10.0)
    known.note(EVER, 7, 0, now=10.0)
    assert (known.remaining(DAY, 69.9), known.remaining(DAY, 70.0)) == (40, 1000)
    assert known.remaining(EVER, 1e9) == 7
    assert shares_of(Group("acme", (RPM, DAY)), 4, known, 20.0).lines == (share_of(RPM, 4, 0), share_of(DAY, 4, 40))


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(shares, "MAX_KNOWN", 2)
    known = LastKnown()
    for limit in (DAY, MONEY, EVER):
        known.note(limit, 1, 60_000_000, 0.0)
    assert [known.remaining(limit, 1.0) for limit in (DAY, MONEY, EVER)] == [1000, 1, 1], "the oldest gave way"


def test_the_most_processes_seen_lately_count():
    replicas = Replicas()
    assert replicas.count == 1
    for count, now in ((4, 0.0), (1, 1.0), (2, 20.0)):
        replicas.saw(count, now)
    assert replicas.count == 4, "a store that just came back knows nobody yet"
    replicas.saw(2, 31.0)
    assert replicas.count == 2
    replicas.saw(0, 1000.0)
    assert replicas.count == 1


def test_a_refusal_of_a_share_speaks_of_the_whole_and_is_never_final():
    told = alone(Refused(share_of(RPM, 4, 0), 3, 1_000, never=False), RPM)
    assert (told.line, told.remaining, told.wait_us, told.never, told.degraded) == (RPM, 3, 1_000, False, True)
    assert not alone(Refused(share_of(RPM, 4, 0), 25, None, never=True), RPM).never, "25 is a share, 100 the limit"
    spent = alone(Refused(share_of(MONEY, 4, 0), 0, 99_000_000), MONEY)
    assert spent.wait_us is None and closed_for_money(spent)
    assert not closed_for_money(told) and not closed_for_money(Refused(MONEY, 0, None))
    assert alone(Refused(line(Meter.REQUESTS, Window.MINUTE, 0), 0, None, never=True), line(Meter.REQUESTS, Window.MINUTE, 0)).never
