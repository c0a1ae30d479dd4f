import random

import pytest

from routing.load import Charge, LoadTable
from routing.load_order import LoadOrder, order_of
from routing.rates import UNKNOWN_RATES, Rates
from tests.placement import pool_of, tell


def fresh(load_table: LoadTable, order: LoadOrder) -> LoadOrder:
    return LoadOrder(load_table, order.up)


def test_the_order_follows_every_kind_of_move() -> None:
    """Charges, first tokens, ends, reports and rates: it is what an order made anew is."""
    dice, load_table = random.Random(2), LoadTable([f"b{at}" for at in range(40)])
    up, charges, at = pool_of(*load_table.ids[:35]).up, list[Charge](), 1.0
    order = order_of(load_table, up)
    for _ in range(600):
        one, at = dice.choice(load_table.ids), at + 0.01
        match dice.randrange(5):
            case 0:
                charges.append(load_table.charge(one, dice.randrange(9000), 9000, at))
            case 1 if charges:
                load_table.begun(dice.choice(charges))
            case 2 if charges:
                load_table.release(charges.pop(dice.randrange(len(charges))))
            case 3:
                tell(load_table, one, at, running=dice.randrange(50), queued_tokens=dice.randrange(9000), kv_usage=dice.random())
            case _:
                load_table.set_rates(one, Rates(*[rate * dice.uniform(0.5, 2.0) for rate in UNKNOWN_RATES]))
        if dice.random() < 0.5:
            load_table.settle()
            kept = order_of(load_table, up)
            assert kept is order
            anew = fresh(load_table, order)
            assert kept.entries == anew.entries
            assert kept.mean_fill == pytest.approx(anew.mean_fill)
            for bound in ("least_token_s", "least_ctx_s", "least_step_s", "least_decode_s", "least_kv_s", "least_fill"):
                assert getattr(kept, bound) <= getattr(anew, bound)
            assert kept.most_step_tokens >= anew.most_step_tokens
            assert kept.largest_kv >= anew.largest_kv


def test_the_extremes_are_taken_anew_after_as_many_moves_as_there_are_backends() -> None:
    load_table = LoadTable([f"b{at}" for at in range(10)])
    up = pool_of(*load_table.ids).up
    tell(load_table, "b0", 1.0, kv_usage=0.1)
    for one in load_table.ids[1:]:
        tell(load_table, one, 1.0, kv_usage=0.9)
    order = order_of(load_table, up)
    assert order.least_fill == pytest.approx(0.1)
    for at in range(80):
        tell(load_table, "b0", 2.0 + at, kv_usage=0.8 + at / 1000)
        order = order_of(load_table, up)
    assert order.least_fill > 0.8


def test_a_backend_that_joins_or_leaves_makes_another_order() -> None:
    load_table = LoadTable(["a", "b"])
    up = pool_of("a", "b").up
    order = order_of(load_table, up)
    load_table.add("c")
    assert order_of(load_table, up) is not order
    order = order_of(load_table, up)
    load_table.drop("a")
    left = order_of(load_table, pool_of("b", "c").up)
    assert sorted(load_table.ids[row] for _, row in left.entries) == ["b", "c"]
    assert left is not order


def test_the_mean_fill_is_not_known_where_some_caches_are_unknown() -> None:
    load_table = LoadTable(["a", "b"])
    up = pool_of("a", "b").up
    assert order_of(load_table, up).mean_fill == 0.0
    tell(load_table, "a", 1.0, kv_usage=0.5)
    assert order_of(load_table, up).mean_fill is None
    tell(load_table, "b", 1.0, kv_usage=0.7)
    assert order_of(load_table, up).mean_fill == pytest.approx(0.6)
