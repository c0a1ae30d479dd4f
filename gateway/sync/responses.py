"""The admin process's part of stored Responses: it removes what is past its time.

Nobody gets a Response that is past its time, whether it is removed or not (`tenancy.responses.ResponseStore`). Removing it is the promise
of the retention. Gateways on one database may sweep at the same time: each row is removed by one of them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from tenancy.responses import ResponseKeeper, ResponsesAway

SWEEP_EVERY_S: Final = 600.0
"""How long a Response may be there behind its time."""

log = structlog.get_logger("tidegate.responses")

Sleep = Callable[[float], Awaitable[None]]


class ResponseSweep:
    """Removes Responses that are past their time, again and again.

    Args:
        keeper: removes them.
        sleep: waits for seconds.
    """

    def __init__(self, keeper: ResponseKeeper, sleep: Sleep = asyncio.sleep) -> None:
        self._keeper = keeper
        self._sleep = sleep
        self._away = False

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await self.sweep()
            await self._sleep(SWEEP_EVERY_S)

    async def sweep(self) -> None:
        """Sweep once. An outage is logged at its begin and end; the next call does what it has held up."""
        try:
            removed = await self._keeper.sweep()
        except ResponsesAway as error:
            if not self._away:
                log.warning("stored Responses are swept later", reason=str(error))
            self._away = True
            return
        if self._away:
            log.info("stored Responses are swept again")
        self._away = False
        if removed:
            log.info("stored Responses removed", removed=removed)
