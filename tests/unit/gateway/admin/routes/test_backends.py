"""Backends over the admin API, and the open page that shows them."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from gateway.admin.app import PoolShown, create_admin_app
from gateway.fleet.sources import read_orders
from tests.admin_harness import API, OWNER, Admin, admin_port, bearer, collect
from tests.unit.gateway.fleet.test_registry import body

JSON = {**OWNER, "content-type": "application/json"}


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as made:
        yield made


async def test_backends_come_drain_and_go(admin: Admin) -> None:
    made = await admin.client.post(f"{API}/backends", content=body(), headers=JSON)
    assert (made.status_code, made.json()["id"], made.json()["source"]) == (201, "x", "registered")
    drained = await admin.client.post(f"{API}/backends/x/drain?grace_s=5", headers=OWNER)
    assert (drained.status_code, drained.json()["grace_s"]) == (202, 5.0)
    assert "Every gateway on this database" in drained.json()["message"]
    static = await admin.client.post(f"{API}/backends/s/drain", headers=OWNER)
    assert "until it is resumed or the gateway is restarted" in static.json()["message"]
    assert read_orders(admin.run_dir) == {"s": 120.0}
    assert (await admin.client.post(f"{API}/backends/x/resume", headers=OWNER)).status_code == 200
    gone = await admin.client.delete(f"{API}/backends/x", headers=OWNER)
    assert (gone.status_code, gone.content) == (204, b"")
    assert await admin.actions() == ["backend.register", "backend.drain", "backend.drain", "backend.resume", "backend.remove"]


async def test_refusals_are_sentences_and_are_not_written_down(admin: Admin) -> None:
    owned = await admin.client.delete(f"{API}/backends/f", headers=OWNER)
    assert (owned.status_code, owned.json()["error"]["code"]) == (409, "not_registered")
    assert "discover.file" in owned.json()["error"]["message"]
    missing = await admin.client.post(f"{API}/backends/nobody/drain", headers=OWNER)
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "backend_not_found")
    idle = await admin.client.post(f"{API}/backends/s/resume", headers=OWNER)
    assert (idle.status_code, idle.json()["error"]["code"]) == (409, "not_drained")
    for grace in ("-1", "nan", "inf", "x", "86401", ""):
        refused = await admin.client.post(f"{API}/backends/s/drain?grace_s={grace}", headers=OWNER)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "grace_s")
    wrong = await admin.client.post(f"{API}/backends", content=body(kv_events={"endpoint": 5}), headers=JSON)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "kv_events.endpoint")
    assert (await admin.actions(), read_orders(admin.run_dir)) == ([], {})


@pytest.mark.req("R55")
async def test_no_drain_outside_the_database_without_its_audit_row(admin: Admin) -> None:
    async with admin.engine.begin() as connection:
        await connection.exec_driver_sql("DROP TABLE audit")
    refused = await admin.client.post(f"{API}/backends/s/drain", headers=OWNER)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
    assert read_orders(admin.run_dir) == {}


async def test_only_those_who_run_the_fleet_change_it(admin: Admin) -> None:
    for role, status in (("operator", 202), ("billing", 403), ("auditor", 403), ("tenant-admin", 403), ("none", 401)):
        assert (await admin.client.post(f"{API}/backends/s/drain", headers=bearer(role))).status_code == status


async def test_looking_needs_no_token(admin: Admin) -> None:
    shown = (await admin.client.get("/backends")).json()
    assert [(b["backend"], b["source"]) for b in shown["backends"]] == [("f", "file"), ("s", "static")]
    assert (shown["sources"], shown["clashes"]) == ([], [])
    assert shown["workers"] == {"expected": 1, "answered": 1}


async def test_pools_are_listed_with_or_without_backends() -> None:
    app = create_admin_app(collect, version="1", workers=1, pools=[PoolShown("empty", "llama", "vllm")])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://admin") as client:
        assert (await client.get("/pools")).json() == {"pools": [{"name": "empty", "model": "llama", "dialect": "vllm"}]}
