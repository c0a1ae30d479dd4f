"""Whether two things take the same time: Welch's t of two samples, and Kolmogorov and Smirnov's p. And how late a loop is, so that
what a busy machine takes is not blamed on the code; a test that the machine left no time to judge is skipped with `skip_stalled`.
`until` waits for a state, however long it takes."""

import asyncio
import contextlib
import math
import statistics
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NoReturn

import pytest

from tests.progress import STALLED
from tests.time_limit import slowdown

HANG_S: Final = 60.0
"""When a wait is given up so that a test ends that would hang. No assertion: what is awaited takes milliseconds on a quiet machine."""
AT_REST_S: Final = 0.001
"""Timers are late by up to this on a quiet machine."""


def welch_t(one: Sequence[float], other: Sequence[float]) -> float:
    """t of the difference of means; beyond 4.5 they are told apart (the threshold of leakage tests)."""
    spread = statistics.variance(one) / len(one) + statistics.variance(other) / len(other)
    return (statistics.fmean(one) - statistics.fmean(other)) / math.sqrt(spread)


def ks_p(one: Sequence[float], other: Sequence[float]) -> float:
    """How probable it is that samples of one distribution differ as much (asymptotic, both large)."""
    ones, others = sorted(one), sorted(other)
    most = max(abs(bisect_right(ones, x) / len(ones) - bisect_right(others, x) / len(others)) for x in (*ones, *others))
    scaled = most * math.sqrt(len(ones) * len(others) / (len(ones) + len(others)))
    if scaled < 0.2:
        return 1.0  # the series does not converge there, and the value is 1 to ten places
    series = sum((-1.0) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 101))
    return min(1.0, max(0.0, 2 * series))


def cropped(one: Sequence[float], other: Sequence[float], keep: float = 0.9) -> tuple[list[float], list[float]]:
    """Both up to a cut of both together: what a machine does beside is no property of the code, and the cut favours neither."""
    pooled = sorted((*one, *other))
    cut = pooled[int(len(pooled) * keep) - 1]
    return [x for x in one if x <= cut], [x for x in other if x <= cut]


@contextlib.asynccontextmanager
async def loop_lateness(every_s: float = 0.002) -> AsyncIterator[list[float]]:
    """Seconds by which a timer of this loop was late, as they are found; there is one at least."""
    found = [0.0]

    async def look() -> None:
        while True:
            due = time.monotonic() + every_s
            await asyncio.sleep(every_s)
            found.append(time.monotonic() - due)

    looking = asyncio.create_task(look())
    try:
        yield found
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


@contextlib.asynccontextmanager
async def stolen_time(every_s: float = 0.002) -> AsyncIterator[Callable[[], float]]:
    """Yields a function that says for how many seconds since the start of the block this loop was late although its process did no work:
    what other processes took. A duration less these seconds is that of a quiet machine; the work of the process itself is not taken off."""
    stolen_s = 0.0

    async def look() -> None:
        nonlocal stolen_s
        while True:
            due, worked = time.monotonic() + every_s, time.process_time()
            await asyncio.sleep(every_s)
            late_s = time.monotonic() - due - (time.process_time() - worked)
            stolen_s += late_s if late_s > AT_REST_S else 0.0

    looking = asyncio.create_task(look())
    try:
        yield lambda: stolen_s
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


def hang_s() -> float:
    """`HANG_S`, stretched on a busy machine as the tests' own time limits are: for waits that end with a state in words."""
    return HANG_S * slowdown()


async def until(true: Callable[[], object], every_s: float = 0.005) -> None:
    """Wait for a state. There is no bound here: what is awaited is the assertion, and a wait in vain ends at the time limit of the test
    (`tests/time_limit.py`), which is longer on a busy machine."""
    while not true():
        await asyncio.sleep(every_s)


def timely(took_s: float, limit_s: float) -> float:
    """A duration in which other processes have their part, which has to be within its limit. On a machine that is more than twice as busy
    or slow as usual nobody can tell what of it was the code's: then a longer one is no failure, but a skip. Returns the duration."""
    return at_most(took_s, limit_s, "s")


def at_most(found: float, limit: float, what: str) -> float:
    """`timely` for a count or share that grows with the time which the code takes, for instance requests that are sent to a dead engine
    until it is known to be dead. Returns what was found."""
    if found > limit and slowdown() > 2.0:
        skip_stalled(f"{found:.4g} {what} instead of {limit:.4g}, at {slowdown():.1f} times the usual time")
    assert found <= limit, f"{found:.4g} {what}, at most {limit:.4g}"
    return found


def skip_stalled(why: str) -> NoReturn:
    """Skip the running test: the machine stood still while it ran, so its outcome says nothing of the code."""
    pytest.skip(f"{STALLED}: {why}")
