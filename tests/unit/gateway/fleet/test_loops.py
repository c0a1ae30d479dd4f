import asyncio

import pytest

from gateway.fleet.loops import Loops


async def running(loops: Loops[str]) -> asyncio.Task[None]:
    task = asyncio.create_task(loops.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_loops_come_and_go_while_others_run() -> None:
    loops: Loops[str] = Loops()
    alive: set[str] = set()

    def work(name: str):  # type: ignore[no-untyped-def]  # a Work
        async def run() -> None:
            alive.add(name)
            try:
                await asyncio.Event().wait()
            finally:
                alive.discard(name)

        return run

    loops.add("early", work("early"))
    assert alive == set()
    task = await running(loops)
    loops.add("late", work("late"))
    await asyncio.sleep(0)
    assert alive == {"early", "late"}
    await loops.drop("early")
    assert alive == {"late"}
    await loops.drop("nobody")
    loops.add("early", work("early"))
    await asyncio.sleep(0)
    assert alive == {"early", "late"}
    await ended(task)
    assert alive == set()


async def test_a_loop_that_fails_ends_all() -> None:
    loops: Loops[str] = Loops()

    async def fails() -> None:
        raise RuntimeError("a defect")

    task = await running(loops)
    loops.add("bad", fails)
    with pytest.raises(ExceptionGroup):
        await task
