"""The place of a request in its line: what its turn depends on, from its Story."""

from math import ceil

import msgspec

from domain.priority import Class
from gateway.queueing.deadlines import wait_s
from gateway.story import Story
from routing.board import Charge
from tenancy.fair_row import NOT_YET, Waiting
from tenancy.standing import over_soft


def class_of(story: Story) -> Class:
    """Its class; the usual one before it has any."""
    return story.priority_class if story.priority_class is not None else Class.DEFAULT


def may_wait_s(story: Story) -> float:
    """Seconds that it may wait for its turn."""
    policy = story.placed_by
    may_s = wait_s(class_of(story), policy.max_wait_s if policy is not None else None, story.asked_wait_s)
    return min(may_s, story.end_at - story.body_at)


def place_of(cost: int, held: int, may_s: float, story: Story, now: float) -> Waiting:
    """Of one that comes now.

    Args:
        cost: uncached prompt + 2 * expected output tokens.
        held: tokens of its prompt that a backend holds.
    """
    caller = story.caller
    assert caller is not None
    last = story.retry or over_soft(story.standings)
    return Waiting(caller.tenant, class_of(story), last, max(1, cost), now + may_s, now, story.request_bytes, held)


def place_back(story: Story, charge: Charge) -> Waiting:
    """Of one that was sent to a backend and comes back: as old, and with as little time left, as if it had waited all the while.

    Args:
        charge: what it was counted as there.
    """
    if story.place is not None:
        return msgspec.structs.replace(story.place, back=True, by_share=False, seq=NOT_YET)
    made = place_of(ceil(2 * charge.kv_tokens - charge.uncached_tokens), 0, may_wait_s(story), story, story.body_at)
    made.back = True
    return made
