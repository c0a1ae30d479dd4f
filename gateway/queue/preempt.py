"""Preemption: takes requests without a first token back from their backend, for a more urgent request that waits, or for a request of a
tenant with few requests in flight where another tenant has far more.

Preemption costs nothing while no request waits: candidates are looked for among the running relays, and only for the first waiter of the
queue. The preempted request keeps its hold, its deadline and its age, is charged nothing, and goes to the front of its tenant's requests.
Its backend's health, its retries and the poison check do not count the attempt.

Only requests without a first token are preempted: no part of an answer is lost, and no caller has seen any. The first candidate is of
the lowest class and, among equals, the one that was sent last: engines compute prompts in about their order of arrival, so the least
work has been done for it. No request is preempted twice, one waiter preempts at most once, and the rate is limited (`PreemptionPace`):
less than one prompt of work is lost for each urgent request that had to wait.

For a more urgent request one request is preempted. For a tenant with few requests all are that stand in the engine's own queue before it
(those above `LoadTable.slots`), but at least one: nothing has been computed for them, and no request can pass them there.
"""

from collections.abc import Callable, Iterable, Mapping
from math import ceil, inf
from typing import Any, Final, Generic, TypeVar

import msgspec

from domain import retry_after
from domain.clock import Clock
from domain.faults import Fault, Kind
from domain.priority import Class
from domain.usage import NO_USAGE
from gateway.http.edge.relay import ReplyRelay
from gateway.placement.concurrency import ConcurrencyLimits
from gateway.placement.in_flight import LONG_PREFILL_TOKENS
from gateway.placement.pool_state import TenantShares
from gateway.queue.deadlines import class_of, place_back
from gateway.queue.waiter import Waiter
from gateway.story import Story
from routing.fair_tier import QueuedRequest
from routing.load import Charge, LoadTable
from routing.room import has_no_room, room_without

PER_S: Final = 16.0
"""Preemptions per second, of one pool in one worker: more than the urgent requests that find no capacity in a healthy queue, and few
beside the aborts that an engine can take."""
BURST: Final = 32.0
"""Preemptions at once, after two seconds of none: half of the requests that a new engine is assumed to bear."""
AGAIN_S: Final = 0.02
"""The shortest time in seconds between a search without result and the next one: a search goes over all requests in flight."""

T = TypeVar("T")


class PreemptibleRequest(msgspec.Struct, Generic[T], frozen=True):
    """A request on a backend that may be preempted."""

    tier: int
    """The request's `domain.priority.Class`."""
    sent_at: float
    request: T


def first_to_give_way(sent: Iterable[PreemptibleRequest[T]]) -> list[PreemptibleRequest[T]]:
    """The candidates in the order in which they are preempted."""
    return sorted(sent, key=lambda candidate: (-candidate.tier, -candidate.sent_at))


class PreemptionPace:
    """Limits the rate of preemptions: a token bucket of `PER_S` and `BURST`."""

    __slots__ = ("_at", "_left", "_not_before")

    def __init__(self) -> None:
        self._left = BURST
        self._at = 0.0
        self._not_before = 0.0

    def allows(self, now: float) -> bool:
        """Whether a preemption is allowed now, and worth a search."""
        if now < self._not_before:
            return False
        self._left = min(BURST, self._left + (now - self._at) * PER_S)
        self._at = now
        return self._left >= 1.0

    def gave_way(self, count: int = 1) -> None:
        """Count preemptions."""
        self._left -= count

    def found_none(self, now: float) -> None:
        """Note that a search found no candidate."""
        self._not_before = now + AGAIN_S


MOST_LOOKS: Final = 16
"""The number of candidates that are examined closely for one waiter."""

MayWait = Callable[[QueuedRequest, float], bool]
"""Whether a request with this queue entry could wait so many seconds."""


class Preempted(Fault):
    """Ends an attempt that was preempted; the request goes back to the queue, and its caller never sees this fault."""

    def __init__(self, by: str) -> None:
        super().__init__(
            Kind.OVERLOADED,
            "This model is overloaded, and others went before this request. Try again shortly.",
            retry=retry_after.SOON,
            detail=f"gave its place on a backend to {by}",
        )


