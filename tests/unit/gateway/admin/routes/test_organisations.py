"""Organisations over the API."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.admin_harness import API, OWNER, Admin, admin_port

ORGS = f"{API}/organisations"


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as made:
        yield made


async def test_one_is_made_changed_as_seen_and_removed_when_it_has_no_tenants(admin: Admin) -> None:
    made = await admin.client.post(ORGS, json={"name": "north", "label": "North", "rights": {"models": ["b", "a"]}}, headers=OWNER)
    assert (made.status_code, made.json()["rights"]["models"], made.json()["created_unix"]) == (201, ["a", "b"], admin.wall.now)
    twice = await admin.client.post(ORGS, json={"name": "north"}, headers=OWNER)
    assert (twice.status_code, twice.json()["error"]["code"]) == (409, "already_exists")
    seen = await admin.client.get(f"{ORGS}/north", headers=OWNER)
    assert seen.json() == made.json()
    changed = await admin.client.put(f"{ORGS}/north", json={"disabled": True}, headers={**OWNER, "if-match": seen.headers["etag"]})
    assert (changed.json()["disabled"], changed.json()["label"], changed.json()["rights"]["models"]) == (True, "", None)
    stale = await admin.client.put(f"{ORGS}/north", json={}, headers={**OWNER, "if-match": seen.headers["etag"]})
    assert stale.status_code == 412
    await admin.client.post(f"{API}/tenants", json={"name": "acme", "organisation": "north"}, headers=OWNER)
    limit = f"{API}/limits/organisation:north:tokens:day"
    assert (await admin.client.put(limit, json={"amount": 5}, headers=OWNER)).status_code == 201
    star = {**OWNER, "if-match": "*"}
    full = await admin.client.delete(f"{ORGS}/north", headers=star)
    assert (full.status_code, full.json()["error"]["code"]) == (409, "in_use")
    assert (await admin.client.put(f"{API}/tenants/acme", json={"organisation": "default"}, headers=star)).status_code == 200
    assert (await admin.client.delete(f"{ORGS}/north", headers=star)).status_code == 204
    assert [(await admin.client.get(path, headers=OWNER)).status_code for path in (f"{ORGS}/north", limit)] == [404, 404]


async def test_default_is_always_there_and_lists_come_in_pages(admin: Admin) -> None:
    for name in ("b", "a"):
        await admin.client.post(ORGS, json={"name": name}, headers=OWNER)
    first = (await admin.client.get(f"{ORGS}?limit=2", headers=OWNER)).json()
    rest = (await admin.client.get(f"{ORGS}?limit=2&cursor={first['next_cursor']}", headers=OWNER)).json()
    assert [one["name"] for one in first["items"] + rest["items"]] == ["a", "b", "default"]
    assert rest["next_cursor"] is None
    assert (await admin.client.delete(f"{ORGS}/default", headers={**OWNER, "if-match": "*"})).status_code == 409


async def test_a_tenant_needs_an_organisation_that_is_there(admin: Admin) -> None:
    refused = await admin.client.post(f"{API}/tenants", json={"name": "acme", "organisation": "none"}, headers=OWNER)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "organisation")
    for name in ("Bad", "-x", "a" * 64, ""):
        assert (await admin.client.post(ORGS, json={"name": name}, headers=OWNER)).json()["error"]["param"] == "name"
