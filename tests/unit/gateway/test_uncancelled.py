import asyncio

import pytest

from gateway.uncancelled import uncancelled


@pytest.mark.parametrize("times", [0, 1, 2, 5])
async def test_the_work_ends_however_often_its_waiter_is_cancelled(times: int) -> None:
    steps: list[int] = []

    async def work() -> str:
        for n in range(10):
            await asyncio.sleep(0)
            steps.append(n)
        return "done"

    waiter = asyncio.create_task(uncancelled(work()))
    for _ in range(times):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiter.cancel()
    if times:
        with pytest.raises(asyncio.CancelledError):
            await waiter
    else:
        assert await waiter == "done"
    assert steps == list(range(10))


async def test_failures_are_raised_and_cancelled_failures_are_swallowed_quietly() -> None:
    async def failing() -> None:
        await asyncio.sleep(0)
        raise OSError("store")

    with pytest.raises(OSError, match="store"):
        await uncancelled(failing())
    waiter = asyncio.create_task(uncancelled(failing()))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
