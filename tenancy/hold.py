"""A Hold: the worst case of one request, reserved in every limit at once before it runs, and closed exactly once. Pure.

    open --settle--> settled     with what the request used
    open --reap----> reaped      its gateway is gone: charged with what the last heartbeat said was delivered
    reaped --settle--> settled   its gateway was only slow: the difference is charged
    reaped --beat----> open      the same, and it still runs

`settled` is terminal: a second closing changes nothing, so no error path can charge twice or leak.
"""

from typing import Final, Literal

import msgspec

from domain.identity import TenantId
from domain.usage import NO_USAGE, Usage
from tenancy.limits import Amounts, Group, LimitLine

LEASE_S: Final = 15.0
"""How long a hold stays open without a heartbeat: after a crash its concurrency and unused tokens are free again by then."""
BEAT_S: Final = 5.0
"""Interval between heartbeats; two may be lost."""

Word = Literal["settle", "estimate", "release", "hit"]


class Hold(msgspec.Struct, frozen=True):
    """A reservation. `id` is the request's own, so that a repeated reservation is recognised."""

    id: str
    tenant: TenantId
    amounts: Amounts
    groups: tuple[Group, ...] = ()


class Closing(msgspec.Struct, frozen=True, gc=False):
    """How a hold ends and what is charged for it."""

    word: Word
    usage: Usage


class LimitStatus(msgspec.Struct, frozen=True, gc=False):
    """How one limit stood right after a decision."""

    line: LimitLine
    remaining: int
    """The part of the amount that remains; never negative."""
    reset_us: int
    """Microseconds until the whole amount is available again; 0 when it is, and for concurrency."""
    soft_crossed: bool = False
    """Whether this very decision crossed the soft threshold."""


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """A decision by which the hold is open."""

    limit_statuses: tuple[LimitStatus, ...] = ()
    degraded: bool = False
    """Decided by this process alone, because the shared counters cannot be reached."""


class Refused(msgspec.Struct, frozen=True):
    """A decision by which the hold is not open: nothing was reserved in any limit."""

    line: LimitLine
    """The limit that refuses; of several the one that asks for the longest wait."""
    remaining: int
    wait_us: int | None
    """After exactly this time the same request passes this limit, if nothing else comes; None when no such time is known: the amount
    is spent for ever, or a slot frees when another request ends."""
    never: bool = False
    """The request is larger than the whole limit: no wait helps."""
    degraded: bool = False


Admission = Admitted | Refused


class Beat(msgspec.Struct, frozen=True):
    """A heartbeat of one hold: what has been delivered so far, and the worst case as it is known by now."""

    hold: Hold
    delivered: Amounts
    at_most: Amounts


class LimitUsage(msgspec.Struct, frozen=True):
    """How a limit stands, for operators: `used` is the settled and held amounts together. A rate does not keep the two apart; its
    `held` is 0."""

    line: LimitLine
    used: int
    held: int
    remaining: int
    reset_us: int


def settled(usage: Usage) -> Closing:
    """Close with what the engine reported."""
    return Closing("settle", usage)


def estimated(usage: Usage) -> Closing:
    """Close with what the gateway counted itself, where the engine reported nothing."""
    return Closing("estimate", usage)


def hit(usage: Usage) -> Closing:
    """Close with the part of a kept answer's usage that the policy charges for a hit."""
    return Closing("hit", usage)


RELEASED: Final = Closing("release", NO_USAGE)
"""Close with no usage: nothing was generated."""
