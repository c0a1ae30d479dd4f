"""What is expected of a pool that is waking, and who is told to come back when."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.faults import Kind
from gateway.queue.waking import DEMAND_S, Waking
from routing.fair_queue import FairQueue, QueueBounds
from routing.fair_tier import QueuedRequest
from routing.scaling import ToZeroSettings


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def made(**fields: float) -> tuple[Waking, Clock]:
    clock = Clock()
    settings = ToZeroSettings.model_validate(fields)
    return Waking(settings, settings.bounds, clock, random.Random(1)), clock


def test_the_time_to_come_back_is_what_is_left_of_a_start() -> None:
    waking, clock = made(cold_start_s=100.0)
    assert (waking.left_s(), waking.wanted) == (100.0, False)
    waking.asked()
    clock.now += 30
    assert (waking.left_s(), waking.wanted) == (70.0, True)
    clock.now += 200
    assert waking.left_s() == 10.0, "an engine that is overdue is expected soon, and not in the past"
    assert not waking.wanted


def test_starts_that_were_seen_are_expected_again() -> None:
    waking, clock = made(cold_start_s=10.0)
    for took_s in (50.0, 20.0, 30.0, 25.0):
        waking.asked()
        clock.now += took_s
        waking.look(clock.now, up=True)
    assert waking.expected_s == 30.0, "the longest of the last three"
    waking.look(clock.now, up=True)
    assert waking.expected_s == 30.0, "an engine that is up ends one waking, not one at every look"


def test_a_waking_that_nobody_saw_the_end_of_is_forgotten() -> None:
    waking, clock = made(cold_start_s=10.0)
    waking.asked()
    clock.now += 4000
    waking.look(clock.now, up=False)
    waking.asked()
    assert waking.left_s() == 10.0
    clock.now += 12
    waking.look(clock.now, up=True)
    assert waking.expected_s == 12.0


def test_demand_is_felt_for_a_minute() -> None:
    waking, clock = made()
    waking.asked()
    clock.now += DEMAND_S - 1
    assert waking.wanted
    clock.now += 1
    assert not waking.wanted


@pytest.mark.parametrize(("bound", "may_s", "refused"), [(None, 100.0, False), (None, 99.0, True), ("count", 1000.0, True)])
def test_held_is_whom_there_is_room_for_and_who_may_wait_long_enough(bound: str | None, may_s: float, refused: bool) -> None:
    waking, _ = made(cold_start_s=100.0)
    fault = waking.refusal(bound, may_s)
    assert (fault is not None) is refused
    if fault is not None:
        assert fault.kind is Kind.NO_BACKEND
        assert fault.retry.should
        assert 100.0 <= (fault.retry.after_s or 0) <= 105.0


SIZES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 400)), max_size=60)


@given(SIZES, st.integers(1, 20), st.integers(1, 8), st.integers(0, 2000), st.integers(0, 900))
def test_what_is_held_never_passes_a_bound(asked: list[tuple[str, int]], count: int, each: int, size: int, tenant_size: int) -> None:
    queue, bounds = FairQueue(QueueBounds()), QueueBounds(count, size, each, tenant_size)
    held: dict[str, list[int]] = {}
    for tenant, body in asked:
        request = QueuedRequest(tenant, 1, False, 1, 10.0, 0.0, body)
        why = queue.past(request, bounds)
        of_tenant, everyone = held.setdefault(tenant, []), [one for sizes in held.values() for one in sizes]
        room = {
            "tenant_count": len(of_tenant) < each,
            "tenant_bytes": sum(of_tenant) + body <= tenant_size,
            "count": len(everyone) < count,
            "size_bytes": sum(everyone) + body <= size,
        }
        assert why == next((name for name, free in room.items() if not free), None)
        if why is None:
            assert queue.put(request).accepted
            of_tenant.append(body)
