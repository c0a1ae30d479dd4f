from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.http.admin import PoolShown, create_admin_app
from gateway.http.admin_backends import MAX_BODY_BYTES
from gateway.worker_link import BackendState, WorkerSnapshot
from tests.unit.gateway.fleet.test_registry import body, registry

TOKEN = "a-token-of-more-than-24-characters"
GOOD = {"authorization": f"Bearer {TOKEN}"}


async def collect(*, with_metrics: bool) -> list[WorkerSnapshot]:
    fleet = (BackendState("chat", "f", up=True, state="up", source="file"), BackendState("chat", "s", up=True, state="up", source="static"))
    return [WorkerSnapshot(index=0, pid=1, state="ready", started_at=0.0, fleet=fleet)]


def client(run_dir: Path, token: str | None = TOKEN) -> httpx.AsyncClient:
    app = create_admin_app(collect, version="1", workers=1, registry=registry(run_dir), token=token)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://admin")


WRITES = [("POST", "/backends"), ("POST", "/backends/s/drain"), ("POST", "/backends/s/resume"), ("DELETE", "/backends/s")]


def error(reply: httpx.Response) -> Any:
    found = reply.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found


@pytest.mark.parametrize(("method", "path"), WRITES)
async def test_without_a_token_configured_nothing_can_be_changed(tmp_path: Path, method: str, path: str) -> None:
    async with client(tmp_path, token=None) as admin:
        reply = await admin.request(method, path, headers=GOOD)
    assert (reply.status_code, error(reply)["code"]) == (403, "admin_writes_disabled")
    assert "set secrets.admin_token" in error(reply)["message"]


@pytest.mark.parametrize(("method", "path"), WRITES)
@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer \xe9"]
)
async def test_without_the_token_in_the_request_neither(tmp_path: Path, method: str, path: str, given: str) -> None:
    async with client(tmp_path) as admin:
        reply = await admin.request(method, path, headers={"authorization": given.encode("latin-1")})
    assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer")
    assert TOKEN not in reply.text


async def test_with_it_backends_come_drain_and_go(tmp_path: Path) -> None:
    async with client(tmp_path) as admin:
        made = await admin.post("/backends", content=body(), headers=GOOD)
        assert (made.status_code, made.json()["id"], made.json()["source"]) == (201, "x", "registered")
        drained = await admin.post("/backends/x/drain?grace_s=5", headers=GOOD)
        assert (drained.status_code, drained.json()["grace_s"]) == (202, 5.0)
        assert "Every gateway on this database" in drained.json()["message"]
        static = await admin.post("/backends/s/drain", headers=GOOD)
        assert "until it is resumed or the gateway is restarted" in static.json()["message"]
        assert (await admin.post("/backends/x/resume", headers=GOOD)).status_code == 200
        gone = await admin.delete("/backends/x", headers=GOOD)
        assert (gone.status_code, gone.content) == (204, b"")


async def test_refusals_are_sentences_in_openais_shape(tmp_path: Path) -> None:
    async with client(tmp_path) as admin:
        owned = await admin.delete("/backends/f", headers=GOOD)
        assert (owned.status_code, error(owned)["code"]) == (409, "not_registered")
        assert "discover.file" in error(owned)["message"]
        missing = await admin.post("/backends/nobody/drain", headers=GOOD)
        assert (missing.status_code, error(missing)["code"]) == (404, "backend_not_found")
        large = await admin.post("/backends", content=b" " * (MAX_BODY_BYTES + 1), headers=GOOD)
        assert large.status_code == 413
        assert (await admin.put("/backends", headers=GOOD)).status_code == 405


async def test_looking_needs_no_token(tmp_path: Path) -> None:
    async with client(tmp_path) as admin:
        shown = (await admin.get("/backends")).json()
    assert [(b["backend"], b["source"]) for b in shown["backends"]] == [("f", "file"), ("s", "static")]
    assert (shown["sources"], shown["clashes"]) == ([], [])
    assert shown["workers"] == {"expected": 1, "answered": 1}


async def test_pools_are_listed_with_or_without_backends() -> None:
    app = create_admin_app(collect, version="1", workers=1, pools=[PoolShown("empty", "llama", "vllm")])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://admin") as admin:
        assert (await admin.get("/pools")).json() == {"pools": [{"name": "empty", "model": "llama", "dialect": "vllm"}]}
