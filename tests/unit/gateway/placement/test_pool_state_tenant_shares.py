import random
from math import inf

import pytest

from gateway.placement.pool_state import MOST, QUIET_S, PoolState, TenantShares
from routing.room import HEADROOM
from tests.placement import pool_of


def holding(kept: float = 0.25, **counts: int) -> TenantShares:
    holders = TenantShares(kept)
    for tenant, count in counts.items():
        for _ in range(count):
            holders.request_sent(tenant)
    return holders


@pytest.mark.parametrize(
    ("counts", "part"),
    [
        ({"a": 50}, 1.0),  # alone
        ({"a": 50, "b": 1}, 0.75),
        ({"a": 2, "b": 1}, 1.0),
        ({"a": 20, "b": 20}, 1.0),
        ({"a": 32, "b": 10}, 0.75),
        ({"a": 31, "b": 10}, 1.0),  # three times as many and one
        ({"a": 1, "b": 0}, 1.0),
        ({}, 1.0),
    ],
)
def test_who_has_more_than_its_part_leaves_some_for_others(counts: dict[str, int], part: float) -> None:
    holders = holding(**counts)
    assert holders.usable_share("a", 0.0) == part
    assert holders.usable_share("stranger", 0.0) == 1.0


def test_room_is_kept_for_those_who_were_there_lately_and_for_nobody_else() -> None:
    holders = holding(a=9, b=1)
    assert holders.usable_share("a", 0.0) == 0.75
    holders.request_over("b", 5.0)
    assert holders.usable_share("a", 5.0 + QUIET_S) == 0.75
    assert holders.usable_share("a", 5.1 + QUIET_S) == 1.0
    holders.request_sent("b")
    assert holders.usable_share("a", 5.1 + QUIET_S) == 0.75


def test_nothing_is_remembered_where_nothing_is_kept_and_of_many_only_so_many() -> None:
    off = holding(0.0, a=9, b=1)
    off.request_over("b", 1.0)
    assert off.usable_share("a", 1.0) == 1.0
    holders = holding(a=9)
    for number in range(3 * MOST):
        holders.request_sent(f"t{number}")
        holders.request_over(f"t{number}", 1.0)
        assert len(holders._ended_at) <= MOST
    assert holders.usable_share("a", 1.0) == 0.75


def test_what_was_taken_is_given_back_to_nothing() -> None:
    holders, dice, out = TenantShares(0.5), random.Random(3), []
    for step in range(2000):
        if out and dice.random() < 0.5:
            holders.request_over(out.pop(dice.randrange(len(out))), float(step))
        else:
            out.append(f"t{dice.randrange(5)}")
            holders.request_sent(out[-1])
    for tenant in out:
        holders.request_over(tenant, 2000.0)
    assert (holders.total, holders._counts) == (0, {})
    assert holders.usable_share("t0", 2001.0) == 1.0


def test_the_default_share_is_left_at_any_time_and_costs_no_part_of_single_engines() -> None:
    holders = holding(HEADROOM, a=50, b=1)
    assert holders.usable_share("a", 0.0) == 1.0
    assert holders.headroom == HEADROOM
    assert holding(0.01).headroom == 0.01
    assert holding(0.5).headroom == HEADROOM


@pytest.mark.parametrize(
    ("counts", "above", "far"),
    [
        ({"a": 50}, True, True),
        ({"a": 50, "b": 1}, True, True),
        ({"a": 20, "b": 20}, True, False),
        ({"a": 11, "b": 21}, True, False),
        ({"a": 10, "b": 21}, False, False),
        ({"a": 20, "b": 20, "c": 1}, True, False),
        ({"a": 2, "b": 3, "c": 2}, True, False),
        ({"a": 1}, False, False),
        ({}, False, False),
    ],
)
def test_much_is_more_than_half_of_what_the_one_with_the_most_has(counts: dict[str, int], above: bool, far: bool) -> None:
    holders = holding(**counts)
    assert (holders.above_share("a"), holders.far_above("a", 0.0)) == (above, far)
    holders.request_sent("z")
    for _ in range(200):
        holders.request_sent("z")
    assert not holders.above_share("a")
    for _ in range(201):
        holders.request_over("z", 0.0)
    assert holders.above_share("a") is above, "the one with the most is another one now"


@pytest.mark.parametrize(("slots", "fits"), [(256, 244), (64, 61), (32, 31), (19, 19), (4, 4)])
def test_one_tenant_leaves_a_twentieth_of_the_slots_free_at_most(slots: int, fits: int) -> None:
    pool_state, pool = PoolState("p"), pool_of("a", "b")
    for one in "ab":
        pool_state.load_table.add(one)
    pool_state.load_table.set_limit("a", requests=slots / 2 + 3, slots=slots / 2)
    pool_state.load_table.set_limit("b", requests=slots / 2 + 3, slots=slots / 2)
    sent = 0
    while not pool_state.held_back("loud", pool) and sent < slots:
        pool_state.tenant_shares.request_sent("loud")
        sent += 1
    assert sent == fits
    assert not pool_state.held_back("quiet", pool)
    assert fits >= 0.95 * slots
    pool_state.tenant_shares.request_sent("quiet")
    assert pool_state.held_back("loud", pool), "what others have is not free, nor is an engine's own queue"


def test_nothing_is_held_back_without_limits_or_where_nothing_is_kept() -> None:
    for kept, limit in ((HEADROOM, inf), (0.0, 40.0)):
        pool_state = PoolState("p", kept)
        pool_state.load_table.add("a")
        pool_state.load_table.set_limit("a", requests=limit)
        for _ in range(60):
            pool_state.tenant_shares.request_sent("loud")
        assert not pool_state.held_back("loud", pool_of("a"))
