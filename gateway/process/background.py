"""Background loops of the admin process: a defect in one is logged, and the loop begins anew; no loop ends without a word.

A worker whose loop breaks ends, and the supervisor starts another one. The admin process stays: liveness, metrics and the admin API have to
answer whatever is wrong with the booking of usage or with a rollout.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
"""The pause before a loop begins anew doubles with each defect, up to this: a defect that comes back costs a line of the log a minute."""
GOOD_AFTER_S: Final = 300.0
"""A loop that ran this long has got over its defect, so that the next pause is the first one again."""

log = structlog.get_logger("tidegate.background")

Sleep = Callable[[float], Awaitable[None]]


async def kept_up(work: Callable[[], Awaitable[None]], name: str, sleep: Sleep = asyncio.sleep) -> None:
    """Run the loop until it ends or is cancelled; after a defect it begins anew.

    Args:
        work: makes the loop; called again after each defect.
        name: of the loop, for the log.
    """
    clock = asyncio.get_running_loop().time
    pause_s = FIRST_PAUSE_S
    while True:
        began_at = clock()
        try:
            await work()
        except Exception as error:
            if clock() - began_at >= GOOD_AFTER_S:
                pause_s = FIRST_PAUSE_S
            log.error("a background loop broke and begins anew", loop=name, pause_s=pause_s, exc_info=error)
            await sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        else:
            return
