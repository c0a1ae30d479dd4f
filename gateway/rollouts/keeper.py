"""Looks at every rollout in force each second, counts what workers have written, and does what follows: on, wait, or back.

Every gateway on a database has one; what they write is compared with the version that they read, so of several one wins, and that one
writes the audit row and tells. A canary that is worse is out of force with the same write: workers drop it at their next look.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

import msgspec
import structlog

from domain.clock import Clock, WallClock
from domain.rollouts import RolloutBook, StoredRollout
from policies.rollout.progress import Outcome, State, Status, tick
from policies.rollout.samples import Interval
from policies.rollout.standing import Read, Standing, Unreadable, brief, read, standing, state_text
from tenancy.audit import Entry, canonical
from tenancy.journal import Change

EVERY_S: Final = 1.0
LAG_S: Final = 3.0
"""After an interval's end, until it is counted: workers write every second, and clocks of machines differ a little. What comes later is
not counted. Also the wait after the database was away, during which workers write what they have kept."""
WITHIN_S: Final = 10.0
"""Longest time for one round."""
FORGET_EVERY_S: Final = 300.0
"""How often sums of closed rollouts are removed."""
ACTOR: Final = "rollout"
"""Of audit rows; no person did it."""

ACTIONS: Final[Mapping[Outcome, str]] = {
    Outcome.GO_ON: "rollout.advance",
    Outcome.DONE: "rollout.done",
    Outcome.ROLL_BACK: "rollout.rollback",
    Outcome.WAIT: "rollout.gate",
}
HOLD: Final = "rollout.hold"
CHANGES: Final = (*ACTIONS.values(), HOLD)
"""What the audit calls what keepers do."""

log = structlog.get_logger("tidegate.rollouts")


class Books(Protocol):
    """What one transaction reaches."""

    @property
    def change(self) -> Change:
        """Writes down."""
        ...

    @property
    def rollouts(self) -> RolloutBook:
        """Rollouts, in it."""
        ...


class KeeperState(msgspec.Struct):
    """For metrics."""

    standings: tuple[Standing, ...] = ()
    """As they were at the last look."""
    unreadable: int = 0
    """In force, and started by a version that this one does not understand."""
    looked_unix: float = 0.0
    """When the database last answered; 0 before it did."""
    changes: dict[str, int] = msgspec.field(default_factory=dict)
    """Made by this keeper, by what the audit calls them."""


class RolloutKeeper:
    """See the module.

    Args:
        store: on the engine, for looks and for writes that change no status.
        change: opens a transaction in which a change of status and its audit row are one.
        tell: told of each after it is written.
    """

    def __init__(
        self,
        store: RolloutBook,
        change: Callable[[], AbstractAsyncContextManager[Books]],
        wall: WallClock,
        clock: Clock,
        tell: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._store = store
        self._change = change
        self._wall = wall
        self._clock = clock
        self._tell = tell
        self._here_since: float | None = None
        self._forgot_at = clock()
        self._away = False
        self._complained: set[tuple[str, int]] = set()
        self.state = KeeperState()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        """One look at all of them. A database that is away is said once, and looked for again the next time."""
        try:
            async with asyncio.timeout(WITHIN_S):
                await self._round()
        except Exception as error:  # noqa: BLE001 - drivers raise their own; whatever it is, the next look may do better
            if not self._away:
                log.warning(
                    "rollouts cannot be looked at; shares stay as workers know them", error=f"{type(error).__name__}: {error}"[:200]
                )
            self._away, self._here_since = True, None
            return
        if self._away:
            log.info("rollouts are looked at again")
        self._away = False

    async def _round(self) -> None:
        stored = await self._store.in_force()
        now, tick_s = self._wall(), self._clock()
        self._here_since = tick_s if self._here_since is None else self._here_since
        settled = tick_s - self._here_since >= LAG_S
        seen: list[Standing] = []
        trouble: Exception | None = None
        for one, found in self._readable(stored):
            try:
                seen.append(await self._one(one, found, now) if settled else standing(one, found, now))
            except Exception as error:  # noqa: BLE001 - the others are looked at all the same
                trouble = trouble or error
        self.state.standings, self.state.looked_unix = tuple(seen), now
        if trouble is not None:
            raise trouble
        if tick_s - self._forgot_at >= FORGET_EVERY_S:
            self._forgot_at = tick_s
            await self._store.forget_closed()

    def _readable(self, stored: Sequence[StoredRollout]) -> list[tuple[StoredRollout, Read]]:
        """Those that this version can read; of each other one is said once that it cannot."""
        readable, unreadable = [], set()
        for one in stored:
            try:
                readable.append((one, read(one)))
            except Unreadable as why:
                unreadable.add((one.id, one.version))
                if (one.id, one.version) not in self._complained:
                    log.error("a rollout cannot be read by this version and is left alone", rollout=one.name, why=str(why))
        self._complained, self.state.unreadable = unreadable, len(unreadable)
        return readable

    async def _one(self, one: StoredRollout, found: Read, now: float) -> Standing:
        """Counts, decides and writes; how it stands afterwards."""
        plan, before = found.plan, found.state
        below = int((now - LAG_S) // plan.terms.interval_s)
        if before.status is Status.DONE:
            await self._store.forget_sums(one.id, below)  # nothing is left to compare with
            return standing(one, found, now)
        texts = await self._store.sums(one.id, before.next_interval, below) if below > before.next_interval else ()
        look = tick(plan, before, now, merged(texts))
        after = look.state
        outcome = look.outcome if _changed(before, after) or after.status is Status.ROLLED_BACK else Outcome.STAY
        if outcome is Outcome.STAY and after.next_interval == before.next_interval:
            return standing(one, found, now)
        new = msgspec.structs.replace(one, state=state_text(after), open=after.status is not Status.ROLLED_BACK, changed_unix=now)
        now_stands = standing(new, msgspec.structs.replace(found, state=after), now)
        if outcome is Outcome.STAY:
            if await self._store.write(new):
                await self._store.forget_sums(one.id, after.next_interval)
        else:
            await self._done(new, after, outcome, standing(one, found, now), now_stands)
        return now_stands

    async def _done(self, new: StoredRollout, after: State, outcome: Outcome, before: Standing, now: Standing) -> None:
        action = HOLD if after.status is Status.HELD else ACTIONS[outcome]
        target = f"rollout/{new.name}"
        async with self._change() as books:
            if not await books.rollouts.write(new):
                return  # another gateway was first, or somebody decided meanwhile: the next look sees what came of it
            await books.change.write_down(
                Entry(ACTOR, "", "", action, target, before=canonical(brief(before)), after=canonical(brief(now)))
            )
            await books.rollouts.forget_sums(new.id, after.next_interval)
        self.state.changes[action] = self.state.changes.get(action, 0) + 1
        said = log.warning if now.status in (Status.ROLLED_BACK.value, Status.HELD.value) else log.info
        said(action, rollout=new.name, status=now.status, phase=now.phase, share=now.share, reason=now.reason)
        self._tell(message(action, now))


def message(event: str, now: Standing) -> dict[str, Any]:
    """What a webhook is told."""
    return {"event": event, "rollout": now.name, "id": now.id, "at": now.changed_unix, **brief(now)}


def merged(texts: Sequence[str]) -> list[Interval]:
    """What workers counted, together, by interval; what cannot be read is left out."""
    by_index: dict[int, Interval] = {}
    for text in texts:
        try:
            interval = msgspec.json.decode(text, type=Interval)
        except (msgspec.DecodeError, RecursionError) as error:
            log.error("what a worker counted cannot be read and is left out", why=str(error)[:200])
            continue
        had = by_index.get(interval.index)
        by_index[interval.index] = interval if had is None else had + interval
    return list(by_index.values())


def _changed(before: State, after: State) -> bool:
    return (before.status, before.phase) != (after.status, after.phase)
