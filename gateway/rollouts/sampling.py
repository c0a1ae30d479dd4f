"""Closed Records as samples of a rollout, and this worker's sums of them by interval. Pure."""

from collections.abc import Iterator
from typing import Final

import msgspec

from domain.faults import SOURCE, Kind, Source
from gateway.record import OK, Record
from policies.rollout.assignment import Arm
from policies.rollout.in_force import Dealt
from policies.rollout.samples import ArmSums, Interval, Sample, sums_of

FAILED: Final = frozenset(
    {kind.value for kind, source in SOURCE.items() if source is Source.ENGINE}
    | {Kind.OVERLOADED.value, Kind.REFUSED_BY_ENGINE.value, Kind.CONTENT_FILTERED.value, Kind.CONTEXT_TOO_LONG.value}
    | {Kind.DEADLINE_PASSED.value}
)
"""Outcomes that a pool has to answer for. Requests that are at fault themselves fall to both arms alike, and cancel out."""
KEPT_INTERVALS: Final = 60
"""Of a rollout, that a worker keeps while they cannot be written; older ones are lost."""


def sample_of(record: Record) -> Sample | None:
    """What a finished request says; None of one that its caller broke off or that never was the pool's."""
    whole = record.outcome == OK
    if not whole and record.outcome not in FAILED:
        return None
    usage, streamed = record.usage, record.stream and record.ttft_s is not None
    tokens = usage.completion_tokens
    return Sample(
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
    interval: Interval
    written: bool = False


class Sums:
    """What one worker has counted and when. Of each rollout the last `KEPT_INTERVALS` intervals."""

    __slots__ = ("_by_rollout",)

    def __init__(self) -> None:
        self._by_rollout: dict[str, dict[int, _Changing]] = {}

    def observe(self, record: Record, now_unix: float) -> None:
        """One closed Record that was dealt out."""
        for dealt in (record.dealt, record.dealt_prompt):
            if dealt is not None and (dealt.counted or dealt.away):
                self._observe(dealt, record, now_unix)

    def _observe(self, dealt: Dealt, record: Record, now_unix: float) -> None:
        if dealt.away:
            self._add(dealt, Arm.CANARY, sums_of((Sample(failed=True),)), now_unix)
        elif (sample := sample_of(record)) is not None:
            self._add(dealt, dealt.arm, sums_of((sample,)), now_unix)

    def _add(self, dealt: Dealt, arm: Arm, sums: ArmSums, now_unix: float) -> None:
        running = dealt.running
        index = int(now_unix // running.interval_s)
        kept = self._by_rollout.setdefault(running.id, {})
        more = Interval(index, canary=sums) if arm is Arm.CANARY else Interval(index, baseline=sums)
        had = kept.get(index)
        kept[index] = _Changing(more if had is None else had.interval + more)
        if len(kept) > KEPT_INTERVALS:
            del kept[min(kept)]

    def unwritten(self) -> Iterator[tuple[str, dict[int, Interval]]]:
        """By rollout, intervals that changed since they were written."""
        for rollout, kept in self._by_rollout.items():
            if changed := {index: one.interval for index, one in kept.items() if not one.written}:
                yield rollout, changed

    def wrote(self, rollout: str, intervals: dict[int, Interval]) -> None:
        """These are in the store."""
        kept = self._by_rollout.get(rollout, {})
        for index, interval in intervals.items():
            now = kept.get(index)
            if now is not None and now.interval is interval:
                now.written = True

    def forget(self, over: set[str]) -> None:
        """Drop rollouts other than these."""
        for rollout in [one for one in self._by_rollout if one not in over]:
            del self._by_rollout[rollout]
