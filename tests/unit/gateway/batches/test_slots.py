"""When a request of a batch may start beside others."""

from gateway.batches.slots import BESIDE_OTHERS, has_slack
from tests.placement import board_of, pool_of, tell


def test_nothing_starts_where_others_wait() -> None:
    pool, table = pool_of("a", "b"), board_of("a", "b")
    assert has_slack(pool, table, waiting=0, share=0.5, mine=0)
    assert not has_slack(pool, table, waiting=1, share=0.5, mine=0)
    tell(table, "b", 1.0, waiting=1.0)
    assert not has_slack(pool, table, waiting=0, share=0.5, mine=0)


def test_nothing_starts_where_no_engine_is_up() -> None:
    assert not has_slack(pool_of(), board_of(), waiting=0, share=1.0, mine=0)


def test_known_room_is_filled_to_its_share() -> None:
    pool, table = pool_of("a", "b"), board_of("a", "b")
    for backend in ("a", "b"):
        table.set_limit(backend, 8.0, slots=8.0)
    charges = [table.charge("ab"[at % 2], 1, 1, 0.0) for at in range(7)]
    assert has_slack(pool, table, 0, share=0.5, mine=7)
    charges.append(table.charge("a", 1, 1, 0.0))
    assert not has_slack(pool, table, 0, share=0.5, mine=8), "half of 16 slots are taken"
    assert not has_slack(pool, table, 0, share=0.5, mine=0), "whoever has them"
    assert has_slack(pool, table, 0, share=1.0, mine=8)
    table.release(charges.pop())
    assert not has_slack(pool, table, 0, share=0.5, mine=8), "a request that has started counts before it is sent"


def test_the_smallest_pool_has_room_for_one_request() -> None:
    pool, table = pool_of("a"), board_of("a")
    table.set_limit("a", 1.0, slots=1.0)
    assert has_slack(pool, table, 0, share=0.1, mine=0)
    assert not has_slack(pool, table, 0, share=0.1, mine=1)


def test_batches_are_few_beside_others() -> None:
    pool, table = pool_of("a", "b", "c"), board_of("a", "b", "c")
    mine = [table.charge("a", 1, 1, 0.0) for _ in range(20)]
    assert has_slack(pool, table, 0, share=0.5, mine=len(mine)), "nobody else is there"
    table.charge("b", 1, 1, 0.0)
    assert not has_slack(pool, table, 0, share=0.5, mine=len(mine))
    assert has_slack(pool, table, 0, share=0.5, mine=3 * BESIDE_OTHERS - 1)
    assert not has_slack(pool, table, 0, share=0.5, mine=3 * BESIDE_OTHERS)
    assert has_slack(pool, table, 0, share=0.5, mine=0, workers=8)
    assert not has_slack(pool, table, 0, share=0.5, mine=1, workers=8), "the other workers have their own"


def test_what_other_processes_have_in_flight_counts() -> None:
    pool, table = pool_of("a"), board_of("a")
    assert has_slack(pool, table, 0, share=0.5, mine=5)
    tell(table, "a", 1.0, running=7.0)
    assert not has_slack(pool, table, 0, share=0.5, mine=5)
    assert has_slack(pool, table, 0, share=0.5, mine=0)
