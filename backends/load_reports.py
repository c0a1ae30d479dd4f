"""The load that an engine pushes: its reports joined to one value per engine, and that value laid over the last reading. Pure; times are
handed in.

SGLang pushes a report at each change and once a second at the latest, one stream per data-parallel rank. Ranks are summed, and
a silent rank makes the sum unknown: a sum that is too small would draw all requests to an engine whose load is not known.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from backends.signals import Signals

FRESH_S: Final = 3.0
"""How long a report counts. SGLang repeats an unchanged one every second (0.5.23 on CPU: 1.00 to 1.02 s apart), so this is three
of them; the load of an engine that is busy with a longer step, or gone, comes from polls alone."""

MAX_RANKS: Final = 256
"""Data-parallel ranks of one engine; each is a socket in every worker."""

MAX_REPORT_BYTES: Final = 4096
"""SGLang's have at most 100: a tag and ten whole numbers; those recorded have 24 to 34."""

PUSHED: Final = ("running", "waiting", "waiting_uncached_tokens", "kv_usage", "kv_capacity_tokens")
"""Signals that reports may replace. Counters stay those of the reading, because restarts and rates are found by them."""


class LoadReport(msgspec.Struct, frozen=True):
    """One report of one rank; None is unknown and not zero."""

    running: int | None = None
    waiting: int | None = None
    waiting_uncached_tokens: int | None = None
    """Prompt tokens of the waiting requests that the prefix cache does not hold."""
    kv_used_tokens: int | None = None
    kv_capacity_tokens: int | None = None
    rank: int | None = None
    """The rank that the report names as its own."""


Decode = Callable[[bytes], LoadReport]
"""A dialect's decoder of one report. Raises ValueError for bytes that are no report."""


class Pushed(msgspec.Struct, frozen=True):
    """The load of a whole engine by the last report of each of its ranks."""

    at: float
    """When the oldest of these reports came, monotonic seconds of this process."""
    running: int
    waiting: int
    waiting_uncached_tokens: int | None = None
    kv_usage: float | None = None
    kv_capacity_tokens: int | None = None


class PushCounts(msgspec.Struct):
    """Sums since this process began to listen."""

    reports: int = 0
    """Reports that could be read."""
    gaps: int = 0
    """Gaps in the numbers of reports; the next report makes up for a gap."""
    missed: int = 0
    """Reports missing in those gaps."""
    restarts: int = 0
    """Times that the numbers began again: the engine's process is another one."""
    refused: int = 0
    """Reports that could not be read."""


class PushState(msgspec.Struct, frozen=True):
    """The state of one engine's push."""

    reason: str = ""
    """Why the load comes from polls alone, in words; empty while it comes from reports."""
    counts: PushCounts = msgspec.field(default_factory=PushCounts)


class LoadReports:
    """The reports of one engine. Bounded: one report per rank is kept.

    Args:
        ranks: how many data-parallel ranks report, each over a socket of its own.
        decode: the dialect's decoder.
    """

    def __init__(self, ranks: int, decode: Decode) -> None:
        self.counts: Final = PushCounts()
        self._decode = decode
        self._last: list[tuple[LoadReport, float] | None] = [None] * ranks
        self._numbers: list[int | None] = [None] * ranks
        self._wrong = ""

    def take_message(self, rank: int, number: int | None, payload: bytes, now: float) -> bool:
        """Take a message from the socket of this rank; returns whether it was a report. Never raises."""
        try:
            if number is None or number < 0:
                raise ValueError("a message without a number")
            self._numbered(rank, number)
            report = self._decode(payload)
            if report.rank not in (None, rank) and len(self._last) > 1:
                raise ValueError(f"it is of rank {report.rank}, so the endpoint is not that of the first rank")
        except ValueError as error:
            self.counts.refused += 1
            self._wrong = f"rank {rank}: {error}"
            return False
        self.counts.reports += 1
        self._last[rank] = (report, now)
        self._wrong = ""
        return True

    def _numbered(self, rank: int, number: int) -> None:
        before = self._numbers[rank]
        self._numbers[rank] = number
        if before is None or number == before + 1:
            return
        if number > before:
            self.counts.gaps += 1
            self.counts.missed += number - before - 1
            return
        # the other ranks' last reports are of the process before
        self.counts.restarts += 1
        self._last = [None] * len(self._last)

    def pushed(self, now: float) -> Pushed | None:
        """The load of the whole engine; None unless every rank's report is fresh and has the running and waiting counts."""
        fresh = [last for last in self._last if last is not None and now - last[1] <= FRESH_S]
        if len(fresh) < len(self._last):
            return None
        reports = [report for report, _ in fresh]
        running = _sum([report.running for report in reports])
        waiting = _sum([report.waiting for report in reports])
        if running is None or waiting is None:
            return None
        used = _sum([report.kv_used_tokens for report in reports])
        capacity = _sum([report.kv_capacity_tokens for report in reports])
        return Pushed(
            min(at for _, at in fresh),
            running,
            waiting,
            _sum([report.waiting_uncached_tokens for report in reports]),
            min(1.0, used / capacity) if used is not None and capacity else None,
            capacity,
        )

    def state(self, now: float) -> PushState:
        """The push's state, with a copy of its counts."""
        return PushState("" if self.pushed(now) is not None else self._reason(now), msgspec.structs.replace(self.counts))

    def _reason(self, now: float) -> str:
        if self._wrong:
            return f"a report cannot be read: {self._wrong}"
        for rank, last in enumerate(self._last):
            if last is None:
                return f"no report of rank {rank} yet"
            if now - last[1] > FRESH_S:
                return f"rank {rank} is silent for {now - last[1]:.0f} s"
        return "its reports do not say what runs and waits"


def _sum(values: list[int | None]) -> int | None:
    """The sum; None (unknown) when one of the values is."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def joined(read: Signals | None, pushed: Pushed) -> Signals:
    """The last reading with the pushed signals in place of its own, each with its own time; without a reading, the pushed signals alone."""
    values = {name: value for name in PUSHED if (value := getattr(pushed, name)) is not None}
    base = Signals(read_at=pushed.at) if read is None else read
    missing = tuple(name for name in base.missing if name not in values)
    return msgspec.structs.replace(base, **values, missing=missing, pushed_at=pushed.at, pushed=tuple(values))
