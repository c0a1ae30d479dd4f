"""The bytes of files in a folder of this host or in a bucket of S3, through `obstore` (`domain.files.FileContents`)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from domain.files import StoresAway

PIECE_BYTES: Final = 5 * 1024 * 1024
"""Bytes of one part of an upload to S3, whose smallest part this is; a few of them are in memory of a file that is written in pieces."""
READ_BYTES: Final = 512 * 1024
"""Bytes of a file that is read, at a time: each is copied a few times on its way to a caller."""
PARTS_AT_ONCE: Final = 2
"""Parts on their way to S3 at once; obstore's own default of 12 would hold 60 MiB for each file."""
TIMEOUT: Final = "30s"
"""The longest call of S3, which is one piece."""


class S3Bucket(msgspec.Struct, frozen=True):
    """A bucket of S3 or of a server that speaks its protocol."""

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    """URL of the server; empty for Amazon's."""
    region: str = "us-east-1"
    access_key: str = ""
    secret_key: str = ""
    """Both keys are empty where the environment says who the gateway is (instance role, web identity)."""


class ObjectContents:
    """Contents in an object store of `obstore`.

    Args:
        folder: the folder of a store that is one. What is written there in pieces has its key with `#1` behind it until it is whole, and
            keeps that name where the process dies; `remove` removes it too. A server of S3 keeps the parts of such an object, and removes
            them by a rule of its bucket.
    """

    def __init__(self, store: Any, folder: Path | None = None) -> None:
        self._store = store
        self._folder = folder

    async def put(self, key: str, data: bytes | AsyncIterator[bytes]) -> None:
        if isinstance(data, bytes):
            await self._write(key, data)
            return
        source = _WrittenPieces(data)
        writing = asyncio.ensure_future(self._write(key, source.pieces()))
        cancelled: asyncio.CancelledError | None = None
        while not writing.done():
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError as error:
                cancelled = error
                source.end()
            except StoresAway:
                break
        source.end()
        writing.result()
        failure = cancelled or source.failure
        if failure is not None:
            await self.remove([key])
            raise failure

    async def _write(self, key: str, data: bytes | AsyncIterator[bytes]) -> None:
        import obstore

        try:
            await obstore.put_async(self._store, key, data, chunk_size=PIECE_BYTES, max_concurrency=PARTS_AT_ONCE)
        except StoresAway:
            raise
        except (obstore.exceptions.BaseError, OSError) as error:
            raise _away(error) from error

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        import obstore

        try:
            found = await obstore.get_async(self._store, key)
            async for piece in found.stream(min_chunk_size=READ_BYTES):
                yield bytes(piece)
        except (obstore.exceptions.BaseError, OSError) as error:
            raise _away(error) from error

    async def piece(self, key: str, start: int, length: int) -> bytes:
        import obstore

        if length == 0:
            return b""
        try:
            return bytes(await obstore.get_range_async(self._store, key, start=start, length=length))
        except (obstore.exceptions.BaseError, OSError) as error:
            raise _away(error) from error

    async def remove(self, keys: Sequence[str]) -> None:
        import obstore

        for key in keys:
            try:
                await obstore.delete_async(self._store, key)
            except (obstore.exceptions.NotFoundError, FileNotFoundError):
                continue
            except (obstore.exceptions.BaseError, OSError) as error:
                raise _away(error) from error
        if self._folder is not None:
            try:
                await asyncio.to_thread(_remove_unfinished, [self._folder / key for key in keys])
            except OSError as error:
                raise _away(error) from error


class _WrittenPieces:
    """The pieces of an object that is written. Where they end early, the object becomes a whole one all the same, to be removed: obstore
    has no way to give up an upload in parts, whose parts would then stay in S3."""

    def __init__(self, data: AsyncIterator[bytes]) -> None:
        self._data = data
        self._ended = asyncio.Event()
        self.failure: Exception | None = None
        """What the source raised; None for nothing."""

    def end(self) -> None:
        """Take no further piece."""
        self._ended.set()

    async def pieces(self) -> AsyncIterator[bytes]:
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            while not ended.done():
                coming = asyncio.ensure_future(anext(self._data, None))
                await asyncio.wait((coming, ended), return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    await asyncio.gather(coming, return_exceptions=True)
                    return
                piece = coming.result()
                if piece is None:
                    return
                yield piece
        except Exception as error:  # noqa: BLE001 - whoever writes the object gets it once the writing has ended
            self.failure = error
        finally:
            ended.cancel()


def _remove_unfinished(paths: Sequence[Path]) -> None:
    for path in paths:
        number = 1  # a second attempt under the same key counts on
        while (unfinished := path.with_name(f"{path.name}#{number}")).exists():
            unfinished.unlink(missing_ok=True)
            number += 1


def contents_in_folder(folder: Path) -> ObjectContents:
    """Contents in a folder, which is made where it is not there; only its owner may read it. Raises OSError."""
    from obstore.store import LocalStore

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return ObjectContents(LocalStore(str(folder)), folder)


def contents_in_s3(where: S3Bucket) -> ObjectContents:
    """Contents in a bucket, which has to be there."""
    from obstore.store import S3Store

    options: dict[str, Any] = {"region": where.region, "client_options": {"timeout": TIMEOUT, "allow_http": True}}
    if where.endpoint:
        options |= {"endpoint": where.endpoint, "virtual_hosted_style_request": False}
    if where.access_key:
        options |= {"access_key_id": where.access_key, "secret_access_key": where.secret_key}
    return ObjectContents(S3Store(where.bucket, prefix=where.prefix or None, **options))


def _away(error: Exception) -> StoresAway:
    # the text of an error of obstore may be a page long and name the endpoint: it goes to the log, never to a caller
    return StoresAway(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300])
