"""Evaluates every active rollout each second: sums up the workers' counts, and advances the rollout, waits, or rolls it back.

Every gateway on a database has a keeper. A write succeeds only against the version that was read, so one of several keepers wins, and
that one writes the audit row and posts the webhook. The write that rolls back a worse canary also ends the rollout: workers drop it at
their next poll.

While the database is away, or busy with other transactions for seconds, the keeper judges each rollout by the sums of its own gateway's
workers, and only sends a worse canary back: it tells the workers at once, and writes the rollback when the database takes it.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec
import structlog

from domain.clock import Clock, WallClock
from domain.rollouts import RolloutBook, StoredRollout
from policies.rollout.progress import LookOutcome, RolloutState, Status, only_judged, sent_back, tick
from policies.rollout.samples import Interval
from policies.rollout.state import Read, RolloutStatus, UnreadableRollout, brief, read, standing, state_text
from tenancy.audit import Entry, canonical
from tenancy.journal import Change

EVERY_S: Final = 1.0
"""Seconds between two rounds."""
LAG_S: Final = 3.0
"""Seconds from an interval's end until it is counted: workers write every second, and clocks of machines differ a little. Later sums are
not counted. Also the wait after an outage of the database, during which workers write the sums that they have held back."""
WITHIN_S: Final = 10.0
"""Time limit for one round."""
READ_WITHIN_S: Final = 3.0
"""Time limit for reading the rollouts: a database that does not answer within it counts as away, so that a worse canary still goes back
within ten seconds."""
PATIENT_S: Final = 2.0
"""How long a round may take before the keeper judges beside it, without the database: a transaction that waits for others, such as the
booking of usage, must not hold up a rollback, and SQLite's wait for its lock cannot be interrupted."""
FORGET_EVERY_S: Final = 300.0
"""How often sums of closed rollouts are removed."""
ACTOR: Final = "rollout"
"""The actor in audit rows of changes that no person made."""

ACTIONS: Final[Mapping[LookOutcome, str]] = {
    LookOutcome.GO_ON: "rollout.advance",
    LookOutcome.DONE: "rollout.done",
    LookOutcome.ROLL_BACK: "rollout.rollback",
    LookOutcome.WAIT: "rollout.gate",
}
HOLD: Final = "rollout.hold"
CHANGES: Final = (*ACTIONS.values(), HOLD)
"""The names of keepers' changes in the audit log."""

log = structlog.get_logger("tidegate.rollouts")


class RolloutTransaction(Protocol):
    """The stores that take part in one transaction."""

    @property
    def change(self) -> Change:
        """Writes the audit row."""
        ...

    @property
    def rollouts(self) -> RolloutBook:
        """The rollouts, in the same transaction."""
        ...


class GatewayWorkers(Protocol):
    """The workers of this gateway: `gateway.rollouts.watch.WorkersRollouts`."""

    async def sums(self, wanted: Mapping[str, tuple[int, int]]) -> Mapping[str, Sequence[str]]:
        """The sums of all workers by rollout, of the wanted intervals: the first one, and the end."""
        ...

    async def send_back(self, rollouts: Collection[str]) -> None:
        """Send the canaries of these rollouts no more requests."""
        ...


