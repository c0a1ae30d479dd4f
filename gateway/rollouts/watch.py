"""Keeps a worker's rollouts current, and writes its sums to the database, both once a second.

`RolloutWatch` is that loop. `sample_of` turns a finished request (Record) into a sample of a rollout, and `IntervalSums` sums samples up by
interval.

While the database is away the last known rollouts stay active and sums are held for ten minutes of usual intervals. The keeper then asks
the workers of its gateway for their sums (`WorkersRollouts`), and tells them which canaries to send back.
"""

import asyncio
import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog

from domain.clock import WallClock
from domain.faults import SOURCE, Kind, Source
from domain.rollouts import RolloutStore, StoredRollout
from gateway.judge.pair_samples import LostPair
from gateway.process.worker_link import Answer, ask_every
from gateway.record import OK, Record
from policies.rollout.assignment import Arm
from policies.rollout.in_force import ActiveRollouts, AssignedArm, Running, in_force
from policies.rollout.samples import ArmSums, Interval, RequestSample, sums_of

FAILED: Final = frozenset(
    {kind.value for kind, source in SOURCE.items() if source is Source.ENGINE}
    | {Kind.OVERLOADED.value, Kind.REFUSED_BY_ENGINE.value, Kind.CONTENT_FILTERED.value, Kind.CONTEXT_TOO_LONG.value}
    | {Kind.DEADLINE_PASSED.value}
)
"""Outcomes that count as failures of a pool. Requests that are at fault themselves occur in both arms alike, and cancel out."""
KEPT_INTERVALS: Final = 60
"""Intervals of a rollout that a worker holds while they cannot be written; older ones are lost."""


def sample_of(record: Record) -> RequestSample | None:
    """The sample of a finished request; None for a request that its caller cancelled, or whose failure is not the pool's fault."""
    whole = record.outcome == OK
    if not whole and record.outcome not in FAILED:
        return None
    usage = record.usage
    streamed = record.stream and record.ttft_s is not None
    tokens = usage.completion_tokens
    return RequestSample(
        failed=not whole,
        broken=not whole if streamed else None,
        refused=record.declined if whole else None,
        ttft_s=record.ttft_s if streamed else None,
        uncached_tokens=usage.prompt_tokens - usage.cached_tokens,
        itl_s=record.decode_s / (tokens - 1) if whole and streamed and record.decode_s is not None and tokens > 1 else None,
        output_tokens=tokens if whole else None,
        cost_nanousd=record.cost_nanousd if whole else None,
    )


class _Changing(msgspec.Struct):
    """The sums of one interval, and whether the store has them."""

    interval: Interval
    written: bool = False


