"""Removes the bytes of files that were deleted, have expired or were never complete, and of uploads that are over.

Nothing here is needed for an answer to be right: an expired file is invisible at once. A failure leaves everything for the next round.
"""

import asyncio
from typing import Final

import structlog

from domain.clock import WallClock
from domain.files import UPLOAD_LASTS_S, StoresAway, file_key, part_key
from gateway.files.service import FileService

EVERY_S: Final = 60.0
AT_ONCE: Final = 500
"""Files of one round; a round that found as many is followed by another one at once."""

log = structlog.get_logger("tidegate.files")


async def keep_clean(service: FileService, wall: WallClock) -> None:
    """Clean until cancelled."""
    while True:
        try:
            more = await clean(service, wall())
        except StoresAway as error:
            log.warning("files that are over could not be removed", reason=str(error))
            more = False
        await asyncio.sleep(0 if more else EVERY_S)


async def clean(service: FileService, now_unix: float) -> bool:
    """One round. Returns whether there is more to do. Raises StoresAway."""
    over = await service.files.rubbish(now_unix, AT_ONCE)
    await service.contents.remove([file_key(file.id) for file in over])
    if over:
        await service.files.drop([file.id for file in over])
    # the parts of an upload may still be joined for a while after its hour
    uploads = await service.uploads.old_uploads(now_unix - UPLOAD_LASTS_S, AT_ONCE)
    for upload in uploads:
        await service.contents.remove([part_key(part) for part in await service.uploads.parts(upload.id)])
        await service.uploads.drop_upload(upload.id)
    return len(over) == AT_ONCE or len(uploads) == AT_ONCE
