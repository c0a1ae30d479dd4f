import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from domain.identity import Caller, KeyId, ProjectId, TenantId
from domain.priority import Class
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.head import RequestHead
from gateway.record import Record
from gateway.rollouts.shadow import end_shadows, mirror
from gateway.story import Story
from policies.compile import ModelRule
from policies.rollout.assignment import Arm
from policies.rollout.in_force import AssignedArm, Running
from tests.placed import POOL, Worker, chat

RUNNING = Running("ro_1", "v2", "other", POOL, 0.0, 1.0, counting=True, interval_s=10.0, max_shadows=2)
RULE = ModelRule("sim", "other")


class Served:
    """A worker whose canary pool is the one that there is; no engine is behind its backend."""

    def __init__(self) -> None:
        self.worker, self.seen = Worker("a"), list[Record]()
        self.deps: Deps = replace(self.worker.deps, observe=self.seen.append)

    def ask(self, dealt: AssignedArm | None) -> Story:
        connection: Any = None
        headers: Mapping[bytes, bytes] = {}
        story = self.worker.story(own_id="req-1")
        story.asked.caller = Caller(TenantId("acme"), ProjectId("default"), KeyId("k"))
        story.asked.tenant_policy, story.asked.model, story.asked.dealt = self.worker.policy, "sim", dealt
        exchange = Exchange(connection, RequestHead("POST", "/v1/chat/completions", dict(headers), 0, False, True))
        mirror(chat("x"), RULE, exchange, story, self.deps)
        return story

    @property
    def under_way(self) -> int:
        return sum(len(tasks) for tasks in self.deps.shadows.values())


def dealt(*, copied: bool = True, running: Running = RUNNING) -> AssignedArm:
    return AssignedArm(running, Arm.BASELINE, counted=True, mirror=copied)


async def test_only_what_is_to_be_copied_is() -> None:
    served = Served()
    served.ask(None)
    served.ask(dealt(copied=False))
    assert served.under_way == 0
    served.ask(dealt())
    assert served.under_way == 1
    end_shadows(served.deps)


async def test_no_more_are_under_way_than_the_rollout_says_and_an_end_is_one() -> None:
    served = Served()
    for _ in range(5):
        served.ask(dealt())
    assert served.under_way == 2
    tasks = [task for under_way in served.deps.shadows.values() for task in under_way]
    end_shadows(served.deps)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert served.under_way == 0
    assert served.seen == [], "what was ended says nothing of the canary"


async def test_what_a_copy_comes_to_is_the_canarys_and_its_own() -> None:
    served = Served()
    story = served.ask(dealt())
    await asyncio.gather(*served.deps.shadows["ro_1"])
    [record] = served.seen
    assert record.shadow
    assert record.dealt == AssignedArm(RUNNING, Arm.CANARY, counted=True)
    assert (record.pool, record.outcome, record.priority_class) == (POOL, "backend_drained", "batch")
    assert record.request_id != story.own_id
    assert story.settled.fault is None
    assert story.asked.priority_class is not Class.BATCH
    assert not list(served.deps.live.suspects.look(lambda _: 0.0, 0.0))


async def test_where_others_wait_nothing_is_copied_nor_counted() -> None:
    served = Served()
    served.deps.queues[POOL].in_line = 1
    served.ask(dealt())
    await asyncio.gather(*served.deps.shadows["ro_1"])
    assert served.seen == []