class Preemption:
    """Preempts requests of one pool.

    Args:
        lowest: the highest class whose requests may be preempted, in favour of higher classes than their own; None for no class.
        relays: all running relays, of every pool.
        shares: what each tenant has in flight; None where no request is preempted for another tenant's.
    """

    __slots__ = ("_clock", "_limits", "_load_table", "_lowest", "_pace", "_pool", "_relays", "_shares")

    def __init__(
        self,
        pool: str,
        lowest: Class | None,
        load_table: LoadTable,
        limits: ConcurrencyLimits,
        relays: Callable[[], Iterable[object]],
        clock: Clock,
        *,
        shares: TenantShares | None = None,
    ) -> None:
        self._pool = pool
        self._lowest = Class.BATCH + 1 if lowest is None else lowest
        self._shares = shares
        self._load_table = load_table
        self._limits = limits
        self._relays = relays
        self._clock = clock
        self._pace = PreemptionPace()

    def make_room(self, waiter: Waiter[Any], may_wait: MayWait) -> None:
        """Preempt a request for this waiter, where that is allowed and helps. The capacity is there in the next turn of the event loop.

        Args:
            may_wait: whether a preempted request could wait again; a request that could not is left on its backend.
        """
        now = self._clock()
        if waiter.preempted_for or not self._pace.allows(now):
            return
        lacking: Mapping[str, float] | None = None
        least = max(self._lowest, waiter.place.tier + 1)
        candidates = first_to_give_way(self._candidates(lambda story: class_of(story) >= least)) if least <= Class.BATCH else []
        if candidates and (lacking := waiter.lacking()):
            for candidate in candidates[:MOST_LOOKS]:
                relay, story, charge = candidate.request
                place = place_back(story, charge)
                if self._helps(charge, lacking) and may_wait(place, place.deadline - now):
                    waiter.preempted_for = True
                    self._pace.gave_way()
                    _preempt(relay, story, place, Class(waiter.place.tier).word)
                    return
        if self._shares is None or not self._make_room_for_tenant(waiter, lacking, may_wait, now):
            self._pace.found_none(now)

    def _make_room_for_tenant(self, waiter: Waiter[Any], lacking: Mapping[str, float] | None, may_wait: MayWait, now: float) -> bool:
        """Preempt requests of tenants that have far more in flight than the others, where that makes room for this waiter."""
        shares = self._shares
        if shares is None or shares.above_share(waiter.place.tenant):
            return False
        candidates = self._candidates(self._far_above(waiter, shares, now))
        if not candidates or not (lacking := waiter.lacking() if lacking is None else lacking):
            return False
        by_backend: dict[str, list[tuple[ReplyRelay, Story, Charge]]] = {}
        for candidate in sorted(candidates, key=lambda candidate: -candidate.sent_at):
            by_backend.setdefault(candidate.request[2].id, []).append(candidate.request)
        for backend_id, requests in by_backend.items():
            tokens = lacking.get(backend_id)
            row = self._load_table.row_of[backend_id]
            if tokens is None or not has_no_room(self._load_table, row, tokens):
                continue
            slots = min(self._load_table.slots[row], self._load_table.facts[row].in_flight_cap or inf)
            standing = 0 if slots == inf else ceil(self._load_table.in_flight(backend_id) + 1 - slots)
            first = requests[: max(1, standing)]
            if not room_without(self._load_table, row, tokens, *[charge for _, _, charge in first]):
                continue
            places = [place_back(story, charge) for _, story, charge in first]
            if all([may_wait(place, place.deadline - now) for place in places]):
                waiter.preempted_for = True
                self._pace.gave_way(len(first))
                for (relay, story, _), place in zip(first, places, strict=True):
                    _preempt(relay, story, place, "a tenant with fewer requests")
                return True
        return False

    @staticmethod
    def _far_above(waiter: Waiter[Any], shares: TenantShares, now: float) -> Callable[[Story], bool]:
        tier, own = waiter.place.tier, waiter.place.tenant
        far_above: dict[str, bool] = {own: False}

        def preemptible(story: Story) -> bool:
            caller = story.asked.caller
            if caller is None or class_of(story) < tier:
                return False
            tenant = caller.tenant
            if tenant not in far_above:
                far_above[tenant] = shares.far_above(tenant, now)
            return far_above[tenant]

        return preemptible

    def _helps(self, charge: Charge, lacking: Mapping[str, float]) -> bool:
        load_table = self._load_table
        tokens = lacking.get(charge.id)
        row = load_table.row_of[charge.id]
        return tokens is not None and has_no_room(load_table, row, tokens) != "" and room_without(load_table, row, tokens, charge)

    def _candidates(self, may_be: Callable[[Story], bool]) -> list[PreemptibleRequest[tuple[ReplyRelay, Story, Charge]]]:
        candidates = []
        for relay in self._relays():
            if isinstance(relay, ReplyRelay) and unanswered(relay):
                story = relay.story
                charge = story.tried.charge
                if charge is None or story.placed.pool != self._pool or not may_be(story):
                    continue
                if self._may_give_way(relay, story, charge):
                    candidates.append(PreemptibleRequest(class_of(story), charge.at, (relay, story, charge)))
        return candidates

    def _may_give_way(self, relay: ReplyRelay, story: Story, charge: Charge) -> bool:
        placed, tried = story.placed, story.tried
        if charge.over or charge.begun or charge.id != relay.backend or tried.failed or tried.hedged:
            return False
        if placed.pulled_back or placed.returned:
            return False
        if placed.queue_place is not None and placed.queue_place.by_share:
            return False  # else nothing would be left of the share of the lower ranks
        # a short reply that is not streamed does not show whether it has begun, unless the backend's limiter supposes a first token
        return story.asked.stream or charge.uncached_tokens >= LONG_PREFILL_TOKENS or charge.id in self._limits.limiters


def unanswered(relay: ReplyRelay) -> bool:
    """Whether the engine was asked and no part of an answer has come: no event of a stream, nor the head of a plain reply."""
    story = relay.story
    waits = relay.mode == "" or (relay.mode == "answer" and story.asked.stream)
    return waits and not story.attempt.events and relay.flight is not None and not relay.outcome.done()


def _preempt(relay: ReplyRelay, story: Story, place: QueuedRequest, by: str) -> None:
    placed = story.placed
    if placed.on_used is not None:
        placed.on_used(NO_USAGE)  # the queue returns the charge to the request's tenant
    placed.queue_place, placed.on_used, placed.pulled_back = place, None, True
    relay.end_with(Preempted(by))
