"""Keys over the API: shown once, shown again only to who repeats the request, rotated and revoked, and never in audit or store."""

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Mount

from gateway.sync.revocations import PendingRevocations
from tenancy.directory import Directory
from tenancy.journal import JournalAway
from tenancy.stores.sql import SqlDirectory
from tests.admin_harness import API, OWNER, PEPPER, Admin, admin_port, bearer

KEYS = f"{API}/tenants/acme/keys"


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as made:
        assert (await made.client.post(f"{API}/tenants", json={"name": "acme"}, headers=OWNER)).status_code == 201
        yield made


async def works(admin: Admin, text: str) -> bool:
    contents = await SqlDirectory(admin.engine).load()
    return Directory(contents, PEPPER).keys.authenticate(text, admin.wall.now) is not None


async def test_a_key_is_shown_once_and_again_only_to_who_repeats_the_request(admin: Admin) -> None:
    headers = {**OWNER, "idempotency-key": "c0ffee"}
    first = await admin.client.post(KEYS, json={"label": "ci"}, headers=headers)
    again = await admin.client.post(KEYS, json={"label": "ci"}, headers=headers)
    assert (first.status_code, again.status_code, again.json()) == (201, 201, first.json())
    assert await works(admin, first.json()["key"])
    other = await admin.client.post(KEYS, json={"label": "ci"}, headers={**OWNER, "idempotency-key": "c0ffef"})
    assert other.json()["key"] != first.json()["key"]
    shown = await admin.client.get(f"{KEYS}/{first.json()['id']}", headers=OWNER)
    assert "key" not in shown.json()
    secret = first.json()["key"].split("_")[3].encode()
    for file in admin.run_dir.rglob("*"):
        assert not file.is_file() or secret not in file.read_bytes(), file
    rows = await admin.journal.page(0, 100)
    assert [row.entry.action for row in rows] == ["tenant.create", "key.create", "key.create"]


@pytest.mark.req("R35")
async def test_a_rotation_overlaps_and_a_revocation_is_for_good(admin: Admin) -> None:
    made = (await admin.client.post(KEYS, json={}, headers=OWNER)).json()
    headers = {**OWNER, "idempotency-key": "rotate-1"}
    rotated = (await admin.client.post(f"{KEYS}/{made['id']}/rotate", json={"overlap_s": 60}, headers=headers)).json()
    repeated = (await admin.client.post(f"{KEYS}/{made['id']}/rotate", json={"overlap_s": 60}, headers=headers)).json()
    assert repeated == rotated
    assert rotated["id"] == made["id"]
    assert await works(admin, made["key"])
    assert await works(admin, rotated["key"])
    admin.wall.now += 61
    assert not await works(admin, made["key"])
    assert await works(admin, rotated["key"])
    assert (await admin.client.post(f"{KEYS}/{made['id']}/revoke", headers=OWNER)).json()["revoked_unix"] == admin.wall.now
    assert not await works(admin, rotated["key"])
    refused = await admin.client.post(f"{KEYS}/{made['id']}/rotate", json={}, headers=OWNER)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "cannot_rotate")
    entry = (await admin.journal.newest(None, 2))[1].entry
    assert entry.action == "key.rotate"
    assert entry.before != entry.after, "the audit tells that the digest changed"


async def test_nobody_overwrites_what_he_has_not_seen(admin: Admin) -> None:
    made = (await admin.client.post(KEYS, json={}, headers=OWNER)).json()
    path = f"{KEYS}/{made['id']}"
    seen = (await admin.client.get(path, headers=OWNER)).headers["etag"]
    missing = await admin.client.put(path, json={"disabled": True}, headers=OWNER)
    assert (missing.status_code, missing.json()["error"]["param"]) == (428, "if-match")
    done = await admin.client.put(path, json={"disabled": True}, headers={**OWNER, "if-match": seen})
    assert (done.status_code, done.json()["disabled"]) == (200, True)
    assert not await works(admin, made["key"])
    stale = await admin.client.put(path, json={}, headers={**OWNER, "if-match": seen})
    assert (stale.status_code, stale.json()["error"]["code"]) == (412, "precondition_failed")
    fresh = await admin.client.put(path, json={}, headers={**OWNER, "if-match": done.headers["etag"]})
    assert fresh.json()["disabled"] is False


async def test_what_a_key_refers_to_is_named_when_it_is_missing(admin: Admin) -> None:
    wrong = await admin.client.post(KEYS, json={"project": "nothing"}, headers=OWNER)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "project")
    nobody = await admin.client.post(f"{API}/tenants/nobody/keys", json={}, headers=OWNER)
    assert nobody.status_code == 404
    useless = await admin.client.post(KEYS, json={"inference": False}, headers=OWNER)
    assert (useless.status_code, useless.json()["error"]["param"]) == (400, "inference")


async def test_a_key_is_revoked_by_its_id_alone_inside_the_callers_tenant(admin: Admin) -> None:
    made = (await admin.client.post(KEYS, json={}, headers=OWNER)).json()
    path = f"{API}/keys/{made['id']}/revoke"
    assert (await admin.client.post(path, headers=bearer("tenant-admin", "rivals"))).status_code == 404
    done = await admin.client.post(path, headers=bearer("tenant-admin"))
    assert (done.status_code, done.json()) == (200, {"id": made["id"], "tenant": "acme", "pending": False})
    assert not await works(admin, made["key"])
    assert (await admin.actions())[-1] == "key.revoke"
    assert (await admin.client.post(f"{API}/keys/0000000000/revoke", headers=OWNER)).status_code == 404


@pytest.mark.req("R34")
async def test_a_key_is_revoked_while_the_database_is_away(admin: Admin, tmp_path: Path) -> None:
    made = (await admin.client.post(KEYS, json={}, headers=OWNER)).json()
    operators = (await admin.client.post(KEYS, json={"roles": ["operator"]}, headers=OWNER)).json()
    known = Directory(await SqlDirectory(admin.engine).load(), PEPPER)
    pending = PendingRevocations(tmp_path / "pending")

    def away() -> Any:
        raise JournalAway("no connection")

    def serve(**parts: Any) -> None:
        (mount,) = (route for route in admin.app.routes if isinstance(route, Mount))
        mount.app.state.parts = dataclasses.replace(admin.parts, change=away, **parts)  # type: ignore[attr-defined]

    path = f"{API}/keys/{made['id']}/revoke"
    serve()
    assert (await admin.client.post(path, headers=OWNER)).status_code == 503  # nothing can keep it
    serve(known_key=known.key, pending=pending)
    assert (await admin.client.post(path, headers=bearer("tenant-admin", "rivals"))).status_code == 404
    assert (await admin.client.post(f"{API}/keys/{operators['id']}/revoke", headers=bearer("tenant-admin"))).status_code == 403
    assert pending.entries() == ()
    done = await admin.client.post(path, headers=OWNER)
    assert (done.status_code, done.json()["pending"]) == (202, True)
    (entry,) = pending.entries()
    assert (entry.key_id, entry.tenant, entry.actor, entry.role) == (made["id"], "acme", "bootstrap", "owner")
