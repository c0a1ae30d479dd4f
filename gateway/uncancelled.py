"""Runs a coroutine to its end although the awaiting task is cancelled: a request's accounting has to finish.

A bare `asyncio.shield` is not enough: it protects against one cancellation, and a second one (the end of a drain after the
caller has left, say) abandons the settlement half done.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end in a task of its own, however often the awaiting task is cancelled meanwhile.

    Returns the result of `work`, or raises its error; raises CancelledError after the end of `work` when the awaiting task was
    cancelled.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except Exception:  # noqa: BLE001 - the work's own failure is raised by result() below
            break
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it as never retrieved
        raise cancelled
    return task.result()
