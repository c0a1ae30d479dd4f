"""`/v1/files` and `/v1/uploads` through a whole gateway."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from domain.files import StorageBounds
from gateway.files.cleaning import clean
from gateway.files.service import FileService
from tenancy.rights import Rights
from tests.gateway_harness import Gateway, gateway
from tests.stored_files import file_service
from tests.timing import HANG_S

DATA = b'{"custom_id": "a"}\n' * 3


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[FileService]:
    async with file_service(tmp_path) as made:
        yield made


@pytest.fixture
async def site(service: FileService) -> AsyncIterator[Gateway]:
    async with gateway(files=service) as made:
        yield made


async def stored(client: httpx.AsyncClient, data: bytes = DATA, name: str = "a.jsonl", **fields: str) -> dict[str, Any]:
    answer = await client.post("/v1/files", files={"file": (name, data)}, data={"purpose": "batch", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_file_is_stored_shown_read_and_deleted(site: Gateway, tmp_path: Path) -> None:
    async with site.client() as client:
        file = await stored(client)
        assert file["id"].startswith("file-") and (file["bytes"], file["filename"], file["purpose"]) == (len(DATA), "a.jsonl", "batch")
        assert file["expires_at"] == file["created_at"] + 30 * 86_400
        assert (await client.get(f"/v1/files/{file['id']}")).json() == file
        content = await client.get(f"/v1/files/{file['id']}/content")
        assert (content.status_code, content.content) == (200, DATA)
        assert (await client.get("/v1/files")).json()["data"] == [file]
        assert (await client.delete(f"/v1/files/{file['id']}")).json() == {"id": file["id"], "object": "file", "deleted": True}
        gone = await client.get(f"/v1/files/{file['id']}")
        assert (gone.status_code, gone.json()["error"]["message"]) == (404, f"No such File object: {file['id']}")
        assert (await client.delete(f"/v1/files/{file['id']}")).status_code == 404
        assert (await client.get("/v1/files")).json()["data"] == []


async def test_large_and_empty_files_are_read_as_they_were_stored(site: Gateway) -> None:
    async with site.client() as client:
        for data in (b"", bytes(range(256)) * 48_000):
            file = await stored(client, data)
            assert (await client.get(f"/v1/files/{file['id']}/content")).content == data


async def test_no_tenant_sees_what_another_one_stores(site: Gateway) -> None:
    async with site.client() as acme, site.client("bolt") as bolt:
        file = await stored(acme)
        for answer in (
            await bolt.get(f"/v1/files/{file['id']}"),
            await bolt.get(f"/v1/files/{file['id']}/content"),
            await bolt.delete(f"/v1/files/{file['id']}"),
            await bolt.get("/v1/files", params={"after": file["id"]}),
        ):
            assert answer.status_code == 404
        assert (await bolt.get("/v1/files")).json()["data"] == []
        assert (await acme.get(f"/v1/files/{file['id']}")).status_code == 200


async def test_lists_come_in_pages(site: Gateway) -> None:
    async with site.client() as client:
        ids = [
            (await stored(client, name=f"{number}.jsonl", purpose=purpose))["id"] for number, purpose in enumerate(["batch", "vision"] * 2)
        ]
        first = (await client.get("/v1/files", params={"limit": 3, "order": "asc"})).json()
        assert ([file["id"] for file in first["data"]], first["has_more"]) == (ids[:3], True)
        rest = (await client.get("/v1/files", params={"after": first["last_id"], "order": "asc"})).json()
        assert ([file["id"] for file in rest["data"]], rest["has_more"]) == (ids[3:], False)
        assert [file["id"] for file in (await client.get("/v1/files?purpose=vision")).json()["data"]] == [ids[3], ids[1]]
        assert (await client.get("/v1/files?limit=0")).status_code == 400


@pytest.mark.parametrize(
    ("options", "status", "param"),
    [
        ({"files": {"file": ("a", b"x")}, "data": {"purpose": "batch_output"}}, 400, "purpose"),
        ({"files": {"file": ("a", b"x")}}, 400, "purpose"),
        ({"files": {"another": ("a", b"x")}, "data": {"purpose": "batch"}}, 400, "file"),
        ({"json": {"purpose": "batch"}}, 415, None),
        ({"files": {"file": ("a", b"x")}, "data": {"purpose": "batch", "expires_after[seconds]": "60"}}, 400, "expires_after.anchor"),
        (
            {"files": {"file": ("a", b"x")}, "data": {"purpose": "batch", "expires_after[anchor]": "created_at"}},
            400,
            "expires_after.seconds",
        ),
    ],
    ids=["our own purpose", "no purpose", "no file", "JSON", "no anchor", "no seconds"],
)
async def test_other_requests_are_refused(site: Gateway, options: dict[str, Any], status: int, param: str | None) -> None:
    async with site.client() as client:
        answer = await client.post("/v1/files", **options)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
        assert (await client.get("/v1/files")).json()["data"] == []


async def test_keys_rights_and_methods_count_here_too(service: FileService) -> None:
    async with gateway(files=service, rights={"acme": Rights(endpoints=frozenset({"/v1/chat/completions"}))}) as site:
        async with (
            site.client() as client,
            httpx.AsyncClient(base_url=site.url, trust_env=False, timeout=HANG_S) as stranger,
            site.client("bolt") as bolt,
        ):
            assert (await client.get("/v1/files")).status_code == 403
            assert (await stranger.get("/v1/files")).status_code == 401
            assert (await bolt.patch("/v1/files")).headers["allow"] == "GET, POST"
            assert (await bolt.get("/v1/files/")).status_code == 200
            for path in ("/v1/files/a/b", "/v1/files/a/content/b", "/v1/uploads/a", "/v1/filesystem"):
                assert (await bolt.get(path)).json()["error"]["code"] == "unknown_url", path
    async with gateway() as site, site.client() as client:
        assert (await client.get("/v1/files")).json()["error"]["message"] == "/v1/files is switched off here."


async def test_a_full_quota_says_what_is_stored(tmp_path: Path) -> None:
    async with file_service(tmp_path, bounds=StorageBounds(files=2, bytes=100)) as service, gateway(files=service) as site:
        async with site.client() as client, site.client("bolt") as bolt:
            await stored(client, b"x" * 60)
            refused = await client.post("/v1/files", files={"file": ("a", b"x" * 41)}, data={"purpose": "batch"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
            assert "60 bytes are stored here, this file has 41, and 100" in refused.json()["error"]["message"]
            await stored(client, b"x" * 40)
            refused = await client.post("/v1/files", files={"file": ("a", b"")}, data={"purpose": "batch"})
            assert "2 files are stored here, and 2 may be" in refused.json()["error"]["message"]
            await stored(bolt)


async def test_what_is_over_is_removed_from_the_storage(site: Gateway, service: FileService, tmp_path: Path) -> None:
    async with site.client() as client:
        kept, deleted = await stored(client), await stored(client)
        await client.delete(f"/v1/files/{deleted['id']}")
        await clean(service, site.deps.wall())
        assert [path.name for path in (tmp_path / "files" / "files").iterdir()] == [kept["id"]]
        await clean(service, site.deps.wall() + 31 * 86_400)
        assert list((tmp_path / "files" / "files").iterdir()) == []


async def begun(client: httpx.AsyncClient, size: int, **fields: Any) -> dict[str, Any]:
    asked = {"filename": "large.jsonl", "purpose": "batch", "bytes": size, "mime_type": "text/jsonl", **fields}
    answer = await client.post("/v1/uploads", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def with_part(client: httpx.AsyncClient, upload: dict[str, Any], data: bytes) -> httpx.Response:
    return await client.post(f"/v1/uploads/{upload['id']}/parts", files={"data": ("part", data)})


async def test_parts_become_a_file_in_the_order_that_is_asked_for(site: Gateway, tmp_path: Path) -> None:
    whole = b"a" * 300_000 + b"b" * 5
    async with site.client() as client:
        upload = await begun(client, len(whole), expires_after={"anchor": "created_at", "seconds": 3600})
        assert (upload["status"], upload["expires_at"] - upload["created_at"], upload["file"]) == ("pending", 3600, None)
        second, first = [(await with_part(client, upload, data)).json() for data in (whole[300_000:], whole[:300_000])]
        assert first["object"] == "upload.part" and first["upload_id"] == upload["id"]
        wrong = await client.post(f"/v1/uploads/{upload['id']}/complete", json={"part_ids": [first["id"], second["id"]], "md5": "0" * 32})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "md5")
        md5 = hashlib.md5(whole).hexdigest()
        done = await client.post(f"/v1/uploads/{upload['id']}/complete", json={"part_ids": [first["id"], second["id"]], "md5": md5})
        assert (done.status_code, done.json()["status"]) == (200, "completed")
        file = done.json()["file"]
        assert (await client.get(f"/v1/files/{file['id']}")).json() == file
        assert file["expires_at"] == file["created_at"] + 3600
        assert (await client.get(f"/v1/files/{file['id']}/content")).content == whole
        assert (await with_part(client, upload, b"x")).status_code == 400
    assert not any((tmp_path / "files" / "parts").rglob("part_*")), "the parts are removed"


async def test_an_upload_that_is_cancelled_gives_its_room_back(tmp_path: Path) -> None:
    async with file_service(tmp_path, bounds=StorageBounds(files=1, bytes=100)) as service, gateway(files=service) as site:
        async with site.client() as client:
            upload = await begun(client, 100)
            assert (await client.post("/v1/uploads", json={**ASKED, "bytes": 1})).status_code == 429
            assert (await with_part(client, upload, b"x")).status_code == 200
            assert (await client.get("/v1/files")).json()["data"] == []
            cancelled = await client.post(f"/v1/uploads/{upload['id']}/cancel")
            assert cancelled.json()["status"] == "cancelled"
            assert (await client.post(f"/v1/uploads/{upload['id']}/cancel")).status_code == 400
            await stored(client, b"x")


ASKED = {"filename": "a", "purpose": "batch", "bytes": 10, "mime_type": "text/jsonl"}


async def test_parts_are_bounded_and_named_once(site: Gateway) -> None:
    async with site.client() as client, site.client("bolt") as bolt:
        upload = await begun(client, 10)
        first = (await with_part(client, upload, b"x" * 6)).json()["id"]
        assert (await with_part(client, upload, b"x" * 5)).status_code == 400
        assert (await with_part(bolt, upload, b"x")).status_code == 404
        path = f"/v1/uploads/{upload['id']}/complete"
        for part_ids in ([first], [first, first], ["part_of_nobody"], []):
            refused = await client.post(path, json={"part_ids": part_ids})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "part_ids")
        second = (await with_part(client, upload, b"y" * 4)).json()["id"]
        assert (await client.post(path, json={"part_ids": [first, second]})).status_code == 200


@pytest.mark.parametrize(
    "change", [{"bytes": 0}, {"bytes": 10**12}, {"purpose": "x"}, {"filename": ""}, {"bytes": "x"}, {"mime_type": "x" * 300}]
)
async def test_uploads_that_cannot_be_are_refused(site: Gateway, change: dict[str, Any]) -> None:
    async with site.client() as client:
        assert (await client.post("/v1/uploads", json={**ASKED, **change})).status_code == 400


async def test_an_upload_lasts_for_an_hour(site: Gateway, service: FileService, tmp_path: Path) -> None:
    async with site.client() as client:
        upload = await begun(client, 10)
        assert (await with_part(client, upload, b"x")).status_code == 200
        found = await service.uploads.find_upload("acme", upload["id"])
        assert found is not None
        await clean(service, found.expires_unix + 3601)
        assert (await with_part(client, upload, b"x")).status_code == 404
    assert not any((tmp_path / "files" / "parts").rglob("part_*"))