class KeeperState(msgspec.Struct):
    """The state of the keeper, for metrics."""

    standings: tuple[RolloutStatus, ...] = ()
    """The active rollouts as of the last round."""
    unreadable: int = 0
    """Active rollouts that were started by a version which this one does not understand."""
    looked_unix: float = 0.0
    """When the database last answered; 0 before the first answer."""
    changes: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of changes made by this keeper, by their audit name."""
    sent_back: dict[str, str] = msgspec.field(default_factory=dict)
    """Rollouts whose canary was sent back while the database was away, and why; until it is written."""


class RolloutKeeper:
    """Drives the active rollouts of one database; one per gateway, in the admin process.

    Args:
        store: the rollouts outside a transaction, for reads and for writes that change no status.
        change: opens a transaction in which a change of status and its audit row are one.
        tell: called with the webhook message of each change after it is written.
        workers: the workers of this gateway, for outages of the database; None where there are none.
    """

    def __init__(
        self,
        store: RolloutBook,
        change: Callable[[], AbstractAsyncContextManager[RolloutTransaction]],
        wall: WallClock,
        clock: Clock,
        tell: Callable[[Mapping[str, Any]], None],
        workers: GatewayWorkers | None = None,
    ) -> None:
        self._store = store
        self._change = change
        self._wall = wall
        self._clock = clock
        self._tell = tell
        self._workers = workers
        self._known: dict[str, tuple[StoredRollout, Read]] = {}
        """The rollouts as of the last round with the database; while it is away, with the evidence of this gateway alone."""
        self._reachable_since: float | None = None
        self._forgot_at = clock()
        self._away = False
        self._logged_unreadable: set[tuple[str, int]] = set()
        self.state = KeeperState()

    async def run(self) -> None:
        """Run a round every `EVERY_S` until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        """Evaluate every rollout once. While the database keeps the round waiting, rollouts are judged without it each second. An outage
        of the database is logged once, and the next round tries again."""
        under_way = asyncio.create_task(self._round_in_time())
        patient_s = PATIENT_S
        try:
            while not (await asyncio.wait((under_way,), timeout=patient_s))[0]:
                await self._judge_alone()
                patient_s = EVERY_S
            await under_way
        except Exception as error:  # noqa: BLE001 - drivers raise their own errors; whatever it is, the next round may succeed
            if not self._away:
                log.warning(
                    "rollouts cannot be looked at; shares stay as workers know them", error=f"{type(error).__name__}: {error}"[:200]
                )
            self._away = True
            self._reachable_since = None
            await self._judge_alone()
            return
        finally:
            under_way.cancel()
            await asyncio.gather(under_way, return_exceptions=True)  # nothing of it is left where the keeper is ended
        if self._away:
            log.info("rollouts are looked at again")
        self._away = False

    async def _round_in_time(self) -> None:
        async with asyncio.timeout(WITHIN_S):
            await self._round()

    async def _round(self) -> None:
        async with asyncio.timeout(READ_WITHIN_S):
            stored = await self._store.in_force()
        now = self._wall()
        tick_s = self._clock()
        self._reachable_since = tick_s if self._reachable_since is None else self._reachable_since
        settled = tick_s - self._reachable_since >= LAG_S
        standings: list[RolloutStatus] = []
        trouble: Exception | None = None
        known: dict[str, tuple[StoredRollout, Read]] = {}
        for rollout, parsed in self._readable(stored):
            known[rollout.id] = rollout, parsed
            try:
                if rollout.id in self.state.sent_back:
                    standings.append(await self._write_back(rollout, parsed, now))
                    continue
                standings.append(await self._judge(rollout, parsed, now) if settled else standing(rollout, parsed, now))
            except Exception as error:  # noqa: BLE001 - a failure with one rollout must not stop the others
                trouble = trouble or error
        if trouble is None:
            self._known = known
        self.state.sent_back = {rollout_id: why for rollout_id, why in self.state.sent_back.items() if rollout_id in known}
        self.state.standings = tuple(standings)
        self.state.looked_unix = now
        if trouble is not None:
            raise trouble
        if tick_s - self._forgot_at >= FORGET_EVERY_S:
            self._forgot_at = tick_s
            await self._store.forget_closed()

    async def _judge_alone(self) -> None:
        """Judge the rollouts by the sums of this gateway's workers, and send worse canaries back; nothing else is decided."""
        if self._workers is None or not self._known:
            return
        known = dict(self._known)  # a round beside may read them anew while workers are asked
        below = {rollout_id: int((self._wall() - LAG_S) // parsed.plan.terms.interval_s) for rollout_id, (_, parsed) in known.items()}
        wanted = {rollout_id: (known[rollout_id][1].state.next_interval, end) for rollout_id, end in below.items()}
        try:
            texts = await self._workers.sums(wanted)
            for rollout_id, (rollout, parsed) in known.items():
                state, why = only_judged(parsed.plan, parsed.state, merged(texts.get(rollout_id, ())))
                if self._known.get(rollout_id) is known[rollout_id]:
                    self._known[rollout_id] = rollout, msgspec.structs.replace(parsed, state=state)
                if why and rollout_id not in self.state.sent_back:
                    self.state.sent_back[rollout_id] = why
                    log.warning("a canary is sent back while the database is away or busy", rollout=rollout.name, reason=why)
            if self.state.sent_back:
                await self._workers.send_back(list(self.state.sent_back))
        except (OSError, msgspec.DecodeError) as error:
            log.error("workers cannot be asked about rollouts", error=f"{type(error).__name__}: {error}"[:200])

    async def _write_back(self, rollout: StoredRollout, parsed: Read, now: float) -> RolloutStatus:
        """Write the rollback of a canary that was sent back while the database was away."""
        after = sent_back(parsed.state, self.state.sent_back[rollout.id])
        before = standing(rollout, parsed, now)
        if after == parsed.state:
            del self.state.sent_back[rollout.id]  # done meanwhile, by another gateway: no baseline is left to go back to
            return before
        new = msgspec.structs.replace(rollout, state=state_text(after), open=False, changed_unix=now)
        standing_after = standing(new, msgspec.structs.replace(parsed, state=after), now)
        if not await self._change_status(new, after, LookOutcome.ROLL_BACK, before, standing_after):
            return before  # somebody else wrote first: the next round tries again
        del self.state.sent_back[rollout.id]
        return standing_after

    def _readable(self, stored: Sequence[StoredRollout]) -> list[tuple[StoredRollout, Read]]:
        """The rollouts that this version can read; every other one is logged once."""
        readable = []
        unreadable = set()
        for rollout in stored:
            try:
                readable.append((rollout, read(rollout)))
            except UnreadableRollout as why:
                unreadable.add((rollout.id, rollout.version))
                if (rollout.id, rollout.version) not in self._logged_unreadable:
                    log.error("a rollout cannot be read by this version and is left alone", rollout=rollout.name, why=str(why))
        self._logged_unreadable = unreadable
        self.state.unreadable = len(unreadable)
        return readable

    async def _judge(self, rollout: StoredRollout, parsed: Read, now: float) -> RolloutStatus:
        """Count the finished intervals of a rollout, decide, and write the decision; returns its state afterwards."""
        plan = parsed.plan
        before = parsed.state
        below = int((now - LAG_S) // plan.terms.interval_s)
        if before.status is Status.DONE:
            await self._store.forget_sums(rollout.id, below)  # nothing is left to compare with
            return standing(rollout, parsed, now)
        texts = await self._store.sums(rollout.id, before.next_interval, below) if below > before.next_interval else ()
        if rollout.id in self.state.sent_back:
            return await self._write_back(rollout, parsed, now)  # while the sums were read; to write them would end what workers were told
        look = tick(plan, before, now, merged(texts))
        after = look.state
        outcome = look.outcome if _changed(before, after) or after.status is Status.ROLLED_BACK else LookOutcome.STAY
        if outcome is LookOutcome.STAY and after.next_interval == before.next_interval:
            return standing(rollout, parsed, now)
        new = msgspec.structs.replace(rollout, state=state_text(after), open=after.status is not Status.ROLLED_BACK, changed_unix=now)
        standing_after = standing(new, msgspec.structs.replace(parsed, state=after), now)
        if outcome is LookOutcome.STAY:
            if await self._store.write(new):
                await self._store.forget_sums(rollout.id, after.next_interval)
        else:
            await self._change_status(new, after, outcome, standing(rollout, parsed, now), standing_after)
        return standing_after

    async def _change_status(
        self, new: StoredRollout, after: RolloutState, outcome: LookOutcome, before: RolloutStatus, now: RolloutStatus
    ) -> bool:
        """Write a change of status with its audit row; False when the rollout was changed meanwhile, by another gateway or an operator."""
        action = HOLD if after.status is Status.HELD else ACTIONS[outcome]
        target = f"rollout/{new.name}"
        async with self._change() as books:
            if not await books.rollouts.write(new):
                return False  # the next round reads the result
            await books.change.write_down(
                Entry(ACTOR, "", "", action, target, before=canonical(brief(before)), after=canonical(brief(now)))
            )
            await books.rollouts.forget_sums(new.id, after.next_interval)
        self.state.changes[action] = self.state.changes.get(action, 0) + 1
        log_change = log.warning if now.status in (Status.ROLLED_BACK.value, Status.HELD.value) else log.info
        log_change(action, rollout=new.name, status=now.status, phase=now.phase, share=now.share, reason=now.reason)
        self._tell(message(action, now))
        return True


def message(event: str, now: RolloutStatus) -> dict[str, Any]:
    """The webhook message about a change of a rollout."""
    return {"event": event, "rollout": now.name, "id": now.id, "at": datetime.fromtimestamp(now.changed_unix, UTC), **brief(now)}


def merged(texts: Sequence[str]) -> list[Interval]:
    """The sums of all workers added up by interval; sums that cannot be decoded are logged and left out."""
    by_index: dict[int, Interval] = {}
    for text in texts:
        try:
            interval = msgspec.json.decode(text, type=Interval)
        except (msgspec.DecodeError, RecursionError) as error:
            log.error("what a worker counted cannot be read and is left out", why=str(error)[:200])
            continue
        others = by_index.get(interval.index)
        by_index[interval.index] = interval if others is None else others + interval
    return list(by_index.values())


def _changed(before: RolloutState, after: RolloutState) -> bool:
    return (before.status, before.phase) != (after.status, after.phase)
