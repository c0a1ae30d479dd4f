"""One pool's queue under a load of its own, on virtual time: requests of several classes and tenants come in an open loop, far more than
their engine answers, and each is let wait, refused or served by the real `PoolQueue`. Nothing sleeps.

The engine has so many seats; a request has one for as long as its uncached prompt and its answer take. Some requests find their prefix in
its cache. Answers are as long as they are; the queue knows what is usual.
"""

import asyncio
import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from math import exp
from types import MappingProxyType
from typing import Any, Final

import msgspec

from domain.faults import Fault
from domain.priority import Class
from gateway.placement.pool_state import TenantShares
from gateway.queue.deadlines import DEFAULT_WAIT_S
from gateway.queue.pool_queue import PoolQueue
from gateway.queue.waiter import Waiter
from routing.fair_queue import QueueBounds
from routing.fair_tier import QueuedRequest
from routing.load import Charge, LoadTable
from routing.room import has_no_room
from tests.placement import pool_of

SWEEP_S: Final = 0.25
PREFIX, QUESTION, OUTPUT = 384, 128, 27.0
"""Tokens of a shared prefix, of what is asked behind it, and the median of the answers' (they are lognormal, with a spread of 0.5)."""
PROMPT_S, TOKEN_S = 0.0005, 0.09
"""Seconds per uncached prompt token, and per token of an answer."""
SPREAD: Final = 0.5
MEAN_S: Final = PROMPT_S * QUESTION + TOKEN_S * OUTPUT * exp(SPREAD**2 / 2)
"""What a request takes that finds its prefix."""

FOUR: Final = MappingProxyType({Class.CRITICAL: 0.05, Class.INTERACTIVE: 0.15, Class.DEFAULT: 0.4, Class.BATCH: 0.4})
"""Shares of all requests: at ten times what can be answered, those of the first two are twice of it."""
SHORT: Final = MappingProxyType(dict.fromkeys(Class, 1.5))
USUAL: Final = MappingProxyType(DEFAULT_WAIT_S)


class Case(msgspec.Struct, frozen=True):
    """Who asks for how much."""

    multiple: float
    """Of what the engine can answer, about."""
    seats: int = 64
    classes: Mapping[Class, float] = FOUR
    tenants: tuple[float, ...] = (1.0,) * 20
    """Shares of all requests."""
    held: float = 0.6
    """Share of the requests that find their prefix."""
    waits: Mapping[Class, float] = SHORT
    bounds: QueueBounds = QueueBounds()
    kept_free: float = 0.0
    warm_s: float = 10.0
    seconds: float = 40.0
    """Of arrivals, those of `warm_s` included."""


class Found(msgspec.Struct):
    """What became of the requests that came after `warm_s`."""

    asked: Counter[Class] = msgspec.field(default_factory=Counter)
    served: Counter[Class] = msgspec.field(default_factory=Counter)
    """In the seconds of arrivals after `warm_s`."""
    asked_of: Counter[str] = msgspec.field(default_factory=Counter)
    """By tenant."""
    served_of: Counter[str] = msgspec.field(default_factory=Counter)
    waited_of: dict[str, list[float]] = msgspec.field(default_factory=dict)
    """Seconds of those that were served."""
    at_once: int = 0
    """Refused when they came."""
    late: Counter[str] = msgspec.field(default_factory=Counter)
    """Refused after they had been let wait, by reason."""
    waits: list[tuple[Class, float, float]] = []
    """Class, predicted and real wait of those that waited; a deadline stands for a real wait that was cut off."""
    busy: float = 0.0
    """Share of the seats that were taken."""

    @property
    def late_share(self) -> float:
        """Of all refusals."""
        late = sum(self.late.values())
        return late / max(1, late + self.at_once)

    @property
    def all_served(self) -> int:
        return sum(self.served.values())


class _Seat:
    def __init__(self, world: "World", charge: Charge | None = None) -> None:
        self.world, self.charge = world, charge

    @property
    def reserved(self) -> "_Seat":
        return self

    def over(self) -> None:
        if self.charge is not None:
            self.world.load_table.release(self.charge)


