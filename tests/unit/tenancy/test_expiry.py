"""What is over is forgotten in time, whichever tags are asked about."""

import tracemalloc

import pytest

from domain.identity import TenantId
from tenancy.expiry import AT_ONCE, Forgetting
from tenancy.hold import Hold
from tenancy.limits import Amounts, Group, Level, Limit, Meter, Scope, Window, line_of
from tenancy.quota import LEASE_US, REAPED_US, SETTLED_US, Quota

START_US = 1_795_219_200_000_000
BYTES_A_HOLD = 170
"""What a settled hold may cost for its two minutes: its id, the time, its places in its tenant's dictionary and in the order. 147 were
measured."""
ONE = Amounts(1, 1)


def tenant(name: str) -> Group:
    return Group(name, (line_of(Limit(Scope(Level.TENANT, name), Meter.REQUESTS, Window.MINUTE, 10**7), 0.0),))


def serve(quota: Quota, group: Group, hold_id: str, now_us: int) -> None:
    hold = Hold(hold_id, TenantId(group.tag), ONE, (group,))
    quota.admit(hold, now_us)
    quota.settle(hold, ONE, now_us)


def remembered(quota: Quota) -> int:
    return sum(len(books.settled) + len(books.records) for books in quota._counters.values())


def test_a_tenant_that_never_comes_again_leaves_nothing_behind() -> None:
    quota, busy = Quota(), tenant("busy")
    for n in range(5_000):
        serve(quota, tenant(f"t{n % 500}"), f"h{n}", START_US + n)
    late_us = START_US + SETTLED_US + 5_000
    for n in range(5_000 // AT_ONCE + 2):
        serve(quota, busy, f"b{n}", late_us + n)
    assert remembered(quota) == len(quota._forgetting) == 5_000 // AT_ONCE + 2, "its own alone"


def test_steady_traffic_of_many_tenants_keeps_what_two_minutes_have_and_no_more() -> None:
    quota, groups = Quota(), [tenant(f"t{n}") for n in range(300)]
    every_us, in_window = 60_000, 2_000  # so many in two minutes
    assert every_us * in_window == SETTLED_US
    most = 0
    for n in range(6 * in_window):
        # each tenant comes once in a while, and half of them not at all after a time
        serve(quota, groups[(n * 7) % (300 if n < 2 * in_window else 150)], f"h{n}", START_US + n * every_us)
        most = max(most, remembered(quota), len(quota._forgetting))
    assert most <= in_window + 1


def test_a_lost_hold_of_a_quiet_tenant_waits_its_hour_and_goes() -> None:
    quota, quiet, busy = Quota(), tenant("quiet"), tenant("busy")
    lost = Hold("lost", TenantId("quiet"), ONE, (quiet,))
    quota.admit(lost, START_US)
    assert quota.reap("quiet", START_US + LEASE_US) == 1
    over_us = START_US + LEASE_US + REAPED_US
    serve(quota, busy, "a", over_us - 1)
    assert quota._counters["quiet"].knows("lost", over_us - 1) and quota._counters["quiet"].records
    serve(quota, busy, "b", over_us)
    assert not quota._counters["quiet"].records


def test_one_decision_forgets_a_bounded_number() -> None:
    forgetting, of = Forgetting(), {}  # type: tuple[Forgetting, dict[str, int]]
    gone: list[int] = []
    for n in range(2 * AT_ONCE):
        forgetting.remember(of, f"h{n}", START_US)
        forgetting.at(START_US, lambda n=n: gone.append(n))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
    forgetting.forget(START_US - 1)
    assert len(of) == 2 * AT_ONCE and not gone
    forgetting.forget(START_US)
    assert len(of) == AT_ONCE == len(gone) == len(forgetting) // 2
    forgetting.forget(START_US)
    assert not of and not len(forgetting) and gone == sorted(gone)


def test_an_id_that_is_remembered_anew_stays_for_its_new_time() -> None:
    forgetting, of, later = Forgetting(), {}, START_US + SETTLED_US  # type: tuple[Forgetting, dict[str, int], int]
    forgetting.remember(of, "h", START_US)
    forgetting.remember(of, "h", later)
    forgetting.forget(later - 1)
    assert of == {"h": later}
    forgetting.forget(later)
    assert not of and not len(forgetting)
    forgetting.remember(of, "h", later)
    of.clear()  # whoever owns the dictionary may forget it sooner
    forgetting.forget(later - 1)
    assert not len(forgetting)


@pytest.mark.slow
@pytest.mark.req("GATEWAYS-1")
def test_what_a_settled_hold_costs() -> None:
    quota, groups, many = Quota(), [tenant(f"t{n}") for n in range(100)], 20_000
    for group in groups:
        serve(quota, group, f"warm-{group.tag}", START_US)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for n in range(many):
            serve(quota, groups[n % 100], f"req-0123456789-{n:x}", START_US + n)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used / many <= BYTES_A_HOLD
