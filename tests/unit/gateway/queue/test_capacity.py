from gateway.queue.capacity import Capacity
from tests.placement import board_of, pool_of


def test_of_the_same_room_one_tenant_has_all_and_another_a_part() -> None:
    load_table, pool = board_of("a", "b"), pool_of("a", "b")
    for one in "ab":
        load_table.set_limit(one, requests=4)
    room = Capacity(load_table, lambda: pool, lambda tenant: 0.5 if tenant == "loud" else 1.0)
    assert room.look()
    assert (room.free_for("loud"), room.free_for("other")) == (True, True)
    for one in "aabb":
        load_table.charge(one, 1, 1, 0.0)
    assert room.free_for("loud"), "it is found once for each look"
    assert room.look()
    assert (room.free_for("loud"), room.free_for("other")) == (False, True)
    for one in "aabb":
        load_table.charge(one, 1, 1, 0.0)
    assert not room.look()
    assert (room.free_for("loud"), room.free_for("other")) == (False, False)
    assert (room.all_for("loud"), room.all_for("other")) == (False, True)


def test_nothing_is_kept_unless_somebody_says_so() -> None:
    load_table, pool = board_of("a"), pool_of("a")
    load_table.set_limit("a", requests=1)
    room = Capacity(load_table, lambda: pool)
    assert room.look() and room.free_for("anybody") and room.all_for("anybody")
    load_table.charge("a", 1, 1, 0.0)
    assert not room.look() and not room.free_for("anybody")


def test_who_is_held_back_finds_no_room_and_may_still_preempt() -> None:
    load_table, pool = board_of("a"), pool_of("a")
    load_table.set_limit("a", requests=4)
    room = Capacity(load_table, lambda: pool, held_back=lambda tenant: tenant == "loud")
    assert room.look()
    assert (room.free_for("loud"), room.free_for("other")) == (False, True)
    assert room.all_for("loud")
