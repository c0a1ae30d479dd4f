"""The bytes of files: one suite over a folder and a real S3 server."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from domain.files import StoresAway
from tenancy.stores.file_contents import ObjectContents, S3Bucket, contents_in_folder, contents_in_s3
from tests.object_server import ACCESS, SECRET, ObjectServer, object_server, uploads_in_parts
from tests.timing import until

MIB = 1024 * 1024


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with object_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


def in_bucket(server: ObjectServer, secret: str = SECRET) -> ObjectContents:
    return contents_in_s3(S3Bucket(server.bucket, "some/prefix", server.url, "us-east-1", ACCESS, secret))


@pytest.fixture(params=["folder", "s3"])
def contents(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectContents:
    if request.param == "folder":
        return contents_in_folder(tmp_path / "files")
    return in_bucket(request.getfixturevalue("s3_server"))


async def whole(contents: ObjectContents, key: str) -> bytes:
    return b"".join([piece async for piece in contents.stream(key)])


async def pieces(*sizes: int) -> AsyncIterator[bytes]:
    for at, size in enumerate(sizes):
        await asyncio.sleep(0)
        yield bytes([at]) * size


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_what_is_stored_is_read_back(contents: ObjectContents) -> None:
    for key, data in (("files/empty", b""), ("files/small", b"abc"), ("files/large", bytes(range(256)) * 4096 * 12)):
        await contents.put(key, data)
        assert await whole(contents, key) == data
        assert not data or await contents.piece(key, 1, 2) == data[1:3]
    await contents.put("files/small", b"another")
    assert await whole(contents, "files/small") == b"another"


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_pieces_become_one_object(contents: ObjectContents) -> None:
    await contents.put("files/joined", pieces(7 * MIB, 1, 6 * MIB))
    assert await whole(contents, "files/joined") == b"\0" * 7 * MIB + b"\1" + b"\2" * 6 * MIB
    await contents.put("files/joined-2", pieces(3, 4))
    assert await contents.piece("files/joined-2", 2, 3) == b"\0\1\1"


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_pieces_that_fail_leave_no_object(contents: ObjectContents) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 6 * MIB
        raise StoresAway("the source is away")

    with pytest.raises(StoresAway):
        await contents.put("files/broken", broken())
    with pytest.raises(StoresAway):
        await whole(contents, "files/broken")


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("ends", ["fails", "is cancelled"])
async def test_a_write_that_ends_early_leaves_no_piece(
    request: pytest.FixtureRequest, contents: ObjectContents, tmp_path: Path, ends: str
) -> None:
    """A folder has no unfinished file then, and S3 no upload in parts that somebody pays for."""
    server = request.getfixturevalue("s3_server") if "s3" in request.node.name else None
    under_way = asyncio.Event()

    async def source() -> AsyncIterator[bytes]:
        # pieces below the least size of a part of S3
        for _ in range(14):
            yield b"x" * MIB
        await asyncio.sleep(0)
        if ends == "fails":
            raise LookupError("the caller has left")
        under_way.set()
        await asyncio.Event().wait()

    writing = asyncio.ensure_future(contents.put("files/ended", source()))
    if ends == "fails":
        with pytest.raises(LookupError):  # of the source, as it was raised
            await writing
    else:
        await under_way.wait()
        await until(lambda: unfinished(tmp_path, server))
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
    await until(lambda: not unfinished(tmp_path, server))
    with pytest.raises(StoresAway):
        await whole(contents, "files/ended")


def unfinished(folder: Path, server: ObjectServer | None) -> list[str]:
    """What a storage has of objects that are not whole: files of a folder, or uploads in parts of a bucket."""
    if server is None:
        return [path.name for path in (folder / "files" / "files").glob("ended*")]
    return uploads_in_parts(server)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_what_is_removed_is_gone(contents: ObjectContents) -> None:
    await contents.put("files/a", b"1")
    await contents.put("files/b", b"2")
    await contents.remove(["files/a", "files/never-there", "files/b"])
    for key in ("files/a", "files/b"):
        with pytest.raises(StoresAway):
            await whole(contents, key)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_wrong_secret_is_a_store_that_is_away(s3_server: ObjectServer) -> None:
    with pytest.raises(StoresAway, match=r"Permission|Unauthenticated|Generic"):
        await in_bucket(s3_server, "another").put("files/a", b"1")


async def test_a_folder_keeps_what_is_stored(tmp_path: Path) -> None:
    """The suite in short, for a folder."""
    contents = contents_in_folder(tmp_path / "files")
    assert (tmp_path / "files").stat().st_mode & 0o777 == 0o700
    await contents.put("files/a", b"abc")
    await contents.put("files/b", pieces(2, 2))
    assert (await whole(contents, "files/a"), await contents.piece("files/b", 1, 2)) == (b"abc", b"\0\1")
    (tmp_path / "files" / "files" / "a#1").write_bytes(b"of a process that was killed while it wrote")
    (tmp_path / "files" / "files" / "a#2").write_bytes(b"of the next one")
    await contents.remove(["files/a", "files/a"])
    assert [path.name for path in (tmp_path / "files" / "files").iterdir()] == ["b"]
    with pytest.raises(StoresAway):
        await contents.piece("files/a", 0, 1)
