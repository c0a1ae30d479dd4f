"""Adapters over the API: which there are is configured, who may use them is granted."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.admin_harness import API, OWNER, Admin, admin_port, bearer

GRANTS = f"{API}/tenants/acme/adapters"


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as made:
        value = {"name": "acme", "label": "Acme", "rights": {"models": ["m"], "caps": {"tools": False}}}
        assert (await made.client.post(f"{API}/tenants", json=value, headers=OWNER)).status_code == 201
        yield made


async def test_adapters_are_those_of_the_settings(admin: Admin) -> None:
    shown = (await admin.client.get(f"{API}/adapters", headers=bearer("auditor"))).json()
    assert shown == {"items": [{"pool": "chat", "name": "sql", "digest": "0" * 64}]}


async def test_a_grant_replaces_the_list_and_nothing_else_of_the_tenants_rights(admin: Admin) -> None:
    first = await admin.client.get(GRANTS, headers=bearer("tenant-admin"))
    assert first.json() == {"loras": None}
    granted = await admin.client.put(GRANTS, json={"loras": ["sql"]}, headers={**bearer("operator"), "if-match": first.headers["etag"]})
    assert (granted.status_code, granted.json()) == (200, {"loras": ["sql"]})
    stale = await admin.client.put(GRANTS, json={"loras": []}, headers={**OWNER, "if-match": first.headers["etag"]})
    assert stale.status_code == 412
    tenant = (await admin.client.get(f"{API}/tenants/acme", headers=OWNER)).json()
    assert (tenant["label"], tenant["rights"]["models"], tenant["rights"]["caps"]["tools"]) == ("Acme", ["m"], False)
    assert tenant["rights"]["loras"] == ["sql"]
    for loras in ([], None):
        assert (await admin.client.put(GRANTS, json={"loras": loras}, headers={**OWNER, "if-match": "*"})).json() == {"loras": loras}
    entry = (await admin.journal.newest(None, 1))[0].entry
    assert (entry.action, entry.target, entry.before, entry.after) == ("adapters.grant", "tenant/acme", '{"loras":[]}', '{"loras":null}')


async def test_what_cannot_be_granted_is_named(admin: Admin) -> None:
    star = {**OWNER, "if-match": "*"}
    unknown = await admin.client.put(GRANTS, json={"loras": ["sql", "gone"]}, headers=star)
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "loras")
    assert "'gone'" in unknown.json()["error"]["message"]
    assert (await admin.client.put(GRANTS, json={}, headers=star)).json()["error"]["param"] == "loras"
    assert (await admin.client.put(GRANTS, json={"loras": []}, headers=OWNER)).status_code == 428
    assert (await admin.client.put(f"{API}/tenants/nobody/adapters", json={"loras": []}, headers=star)).status_code == 404
    assert await admin.actions() == ["tenant.create"]
