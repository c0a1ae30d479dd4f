"""Reconciles calendar counters with the ledger: sets them from it when they start empty, compares them with it once a minute.

    a worker with counters of its own starts      set before its first request
    a shared store starts empty                   set at once, by the worker that noticed, and again shortly after, for the requests
                                                  that were in flight
    a limit is new                                set at the next step
    every 60 s, by one of all workers             compared: `tenancy.drift` finds differences, which are logged, shown and corrected

`Reconciler` does so for one worker. Counters are set to the usage in SQL plus the usage in this host's write-ahead logs that is not in SQL
yet; usage of other hosts counts once it is in SQL. `ReconcileState` and `LimitsState` are the state of a worker's counters, for metrics.

An outage of the database blocks no request: limits over periods and for ever then count from zero, and are set when it is back.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import msgspec
import structlog

from domain.clock import Clock, WallClock
from tenancy.directory import Directory
from tenancy.drift import (
    HOURS_COMPARED,
    Asked,
    CounterComparison,
    Figures,
    Question,
    Today,
    added,
    asked_of,
    figures_of,
    judged,
    spent_in,
    today_at,
)
from tenancy.limits import Level, Limit, Rolling
from tenancy.ports import CountersAway
from tenancy.seeds import Seed, Tallies
from tenancy.usage import LedgerAway, SpendReader, Spent, UsageEvent


class ReconcileState(msgspec.Struct, frozen=True):
    """The reconciliation of counters with the ledger. Counts since the worker started."""

    unread: bool = False
    """Whether earlier usage is not counted yet, because the database or the counter store is away."""
    drift: float = 0.0
    """Largest share by which a counter had drifted at the last comparison."""
    raised: int = 0
    """Counters that were too low and were corrected."""
    lowered: int = 0
    """Counters that were too high and were corrected."""


class LimitsState(msgspec.Struct, frozen=True):
    """The state of one worker's counters."""

    degraded: bool = False
    """Whether limits are decided without the shared counters."""
    degraded_s: float = 0.0
    """Seconds since limits are decided so."""
    undelivered: int = 0
    """Settlements that wait for the counter store."""
    given_up: int = 0
    """Settlements that were dropped while the counter store was away, since the worker started."""
    open_holds: int = 0
    reconciled: ReconcileState | None = None
    """The reconciliation with the ledger; None where there is no ledger."""
    crowded: int = 0
    """Decisions about end users beyond the bound on a tenant's, since the worker started."""


STEP_S: Final = 1.0
"""How often the loop checks for due work."""
COMPARE_S: Final = 60.0
"""How often counters are compared with the ledger."""
TURN_S: Final = 15.0
"""How often a worker asks whether it is the one to compare."""
RETRY_S: Final = 2.0
"""How soon counters are set again after a failure."""
AGAIN_S: Final = (3.0, 10.0, 30.0)
"""Seconds after an empty start when counters are set again: the requests that were in flight then are in the ledger by these times, and
the counter store does not know them."""
READ_WITHIN_S: Final = 10.0
"""The longest wait for one answer of the database."""
STILL_TRIES: Final = 5
"""How often sums are read again because usage was written meanwhile."""
LATE_S: Final = 30.0
"""Usage that waits for longer than this is missing in the ledger: no counter is lowered then."""
OLD_SUMS_S: Final = 3600.0
"""How long the sums of past months are reused."""
BATCH: Final = 256
"""Counters set in one call; requests are served between calls."""
TOLD_AT_MOST: Final = 10
"""Drifted counters named in the log of one comparison."""

T = TypeVar("T")

_Counter = tuple[str, str, int]
"""A counter's tag and key, and of a rolling window the hour; 0 for every other one."""

log = structlog.get_logger("tidegate.reconcile")


class UnbookedHere(Protocol):
    """Usage of this host that the ledger may not have yet."""

    async def events(self) -> list[UsageEvent]:
        """The events on disk, whether SQL has them or not."""
        ...

    async def oldest_s(self) -> float:
        """The age of the oldest event on disk in seconds; 0 for none."""
        ...


