"""Laws of one hold on one limit, from its admission to its end; `tests/property/test_quota.py` has random lives of many holds."""

import pytest

from domain.identity import TenantId
from tenancy.hold import Admitted, Beat, Hold, Refused
from tenancy.limits import MINUTE_US, Amounts, Group, Level, Limit, LimitWindow, Meter, Rolling, Scope, Window, line_of
from tenancy.quota import LEASE_US, Quota
from tenancy.rates import DAY_US

NOON_US = 20_000 * DAY_US + DAY_US // 2


def of(meter: Meter, window: LimitWindow, amount: int) -> Group:
    return Group("acme", (line_of(Limit(Scope(Level.TENANT, "acme"), meter, window, amount), 0.0),))


def hold(name: str, group: Group, tokens: int = 1) -> Hold:
    return Hold(name, TenantId("acme"), Amounts(tokens, 0), (group,))


def admitted(quota: Quota, asked: Hold, now_us: int = NOON_US) -> bool:
    return isinstance(quota.admit(asked, now_us), Admitted)


@pytest.mark.parametrize("window", [Window.DAY, Window.MONTH, Window.EVER])
def test_a_budget_holds_exactly_its_amount_whatever_is_still_open(window: Window) -> None:
    quota, budget = Quota(), of(Meter.TOKENS, window, 100)
    assert admitted(quota, hold("a", budget, 60))
    assert not admitted(quota, hold("b", budget, 41))
    assert admitted(quota, hold("c", budget, 40))
    assert not admitted(quota, hold("d", budget, 1))


def test_a_day_that_was_used_up_is_over_at_midnight_utc() -> None:
    quota, day = Quota(), of(Meter.TOKENS, Window.DAY, 100)
    spent = hold("a", day, 100)
    assert admitted(quota, spent)
    quota.settle(spent, spent.amounts, NOON_US)
    refused = quota.admit(hold("b", day), NOON_US)
    assert isinstance(refused, Refused) and refused.wait_us == DAY_US // 2
    assert not admitted(quota, hold("c", day), NOON_US + DAY_US // 2 - 1)
    assert admitted(quota, hold("d", day), NOON_US + DAY_US // 2)


def test_a_rolling_window_has_room_exactly_when_it_says_and_no_days_on_end_exceed_the_amount() -> None:
    quota, window = Quota(), of(Meter.TOKENS, Rolling(1), 100)
    late = NOON_US + 3_599_999_999  # the last moment of the hour
    for name, tokens, at_us in (("a", 30, NOON_US), ("b", 30, late), ("c", 40, late + 1)):
        spent = hold(name, window, tokens)
        assert admitted(quota, spent, at_us)
        quota.settle(spent, spent.amounts, at_us)
    refused = quota.admit(hold("d", window, 60), late + 1)
    assert isinstance(refused, Refused) and refused.wait_us == DAY_US, "25 hours after the hour of the first two began"
    assert not admitted(quota, hold("e", window, 1), late + DAY_US), "a day later, and b was sent within this day"
    assert admitted(quota, hold("f", window, 60), late + 1 + DAY_US)
    assert not admitted(quota, hold("g", window, 1), late + 1 + DAY_US)


def test_a_request_that_used_less_than_its_worst_case_gives_the_rest_back_at_once() -> None:
    for window in (Window.MINUTE, Window.DAY):
        quota, limit = Quota(), of(Meter.TOKENS, window, 600)
        whole = hold("a", limit, 600)
        assert admitted(quota, whole) and not admitted(quota, hold("b", limit))
        quota.settle(whole, Amounts(100, 0), NOON_US)
        assert not admitted(quota, hold("c", limit, 501))
        assert admitted(quota, hold("d", limit, 500)), window


def test_a_raised_rate_has_its_whole_burst_at_once_and_requests_that_run_settle_where_they_were_counted() -> None:
    quota, before, after = Quota(), of(Meter.TOKENS, Window.MINUTE, 60), of(Meter.TOKENS, Window.MINUTE, 6000)
    spent = hold("a", before, 60)
    assert admitted(quota, spent) and not admitted(quota, hold("b", before))
    assert admitted(quota, hold("c", after, 6000)), "the raised limit is not used up because the smaller one was"
    assert not admitted(quota, hold("d", after))
    quota.settle(spent, Amounts(0, 0), NOON_US)
    assert not admitted(quota, hold("e", after)), "what is given back belongs to the smaller limit"
    assert admitted(quota, hold("f", before, 60)), "a raise that is over leaves the limit as it was"


def test_a_request_that_used_more_than_was_held_is_charged_for_all_of_it() -> None:
    quota, minute = Quota(), of(Meter.TOKENS, Window.MINUTE, 60)
    more = hold("a", minute, 30)
    assert admitted(quota, more)
    quota.settle(more, Amounts(120, 0), NOON_US)
    assert not admitted(quota, hold("b", minute), NOON_US + MINUTE_US)
    assert admitted(quota, hold("c", minute), NOON_US + MINUTE_US + 1_000_000)


def test_who_asks_for_nothing_of_a_meter_passes_its_overdrawn_limit_but_not_one_of_nothing() -> None:
    for window in (Window.MINUTE, Window.DAY, Window.EVER, Rolling(2)):
        quota, limit = Quota(), of(Meter.TOKENS, window, 100)
        over = hold("a", limit, 100)
        assert admitted(quota, over)
        quota.settle(over, Amounts(300, 0), NOON_US)
        assert not admitted(quota, hold("b", limit, 1))
        assert admitted(quota, hold("c", limit, 0)), window
        assert not admitted(quota, hold("d", of(Meter.TOKENS, window, 0), 0)), window


def test_a_slot_is_free_again_when_its_request_has_ended() -> None:
    quota, slots = Quota(), of(Meter.CONCURRENT_REQUESTS, Window.NOW, 1)
    for name in ("a", "b", "c"):
        asked = hold(name, slots)
        assert admitted(quota, asked) and not admitted(quota, hold(name + "2", slots))
        quota.settle(asked, asked.amounts, NOON_US)


def test_a_hold_whose_gateway_died_is_charged_for_what_was_delivered() -> None:
    quota, budget = Quota(), of(Meter.TOKENS, Window.DAY, 100)
    lost = hold("a", budget, 100)
    assert admitted(quota, lost)
    quota.beat([Beat(lost, Amounts(30, 0), lost.amounts)], NOON_US)
    assert not admitted(quota, hold("b", budget), NOON_US + LEASE_US - 1)
    assert admitted(quota, hold("c", budget, 70), NOON_US + LEASE_US)
    assert not admitted(quota, hold("d", budget), NOON_US + LEASE_US)


def test_the_first_settlement_counts_and_no_other() -> None:
    quota, budget = Quota(), of(Meter.TOKENS, Window.EVER, 100)
    asked = hold("a", budget, 50)
    assert admitted(quota, asked)
    for used in (20, 90, 0):
        quota.settle(asked, Amounts(used, 0), NOON_US)
    assert admitted(quota, asked), "an admission of a known hold changes nothing"
    assert not admitted(quota, hold("b", budget, 81))
    assert admitted(quota, hold("c", budget, 80))


def test_a_refusal_by_one_limit_charges_none() -> None:
    quota = Quota()
    day, minute = of(Meter.TOKENS, Window.DAY, 100), of(Meter.REQUESTS, Window.MINUTE, 1)
    both = Group("acme", day.lines + minute.lines)
    assert admitted(quota, hold("a", both, 40))
    assert not admitted(quota, hold("b", both, 40)), "one request a minute"
    assert admitted(quota, hold("c", day, 60))
