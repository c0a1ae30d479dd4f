"""Files far larger than the memory that they may take, through a worker in a process of its own, to a folder and to a real S3 server; and a
worker that is killed while a file arrives."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from domain.files import UPLOAD_LASTS_S
from gateway.files.cleaning import clean
from gateway.files.service import FileService
from tenancy.stores.file_contents import contents_in_folder
from tenancy.stores.sql import SqlFiles, open_engine
from tests.contract.test_file_contents import s3_server
from tests.e2e.test_batch_kills import client_of
from tests.object_server import ACCESS, SECRET, ObjectServer
from tests.replicas import Replica, Tenancy, launch, ready, replicas
from tests.stored_files import file_service
from tests.timing import HANG_S, until

__all__ = ["s3_server"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

MIB = 1024 * 1024
LARGE_MIB = 200
MOST_MIB = 30
"""Memory that a file may take in a worker, of which 8 MiB are what may have come before its caller is known."""
PIECE = bytes(range(256)) * 4096
FORM = {"content-type": "multipart/form-data; boundary=cut"}
BEGIN = b'--cut\r\nContent-Disposition: form-data; name="%b"; filename="a.jsonl"\r\n\r\n'
END = b'\r\n--cut\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--cut--\r\n'


async def form(field: bytes, mib: int, end: bytes = END) -> AsyncIterator[bytes]:
    yield BEGIN % field
    for _ in range(mib):
        yield PIECE
    yield end


def worker_of(replica: Replica) -> Path:
    """The folder of /proc of a replica's worker."""
    slots = json.loads((replica.home / "run" / "supervisor.json").read_text())["slots"]
    (pid,) = (slot["pid"] for slot in slots if slot["name"].startswith("worker"))
    return Path(f"/proc/{pid}")


def memory_mib(replica: Replica, name: str) -> float:
    """A figure of the memory of a replica's worker: `VmRSS`, or `VmHWM`, its highest value."""
    lines = (worker_of(replica) / "status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name))) / 1024


def forget_peak(replica: Replica) -> None:
    (worker_of(replica) / "clear_refs").write_text("5")


@pytest.fixture(params=["folder", "s3"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    where = "folder: ../files"
    if request.param == "s3":
        server: ObjectServer = request.getfixturevalue("s3_server")
        for name, value in (("access", ACCESS), ("secret", SECRET)):
            (tmp_path / name).write_text(value)
        keys = "access_key: {file: ../access}, secret_key: {file: ../secret}"
        where = f"s3: {{bucket: {server.bucket}, endpoint: '{server.url}', {keys}}}"
    return f"files: {{{where}}}\n"


async def test_a_large_file_takes_little_memory_on_its_way_in_and_out(
    settings: str, tmp_path: Path, record_property: pytest.FixtureRequest
) -> None:
    tenancy = Tenancy(["acme"])
    async with SimEngine(SimSettings(models=("sim",))) as engine:
        async with replicas(tmp_path, 1, tenancy, engine=engine.url, counters="memory://", more=settings) as (made,):
            async with client_of(made, tenancy.keys["acme"]) as client:
                # what is loaded once, such as the client of S3, is no memory of the large file
                small = await client.post("/v1/files", content=form(b"file", 8), headers=FORM)
                assert (await client.get(f"/v1/files/{small.json()['id']}/content")).status_code == 200
                before = memory_mib(made, "VmRSS")
                forget_peak(made)
                stored = await client.post("/v1/files", content=form(b"file", LARGE_MIB), headers=FORM)
                assert (stored.status_code, stored.json()["bytes"]) == (200, LARGE_MIB * MIB), stored.text
                taken_in = memory_mib(made, "VmHWM") - before
                forget_peak(made)
                digest, size = hashlib.sha256(), 0
                async with client.stream("GET", f"/v1/files/{stored.json()['id']}/content") as content:
                    async for piece in content.aiter_raw():
                        digest.update(piece)
                        size += len(piece)
                taken_out = memory_mib(made, "VmHWM") - before
    assert (size, digest.digest()) == (LARGE_MIB * MIB, hashlib.sha256(PIECE * LARGE_MIB).digest())
    record_property("figure", f"{taken_in:.0f} MiB in, {taken_out:.0f} MiB out")  # type: ignore[operator]  # pytest's fixture is a function
    assert taken_in < MOST_MIB and taken_out < MOST_MIB


async def test_a_worker_that_is_killed_leaves_nothing_for_long(tmp_path: Path) -> None:
    tenancy = Tenancy(["acme"])
    more = "files: {folder: ../files}\n"

    async def without_end() -> AsyncIterator[bytes]:
        async for piece in form(b"file", 12, b""):
            yield piece
        await asyncio.Event().wait()

    def there() -> list[Path]:
        return [path for path in (tmp_path / "files").rglob("*") if path.is_file()]

    async with SimEngine(SimSettings(models=("sim",))) as engine:
        async with replicas(tmp_path, 1, tenancy, engine=engine.url, counters="memory://", more=more) as made:
            async with client_of(made[0], tenancy.keys["acme"]) as client:
                sending = asyncio.ensure_future(client.post("/v1/files", content=without_end(), headers=FORM))
                await until(lambda: sum(path.stat().st_size for path in there()) >= 5 * MIB)
                made[0].kill()
                sending.cancel()  # it has more to send, and would never look for an answer
                await asyncio.gather(sending, return_exceptions=True)
            assert there(), "the pieces that were written"
            made[0] = launch(made[0].home)
            await ready(made[0])
            async with client_of(made[0], tenancy.keys["acme"]) as client:
                assert (await client.get("/v1/files")).json()["data"] == [], "nobody sees half a file"
            async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as operator:
                text = ""
                while 'tidegate_files{status="uploading"} 1.0' not in text:  # they are read when the gateway starts
                    await asyncio.sleep(0.1)
                    text = (await operator.get(f"http://127.0.0.1:{made[0].admin_port}/metrics")).text
    sql = open_engine(f"sqlite:///{tmp_path / 'shared.db'}")
    book = SqlFiles(sql)
    async with file_service(tmp_path, files=book, uploads=book, contents=contents_in_folder(tmp_path / "files")) as service:
        assert (await book.rubbish(2 * UPLOAD_LASTS_S, 10)) == [], "it may still be on its way"
        await sweep(service)
    await sql.dispose()
    assert there() == []


async def sweep(service: FileService) -> None:
    """What the first worker does every minute, two hours later."""
    await clean(service, 4e9)
