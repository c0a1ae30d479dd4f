"""Makes the queue entry of a request, the values that its order and deadline depend on, from its Story."""

from math import ceil

import msgspec

from domain.priority import Class
from gateway.queueing.deadlines import wait_s
from gateway.story import Story
from routing.load import Charge
from tenancy.decisions import over_soft
from tenancy.fair_tier import NOT_YET, QueuedRequest


def class_of(story: Story) -> Class:
    """The priority class of a request; `DEFAULT` before one is decided."""
    return story.asked.priority_class if story.asked.priority_class is not None else Class.DEFAULT


def may_wait_s(story: Story) -> float:
    """Seconds that a request may wait in the queue."""
    policy = story.asked.tenant_policy
    may_s = wait_s(class_of(story), policy.max_wait_s if policy is not None else None, story.asked.asked_wait_s)
    return min(may_s, story.asked.end_at - story.body_at)


def place_of(cost: int, held: int, may_s: float, story: Story, now: float) -> QueuedRequest:
    """The queue entry of a request that comes now.

    Args:
        cost: uncached prompt + 2 * expected output tokens.
        held: tokens of the prompt that are cached on a backend.
    """
    asked = story.asked
    caller = asked.caller
    assert caller is not None
    last = asked.retry or over_soft(story.settled.standings)
    return QueuedRequest(caller.tenant, class_of(story), last, max(1, cost), now + may_s, now, asked.request_bytes, held)


def place_back(story: Story, charge: Charge) -> QueuedRequest:
    """The queue entry of a preempted request: as old, and with as little time left, as if it had waited all the while.

    Args:
        charge: its in-flight load on the backend that it was sent to.
    """
    if story.placed.queue_place is not None:
        return msgspec.structs.replace(story.placed.queue_place, back=True, by_share=False, seq=NOT_YET)
    place = place_of(ceil(2 * charge.kv_tokens - charge.uncached_tokens), 0, may_wait_s(story), story, story.body_at)
    place.back = True
    return place