class IntervalSums:
    """The sums of one worker: of each rollout the last `KEPT_INTERVALS` intervals."""

    __slots__ = ("_by_rollout",)

    def __init__(self) -> None:
        self._by_rollout: dict[str, dict[int, _Changing]] = {}

    def observe(self, record: Record, now_unix: float) -> None:
        """Count a finished request for the rollouts that assigned it to an arm."""
        for dealt in (record.dealt, record.dealt_prompt):
            if dealt is not None and (dealt.counted or dealt.away):
                self._observe(dealt, record, now_unix)

    def _observe(self, dealt: AssignedArm, record: Record, now_unix: float) -> None:
        if dealt.away:
            self._add(dealt, Arm.CANARY, sums_of((RequestSample(failed=True),)), now_unix)
        elif (sample := sample_of(record)) is not None:
            self._add(dealt, dealt.arm, sums_of((sample,)), now_unix)

    def _add(self, dealt: AssignedArm, arm: Arm, sums: ArmSums, now_unix: float) -> None:
        running = dealt.running
        index = int(now_unix // running.interval_s)
        self.add(running.id, Interval(index, canary=sums) if arm is Arm.CANARY else Interval(index, baseline=sums))

    def add(self, rollout: str, interval: Interval) -> None:
        """Count samples of a rollout that are no requests."""
        by_index = self._by_rollout.setdefault(rollout, {})
        earlier = by_index.get(interval.index)
        by_index[interval.index] = _Changing(interval if earlier is None else earlier.interval + interval)
        if len(by_index) > KEPT_INTERVALS:
            del by_index[min(by_index)]

    def between(self, rollout: str, first: int, below: int) -> list[Interval]:
        """The intervals of a rollout from `first` to before `below`, whether they are written or not."""
        by_index = self._by_rollout.get(rollout, {})
        return [by_index[index].interval for index in sorted(by_index) if first <= index < below]

    def unwritten(self) -> Iterator[tuple[str, dict[int, Interval]]]:
        """The intervals that changed since they were written, by rollout."""
        for rollout, by_index in self._by_rollout.items():
            if changed := {index: entry.interval for index, entry in by_index.items() if not entry.written}:
                yield rollout, changed

    def wrote(self, rollout: str, intervals: dict[int, Interval]) -> None:
        """Note that these intervals are in the store; an interval that has changed meanwhile stays unwritten."""
        by_index = self._by_rollout.get(rollout, {})
        for index, interval in intervals.items():
            entry = by_index.get(index)
            if entry is not None and entry.interval is interval:
                entry.written = True

    def keep_only(self, active: set[str]) -> None:
        """Drop the sums of all rollouts but these."""
        for rollout in [rollout_id for rollout_id in self._by_rollout if rollout_id not in active]:
            del self._by_rollout[rollout]


log = structlog.get_logger("tidegate.rollouts")

STORE_POLL_S: Final = 1.0
"""Seconds between two polls of the database."""
STORE_WITHIN_S: Final = 10.0
"""Time limit for the reads and for the writes of one poll: a connection that neither answers nor ends counts as an outage, and a rollback
must not wait behind it."""
LAST_WRITE_S: Final = 2.0
"""Time limit for the last write at the end of the worker."""


SUMS_LINE: Final = b"rollout-sums\n"
"""The keeper's question for this worker's sums; followed by the wanted intervals of each rollout."""
BACK_LINE: Final = b"rollouts-back\n"
"""The keeper's order to send canaries back; followed by the rollouts' ids."""


class RolloutFollower(Protocol):
    """Holds the active rollouts: `gateway.deps.Live` is one."""

    rollouts: ActiveRollouts


class RolloutWatch:
    """Polls the rollouts of the database and writes this worker's sums.

    Args:
        source: this worker's name in the store, unique over gateways and restarts.
        wall: seconds since the epoch.
    """

    def __init__(self, store: RolloutStore, source: str, wall: WallClock) -> None:
        self._store = store
        self._source = source
        self._wall = wall
        self._sums = IntervalSums()
        self._seen: tuple[tuple[str, int], ...] | None = None
        self._stored: Sequence[StoredRollout] = ()
        self._sent_back: dict[str, int] = {}
        """Rollouts whose canary the keeper found worse while the database was away, with the version that this worker knew then."""
        self._logged_problems: tuple[str, ...] = ()
        self._is_away = False

    def observe(self, record: Record) -> None:
        """Count one finished request."""
        self._sums.observe(record, self._wall())

    def observe_pair(self, running: Running, lost: LostPair) -> None:
        """Count what the judge said of two pairs of answers."""
        if running.counting:
            self._sums.add(running.id, lost.interval(int(self._wall() // running.interval_s)))

    def answers(self, live: RolloutFollower) -> dict[bytes, Answer]:
        """The handlers of the keeper's questions, by their line."""

        async def sums(question: bytes) -> bytes:
            wanted = msgspec.msgpack.decode(question, type=dict[str, tuple[int, int]])
            found = {rollout: self._sums.between(rollout, first, below) for rollout, (first, below) in wanted.items()}
            return msgspec.msgpack.encode(
                {rollout: [msgspec.json.encode(interval).decode() for interval in each] for rollout, each in found.items()}
            )

        async def send_back(question: bytes) -> bytes:
            self.send_back(msgspec.msgpack.decode(question, type=list[str]), live)
            return b"ok"

        return {SUMS_LINE: sums, BACK_LINE: send_back}

    def send_back(self, rollouts: Collection[str], live: RolloutFollower) -> None:
        """Give the canaries of these rollouts no more requests, until the database has another version of the rollout."""
        versions = {rollout.id: rollout.version for rollout in self._stored}
        new = {rollout: versions[rollout] for rollout in rollouts if rollout in versions and rollout not in self._sent_back}
        if new:
            self._sent_back |= new
            self._put_in_force(live)

    async def run(self, live: RolloutFollower) -> None:
        """Poll until cancelled."""
        while True:
            await self.look(live)
            await asyncio.sleep(STORE_POLL_S)

    async def look(self, live: RolloutFollower) -> None:
        """Read the active rollouts, and write the sums."""
        try:
            async with asyncio.timeout(STORE_WITHIN_S):
                await self._read(live)
            async with asyncio.timeout(STORE_WITHIN_S):
                await self.write()
        except Exception as error:  # noqa: BLE001 - drivers raise their own errors; whatever it is, the active rollouts stay
            if not self._is_away:
                log.warning("rollouts cannot be read or written; they stay as they are", reason=f"{type(error).__name__}: {error}"[:200])
            self._is_away = True
        else:
            if self._is_away:
                log.info("rollouts can be read and written again")
            self._is_away = False

    async def close(self) -> None:
        """Write the sums of the last requests; a failure is ignored."""
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self.write(), LAST_WRITE_S)

    async def write(self) -> None:
        """Write the sums that changed since the last write; sums that cannot be written are tried again."""
        for rollout, intervals in list(self._sums.unwritten()):
            texts = {index: msgspec.json.encode(interval).decode() for index, interval in intervals.items()}
            await self._store.put_sums(rollout, self._source, texts)
            self._sums.wrote(rollout, intervals)

    async def _read(self, live: RolloutFollower) -> None:
        stored = await self._store.in_force()
        versions = tuple((rollout.id, rollout.version) for rollout in stored)
        if versions == self._seen:
            return
        self._seen = versions
        self._stored = stored
        self._sent_back = {rollout: version for rollout, version in self._sent_back.items() if (rollout, version) in versions}
        self._put_in_force(live)

    def _put_in_force(self, live: RolloutFollower) -> None:
        active, problems = in_force(rollout for rollout in self._stored if rollout.id not in self._sent_back)
        for problem in problems:
            if problem not in self._logged_problems:
                log.error(problem)
        self._logged_problems = problems
        before = {running.name: running for running in live.rollouts.all()}
        for running in active.all():
            previous = before.pop(running.name, None)
            if previous is None or (previous.live, previous.mirrored) != (running.live, running.mirrored):
                log.info("rollout", rollout=running.name, canary=running.canary, share=running.live, mirrored=running.mirrored)
        for name in before:
            log.info("rollout is no longer in force", rollout=name)
        live.rollouts = active
        self._sums.keep_only({running.id for running in active.all()} | self._sent_back.keys())


class WorkersRollouts:
    """The workers of this gateway, as the keeper asks them while the database is away."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    async def sums(self, wanted: Mapping[str, tuple[int, int]]) -> Mapping[str, Sequence[str]]:
        """The sums of all workers by rollout, in the form of `RolloutStore.sums`.

        Args:
            wanted: by the rollout's id: the first interval, and the end of the intervals.
        """
        found: dict[str, list[str]] = {rollout: [] for rollout in wanted}
        for answer in await ask_every(self._run_dir, SUMS_LINE + msgspec.msgpack.encode(wanted)):
            for rollout, texts in msgspec.msgpack.decode(answer, type=dict[str, list[str]]).items():
                found[rollout] += texts
        return found

    async def send_back(self, rollouts: Collection[str]) -> None:
        """Make every worker send the canaries of these rollouts no more requests."""
        await ask_every(self._run_dir, BACK_LINE + msgspec.msgpack.encode(list(rollouts)))
