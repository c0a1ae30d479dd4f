"""Waiting for a result or for the stop signal, whichever comes first."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

log = structlog.get_logger("tidegate.worker")

T = TypeVar("T")


async def first_to_end(stop: asyncio.Event, loops: list[asyncio.Task[None]]) -> BaseException | None:
    """Wait until `stop` is set, or until a background loop ends.

    Returns:
        None after a stop. Otherwise the error of the loop that ended, which ends the worker: without its polls or deadlines a worker
        would serve on blindly.
    """
    stopping = asyncio.ensure_future(stop.wait())
    done, _ = await asyncio.wait((stopping, *loops), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if stop.is_set():
        return None
    error = done.pop().exception() or RuntimeError("a background loop returned")
    log.error("a background loop ended, so this worker does", exc_info=error)
    return error


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None when `stop` is set first; the work is cancelled then."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        return working.result()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    return None
