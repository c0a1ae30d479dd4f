"""The queue of one worker for one pool: dispatches waiting requests when there is capacity, and ends waits that are refused, late or
abandoned.

`PoolQueue` is the queue of one pool; `PoolQueues` has the queue of each pool. Nothing here runs while no request waits. Otherwise the load
table reports every end and every first token, once per turn of the event loop, and the worker's sweep checks deadlines, heartbeats and
changes of the fleet: no waiter has a timer of its own.

To dispatch a request is to route it anew and to count it on its backend in one step, so capacity that two wake-ups see is taken once.
Requests that lack nothing but an adapter slot (`Waiter.for_slot`) wait in a line of their own, in the same order: they keep nobody from
capacity that they cannot use, and their waits say nothing of how fast the pool drains. Who waits for capacity and finds every slot taken
when its turn comes changes to that line; who waits for a slot stays there until it is sent.

Size: one queue, whose joining, dispatching and leaving work on the same two lines and counts.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from domain.clock import Clock, Rng
from domain.faults import Fault, Kind
from domain.usage import Usage
from gateway.queue import refusals
from gateway.queue.capacity import Capacity, OfTenant, PartOf, everything, nobody
from gateway.queue.estimate import DrainRate, ForecastMargin
from gateway.queue.waiter import QueueState, T, Waiter, WaitForecast
from gateway.queue.waking import Waking
from routing.fair_queue import QUANTUM, RANKS, SHARE, FairQueue, QueueBounds, rank_of
from routing.fair_tier import QueuedRequest
from routing.fleet import Pool
from routing.load import LoadTable


class _WaitingLine(NamedTuple):
    """Requests that wait in one order."""

    queue: FairQueue
    waiters: dict[int, Waiter[Any]]
    """By the number that the queue has given them."""


SLOT_PART: Final = 4
"""One part of so many of the queue's bounds is what may wait for adapter slots, beside what waits for capacity."""
LONGEST_S: Final = 3600.0
"""The longest wait that is predicted, in seconds."""

NO_TIER: Final = RANKS
"""Lower than every class."""

AT_ONCE: Final = WaitForecast()
"""The forecast of a request that need not wait."""

MakeRoom = Callable[[Waiter[Any], Callable[[QueuedRequest, float], bool]], None]
"""Preempts a request in favour of a waiter; the second argument says whether a preempted request could wait so many seconds."""


