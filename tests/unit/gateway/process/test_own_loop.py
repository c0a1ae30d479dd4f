"""Work in a loop of its own goes on while the main loop is held, ends with its caller, and hands on its errors."""

import asyncio
import threading
import time

import pytest

from gateway.process.own_loop import in_own_loop


async def test_work_goes_on_while_the_main_loop_is_held() -> None:
    rounds: list[str] = []
    enough = threading.Event()

    async def work() -> None:
        while True:
            rounds.append(threading.current_thread().name)
            if len(rounds) == 5:
                enough.set()
            await asyncio.sleep(0.001)

    running = asyncio.create_task(in_own_loop(work, "beside"))
    await asyncio.sleep(0)
    held_at = time.monotonic()
    while not enough.is_set() and time.monotonic() < held_at + 60:
        sum(range(1000))  # the main loop does not run in here
    assert set(rounds) == {"beside"}
    assert len(rounds) >= 5
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert "beside" not in {thread.name for thread in threading.enumerate() if thread.is_alive()} or _ends("beside")


def _ends(name: str) -> bool:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(60)
            return not thread.is_alive()
    return True


async def test_work_is_cancelled_with_its_caller_and_cleans_up_first() -> None:
    began, cleaned = threading.Event(), threading.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    running = asyncio.create_task(in_own_loop(work, "cleaned"))
    await asyncio.to_thread(began.wait, 60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cleaned.is_set()


async def test_an_error_of_the_work_is_the_callers() -> None:
    async def work() -> None:
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        await in_own_loop(work, "failing")
