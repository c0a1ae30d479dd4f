"""How long a request may wait in the queue, and its queue entry: the values that its order and deadline depend on. Pure.

The tenant's policy sets the limit (`max_wait_s`); without it the class does:

| class | seconds | why |
|---|---|---|
| critical | 30 | it is served before all others, so it waits for one answer to end; being late is better than failing |
| interactive | 10 | a person who has seen nothing for ten seconds has left or asks again; a refusal leaves time to try another service |
| default | 60 | the idle time-out of most proxies and load balancers, beyond which a caller that streams nothing is cut off |
| batch | 600 | the time-out of the official clients; no person waits for the answer |

A caller may ask for less, and never gets more: `x-tidegate-timeout-s`, the seconds after which it no longer needs an engine to begin.

`place_of` and `place_back` make the queue entry of a request from its Story.
"""

from math import ceil, isfinite
from typing import Final

import msgspec

from domain.faults import Fault, Kind
from domain.priority import Class
from gateway.story import Story
from routing.fair_tier import NOT_YET, QueuedRequest, in_order_s
from routing.load import Charge
from tenancy.decisions import over_soft_limit

HEADER: Final = b"x-tidegate-timeout-s"
MOST_S: Final = 86_400.0
"""The longest wait that the header may ask for: one day."""
DEFAULT_WAIT_S: Final = {Class.CRITICAL: 30.0, Class.INTERACTIVE: 10.0, Class.DEFAULT: 60.0, Class.BATCH: 600.0}


def asked_wait_s(value: bytes) -> float:
    """The seconds that the caller's header asks for.

    Raises:
        Fault: INVALID_VALUE, `value` is no number of seconds above 0 and up to `MOST_S`.
    """
    try:
        seconds = float(value) if len(value) <= 32 else 0.0
    except ValueError:
        seconds = 0.0
    if not (isfinite(seconds) and 0.0 < seconds <= MOST_S):
        raise Fault(
            Kind.INVALID_VALUE,
            f"The header '{HEADER.decode()}' is a number of seconds above 0 and up to {MOST_S:.0f}, such as 2.5.",
        )
    return seconds


def wait_s(tier: Class, policy_s: float | None, asked_s: float, held_s: float = 0.0) -> float:
    """Seconds that a request of this class may wait.

    Args:
        held_s: for how long requests are held whose pool has no engine yet; 0 for any other.
    """
    return min(asked_s, (held_s or DEFAULT_WAIT_S[tier]) if policy_s is None else policy_s)


def class_of(story: Story) -> Class:
    """The priority class of a request; `DEFAULT` before one is decided."""
    return story.asked.priority_class if story.asked.priority_class is not None else Class.DEFAULT


def may_wait_s(story: Story) -> float:
    """Seconds that a request may wait in the queue."""
    policy = story.asked.tenant_policy
    may_s = wait_s(class_of(story), policy.max_wait_s if policy is not None else None, story.asked.asked_wait_s, story.placed.held_s)
    return min(may_s, story.asked.end_at - story.body_at)


def place_of(cost: int, held: int, may_s: float, story: Story, now: float, size_s: float = 0.0) -> QueuedRequest:
    """The queue entry of a request that comes now.

    Args:
        cost: uncached prompt + 2 * expected output tokens.
        held: tokens of the prompt that are cached on a backend.
        size_s: seconds to compute the others, on the backend that has most of it cached.
    """
    asked = story.asked
    caller = asked.caller
    assert caller is not None
    last = asked.retry or over_soft_limit(story.settled.limit_statuses)
    body_bytes = asked.request_bytes + asked.image_bytes
    return QueuedRequest(
        caller.tenant, class_of(story), last, max(1, cost), now + may_s, now, body_bytes, held, order_s=in_order_s(size_s, now)
    )


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
