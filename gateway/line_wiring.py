"""Builds the queues of one worker from its settings."""

import asyncio
from collections.abc import Callable

from domain.clock import Clock, Rng
from gateway.deps import Live, Watch
from gateway.placing.ground import Grounds
from gateway.queueing.line import Line
from gateway.queueing.lines import Lines
from gateway.queueing.pulling import Pulling
from gateway.queueing.room import everything
from gateway.settings import Settings


def lines_for(
    settings: Settings,
    live: Live,
    grounds: Grounds,
    watch: Watch,
    clock: Clock,
    *,
    loop: asyncio.AbstractEventLoop,
    rng: Rng,
    log_defect: Callable[[BaseException, str], None],
) -> Lines:
    """One queue for each pool."""
    bounds = settings.queue.bounds
    gives_way = settings.queue.gives_way

    def line(pool: str) -> Line:
        board = grounds[pool].board
        holders = grounds[pool].holders
        make_room = None
        if gives_way is not None:
            make_room = Pulling(pool, gives_way, board, grounds.limits, watch.relays, clock).make_room
        return Line(
            pool,
            bounds,
            board,
            lambda: live.fleet.pools[pool],
            clock=clock,
            loop=loop,
            rng=rng,
            log_defect=log_defect,
            make_room=make_room,
            part_of=(lambda tenant: holders.part(tenant, clock())) if holders.kept else everything,
        )

    return Lines({pool.name: line(pool.name) for pool in settings.pools})
