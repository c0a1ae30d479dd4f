"""The loop of a worker that looks for batches which nobody runs, and runs them beside each other.

Workers find out by the lease in SQL who runs what, so any number of them, on any number of hosts, share the batches of all tenants. The
slots of a worker are shared by the batches that it runs, so a large batch does not keep a small one waiting.
"""

import asyncio
from typing import Final

import structlog

from domain.files import StoresAway
from gateway.batches.run_batch import BatchRun
from gateway.batches.slots import LineSlots, RunnerParts
from gateway.files.service import FileService

AT_ONCE: Final = 8
"""Batches that one worker runs beside each other; the places of their lines, some MiB for the largest, are in memory meanwhile."""

log = structlog.get_logger("tidegate.batches")


async def run_batches(service: FileService, parts: RunnerParts, slots: LineSlots, look_every_s: float) -> None:
    """Run batches until cancelled; then those under way are given back."""
    running: dict[str, asyncio.Task[None]] = {}
    try:
        while True:
            for batch_id in [batch_id for batch_id, task in running.items() if task.done()]:
                del running[batch_id]
            took = False
            if len(running) < AT_ONCE and not parts.draining():
                took = await _take_one(service, parts, slots, running)
            await asyncio.sleep(0 if took else look_every_s)
    finally:
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)


async def _take_one(service: FileService, parts: RunnerParts, slots: LineSlots, running: dict[str, asyncio.Task[None]]) -> bool:
    """Take a batch and begin to run it; False where there is none."""
    assert service.batches is not None, "batches are run only where they are accepted"
    now = parts.deps.wall()
    try:
        batch = await service.batches.take(parts.owner, now, now + parts.lease_s)
    except StoresAway as error:
        log.warning("batches cannot be looked for", reason=str(error))
        return False
    if batch is None:
        return False
    before = running.pop(batch.id, None)
    if before is not None:  # its lease was over before its run noticed
        before.cancel()
        await asyncio.gather(before, return_exceptions=True)
    running[batch.id] = asyncio.ensure_future(BatchRun(batch, service, parts, slots).run())
    return True