class PoolQueue:
    """The requests that wait for one pool, with their order, their deadlines and the prediction of their waits.

    Args:
        pool_of: the pool as it is now.
        log_defect: called with errors that a routing decision should never raise.
        make_room: called to preempt a request for the first waiter in the order; None for no preemption.
        part_of: the part of the capacity that a tenant's next request may fill.
        held_back: whether a tenant has to leave the free capacity to others at the moment.
        holds_more: whether a tenant has more requests in flight than its share.
        unreached: whether none of these backends can be reached.
        waking: of a pool that may have no engine; None for any other.
    """

    __slots__ = (
        "_capacity",
        "_clock",
        "_held_tier",
        "_holds_more",
        "_hopeless",
        "_line",
        "_load_table",
        "_log_defect",
        "_loop",
        "_make_room",
        "_margin",
        "_name",
        "_owed",
        "_pool_of",
        "_rate",
        "_rng",
        "_slot_line",
        "_slot_next",
        "_slotless",
        "_stopped",
        "_unreached",
        "_woken",
        "in_line",
        "waiting",
        "waking",
    )

    def __init__(
        self,
        name: str,
        bounds: QueueBounds,
        load_table: LoadTable,
        pool_of: Callable[[], Pool],
        *,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        rng: Rng,
        log_defect: Callable[[BaseException, str], None],
        make_room: MakeRoom | None = None,
        part_of: PartOf = everything,
        held_back: OfTenant = nobody,
        holds_more: OfTenant = nobody,
        unreached: Callable[[frozenset[str]], bool] = lambda _: False,
        waking: Waking | None = None,
    ) -> None:
        self._name = name
        self._line = _WaitingLine(FairQueue(bounds), {})
        self._slot_line = _WaitingLine(FairQueue(bounds.shared_by(SLOT_PART)), {})
        self._load_table = load_table
        self._pool_of = pool_of
        self._capacity = Capacity(load_table, pool_of, part_of, held_back)
        self._holds_more: Final = holds_more
        self._clock = clock
        self._loop = loop
        self._rng = rng
        self._log_defect = log_defect
        self._make_room = make_room
        self._unreached: Final = unreached
        self.waking: Final = waking
        self._rate = DrainRate()
        self._margin = ForecastMargin(RANKS)
        self._held_tier = NO_TIER
        """The highest class of which the last look found a request that leaves the free capacity to other tenants: to those of its class
        and of higher ones, because a lower class goes before it for no tenant."""
        self._hopeless: list[tuple[Waiter[Any], Fault]] = []
        """Waiters that no backend can serve any more; ended after the walk over the queue."""
        self._owed = 0.0
        """Tokens of service that requests of a lower class which wait for slots are due."""
        self._slot_next = True
        """Whether a slot waiter is next, of two of the same class."""
        self._slotless: list[Waiter[Any]] = []
        """Waiters for capacity that lack a slot by now; they change their line after the walk over the queue."""
        self._woken = False
        self._stopped = False
        self.waiting = 0
        """Requests in the queue."""
        self.in_line = 0
        """Requests that wait for capacity: who comes now goes behind them. The rest of `waiting` waits for an adapter slot."""

    # --- joining ---------------------------------------------------------------------------------------------------

    def refusal(
        self, place: QueuedRequest, may_s: float, *, read: bool = True, supposed: bool = False, for_slot: bool = False
    ) -> tuple[str, Fault] | None:
        """Why a request may not join the queue: the word for metrics and the fault; None when it may. Costs a few microseconds.

        Args:
            read: whether the prompt was read, so that its cached tokens are known.
            supposed: whether there is no such request, so that nothing is learned of its refusal.
            for_slot: whether it would wait for an adapter slot.
        """
        if self._stopped:
            return refusals.STOPPED, refusals.stopping()
        line = self._slot_line if for_slot else self._line
        wait_s = 0.0 if for_slot else self.predicted_s(place, read=read)
        if wait_s > may_s > 0 and not line.queue.tenant_count(place.tenant) and self._capacity.look():
            mine = place.tier <= self._held_tier and self._capacity.free_for(place.tenant)
            wait_s = 0.0 if mine else wait_s  # those that wait have no right to this capacity
        if wait_s > may_s or may_s <= 0:
            if not supposed:
                self._margin.refused(rank_of(place))
            return refusals.TOO_LONG, refusals.too_long(wait_s, may_s, self._rng.random())
        bound = line.queue.refused(place)
        if bound is not None:
            return bound, refusals.full(bound, wait_s, self._rng.random())
        return None

    @property
    def asleep(self) -> bool:
        """Whether the pool may have no engine and has none up."""
        return self.waking is not None and not self._pool_of().up

    def refuse_asleep(self, place: QueuedRequest, may_s: float) -> None:
        """Refuse a request that finds no engine in a pool that may have none, unless it can be held until one has started.

        Raises:
            Fault: NO_BACKEND, with the time after which an engine is expected.
        """
        assert self.waking is not None
        refused = self.waking.refusal(self._line.queue.past(place, self.waking.bounds), may_s)
        if self._stopped or refused is not None:
            raise refused or refusals.stopping()

    def forecast(self, place: QueuedRequest, may_s: float, *, supposed: bool = False) -> WaitForecast | None:
        """The forecast for a request that would come now, with its prompt not read yet; None where no backend is up
        and reached: an outage is no overload.

        Args:
            supposed: as in `refusal`.
        """
        if self._out():
            return None
        if not self.in_line and (not self._load_table.limited or (self._capacity.look() and self._capacity.free_for(place.tenant))):
            return AT_ONCE
        return WaitForecast(True, self.predicted_s(place, read=False), self.refusal(place, may_s, read=False, supposed=supposed))

    @property
    def token_s(self) -> float:
        """Seconds per uncached prompt token on the fastest backend of the pool; 0 where it has none."""
        return min(self._load_table.prefill_s_token, default=0.0)

    def predicted_s(self, place: QueuedRequest, *, read: bool = True) -> float:
        """A bound of the request's wait for capacity in seconds, which most such waits keep; 0 while unknown.

        Computed from the work ahead, the arrivals into higher ranks, the drain rate, and the recent error of such predictions.
        """
        if not self.in_line or self.asleep:
            return 0.0
        now = self._clock()
        rank = rank_of(place)
        predicted_s = self._rate.wait_s(rank, self._line.queue.before(place), now, LONGEST_S)
        return min(self._margin.bound_s(rank, place.held if read else None, predicted_s, self._rate.grain_s(), now), LONGEST_S)

    async def wait(self, waiter: Waiter[T]) -> T:
        """Wait until the request is dispatched; the turn that is returned is counted on its backend already.

        Raises:
            Fault: OVERLOADED, NO_BACKEND, CLIENT_GONE or SHUTTING_DOWN: the request is not dispatched; `waiter.word` names the reason.
        """
        self._join(waiter)
        try:
            outcome = await waiter.outcome
        except asyncio.CancelledError:
            self._abandoned(waiter)
            raise
        if isinstance(outcome, Fault):
            raise outcome
        return outcome

    def _join(self, waiter: Waiter[Any]) -> None:
        place = waiter.place
        now = self._clock()
        waiter.for_slot = waiter.lacks_slot()
        refused = self.refusal(place, waiter.may_s, for_slot=waiter.for_slot)
        if refused is not None:
            waiter.word, fault = refused
            raise fault
        line = self._line_of(waiter)
        before = line.queue.before(place)
        waiter.ahead = sum(before[:3])
        if not waiter.for_slot:
            waiter.predicted_s = self._rate.wait_s(rank_of(place), before, now, LONGEST_S)
            waiter.grain_s = self._rate.grain_s()
        self._put(waiter, line)
        waiter.waits = True
        waiter.on_gone = self._gone
        waiter.look_at = min(place.deadline, waiter.beat(now))
        self.waiting += 1
        if not waiter.for_slot:
            self.in_line += 1
            self._rate.joined(rank_of(place), place.cost, now)
            if self.in_line == 1 and not self._out():
                self._rate.busy(now)
        if self.waiting == 1:
            self._load_table.freed = self._wake
        self._dispatch()

    def _put(self, waiter: Waiter[Any], line: _WaitingLine) -> None:
        put = line.queue.put(waiter.place)
        assert put.accepted  # `refusal` has checked the same bounds
        for evicted in put.evicted:
            wait_s = 0.0 if waiter.for_slot else self.predicted_s(evicted)
            self._finish(line.waiters[evicted.seq], refusals.DISPLACED, refusals.displaced(wait_s, self._rng.random()))
        line.waiters[waiter.place.seq] = waiter

    def _line_of(self, waiter: Waiter[Any]) -> _WaitingLine:
        return self._slot_line if waiter.for_slot else self._line

    def _abandoned(self, waiter: Waiter[Any]) -> None:
        """End the wait of a request whose task was cancelled, maybe after the dispatch and before the task learned of it."""
        if waiter.waits:
            self.end(waiter, refusals.GONE, None)
        elif waiter.outcome.done() and not waiter.outcome.cancelled():
            outcome = waiter.outcome.result()
            if not isinstance(outcome, Fault) and outcome.reserved is not None:
                outcome.reserved.over()

    # --- dispatch -------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Check for capacity in the next turn of the event loop, not at once: the code that frees capacity is in the middle of its work,
        and may be about to take it again for another attempt."""
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._woken = False
        while self.waiting and self._capacity.look():
            self._held_tier = NO_TIER
            first = self._placeable(self._line, self._can_place)
            if self._slot_line.waiters:
                for_slot = self._placeable(self._slot_line, self._can_take_slot)
                if first is not None and first.place.tier > self._held_tier:
                    first = None  # a tenant of a higher class leaves this capacity to others of its own
                first = self._first_of_both(first, for_slot)
            if first is None:
                break
            self._serve(first)
        if (
            self.in_line
            and self._make_room is not None
            and (place := self._line.queue.next(self._may_use_all, self._holds_more)) is not None
        ):
            try:
                self._make_room(self._line.waiters[place.seq], self._may_wait)
            except Exception as error:  # noqa: BLE001 - a defect of preemption must not stop the queue: requests wait as without it
                self._log_defect(error, "line")

    def _placeable(self, line: _WaitingLine, can_place: Callable[[QueuedRequest], bool]) -> Waiter[Any] | None:
        """The waiter whose turn it is in this line among those that can be placed, with its turn."""
        looks = 1
        while looks:
            looks -= 1
            place = line.queue.next(can_place, self._holds_more)
            hopeless, self._hopeless = self._hopeless, []
            slotless, self._slotless = self._slotless, []
            for waiter, fault in hopeless:
                self.end(waiter, refusals.NOBODY, fault)
            moved = [waiter for waiter in slotless if self._changes_line(waiter)]
            if place is not None:
                return line.waiters[place.seq]
            if moved:
                looks = 2  # the walk went on behind those that have left: one look ends it, another begins it again
        return None

    def _first_of_both(self, first: Waiter[Any] | None, for_slot: Waiter[Any] | None) -> Waiter[Any] | None:
        """Who is sent, of the one whose turn it is for capacity and the one for a slot: the higher class. Equal ones take turns, and a
        lower one that waits for a slot has the share of what the others are served that lower classes have within one line."""
        if first is None or for_slot is None:
            return first or for_slot
        if rank_of(for_slot.place) > rank_of(first.place):
            self._owed += SHARE * first.place.cost
            if self._owed < QUANTUM:
                return first
            self._owed -= for_slot.place.cost
            return for_slot
        if rank_of(for_slot.place) == rank_of(first.place):
            self._slot_next = not self._slot_next
            return first if self._slot_next else for_slot
        return for_slot

    def _changes_line(self, waiter: Waiter[Any]) -> bool:
        """Let a waiter for capacity wait for a slot from now on, if that line has room; whether it has."""
        place = waiter.place
        # a walk may look at the same request twice, and another look may have ended its wait
        if waiter.for_slot or not waiter.waits or self._slot_line.queue.refused(place) is not None:
            return False
        self._line.queue.remove(place)
        del self._line.waiters[place.seq]
        self._rate.left(rank_of(place), place.cost)
        self._leave_line()
        waiter.for_slot = True
        self._put(waiter, self._slot_line)
        return True

    def _leave_line(self) -> None:
        self.in_line -= 1
        if not self.in_line:
            self._rate.idle(self._clock())

    def _may_wait(self, place: QueuedRequest, may_s: float) -> bool:
        return not self._stopped and self.predicted_s(place) < may_s and self._line.queue.refused(place) is None

    def _may_use_all(self, place: QueuedRequest) -> bool:
        return self._capacity.all_for(place.tenant)

    def _can_place(self, place: QueuedRequest) -> bool:
        waiter = self._line.waiters[place.seq]
        if self._turn_of(waiter):
            return True
        if waiter.lacks_slot():
            self._slotless.append(waiter)
        return False

    def _can_take_slot(self, place: QueuedRequest) -> bool:
        return self._turn_of(self._slot_line.waiters[place.seq])

    def _turn_of(self, waiter: Waiter[Any]) -> bool:
        """Route a waiter anew, if there is capacity for its tenant; whether it can be sent."""
        place = waiter.place
        if not self._capacity.free_for(place.tenant):
            if self._capacity.only_held_back(place.tenant):
                self._held_tier = min(self._held_tier, place.tier)
            return False
        if place.tier > self._held_tier:
            return False
        try:
            waiter.turn = waiter.again()
        except Fault as fault:
            self._hopeless.append((waiter, fault))
            return False
        except Exception as error:  # noqa: BLE001 - one request that cannot be routed must not block the queue
            self._log_defect(error, "line")
            self._hopeless.append((waiter, Fault(Kind.INTERNAL, "Something failed on our side. Try again.")))
            return False
        return waiter.turn is not None

    def _serve(self, waiter: Waiter[Any]) -> None:
        if waiter.outcome.done():
            self.end(waiter, refusals.GONE, None)  # its task was cancelled in this turn of the event loop, and has still to leave
            return
        place = waiter.place
        turn = waiter.turn
        assert turn is not None
        self._line_of(waiter).queue.take(place)
        if not waiter.for_slot:
            self._rate.dispatched(place.cost, self._clock())
            self._learn(waiter, served=True)
        turn = waiter.reserve(turn)
        self._forget(waiter)
        waiter.word = refusals.SERVED
        waiter.outcome.set_result(turn)

    # --- leaving --------------------------------------------------------------------------------------------------

    def end(self, waiter: Waiter[Any], word: str, fault: Fault | None) -> None:
        """End the wait of a request, with the word for metrics and the fault for its caller; None when its task has ended."""
        if not waiter.waits:
            return
        self._line_of(waiter).queue.remove(waiter.place)
        self._finish(waiter, word, fault)

    def _gone(self, waiter: Waiter[Any]) -> None:
        self.end(waiter, refusals.GONE, Fault(Kind.CLIENT_GONE, "The caller closed the connection before its turn came."))

    def _finish(self, waiter: Waiter[Any], word: str, fault: Fault | None) -> None:
        """Finish the wait of a request that was removed from the queue already."""
        if not waiter.for_slot:
            self._rate.left(rank_of(waiter.place), waiter.place.cost)
            if word == refusals.TIMED_OUT:
                self._learn(waiter, served=False)
        self._forget(waiter)
        waiter.word = word
        if fault is not None and not waiter.outcome.done():
            waiter.outcome.set_result(fault)

    def _learn(self, waiter: Waiter[Any], *, served: bool) -> None:
        if waiter.grain_s and not waiter.place.back:  # a preempted request is older than its wait in the queue
            place = waiter.place
            now = self._clock()
            rank = rank_of(place)
            waited_s = now - place.entered_at
            queued = self._line.queue.in_rank(rank)
            self._margin.waited(rank, place.held, waiter.predicted_s, waited_s, waiter.grain_s, queued, served=served, now=now)

    def _forget(self, waiter: Waiter[Any]) -> None:
        del self._line_of(waiter).waiters[waiter.place.seq]
        waiter.waits = False
        self.waiting -= 1
        if not waiter.for_slot:
            self._leave_line()
        if not self.waiting:
            self._load_table.freed = None

    def sweep(self, now: float) -> None:
        """Check the deadlines and heartbeats of all waiters, and whether a changed fleet has capacity. A deadline is late by one sweep at
        most."""
        if self.waking is not None:
            self.waking.look(now, up=bool(self._pool_of().up))
        if not self.waiting:
            return
        pool = self._pool_of()
        (self._rate.busy if self.in_line and not self._out() else self._rate.idle)(now)
        if not pool.backends and self.waking is None:
            self._end_all(refusals.NOBODY, lambda: refusals.nobody(self._rng.random(), "the pool is empty"))
            return
        self._dispatch()
        for waiter in self._all():
            if now < waiter.look_at or not waiter.waits:
                continue
            if now >= waiter.place.deadline:
                if self.waking is not None and self.asleep:
                    fault = self.waking.overdue(waiter.may_s)
                elif self._out():
                    fault = refusals.not_back(waiter.may_s, self._rng.random())
                else:
                    wait_s = 0.0 if waiter.for_slot else self.predicted_s(waiter.place)
                    fault = refusals.timed_out(waiter.may_s, wait_s, self._rng.random())
                self.end(waiter, refusals.TIMED_OUT, fault)
            else:
                waiter.look_at = min(waiter.place.deadline, waiter.beat(now))

    def _out(self) -> bool:
        """Whether the pool is in an outage: no backend is up, or none of those that are can be reached."""
        pool = self._pool_of()
        return not pool.up or self._unreached(pool.up_ids)

    def stop_holding(self) -> None:
        """End the waits for an engine that has still to start, and refuse new ones: the worker's grace has begun."""
        if self.asleep:
            self.stop()

    def stop(self) -> None:
        """End all waits and refuse new ones: the worker's grace is over."""
        self._stopped = True
        self._end_all(refusals.STOPPED, refusals.stopping)

    def _end_all(self, word: str, fault: Callable[[], Fault]) -> None:
        for waiter in self._all():
            self.end(waiter, word, fault())

    def _all(self) -> list[Waiter[Any]]:
        return [*self._line.waiters.values(), *self._slot_line.waiters.values()]

    # --- afterwards -----------------------------------------------------------------------------------------------

    def used(self, place: QueuedRequest, usage: Usage, *, for_slot: bool = False) -> None:
        """Correct a tenant's charge by the usage of a dispatched request that has ended: it was charged with an estimate.

        Args:
            for_slot: whether it waited for a slot (`Waiter.for_slot`).
        """
        line = self._slot_line if for_slot else self._line
        line.queue.settle(place, usage.prompt_tokens - usage.cached_tokens + 2 * usage.completion_tokens)

    def tell_served(self, served: Callable[[int, str, int], None] | None) -> None:
        """Call `served` with the rank, the tenant and the tokens of each charge from now on; None for nobody."""
        self._line.queue.served = served

    def served_elsewhere(self, rank: int, tenant: str, tokens: int) -> None:
        """Charge a tenant what another worker's queue served it (`FairQueue.served_elsewhere`)."""
        self._line.queue.served_elsewhere(rank, tenant, tokens)

    def by_tenant(self, most: int) -> list[tuple[str, list[int]]]:
        """The tenants with the most requests waiting for capacity (`FairQueue.by_tenant`)."""
        return self._line.queue.by_tenant(most)

    def state(self) -> QueueState:
        """The number of waiting requests by class, and the drain rate."""
        waking = self.waking
        waits = [sum(counts) for counts in zip(self._line.queue.by_tier(), self._slot_line.queue.by_tier(), strict=True)]
        held = 0
        if waking is not None and self.asleep:
            held = max(sum(waits), int(waking.wanted))
        return QueueState(self._name, tuple(waits), self._rate.per_second(self._clock()), held)


class PoolQueues(dict[str, PoolQueue]):
    """The queue of every pool, by the pool's name; a dict, because every request looks its queue up."""

    def sweep(self, now: float) -> None:
        """Check deadlines, heartbeats and capacity in every queue."""
        for queue in self.values():
            queue.sweep(now)

    def stop(self) -> None:
        """End all waits and refuse new ones."""
        for queue in self.values():
            queue.stop()

    def states(self) -> tuple[QueueState, ...]:
        """The state of every queue."""
        return tuple([queue.state() for queue in self.values()])
