import asyncio

import pytest

from gateway.process.worker import first_to_end, unless


async def forever() -> None:
    await asyncio.Event().wait()


async def test_work_that_ends_first_says_what_it_made() -> None:
    async def made() -> int:
        return 7

    assert await unless(asyncio.Event(), made()) == 7


async def test_the_word_to_stop_ends_the_work() -> None:
    stop, ended = asyncio.Event(), []

    async def work() -> None:
        try:
            await forever()
        finally:
            ended.append(True)

    asyncio.get_running_loop().call_soon(stop.set)
    assert await unless(stop, work()) is None
    assert ended == [True]


async def test_a_loop_that_ends_is_told_and_the_word_to_stop_is_not() -> None:
    async def breaks() -> None:
        raise RuntimeError("polls broke")

    async def returns() -> None:
        return

    stop = asyncio.Event()
    idle = asyncio.create_task(forever())
    assert "polls broke" in str(await first_to_end(stop, [idle, asyncio.create_task(breaks())]))
    assert "returned" in str(await first_to_end(stop, [idle, asyncio.create_task(returns())]))
    asyncio.get_running_loop().call_soon(stop.set)
    assert await first_to_end(stop, [idle]) is None
    idle.cancel()
    with pytest.raises(asyncio.CancelledError):
        await idle
