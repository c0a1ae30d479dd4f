import random

import pytest

from gateway.placement.pool_state import MOST, QUIET_S, TenantShares


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
    assert (holders._total, holders._counts) == (0, {})
    assert holders.usable_share("t0", 2001.0) == 1.0
