"""Periodic work of a process shares its wake-ups: loops that look at something every so often sleep with `next_tick`.

Loops that each sleep for their own period wake the process at moments of their own: twenty a second for a worker at rest, and each costs
more than most of the looks. Ticks are multiples of the period on the loop's clock, so a loop of 1 s runs in the same turn as one of 0.25 s.

Loops that ask the database stay away from the ticks: together they would need a connection each.
"""

import asyncio
import os
from functools import cache
from typing import Final

SOON: Final = 0.1
"""A tick that is nearer than this part of the period is that of the last turn, which a timer of whole milliseconds ended early."""
PHASES_S: Final = 0.25
"""Processes have their ticks at other moments within this, the shortest period, so that those of a host do not all wake at once."""


async def next_tick(period_s: float) -> None:
    """Sleep until the next tick of this process: for one period, the first time for a tenth to eleven tenths of one."""
    await asyncio.sleep(to_next_tick(period_s))


def to_next_tick(period_s: float) -> float:
    """Seconds to the next tick of this process, which is not the one of now."""
    return until_tick(asyncio.get_running_loop().time(), period_s, PHASES_S * _share(os.getpid()))


def until_tick(now: float, period_s: float, phase_s: float) -> float:
    """Seconds from `now` to the next tick that is not this one; 0 for a period of 0."""
    if not period_s:
        return 0.0
    left = period_s - (now - phase_s) % period_s
    return left if left > SOON * period_s else left + period_s


@cache
def _share(_pid: int) -> float:
    return int.from_bytes(os.urandom(2)) / 0x10000
