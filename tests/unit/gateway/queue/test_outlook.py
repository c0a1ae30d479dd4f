"""What the next request would meet: over the sockets of workers, and joined over them."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from domain.priority import Class
from gateway.process.worker_link import WorkerLink, worker_socket
from gateway.queue import refusals
from gateway.queue.deadlines import DEFAULT_WAIT_S
from gateway.queue.outlook import ANYBODY, PoolOutlook, Prospect, WorkersQueues, answers, joined, outlook_of
from gateway.queue.pool_queue import PoolQueues
from routing.fair_queue import QueueBounds
from tests.placement import pool_of
from tests.unit.gateway.queue.test_pool_queue import World, turns

POLICIES: Any = SimpleNamespace(for_tenant=lambda tenant: SimpleNamespace(max_wait_s=3.0) if tenant == "quick" else None)


def by_key(outlook: PoolOutlook) -> dict[tuple[str, int], Prospect]:
    return {(one.tenant, one.tier): one for one in outlook.prospects}


async def test_each_class_and_each_tenant_that_waits_has_a_prospect() -> None:
    world = World(bounds=QueueBounds(tenant_count=2))
    empty = outlook_of("p", world.queue, POLICIES, 500, world.now)
    assert [(one.tenant, one.tier, one.waiting, one.wait_s, one.refused) for one in empty.prospects] == [
        (ANYBODY, tier, 0, 0.0, "") for tier in range(len(Class))
    ]
    assert [one.may_wait_s for one in empty.prospects] == [DEFAULT_WAIT_S[tier] for tier in Class]
    world.fill()
    tasks = [(await world.come(tenant="quick", tier=1))[1], *[(await world.come(tenant="busy"))[1] for _ in range(2)]]
    met = by_key(outlook_of("p", world.queue, POLICIES, 500, world.now))
    assert {key: one.waiting for key, one in met.items() if one.waiting} == {
        (ANYBODY, 1): 1,
        ("quick", 1): 1,
        (ANYBODY, 2): 2,
        ("busy", 2): 2,
    }
    assert met["quick", 1].may_wait_s == 3.0, "as the tenant's policy says"
    assert (met["busy", 2].refused, met[ANYBODY, 2].refused) == ("tenant_count", ""), "one that has its share of the queue is refused"
    world.pool = pool_of()
    assert outlook_of("p", world.queue, POLICIES, 500, world.now) == PoolOutlook("p", False, 0.0), "an outage is no overload"
    for task in tasks:
        task.cancel()
    await turns()


async def test_a_supposed_request_teaches_the_queue_nothing() -> None:
    """However often somebody looks, real requests meet what they would have met."""
    world = World()
    world.fill()
    _, task = await world.come(may_s=1e6)
    world.now += 100.0  # a stall of unknown length is predicted to last as long again
    before = outlook_of("p", world.queue, POLICIES, 500, world.now)
    assert by_key(before)["t", 2].refused == refusals.TOO_LONG
    served = list(world.queue._margin._served)
    for _ in range(50):
        assert outlook_of("p", world.queue, POLICIES, 500, world.now) == before
    assert world.queue._margin._served == served
    assert world.queue.refusal(world.waiter().place, 10.0) is not None
    assert world.queue._margin._served != served, "while a real refusal is learned from"
    task.cancel()
    await turns()


def test_workers_are_joined_by_tenant_and_class() -> None:
    """A tenant that waits in one worker meets in another one what anybody does."""
    here = PoolOutlook("p", True, 100.0, (Prospect(ANYBODY, 2, 4, True, 2.0, 60.0), Prospect("a", 2, 4, True, 5.0, 3.0, "too_long")))
    there = PoolOutlook("p", True, 50.0, (Prospect(ANYBODY, 2, 1, False, 0.0, 60.0),))
    away = PoolOutlook("p", False, 0.0)
    (seen,) = joined([[here], [there], [away]])
    assert (seen.pool, seen.workers, seen.unreached, seen.tokens_per_s) == ("p", 3, 1, 150.0)
    anybody, tenant = seen.prospects
    assert (anybody.waiting, anybody.waits, anybody.least_wait_s, anybody.most_wait_s, anybody.refused) == (5, 1, 0.0, 2.0, {})
    assert (tenant.tenant, tenant.priority, tenant.waiting, tenant.may_wait_s) == ("a", "default", 4, 3.0)
    assert (tenant.least_wait_s, tenant.most_wait_s, tenant.refused) == (0.0, 5.0, {"too_long": 1})


async def test_workers_are_asked_over_their_sockets(tmp_path: Path) -> None:
    asking = WorkersQueues(tmp_path)
    assert await asking.outlook(500) is None, "nobody answers"
    world = World()
    deps: Any = SimpleNamespace(clock=lambda: world.now, live=SimpleNamespace(policies=POLICIES), queues=PoolQueues(p=world.queue))
    for ready in (False, True):
        handlers = answers(lambda ready=ready: deps if ready else None)  # type: ignore[misc]
        link = WorkerLink(worker_socket(tmp_path, 0, os.getpid()), lambda _: None, None, handlers)  # type: ignore[arg-type, return-value]
        await link.start()
        seen = await asking.outlook(500)
        await link.close()
        if ready:
            assert seen is not None
            assert [(one.pool, len(one.prospects)) for one in seen] == [("p", len(Class))]
        else:
            assert seen is None, "a worker that has no policies yet tells nothing"
