"""Keeps calendar counters to what the ledger says: set from it when they begin anew, compared with it once a minute.

    a worker with counters of its own starts      before its first request
    a shared store began anew                     at once, by the worker that was told, and again shortly after, for what was
                                                  under way
    a limit is new                                at the next look
    every 60 s, by one of all workers             `tenancy.drift` says what has drifted; it is logged, shown and corrected

What is set is what SQL has, and what this host's write-ahead logs have beyond that; other hosts' is there when it is booked.

A database that is away stops nobody: limits per day, month and for ever then count from now on, and are set when it is back.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import msgspec
import structlog

from domain.clock import Clock, WallClock
from gateway.limits_state import ReconcileState
from tenancy.directory import Directory
from tenancy.drift import Asked, Figures, Look, Question, Today, added, asked_of, figures_of, judged, spent_in, today_at
from tenancy.limits import Level, Limit, Window
from tenancy.ports import CountersAway
from tenancy.seeds import Seed, Tallies
from tenancy.usage import LedgerAway, SpendReader, Spent
from tenancy.usage_event import UsageEvent

STEP_S: Final = 1.0
COMPARE_S: Final = 60.0
TURN_S: Final = 15.0
"""How often a worker asks whether comparing is its turn."""
RETRY_S: Final = 2.0
AGAIN_S: Final = (3.0, 10.0, 30.0)
"""After a new beginning: what was under way then is booked by these times, and the store, which does not know it, is told."""
READ_WITHIN_S: Final = 10.0
"""Longest wait for one answer of the database."""
STILL_TRIES: Final = 5
"""How often sums are read again because something was booked meanwhile."""
LATE_S: Final = 30.0
"""Usage that waits for longer than this to be booked is missing in the ledger: nothing is lowered then."""
OLD_SUMS_S: Final = 3600.0
"""How long sums of months that are over are believed."""
BATCH: Final = 256
"""Counters set in one go; requests come in between."""
TOLD_AT_MOST: Final = 10
"""Drifted counters named in the log of one comparison."""

T = TypeVar("T")

log = structlog.get_logger("tidegate.reconcile")


class Waiting(Protocol):
    """Usage of this host that the ledger may not have yet."""

    async def events(self) -> list[UsageEvent]:
        """What lies on disk, booked or not."""
        ...

    async def oldest_s(self) -> float:
        """How long the oldest of it has been there; 0 for none."""
        ...


class Reconciler:
    """One per worker.

    Args:
        directory: the one in force.
        turn: asks whether comparing is this worker's turn, and whether a host's usage is late; told whether ours is.
    """

    def __init__(
        self,
        ledger: SpendReader,
        directory: Callable[[], Directory],
        tallies: Tallies,
        waiting: Waiting,
        turn: Callable[[bool], Awaitable[tuple[bool, bool]]],
        wall: WallClock,
        clock: Clock,
    ) -> None:
        self._ledger, self._directory, self._tallies, self._waiting = ledger, directory, tallies, waiting
        self._turn, self._wall, self._clock = turn, wall, clock
        self._due: list[float] = []
        """When everything is to be set from the ledger (again), soonest first."""
        self._wake = asyncio.Event()
        self._unread = False
        self._found_empty = False
        """The store had nothing, and nobody has said yet whether it should have had."""
        self._ours = self._late = False
        self._looks: dict[tuple[str, str], Look] = {}
        self._followed: Directory | None = None
        self._known: set[tuple[str, Limit]] = set()
        self._old: dict[Level, tuple[object, float, list[Spent]]] = {}
        """Sums of months that are over: what was asked, when, and the answer."""
        self._drift, self._raised, self._lowered = 0.0, 0, 0

    def state(self) -> ReconcileState:
        """Numbers for metrics."""
        return ReconcileState(self._unread, self._drift, self._raised, self._lowered)

    def began_anew(self, empty: bool = False) -> None:
        """What was counted is gone, or may be in part: set everything from the ledger, soon. An `empty` store may be a new one: only
        the ledger knows whether anything was lost."""
        now = self._clock()
        self._found_empty = empty
        self._due = [now, *(now + after for after in AGAIN_S)]
        self._wake.set()

    async def begin(self) -> None:
        """Set everything, before anybody is served. Never raises, and takes no longer than it must."""
        if not any(self._directory().calendar_limits()):
            return
        self.began_anew()
        await self._set_everything()

    async def run(self) -> None:
        """Until cancelled."""
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
        """One comparison: correct what this and the one before have found. Never raises."""
        try:
            figures = await self._read(one for one in self._directory().calendar_limits() if one[1].scope.level is not Level.USER)
            looks: dict[tuple[str, str], Look] = {}
            found: list[tuple[str, float]] = []
            for tag, seeds in figures.items():
                fixes = await self._judge(tag, seeds, looks, found)
                if fixes:
                    await self._apply({tag: fixes})
        except (LedgerAway, CountersAway) as away:
            log.info("counters could not be compared with the ledger", why=str(away)[:200])
            self._looks = {}
            return
        self._looks = looks
        self._drift = max((share for _, share in found), default=0.0)
        if found:
            worst = sorted(found, key=lambda one: -one[1])[:TOLD_AT_MOST]
            log.error("counters had drifted from the ledger", counters=len(found), worst={key: round(share, 4) for key, share in worst})

    async def _judge(
        self, tag: str, seeds: Sequence[Seed], looks: dict[tuple[str, str], Look], found: list[tuple[str, float]]
    ) -> list[Seed]:
        fixes: list[Seed] = []
        asked = [msgspec.structs.replace(seed, settled=0) for seed in seeds]
        settled = [one for start in range(0, len(asked), BATCH) for one in await self._some(tag, asked[start : start + BATCH])]
        for seed, now in zip(seeds, settled, strict=True):
            if now is None:
                continue
            look = looks[tag, seed.key] = Look(seed.period, seed.settled, now)
            drift = judged(self._looks.get((tag, seed.key)), look)
            if drift is None or (drift.instead_of is not None and self._late):
                continue
            found.append((seed.key, drift.share))
            fixes.append(Seed(seed.key, seed.window, seed.period, drift.right, drift.instead_of))
            self._raised += drift.instead_of is None
            self._lowered += drift.instead_of is not None
        return fixes

    async def _ask_for_turn(self) -> None:
        late = await self._waiting.oldest_s() > LATE_S
        try:
            ours, anywhere = await self._turn(late)
        except CountersAway:
            ours, anywhere = False, late
        self._ours, self._late = ours, late or anywhere

    async def _set_everything(self) -> None:
        directory = self._directory()
        if await self._set(directory.calendar_limits()):
            self._followed, self._known = directory, set(directory.calendar_limits())
            now = self._clock()
            self._due = [at for at in self._due if at > now]

    async def _set_new_limits(self) -> None:
        """A limit that was not there before has counted nothing yet; what was used before in its period counts all the same."""
        directory = self._directory()
        there = dict.fromkeys(directory.calendar_limits())  # in their order, so that a run can be repeated
        if await self._set([one for one in there if one not in self._known]):
            self._followed, self._known = directory, set(there)

    async def _set(self, limits: Iterable[tuple[str, Limit]]) -> bool:
        begun, wanted = self._clock(), list(limits)
        try:
            figures = await self._read(wanted, unbooked=True)
            await self._apply(figures)
        except (LedgerAway, CountersAway) as away:
            if not self._unread:
                log.warning("limits per day, month and for ever count from now on: what was used cannot be read", why=str(away)[:200])
            self._unread = True
            self._due = [self._clock() + RETRY_S, *self._due[1:]]
            return False
        if self._found_empty and any(seed.settled for seeds in figures.values() for seed in seeds):
            log.warning("the counter store was empty; what the ledger knows is in it again")
        self._found_empty = False
        if wanted:
            log.info("limits set from the ledger", limits=len(wanted), took_ms=round((self._clock() - begun) * 1e3, 1))
        self._unread = False
        return True

    async def _apply(self, figures: Figures) -> None:
        for tag, seeds in figures.items():
            wanted = [seed for seed in seeds if seed.settled or seed.instead_of is not None]
            for start in range(0, len(wanted), BATCH):
                await self._some(tag, wanted[start : start + BATCH])

    async def _some(self, tag: str, seeds: list[Seed]) -> list[int | None]:
        found = await self._tallies.seed(tag, seeds)
        await asyncio.sleep(0)
        return found

    async def _read(self, limits: Iterable[tuple[str, Limit]], unbooked: bool = False) -> Figures:
        """Raises LedgerAway."""
        # 10,000 limits take tens of milliseconds, which no request should wait for: here and below
        today, asked = today_at(self._wall()), await asyncio.to_thread(asked_of, limits)
        events = {event.request_id: event for event in await self._waiting.events()} if unbooked and asked else {}
        booked = await self._booked(events)
        for left in reversed(range(STILL_TRIES)):
            answers = {question: await self._answer(question, asked, today) for question in asked}
            before, booked = booked, await self._booked(events)
            if before == booked or not left:
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
        level, window = question
        names = frozenset(asked[question])
        if window is not Window.EVER:
            return await self._in_time(self._ledger.spent_by(level, names, today.begins(window)))
        cut, now = today.settled_before, self._clock()
        kept = self._old.get(level)
        if kept is None or kept[0] != (cut, names) or now - kept[1] > OLD_SUMS_S:
            kept = self._old[level] = ((cut, names), now, await self._in_time(self._ledger.spent_by(level, names, None, cut)))
        return await asyncio.to_thread(added, kept[2], await self._in_time(self._ledger.spent_by(level, names, cut)))


def _figures(asked: Asked, answers: Mapping[Question, list[Spent]], waiting: list[UsageEvent], today: Today) -> Figures:
    both = {question: added(answer, spent_in(waiting, question[0], today.begins(question[1]))) for question, answer in answers.items()}
    return figures_of(asked, both if waiting else answers, today)
