"""Projects over the API."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.admin_harness import API, OWNER, Admin, admin_port, bearer

PROJECTS = f"{API}/tenants/acme/projects"
STAR = {**OWNER, "if-match": "*"}


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as made:
        assert (await made.client.post(f"{API}/tenants", json={"name": "acme"}, headers=OWNER)).status_code == 201
        yield made


async def test_a_tenants_admin_makes_changes_and_removes_them(admin: Admin) -> None:
    mine = bearer("tenant-admin")
    made = await admin.client.post(
        PROJECTS, json={"name": "web", "rights": {"caps": {"max_choices": 1}, "priority_class": "batch"}}, headers=mine
    )
    assert made.json()["rights"]["priority_class"] == "batch"
    assert (made.status_code, made.json()["tenant"], made.json()["rights"]["caps"]["max_choices"]) == (201, "acme", 1)
    assert (await admin.client.post(PROJECTS, json={"name": "web"}, headers=mine)).status_code == 409
    listed = (await admin.client.get(PROJECTS, headers=mine)).json()
    assert ([one["name"] for one in listed["items"]], listed["next_cursor"]) == (["default", "web"], None)
    page = (await admin.client.get(f"{PROJECTS}?limit=1", headers=mine)).json()
    assert ([one["name"] for one in page["items"]], page["next_cursor"] is None) == (["default"], False)
    tag = (await admin.client.get(f"{PROJECTS}/web", headers=mine)).headers["etag"]
    changed = await admin.client.put(f"{PROJECTS}/web", json={"label": "Web", "disabled": True}, headers={**mine, "if-match": tag})
    assert (changed.json()["label"], changed.json()["disabled"], changed.json()["rights"]["caps"]["max_choices"]) == ("Web", True, None)
    assert (await admin.client.put(f"{PROJECTS}/web", json={}, headers={**mine, "if-match": tag})).status_code == 412
    assert (await admin.client.put(f"{PROJECTS}/web", json={}, headers=mine)).status_code == 428
    gone = await admin.client.delete(f"{PROJECTS}/web", headers={**mine, "if-match": changed.headers["etag"]})
    assert gone.status_code == 204
    assert (await admin.actions())[1:] == ["project.create", "project.change", "project.delete"]


async def test_one_with_a_key_stays_until_the_key_is_revoked_and_takes_its_limits_along(admin: Admin) -> None:
    await admin.client.post(PROJECTS, json={"name": "web"}, headers=OWNER)
    key = (await admin.client.post(f"{API}/tenants/acme/keys", json={"project": "web"}, headers=OWNER)).json()["id"]
    limit = f"{API}/limits/project:acme/web:tokens:day"
    assert (await admin.client.put(limit, json={"amount": 5}, headers=OWNER)).status_code == 201
    full = await admin.client.delete(f"{PROJECTS}/web", headers=STAR)
    assert (full.status_code, full.json()["error"]["code"]) == (409, "in_use")
    assert (await admin.client.post(f"{API}/tenants/acme/keys/{key}/revoke", headers=OWNER)).status_code == 200
    assert (await admin.client.delete(f"{PROJECTS}/web", headers=STAR)).status_code == 204
    paths = (limit, f"{API}/tenants/acme/keys/{key}", f"{PROJECTS}/web")
    assert [(await admin.client.get(path, headers=OWNER)).status_code for path in paths] == [404] * 3


async def test_what_is_wrong_is_named(admin: Admin) -> None:
    for value, param in (
        ({}, "name"),
        ({"name": "Web"}, "name"),
        ({"name": "web", "rights": {"caps": {"max_choices": 0}}}, "rights.caps.max_choices"),
        ({"name": "web", "rights": {"priority_class": "urgent"}}, "rights.priority_class"),
        ({"name": "web", "tenant": "bolt"}, "tenant"),
    ):
        refused = await admin.client.post(PROJECTS, json=value, headers=OWNER)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert (await admin.client.post(f"{API}/tenants/nobody/projects", json={"name": "web"}, headers=OWNER)).status_code == 404
    assert (await admin.client.get(f"{PROJECTS}/nothing", headers=OWNER)).status_code == 404
