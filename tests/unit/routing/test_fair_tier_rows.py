"""What one tenant has waiting: in order, with its oldest in between."""

from math import inf

import pytest

from routing.fair_tier import LOOKS_PER_ROW, OLDEST_EVERY, QueuedRequest, TenantQueue


def waiting(seq, *, held=0, size_s=0.0, back=False):
    return QueuedRequest("a", 2, False, 10, inf, 0.0, 5, held, seq, back, order_s=size_s)


def test_the_shortest_then_the_longest_held_prefix_then_first_come():
    row = TenantQueue("a", 1, 0)
    many = [waiting(1, size_s=9.0), waiting(2, size_s=5.0), waiting(3, size_s=5.0), waiting(4, held=64, size_s=5.0)]
    for one in many:
        row.add(one)
    assert [one.seq for one in row.looks()] == [4, 2, 3, 1]
    assert [row.place_of(one) for one in many] == [3, 1, 2, 0]
    assert (row.tokens, row.size_bytes) == (40, 20)


def test_what_is_gone_or_was_changed_behind_its_back_is_not_found():
    row, one, two = TenantQueue("a", 1, 0), waiting(1), waiting(2)
    row.add(one)
    row.add(two)
    row.drop(one)
    row.add(waiting(4, held=10))
    two.held = 64
    for other in (one, two, waiting(3)):
        with pytest.raises(KeyError):
            row.drop(other)
    assert (len(row.ranked), row.tokens, row.size_bytes) == (2, 20, 10)


def test_each_so_many_the_oldest_is_asked_about_first_and_looks_go_on_behind_those_passed():
    row = TenantQueue("a", 1, 0)
    for seq in range(LOOKS_PER_ROW + 2):
        row.add(waiting(seq, held=seq))
    row.picks = OLDEST_EVERY - 1
    assert next(row.looks()).seq == 0
    row.passed()
    assert [one.seq for one in row.looks()] == [1, 0]
    row.passed()
    assert row.skip == 0


def test_one_that_is_back_goes_before_all_others_of_its_tenant():
    row = TenantQueue("a", 1, 0)
    for one in (waiting(1, held=640), waiting(2, size_s=1.0), waiting(4, size_s=9.0, back=True), waiting(3, size_s=5.0, back=True)):
        row.add(one)
    assert [one.seq for one in row.looks()] == [3, 4, 1, 2], "those that are back by their age"
