"""Adapters over the API: which there are is configured or registered, who may use them is granted."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from backends.lora.digest import lora_digest
from tenancy.audit import canonical
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
    assert shown == {"items": [{"pool": "chat", "name": "sql", "digest": "0" * 64, "path": "/adapters/sql", "source": "static"}]}


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


def wanted(admin: Admin, **fields: Any) -> dict[str, Any]:
    return {"pool": "chat", "name": "bot", "digest": "ab" * 32, "path": f"{admin.run_dir}/adapters/bot", **fields}


async def test_an_adapter_is_registered_granted_and_deleted(admin: Admin) -> None:
    adapters = f"{API}/adapters"
    made = await admin.client.post(adapters, json=wanted(admin), headers=bearer("operator"))
    assert (made.status_code, made.json()) == (201, {**wanted(admin), "source": "registered"})
    shown = (await admin.client.get(adapters, headers=bearer("auditor"))).json()["items"]
    assert [(one["name"], one["source"]) for one in shown] == [("sql", "static"), ("bot", "registered")]
    granted = await admin.client.put(GRANTS, json={"loras": ["bot"]}, headers={**OWNER, "if-match": "*"})
    assert (granted.status_code, granted.json()) == (200, {"loras": ["bot"]})
    gone = await admin.client.delete(f"{adapters}/chat/bot", headers=bearer("operator"))
    assert gone.status_code == 204, gone.text
    assert [one["name"] for one in (await admin.client.get(adapters, headers=OWNER)).json()["items"]] == ["sql"]
    again = await admin.client.delete(f"{adapters}/chat/bot", headers=OWNER)
    assert (again.status_code, again.json()["error"]["code"]) == (404, "adapter_not_found")
    assert await admin.actions() == ["tenant.create", "adapter.register", "adapters.grant", "adapter.delete"]
    first, last = [row.entry for row in await admin.journal.page(0, 10) if row.entry.target == "adapter/chat/bot"]
    assert first.after == canonical(wanted(admin))
    assert last.before == canonical({**wanted(admin), "source": "registered"})


@pytest.mark.parametrize(
    ("fields", "status", "code", "part"),
    [
        ({"pool": "nosuch"}, 400, "unknown_pool", "there is no pool 'nosuch'; there are: chat, bare"),
        ({"pool": "bare"}, 409, "registration_off", "pool 'bare' takes no registrations; set its lora_folder"),
        ({"name": "sql"}, 409, "adapter_exists", "has an adapter 'sql' in tidegate.yaml"),
        ({"name": "base-model"}, 409, "adapter_exists", "'base-model' is the base model of pool 'chat'"),
        ({"path": "/etc/adapters"}, 400, "path_not_allowed", "'/etc/adapters' is not below"),
        ({"path": "/adapters/../etc"}, 400, None, "path: is no absolute path without `.`, `..`"),
        ({"path": "bot"}, 400, None, "path: is no absolute path"),
        ({"digest": "AB" * 32}, 400, None, "digest: is no SHA-256 in 64 lower-case hexadecimal digits"),
        ({"digest": "ab"}, 400, None, "`tidegate lora digest FOLDER` prints it"),
        ({"name": "a@b"}, 400, None, "name"),
        ({"rank": 8}, 400, None, "rank"),
    ],
    ids=str,
)
async def test_what_cannot_be_registered_is_refused_with_the_reason(
    admin: Admin, fields: dict[str, Any], status: int, code: str | None, part: str
) -> None:
    reply = await admin.client.post(f"{API}/adapters", json=wanted(admin, **fields), headers=OWNER)
    error = reply.json()["error"]
    assert (reply.status_code, part in error["message"]) == (status, True), reply.text
    assert code in (None, error["code"])
    assert await admin.actions() == ["tenant.create"]


async def test_a_name_is_registered_once_in_a_pool(admin: Admin) -> None:
    assert (await admin.client.post(f"{API}/adapters", json=wanted(admin), headers=OWNER)).status_code == 201
    twice = await admin.client.post(f"{API}/adapters", json=wanted(admin, digest="cd" * 32), headers=OWNER)
    assert (twice.status_code, twice.json()["error"]["code"]) == (409, "adapter_exists")
    assert "has a registered adapter 'bot' already; choose another name, or delete that one first" in twice.json()["error"]["message"]


async def test_an_adapter_of_the_settings_is_not_deleted_here(admin: Admin) -> None:
    reply = await admin.client.delete(f"{API}/adapters/chat/sql", headers=OWNER)
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "not_registered")


async def test_files_at_hand_are_digested_and_links_followed(admin: Admin) -> None:
    folder = admin.run_dir / "adapters" / "bot"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    other = await admin.client.post(f"{API}/adapters", json=wanted(admin), headers=OWNER)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "digest_differs")
    assert lora_digest(folder)[:12] in other.json()["error"]["message"]
    right = wanted(admin, digest=lora_digest(folder))
    assert (await admin.client.post(f"{API}/adapters", json=right, headers=OWNER)).status_code == 201
    outside = admin.run_dir / "outside"
    outside.mkdir()
    (admin.run_dir / "adapters" / "link").symlink_to(outside)
    linked = wanted(admin, name="link", path=f"{admin.run_dir}/adapters/link")
    refused = await admin.client.post(f"{API}/adapters", json=linked, headers=OWNER)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "path_not_allowed")
    assert "is a link to" in refused.json()["error"]["message"]
