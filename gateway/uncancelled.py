"""Finish accounting whatever happens to the request's own task.

A bare `asyncio.shield` is not enough: it protects against one cancellation, and a second one (a drain's end after a
client's leaving, say) abandons the settlement half done.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end, however often the awaiting task is cancelled meanwhile; then be cancelled, if it was.

    Returns what `work` returns and raises what it raises. The work runs in a task of its own.
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
            task.exception()  # looked at, so that it is not reported as never retrieved
        raise cancelled
    return task.result()
