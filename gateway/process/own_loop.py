"""Runs a coroutine in a thread with an event loop of its own, for work that must not wait behind other work of the process.

The admin process answers the admin API, renders metrics and books usage on its main loop, any of which may hold the loop for a while. The
verdicts on rollouts run beside it, so that a canary that is worse goes back in time.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final

import uvloop

END_WITHIN_S: Final = 5.0
"""Longest wait for the coroutine to end after it was cancelled. The thread is a daemon, so the process ends in any case."""


async def in_own_loop(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    """Run `work` in a thread of its own until it ends; cancelling this call cancels it. Raises whatever `work` raises.

    Args:
        work: makes the coroutine, called in the thread: adapters that belong to a loop, such as a database's connections, are opened there.
        name: of the thread.
    """
    caller = asyncio.get_running_loop()
    outcome: asyncio.Future[None] = caller.create_future()
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []

    def settle(error: BaseException | None) -> None:
        if not outcome.done():
            if error is None or isinstance(error, asyncio.CancelledError):
                outcome.set_result(None)
            else:
                outcome.set_exception(error)

    async def run() -> None:
        task = asyncio.ensure_future(work())
        running.append((asyncio.get_running_loop(), task))
        await task

    def thread_main() -> None:
        error: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(run())
        except BaseException as caught:  # noqa: BLE001 - the caller gets it, whatever it is
            error = caught
        with contextlib.suppress(RuntimeError):  # the caller's loop is closed: nobody waits any more
            caller.call_soon_threadsafe(settle, error)

    threading.Thread(target=thread_main, name=name, daemon=True).start()
    try:
        await asyncio.shield(outcome)
    except asyncio.CancelledError:
        if running:
            loop, task = running[0]
            with contextlib.suppress(RuntimeError):  # it has ended meanwhile
                loop.call_soon_threadsafe(task.cancel)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(asyncio.shield(outcome), END_WITHIN_S)
        raise
