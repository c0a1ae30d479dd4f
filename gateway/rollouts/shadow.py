"""Shadow traffic: copies of requests for a canary in its shadow phase, answered by its engines, discarded, counted, and not billed.

A copy is sent only where there is capacity at once, at most so many in flight as the rollout allows, in the lowest class, and without
retries. No part of it reaches the caller, the ledger, the access log or the metrics of requests. Its answer is read to the end, because
broken streams and output lengths are part of the comparison.
"""

from typing import Any, Final

import msgspec

from domain.ask import Ask
from domain.faults import Fault, Kind
from domain.priority import Class
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange
from gateway.request.choose import choose
from gateway.request.forward import forward
from gateway.story import AskedFacts, Story
from policies.compile import ModelRule
from policies.rollout.assignment import Arm
from policies.rollout.in_force import AssignedArm, Running

NO_ROOM: Final = frozenset({Kind.OVERLOADED, Kind.SHUTTING_DOWN})
"""Faults after which a copy is not counted: it was never answered."""


class _DiscardingConnection:
    """Stands in for a caller's connection (`gateway.http.edge.connection`): discards everything that is written."""

    speaks_1_0 = False

    class connections:
        """The part of the listening port that a reply's head needs."""

        date_line = b""

    def closes_after(self, _exchange: Exchange) -> bool:
        return False

    def write(self, _data: bytes) -> None:
        pass

    def exchange_over(self, *, close: bool) -> None:
        pass

    def abort(self) -> None:
        pass


def mirror(ask: Ask, rule: ModelRule, exchange: Exchange, story: Story, deps: Deps) -> None:
    """Send a copy of the request to the canary, where its rollout mirrors it and allows one more copy in flight."""
    dealt = story.asked.dealt
    if dealt is None or not dealt.mirror:
        return
    under_way = deps.shadows.setdefault(dealt.running.id, set())
    if len(under_way) >= dealt.running.max_shadows:
        return
    task = deps.loop.create_task(_run_copy(ask, rule, exchange, _story_of(story, dealt.running, deps), deps))
    under_way.add(task)
    task.add_done_callback(under_way.discard)


def end_shadows(deps: Deps) -> None:
    """Cancel the copies in flight; their engines are told to stop."""
    for under_way in deps.shadows.values():
        for task in under_way:
            task.cancel()


def _story_of(story: Story, running: Running, deps: Deps) -> Story:
    now, own_id, asked = deps.clock(), deps.new_id(), story.asked
    asked_of_copy = AskedFacts(
        caller=asked.caller,
        endpoint=asked.endpoint,
        model=asked.model,
        stream=asked.stream,
        tenant_policy=asked.tenant_policy,
        policy_digest=asked.policy_digest,
        output_cap=asked.output_cap,
        priority_class=Class.BATCH,
        asked_wait_s=0.0,
        shadow=True,
        dealt=AssignedArm(running, Arm.CANARY, counted=running.counting),
    )
    return Story(own_id, now, deps.wall(), now, own_id, asked=asked_of_copy)


async def _run_copy(ask: Ask, rule: ModelRule, exchange: Exchange, story: Story, deps: Deps) -> None:
    connection: Any = _DiscardingConnection()
    discarded = Exchange(connection, exchange.head)
    assert story.asked.dealt is not None
    rule = msgspec.structs.replace(rule, pool=story.asked.dealt.running.canary)
    try:
        if deps.queues[rule.pool].in_line:
            return
        placement = await choose(ask, rule, discarded, story, deps)
        first_only = msgspec.structs.replace(placement.route, ranked=placement.route.ranked[:1])
        if not await forward(ask, msgspec.structs.replace(placement, route=first_only), discarded, story, deps):
            return  # preempted by a more urgent request
    except Fault as fault:
        if fault.kind in NO_ROOM:
            return
        story.settled.fault = fault
        fault.drop_traceback()
    except Exception as error:  # noqa: BLE001 - no caller awaits this task, so a defect has to be logged here
        deps.log_defect(error, story.own_id)
        return
    deps.observe(story.close(deps.clock()))