class Reconciler:
    """Sets and compares the calendar counters of one worker.

    Args:
        directory: the current directory.
        turn: called with whether this host's usage is late; returns whether this worker is the one to compare, and whether any host's
            usage is late.
    """

    def __init__(
        self,
        ledger: SpendReader,
        directory: Callable[[], Directory],
        tallies: Tallies,
        waiting: UnbookedHere,
        turn: Callable[[bool], Awaitable[tuple[bool, bool]]],
        wall: WallClock,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._directory = directory
        self._tallies = tallies
        self._waiting = waiting
        self._turn = turn
        self._wall = wall
        self._clock = clock
        self._due: list[float] = []
        """The times at which all counters are to be set from the ledger, soonest first."""
        self._wake = asyncio.Event()
        self._unread = False
        """Whether the last attempt to set the counters failed."""
        self._found_empty = False
        """Whether the store was empty, and the ledger has not shown yet whether it should have been."""
        self._ours = False
        """Whether this worker is the one to compare."""
        self._late = False
        """Whether the usage of any host has waited for longer than `LATE_S`."""
        self._looks: dict[_Counter, CounterComparison] = {}
        self._followed: Directory | None = None
        self._known: set[tuple[str, Limit]] = set()
        self._old: dict[Level, tuple[object, float, list[Spent]]] = {}
        """Sums of past months by level: the question, the time of the answer, and the answer."""
        self._drift = 0.0
        self._raised = 0
        self._lowered = 0

    def state(self) -> ReconcileState:
        """The state and counts, for metrics."""
        return ReconcileState(self._unread, self._drift, self._raised, self._lowered)

    def began_anew(self, empty: bool = False) -> None:
        """Set all counters from the ledger soon: they are lost, or some may be. An `empty` store may be a new one; only the ledger shows
        whether anything was lost."""
        now = self._clock()
        self._found_empty = empty
        self._due = [now, *(now + after for after in AGAIN_S)]
        self._wake.set()

    async def begin(self) -> None:
        """Set all counters before the first request is served. Never raises; takes no time where there are no calendar limits."""
        if not any(self._directory().calendar_limits()):
            return
        self.began_anew()
        await self._set_everything()

    async def run(self) -> None:
        """Set and compare counters until cancelled."""
        turn_at = 0.0
        compare_at = self._clock() + COMPARE_S
        while True:
            now = self._clock()
            if now >= turn_at:
                turn_at = now + TURN_S
                await self._ask_for_turn()
            if self._due and now >= self._due[0]:
                await self._set_everything()
            elif self._ours and self._directory() is not self._followed:
                await self._set_new_limits()
            if now >= compare_at:
                compare_at = now + COMPARE_S
                if self._ours and not self._unread:
                    await self.compare()
                else:
                    self._looks = {}
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STEP_S):
                    await self._wake.wait()
            self._wake.clear()

    async def compare(self) -> None:
        """Compare once, and correct the differences that this comparison and the one before have found. Never raises."""
        try:
            limits = (entry for entry in self._directory().calendar_limits() if entry[1].scope.level is not Level.USER)
            figures = await self._read(limits, today_at(self._wall(), HOURS_COMPARED))
            looks: dict[_Counter, CounterComparison] = {}
            drifts: list[tuple[str, float]] = []
            for tag, seeds in figures.items():
                fixes = await self._judge(tag, seeds, looks, drifts)
                if fixes:
                    await self._apply({tag: fixes})
        except (LedgerAway, CountersAway) as away:
            log.info("counters could not be compared with the ledger", why=str(away)[:200])
            self._looks = {}
            return
        self._looks = looks
        self._drift = max((share for _, share in drifts), default=0.0)
        if drifts:
            worst = sorted(drifts, key=lambda drift: -drift[1])[:TOLD_AT_MOST]
            log.error("counters had drifted from the ledger", counters=len(drifts), worst={key: round(share, 4) for key, share in worst})

    async def _judge(
        self, tag: str, seeds: Sequence[Seed], looks: dict[_Counter, CounterComparison], drifts: list[tuple[str, float]]
    ) -> list[Seed]:
        """The corrections of one tag's counters; adds to `looks` and `drifts`."""
        fixes: list[Seed] = []
        questions = [msgspec.structs.replace(seed, settled=0) for seed in seeds]
        settled = [value for start in range(0, len(questions), BATCH) for value in await self._seed(tag, questions[start : start + BATCH])]
        for seed, now in zip(seeds, settled, strict=True):
            if now is None:
                continue
            counter = (tag, seed.key, seed.period if isinstance(seed.window, Rolling) else 0)
            look = looks[counter] = CounterComparison(seed.period, seed.settled, now)
            drift = judged(self._looks.get(counter), look)
            if drift is None or (drift.instead_of is not None and self._late):
                continue
            drifts.append((seed.key, drift.share))
            fixes.append(msgspec.structs.replace(seed, settled=drift.right, instead_of=drift.instead_of))
            self._raised += drift.instead_of is None
            self._lowered += drift.instead_of is not None
        return fixes

    async def _ask_for_turn(self) -> None:
        late = await self._waiting.oldest_s() > LATE_S
        try:
            ours, anywhere = await self._turn(late)
        except CountersAway:
            ours = False
            anywhere = late
        self._ours = ours
        self._late = late or anywhere

    async def _set_everything(self) -> None:
        directory = self._directory()
        if await self._set(directory.calendar_limits()):
            self._followed = directory
            self._known = set(directory.calendar_limits())
            now = self._clock()
            self._due = [at for at in self._due if at > now]

    async def _set_new_limits(self) -> None:
        """Set the counters of limits that are new since the last call: earlier usage in their period counts, too."""
        directory = self._directory()
        limits = dict.fromkeys(directory.calendar_limits())  # in their order, so that a run can be repeated
        if await self._set([limit for limit in limits if limit not in self._known]):
            self._followed = directory
            self._known = set(limits)

    async def _set(self, limits: Iterable[tuple[str, Limit]]) -> bool:
        """Set the counters of these limits; returns False when the ledger or the store is away."""
        started = self._clock()
        wanted = list(limits)
        try:
            figures = await self._read(wanted, today_at(self._wall()), unbooked=True)
            await self._apply(figures)
        except (LedgerAway, CountersAway) as away:
            if not self._unread:
                log.warning("limits over periods and for ever count from now on: what was used cannot be read", why=str(away)[:200])
            self._unread = True
            self._due = [self._clock() + RETRY_S, *self._due[1:]]
            return False
        if self._found_empty and any(seed.settled for seeds in figures.values() for seed in seeds):
            log.warning("the counter store was empty; what the ledger knows is in it again")
        self._found_empty = False
        if wanted:
            log.info("limits set from the ledger", limits=len(wanted), took_ms=round((self._clock() - started) * 1e3, 1))
        self._unread = False
        return True

    async def _apply(self, figures: Figures) -> None:
        for tag, seeds in figures.items():
            wanted = [seed for seed in seeds if seed.settled or seed.instead_of is not None]
            for start in range(0, len(wanted), BATCH):
                await self._seed(tag, wanted[start : start + BATCH])

    async def _seed(self, tag: str, seeds: list[Seed]) -> list[int | None]:
        settled = await self._tallies.seed(tag, seeds)
        await asyncio.sleep(0)
        return settled

    async def _read(self, limits: Iterable[tuple[str, Limit]], today: Today, unbooked: bool = False) -> Figures:
        """The figures of these limits from the ledger, with the usage of this host that SQL does not have yet where `unbooked`. Raises
        LedgerAway."""
        # 10,000 limits take tens of milliseconds, which no request should wait for: in threads, here and below
        asked = await asyncio.to_thread(asked_of, limits)
        events = {event.request_id: event for event in await self._waiting.events()} if unbooked and asked else {}
        booked = await self._booked(events)
        for tries_left in reversed(range(STILL_TRIES)):
            answers = {question: await self._answer(question, asked, today) for question in asked}
            before, booked = booked, await self._booked(events)
            if before == booked or not tries_left:
                break
        waiting = [event for request_id, event in events.items() if request_id not in booked]
        return await asyncio.to_thread(_figures, asked, answers, waiting, today)

    async def _booked(self, events: Mapping[str, UsageEvent]) -> set[str]:
        return await self._in_time(self._ledger.booked(events)) if events else set()

    async def _in_time(self, answer: Awaitable[T]) -> T:
        try:
            return await asyncio.wait_for(answer, READ_WITHIN_S)
        except TimeoutError:
            raise LedgerAway(f"no answer within {READ_WITHIN_S:g} s") from None

    async def _answer(self, question: Question, asked: Asked, today: Today) -> list[Spent]:
        level, window, zone = question
        names = frozenset(asked[question])
        begins_s = today.begins_s(window, zone)
        if begins_s is not None and isinstance(window, Rolling):
            return await self._in_time(self._ledger.spent_per_hour(level, names, begins_s))
        if begins_s is not None:
            return await self._in_time(self._ledger.spent_since(level, names, begins_s))
        cut = today.settled_before
        now = self._clock()
        remembered = self._old.get(level)
        if remembered is None or remembered[0] != (cut, names) or now - remembered[1] > OLD_SUMS_S:
            remembered = self._old[level] = ((cut, names), now, await self._in_time(self._ledger.spent_by(level, names, None, cut)))
        return await asyncio.to_thread(added, remembered[2], await self._in_time(self._ledger.spent_by(level, names, cut)))


def _figures(asked: Asked, answers: Mapping[Question, list[Spent]], waiting: list[UsageEvent], today: Today) -> Figures:
    both: dict[Question, list[Spent]] = {}
    for question, answer in answers.items():
        level, window, zone = question
        here = spent_in(waiting, level, today.begins_s(window, zone), per_hour=isinstance(window, Rolling))
        both[question] = added(answer, here)
    return figures_of(asked, both if waiting else answers, today)
