"""The feed of live values: workers are asked only while somebody listens, once for all listeners."""

import asyncio
import contextlib
from typing import Any

import pytest

from gateway.admin.live import EVERY_S, KEPT, MAX_BEHIND, MAX_LISTENERS, LiveFeed
from gateway.admin.problem import AdminProblem
from gateway.telemetry.live import LiveSample, WorkerLive


class World:
    """Workers that count how often they are asked, and a clock that stands still until somebody sleeps."""

    def __init__(self) -> None:
        self.asked = 0
        self.now = 1000.0
        self.feed = LiveFeed(self.ask, lambda: self.now, self.sleep)

    async def ask(self) -> list[WorkerLive]:
        self.asked += 1
        return []

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


async def taken(listening: Any, count: int) -> list[LiveSample]:
    return [(await anext(listening))[1] for _ in range(count)]


async def idle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_nobody_is_asked_while_nobody_listens() -> None:
    world = World()
    await idle()
    assert world.asked == 0
    listening = world.feed.listen()
    assert await anext(listening) == ([], None)
    await taken(listening, 3)
    await listening.aclose()
    await idle()
    asked = world.asked
    await idle()
    assert world.asked == asked


async def test_listeners_share_the_questions_and_get_what_was_before() -> None:
    world = World()
    first, second = world.feed.listen(), world.feed.listen()
    await anext(first)
    seen = await taken(first, 2)
    kept, _ = await anext(second)
    assert [sample.at_unix for sample in kept][:2] == [sample.at_unix for sample in seen]
    before = world.asked
    both = await asyncio.gather(taken(first, 2), taken(second, 2))
    assert world.asked - before <= 2 + MAX_BEHIND
    assert all(later.at_unix - earlier.at_unix == EVERY_S for earlier, later in zip(both[1], both[1][1:], strict=False))
    for listening in (first, second):
        await listening.aclose()


async def test_a_slow_listener_loses_the_oldest_samples_and_what_is_kept_is_bounded() -> None:
    world = World()
    slow, quick = world.feed.listen(), world.feed.listen()
    await anext(slow)
    await anext(quick)
    last = (await taken(quick, KEPT + 50))[-1]
    (behind,) = await taken(slow, 1)
    assert last.at_unix - behind.at_unix <= 2 * MAX_BEHIND * EVERY_S
    new = world.feed.listen()
    kept, _ = await anext(new)
    assert len(kept) == KEPT
    for listening in (slow, quick, new):
        await listening.aclose()


async def test_there_is_an_end_to_listeners() -> None:
    world = World()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(MAX_LISTENERS):
            listening = world.feed.listen()
            stack.push_async_callback(listening.aclose)
            await anext(listening)
        with pytest.raises(AdminProblem) as refused:
            await anext(world.feed.listen())
        assert refused.value.status == 503
