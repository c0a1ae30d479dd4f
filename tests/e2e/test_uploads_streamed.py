"""Bodies of `/v1/files` and `/v1/uploads` that go to the storage while they arrive: sizes, quotas, callers that leave, slow storages."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from domain.files import FileContents, StorageBounds, StoresAway
from gateway.files.incoming import STEP_BYTES
from gateway.files.service import FileService
from tenancy.stores.file_contents import contents_in_folder
from tests.gateway_harness import Gateway, gateway
from tests.stored_files import file_service
from tests.timing import HANG_S, until

MIB = 1024 * 1024
EDGE = {"max_body_bytes": 256 * 1024, "largest_body_bytes": 512 * 1024}
"""Bodies that are held are small here, so that what is streamed is larger than any of them."""
HEAD = b'--cut\r\nContent-Disposition: form-data; name="%b"; filename="a.jsonl"\r\n\r\n'
PURPOSE = b'--cut\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
END = b"\r\n--cut--\r\n"
FORM = {"content-type": "multipart/form-data; boundary=cut"}


class Storage:
    """A storage whose writes wait for `open`, and fail where it is `broken`; it counts what it has taken."""

    def __init__(self, contents: FileContents) -> None:
        self._contents = contents
        self.open = asyncio.Event()
        self.open.set()
        self.broken = False
        self.taken = 0

    async def put(self, key: str, data: bytes | AsyncIterator[bytes]) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            assert not isinstance(data, bytes)
            async for piece in data:
                self.taken += len(piece)
                await self.open.wait()
                if self.broken:
                    raise StoresAway("the storage is away")
                yield piece

        await self._contents.put(key, data if isinstance(data, bytes) else pieces())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._contents, name)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(contents_in_folder(tmp_path / "files"))


@pytest.fixture
async def service(tmp_path: Path, storage: Storage) -> AsyncIterator[FileService]:
    async with file_service(tmp_path, contents=storage, max_part_bytes=3 * MIB) as made:
        yield made


@pytest.fixture
async def site(service: FileService) -> AsyncIterator[Gateway]:
    async with gateway(files=service, edge=EDGE) as made:
        yield made


def bytes_of(folder: Path) -> list[Path]:
    """The files that the storage has, unfinished ones among them."""
    return [path for path in (folder / "files").rglob("*") if path.is_file()]


async def chunked(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        for at in range(0, len(part), 100_000):
            yield part[at : at + 100_000]


DATA = bytes(range(256)) * 4096 * 5
"""5 MiB."""


@pytest.mark.parametrize("length", [True, False], ids=["with a length", "in chunks"])
@pytest.mark.parametrize("purpose_last", [True, False], ids=["purpose last", "purpose first"])
async def test_a_file_may_be_larger_than_any_body_that_is_held(site: Gateway, *, length: bool, purpose_last: bool) -> None:
    file = HEAD % b"file" + DATA
    parts = (file, b"\r\n" + PURPOSE, b"--cut--\r\n") if purpose_last else (PURPOSE, file, END)
    async with site.client() as client:
        stored = await client.post("/v1/files", content=b"".join(parts) if length else chunked(*parts), headers=FORM)
        assert stored.status_code == 200, stored.text
        shown = stored.json()
        assert (shown["bytes"], shown["purpose"], shown["filename"]) == (len(DATA), "batch", "a.jsonl")
        assert shown["expires_at"] == shown["created_at"] + 30 * 86_400
        assert (await client.get(f"/v1/files/{shown['id']}/content")).content == DATA
        assert (await client.post("/v1/chat/completions", json={"model": "x" * MIB})).status_code == 413
    record = site.records[0]
    assert record.request_bytes == sum(map(len, parts))
    assert site.connections.large_bodies == 0


async def test_a_caller_may_wait_to_be_told_to_send(site: Gateway) -> None:
    body = PURPOSE + HEAD % b"file" + DATA + END
    reader, writer = await begin_request(site, "/v1/files", len(body), "expect: 100-continue\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_a_compressed_form_is_unpacked_within_the_usual_bounds(site: Gateway) -> None:
    async with site.client() as client:
        for data, status in ((b"x" * 300_000, 200), (b"x" * 600_000, 413)):
            packed = gzip.compress(PURPOSE + HEAD % b"file" + data + END)
            answer = await client.post("/v1/files", content=packed, headers={**FORM, "content-encoding": "gzip"})
            assert answer.status_code == status, answer.text
            assert status != 200 or answer.json()["bytes"] == len(data)


@pytest.mark.parametrize(
    ("parts", "status", "param"),
    [
        ((HEAD % b"file", DATA, END), 400, "purpose"),
        ((HEAD % b"file", DATA, b"\r\n", PURPOSE.replace(b"batch", b"batch_output"), b"--cut--\r\n"), 400, "purpose"),
        ((PURPOSE, HEAD % b"file", DATA), 400, None),
        ((PURPOSE, HEAD % b"file", DATA, DATA, DATA, DATA, DATA, END), 413, "file"),
    ],
    ids=["no purpose", "our own purpose", "no end", "too large"],
)
async def test_what_is_refused_at_its_end_leaves_nothing(
    site: Gateway, service: FileService, tmp_path: Path, parts: tuple[bytes, ...], status: int, param: str | None
) -> None:
    async with site.client() as client:
        answer = await client.post("/v1/files", content=chunked(*parts), headers=FORM)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    assert bytes_of(tmp_path) == []
    assert await service.files.rubbish(site.deps.wall() + 10**9, 10) == [], "nothing is left in the book either"


async def test_the_quota_ends_a_file_at_the_step_that_exceeds_it(tmp_path: Path, storage: Storage) -> None:
    bounds = StorageBounds(files=10, bytes=2 * STEP_BYTES)
    async with file_service(tmp_path, contents=storage, bounds=bounds) as service, gateway(files=service, edge=EDGE) as site:
        async with site.client() as client:
            full = await client.post("/v1/files", content=chunked(PURPOSE, HEAD % b"file", DATA, END), headers=FORM)
            assert (full.status_code, full.json()["error"]["code"]) == (429, "insufficient_quota")
            assert "or more, and 2097152 bytes may be stored" in full.json()["error"]["message"]
            assert storage.taken <= bounds.bytes, "nothing beyond the quota reaches the storage"
            assert bytes_of(tmp_path) == []
            storage.taken = 0
            full = await client.post("/v1/files", content=PURPOSE + HEAD % b"file" + DATA + END, headers=FORM)
            assert (full.status_code, storage.taken) == (429, 0), "a length that says so is enough"
            fits = await client.post("/v1/files", content=chunked(PURPOSE, HEAD % b"file", DATA[: 2 * STEP_BYTES], END), headers=FORM)
            assert (fits.status_code, fits.json()["bytes"]) == (200, bounds.bytes)


async def test_files_that_come_at_the_same_time_share_the_quota_exactly(tmp_path: Path) -> None:
    async with file_service(tmp_path, bounds=StorageBounds(files=10, bytes=5 * STEP_BYTES)) as service:
        async with gateway(files=service, edge=EDGE) as site, site.client() as client:
            body = (PURPOSE, HEAD % b"file", DATA[: 2 * STEP_BYTES], END)
            answers = await asyncio.gather(
                *(client.post("/v1/files", content=chunked(*body) if at % 2 else b"".join(body), headers=FORM) for at in range(4))
            )
            assert sorted(answer.status_code for answer in answers)[-2:] == [429, 429]
            stored = sum(file["bytes"] for file in (await client.get("/v1/files")).json()["data"])
            assert stored == 2 * STEP_BYTES * sum(answer.status_code == 200 for answer in answers) <= 5 * STEP_BYTES
    assert sum(path.stat().st_size for path in bytes_of(tmp_path)) == stored


async def begin_request(site: Gateway, path: str, length: int, more: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which a request was begun."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {site.keys['acme']}\r\ncontent-length: {length}\r\n{more}"
    writer.write(f"{head}content-type: {FORM['content-type']}\r\n\r\n".encode())
    return reader, writer


async def test_a_caller_that_leaves_leaves_nothing(site: Gateway, service: FileService, storage: Storage, tmp_path: Path) -> None:
    _, writer = await begin_request(site, "/v1/files", 10 * MIB)
    writer.write(PURPOSE + HEAD % b"file" + DATA)
    await until(lambda: storage.taken >= 3 * STEP_BYTES)
    assert await service.files.rubbish(site.deps.wall() + 10**9, 10), "it is in the book while it comes"
    writer.close()
    records = await site.recorded(1)
    assert records[0].outcome == "client_gone"
    assert bytes_of(tmp_path) == []
    assert await service.files.rubbish(site.deps.wall() + 10**9, 10) == []


async def test_a_slow_storage_holds_its_sender_back(site: Gateway, storage: Storage) -> None:
    storage.open.clear()
    body = PURPOSE + HEAD % b"file" + DATA * 3 + END
    _, writer = await begin_request(site, "/v1/files", len(body))
    writer.write(body)
    await until(lambda: storage.taken)
    (connection,) = site.connections.open
    exchange = connection._exchange
    assert exchange is not None
    for _ in range(50):
        await asyncio.sleep(0)
    assert exchange.handed_on + len(exchange.received) < 4 * MIB, "the rest waits in the sockets of caller and gateway"
    storage.open.set()
    records = await site.recorded(1)
    assert (records[0].status, records[0].request_bytes) == (200, len(body))
    writer.close()


async def test_a_storage_that_fails_leaves_nothing(site: Gateway, storage: Storage, service: FileService, tmp_path: Path) -> None:
    storage.broken = True
    async with site.client() as client:
        answer = await client.post("/v1/files", content=chunked(PURPOSE, HEAD % b"file", DATA, END), headers=FORM)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_unavailable")
        storage.broken = False
        assert bytes_of(tmp_path) == []
        assert await service.files.rubbish(site.deps.wall() + 10**9, 10) == []
        answer = await client.post("/v1/files", content=chunked(PURPOSE, HEAD % b"file", DATA, END), headers=FORM)
        assert answer.status_code == 200


async def uploaded(client: httpx.AsyncClient, size: int) -> str:
    asked = {"filename": "large.jsonl", "purpose": "batch", "bytes": size, "mime_type": "text/jsonl"}
    upload: str = (await client.post("/v1/uploads", json=asked)).json()["id"]
    return f"/v1/uploads/{upload}"


async def test_parts_are_streamed_and_bounded_to_the_byte(site: Gateway, storage: Storage, tmp_path: Path) -> None:
    size, part = 5 * MIB, 3 * MIB
    async with site.client() as client:
        path = await uploaded(client, size)
        for content, message in (
            (chunked(HEAD % b"data", DATA[: part + 1], END), "A part may have 3145728 bytes"),
            (HEAD % b"data" + DATA + END, "A part may have 3145728 bytes"),
        ):
            answer = await client.post(f"{path}/parts", content=content, headers=FORM)
            assert (answer.status_code, answer.json()["error"]["param"]) == (413, "data")
            assert message in answer.json()["error"]["message"]
        assert bytes_of(tmp_path) == []
        first = await client.post(f"{path}/parts", content=chunked(HEAD % b"data", DATA[:part], END), headers=FORM)
        answer = await client.post(f"{path}/parts", content=chunked(HEAD % b"data", DATA[part:] + b"x", END), headers=FORM)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "data")
        assert len(bytes_of(tmp_path)) == 1
        second = await client.post(f"{path}/parts", content=HEAD % b"data" + DATA[part:] + END, headers=FORM)
        done = await client.post(f"{path}/complete", json={"part_ids": [first.json()["id"], second.json()["id"]]})
        assert done.json()["status"] == "completed", done.text
        assert (await client.get(f"/v1/files/{done.json()['file']['id']}/content")).content == DATA


async def test_parts_that_come_together_are_no_larger_than_the_upload(site: Gateway, storage: Storage, tmp_path: Path) -> None:
    async with site.client() as client:
        path = await uploaded(client, 3 * MIB)
        storage.open.clear()
        sent = [
            asyncio.ensure_future(client.post(f"{path}/parts", content=chunked(HEAD % b"data", DATA[: 2 * MIB], END), headers=FORM))
            for _ in range(2)
        ]
        await until(lambda: storage.taken >= 2 * STEP_BYTES)
        storage.open.set()
        answers = await asyncio.gather(*sent)
        assert sorted(answer.status_code for answer in answers) == [200, 400]
        assert [file.stat().st_size for file in bytes_of(tmp_path)] == [2 * MIB]


async def test_a_part_whose_upload_ends_meanwhile_leaves_nothing(site: Gateway, storage: Storage, tmp_path: Path) -> None:
    async with site.client() as client:
        path = await uploaded(client, 3 * MIB)
        storage.open.clear()
        sent = asyncio.ensure_future(client.post(f"{path}/parts", content=chunked(HEAD % b"data", DATA[: 2 * MIB], END), headers=FORM))
        await until(lambda: storage.taken)
        assert (await client.post(f"{path}/cancel")).status_code == 200
        storage.open.set()
        assert (await sent).status_code in (400, 503)
        assert bytes_of(tmp_path) == []


async def test_too_many_files_at_once_are_refused(service: FileService) -> None:
    async with gateway(files=service, edge={**EDGE, "large_bodies_total_bytes": 20 * MIB}) as site, site.client() as client:
        _, writer = await begin_request(site, "/v1/files", 15 * MIB)
        writer.write(PURPOSE)
        await until(lambda: site.connections.large_bodies)
        refused = await client.post("/v1/files", content=PURPOSE + HEAD % b"file" + DATA * 2 + END, headers=FORM)
        assert refused.status_code == 503, refused.text
        small = await client.post("/v1/files", content=PURPOSE + HEAD % b"file" + b"x" + END, headers=FORM)
        assert small.status_code == 200
        writer.close()
        await until(lambda: not site.connections.large_bodies)
        again = await client.post("/v1/files", content=PURPOSE + HEAD % b"file" + DATA * 2 + END, headers=FORM)
        assert again.status_code == 200


async def test_the_official_client_sends_a_large_file_in_parts(site: Gateway) -> None:
    options: dict[str, Any] = {"api_key": site.keys["acme"], "base_url": f"{site.url}/v1", "max_retries": 0}
    async with openai.AsyncOpenAI(**options, http_client=httpx.AsyncClient(trust_env=False, timeout=HANG_S)) as client:
        upload = await client.uploads.upload_file_chunked(
            file=DATA, filename="large.jsonl", bytes=len(DATA), mime_type="text/jsonl", purpose="batch", part_size=2 * MIB
        )
        assert upload.status == "completed" and upload.file is not None
        assert (await client.files.content(upload.file.id)).content == DATA