class World:
    """See the module."""

    def __init__(self, case: Case, seed: int = 1) -> None:
        self.case, self.dice = case, random.Random(seed)
        self.now = 0.0
        self.load_table = LoadTable("a")
        self.load_table.set_limit("a", requests=case.seats)
        self.pool = pool_of("a")
        self.tenant_shares = TenantShares(case.kept_free)
        self.found = Found()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self) -> Found:
        """Everything that comes, until all is over."""
        asyncio.run(self._run())
        return self.found

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self.queue = PoolQueue(
            "p", self.case.bounds, self.load_table, lambda: self.pool, clock=lambda: self.now, loop=loop, rng=random.Random(1),
            log_defect=_raise, part_of=lambda tenant: self.tenant_shares.usable_share(tenant, self.now),
        )  # fmt: skip
        self._at(0.0, self._arrive)
        self._at(SWEEP_S, self._sweep)
        taken_s = 0.0
        while self._events:
            at, _, event = heapq.heappop(self._events)
            if self.case.warm_s <= at < self.case.seconds:
                taken_s += self.load_table.in_flight("a") * (at - max(self.now, self.case.warm_s))
            self.now = at
            event()
            for _ in range(3 if self.queue.waiting or self._tasks else 0):
                await asyncio.sleep(0)
        self.found.busy = taken_s / (self.case.seats * (self.case.seconds - self.case.warm_s))

    def _at(self, at: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), event))

    def _sweep(self) -> None:
        self.queue.sweep(self.now)
        if self.now < self.case.seconds or self.queue.waiting:
            self._at(self.now + SWEEP_S, self._sweep)

    def _arrive(self) -> None:
        case, dice = self.case, self.dice
        per_s = case.multiple * case.seats / MEAN_S
        next_at = self.now + dice.expovariate(per_s)
        if next_at < case.seconds:
            self._at(next_at, self._arrive)
        tier = dice.choices(list(case.classes), list(case.classes.values()))[0]
        tenant = f"t{dice.choices(range(len(case.tenants)), case.tenants)[0]}"
        held = PREFIX if dice.random() < case.held else 0
        output = max(8, min(96, round(dice.lognormvariate(0.0, SPREAD) * OUTPUT)))
        may_s = case.waits[tier]
        counts = self.now >= case.warm_s
        self.found.asked[tier] += counts
        self.found.asked_of[tenant] += counts
        if self.queue.waiting:
            likely = QueuedRequest(tenant, tier, False, PREFIX + QUESTION + 512, self.now + may_s, self.now, 2000)
            if self.queue.refusal(likely, may_s, read=False) is not None:
                self.found.at_once += counts
                return
        uncached = PREFIX + QUESTION - held
        place = QueuedRequest(tenant, tier, False, uncached + 2 * int(OUTPUT), self.now + may_s, self.now, 2000, held)
        takes_s = PROMPT_S * uncached + TOKEN_S * output
        if not self.queue.waiting and self._fits(tenant):
            self._take(place, takes_s)
            return
        task = asyncio.get_running_loop().create_task(self._wait(place, may_s, takes_s, counts))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take(self, place: QueuedRequest, takes_s: float) -> _Seat:
        counts = self.case.warm_s <= self.now < self.case.seconds
        self.found.served[Class(place.tier)] += counts
        self.found.served_of[place.tenant] += counts
        if counts:
            self.found.waited_of.setdefault(place.tenant, []).append(self.now - place.entered_at)
        charge = self.load_table.charge("a", 1, 1, self.now)
        self.tenant_shares.request_sent(place.tenant)
        self._at(self.now + takes_s, partial(self._end, place.tenant, charge))
        return _Seat(self, charge)

    def _end(self, tenant: str, charge: Charge) -> None:
        self.tenant_shares.request_over(tenant, self.now)
        self.load_table.release(charge)

    def _fits(self, tenant: str) -> bool:
        return not has_no_room(self.load_table, 0, 1.0, self.tenant_shares.usable_share(tenant, self.now))

    async def _wait(self, place: QueuedRequest, may_s: float, takes_s: float, counts: bool) -> None:
        begun, predicted = self.now, self.queue.predicted_s(place)

        def again() -> _Seat | None:
            return _Seat(self) if self._fits(place.tenant) else None

        waiter: Waiter[Any] = Waiter(
            place, may_s, again, lambda _: self._take(place, takes_s), lambda _: float("inf"), asyncio.get_running_loop()
        )
        try:
            await self.queue.wait(waiter)
        except Fault:
            if self.now == begun:
                self.found.at_once += counts
            else:
                self.found.late[f"{Class(place.tier).name} {waiter.word}"] += counts
                if counts and waiter.word == "timed_out":
                    self.found.waits.append((Class(place.tier), predicted, may_s))
            return
        if counts:
            self.found.waits.append((Class(place.tier), predicted, self.now - begun))


def _raise(error: BaseException, _: str) -> None:
    raise error
