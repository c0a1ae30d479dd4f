"""What holds for every route of the admin API: who is let in, what is refused, how it is said."""

import base64
import gc
import json
import weakref
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from starlette.routing import Mount
from structlog.testing import capture_logs

from gateway.admin.access import LINES_AT_ONCE, ROLE_TABLE, TableError, check_table
from gateway.admin.api import create_admin_api, rows_of
from gateway.admin.guard import MAX_BODY_BYTES, GuardedRoute
from gateway.admin.routes import ROUTERS
from tenancy.accounts import DirectoryBounds
from tenancy.stores.sql import journal as sql_journal
from tests.admin_harness import API, OWNER, TOKEN, Admin, admin_port, bearer
from tests.unit.gateway.fleet.test_registry import body

JSON = {**OWNER, "content-type": "application/json"}


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as made:
        yield made


def error(reply: httpx.Response) -> Any:
    found = reply.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found


@pytest.mark.req("R14")
def test_a_route_without_a_row_ends_the_start_and_a_row_without_a_route_too() -> None:
    check_table(ROLE_TABLE)
    with pytest.raises(TableError, match=r"no row in access\.ROLE_TABLE says who may use GET /secret"):
        check_table([*ROLE_TABLE, ("GET", "/secret")])
    with pytest.raises(TableError, match="rows without a route: POST /backends"):
        check_table([row for row in ROLE_TABLE if row != ("POST", "/backends")])


@pytest.mark.req("R14")
async def test_an_application_with_an_unlisted_or_unguarded_route_is_not_made(admin: Admin) -> None:
    guarded = APIRouter(route_class=GuardedRoute)
    bare = APIRouter()
    for router in (guarded, bare):

        @router.get("/secret")
        async def secret() -> str:
            return "secret"

    with pytest.raises(TableError, match="GET /secret"):
        create_admin_api(admin.parts, "1", (*ROUTERS, guarded))
    with pytest.raises(TableError, match="no guarded route"):
        create_admin_api(admin.parts, "1", (*ROUTERS, bare))
    assert {*rows_of(ROUTERS), ("GET", "/openapi.json")} == set(ROLE_TABLE)


async def test_an_application_that_answered_and_is_used_no_more_is_held_by_nothing(admin: Admin) -> None:
    async def answered() -> weakref.ref[FastAPI]:
        api = create_admin_api(admin.parts, "1")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://admin", headers=OWNER) as client:
            document = (await client.get("/openapi.json")).raise_for_status().json()
            assert "/openapi.json" in document["paths"]
        return weakref.ref(api)

    used = await answered()
    gc.collect()
    assert used() is None


async def test_a_page_in_a_refusal_is_named_below_the_address_of_the_settings(tmp_path: Path) -> None:
    wrong = {"files": {"acme.yaml": "tenant: acme\nmodels: [{name: sim, pool: chat}]\nrules: [{name: a, if: 'nothing > 1', models: []}]\n"}}
    async with admin_port(tmp_path, stored=True) as admin:
        said = error(await admin.client.post(f"{API}/policies", json=wrong, headers=OWNER))["message"]
        assert "docs/reference/policies.md says" in said and "file://" not in said
        api = next(route.app for route in admin.app.routes if isinstance(route, Mount))
        api.state.parts = replace(api.state.parts, docs_url="https://d.example/")
        said = error(await admin.client.post(f"{API}/policies", json=wrong, headers=OWNER))["message"]
        assert "https://d.example/reference/policies.md says" in said


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer \xe9", "x" * 9000],
)
async def test_who_does_not_say_who_he_is_gets_the_same_answer_everywhere(admin: Admin, given: str) -> None:
    answers = set()
    for method, template in ROLE_TABLE:
        path = API + template.replace("{", "").replace("}", "")
        reply = await admin.client.request(method, path, headers={"authorization": given.encode("latin-1")}, content=b"{")
        assert reply.headers["www-authenticate"] == "Bearer"
        answers.add((reply.status_code, reply.content))
    ((status, said),) = answers
    assert (status, json.loads(said)["error"]["code"]) == (401, "invalid_admin_token")
    assert TOKEN.encode() not in said


async def test_without_a_configured_token_nobody_is_the_owner_and_how_to_is_said(tmp_path: Path) -> None:
    async with admin_port(tmp_path, token=None) as admin:
        for given in (OWNER, {"authorization": "Bearer "}, {}):
            reply = await admin.client.get(f"{API}/self", headers=given)
            assert reply.status_code == 401
            assert "set secrets.admin_token" in error(reply)["message"]
        assert (await admin.client.get(f"{API}/self", headers=bearer("auditor"))).json()["roles"] == ["auditor"]


async def test_guessing_does_not_fill_the_log(admin: Admin) -> None:
    with capture_logs() as said:
        for n in range(200):
            await admin.client.get(f"{API}/self", headers={"authorization": f"Bearer guess-{n}"})
    lines = [line for line in said if line["event"] == "refused: no valid admin token"]
    assert len(lines) == LINES_AT_ONCE
    assert "guess" not in str(lines)


async def test_who_lacks_a_role_is_told_which(admin: Admin) -> None:
    reply = await admin.client.get(f"{API}/audit", headers=bearer("admin"))
    assert "owner, auditor; yours: admin" in error(reply)["message"]


@pytest.mark.parametrize(
    ("content", "kind", "status", "param"),
    [
        (b"{", "application/json", 400, None),
        (b"5", "application/json", 400, None),
        (b"", "application/json", 400, None),
        (b"\xff", "application/json", 400, None),
        (b'{"pool":"a","pool":"chat"}', "application/json", 400, None),
        (b'{"pool":NaN}', "application/json", 400, None),
        (b"[" * 5000, "application/json", 400, None),
        (b'{"a":' * 5000, "application/json", 400, None),
        (body(weight=2), "application/json", 400, "weight"),
        (body(id=5), "application/json", 400, "id"),
        (b'{"pool":"chat","id":"x"}', "application/json", 400, "url"),
        (body(), "text/plain", 415, "content-type"),
        (b"pool=chat", "application/x-www-form-urlencoded", 415, "content-type"),
        (b" " * (MAX_BODY_BYTES + 1), "application/json", 413, None),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_bodies_are_one_small_strict_json_object(admin: Admin, content: bytes, kind: str, status: int, param: str | None) -> None:
    reply = await admin.client.post(f"{API}/backends", content=content, headers={**OWNER, "content-type": kind})
    assert (reply.status_code, error(reply)["param"]) == (status, param)
    assert await admin.actions() == []


async def test_what_takes_no_body_gets_none_and_unknown_questions_are_named(admin: Admin) -> None:
    assert (await admin.client.post(f"{API}/backends/s/drain", content=b"{}", headers=JSON)).status_code == 400
    reply = await admin.client.get(f"{API}/audit?limt=5", headers=OWNER)
    assert (reply.status_code, error(reply)["param"]) == (400, "limt")
    for query, param in (
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=x", "limit"),
        ("cursor=%21", "cursor"),
        ("cursor=e30", "cursor"),
    ):
        reply = await admin.client.get(f"{API}/audit?{query}", headers=OWNER)
        assert (reply.status_code, error(reply)["param"]) == (400, param)


async def test_unknown_paths_and_methods_are_refused_in_the_same_shape(admin: Admin) -> None:
    assert error(await admin.client.get(f"{API}/nothing", headers=OWNER))["code"] == "unknown_url"
    reply = await admin.client.put(f"{API}/backends", headers=OWNER)
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")


@pytest.mark.req("R55")
async def test_a_repeated_post_is_answered_again_and_done_once(admin: Admin) -> None:
    headers = {**JSON, "idempotency-key": "one"}
    first = await admin.client.post(f"{API}/backends", content=body(), headers=headers)
    again = await admin.client.post(f"{API}/backends", content=body(), headers=headers)
    assert (first.status_code, again.status_code, again.headers["idempotency-replayed"]) == (201, 201, "true")
    assert first.json() == again.json()
    assert first.headers["etag"] == again.headers["etag"]
    other = await admin.client.post(f"{API}/backends", content=body(id="y"), headers=headers)
    assert (other.status_code, error(other)["param"]) == (422, "idempotency-key")
    without = await admin.client.post(f"{API}/backends", content=body(), headers=JSON)
    assert without.status_code == 409
    admin.wall.now += 86_401
    late = await admin.client.post(f"{API}/backends", content=body(), headers=headers)
    assert late.status_code == 409, "kept for a day"
    assert await admin.actions() == ["backend.register"]
    for bad in ("", "\x7f", "k" * 256):
        reply = await admin.client.post(f"{API}/backends", content=body(), headers={**JSON, "idempotency-key": bad})
        assert (reply.status_code, error(reply)["param"]) == (400, "idempotency-key")


@pytest.mark.req("R36")
@pytest.mark.req("R55")
async def test_a_database_that_is_away_is_said_and_changes_nothing(admin: Admin) -> None:
    async with admin.engine.begin() as connection:
        await connection.exec_driver_sql("DROP TABLE audit_head")
    for reply in (
        await admin.client.post(f"{API}/backends", content=body(), headers=JSON),
        await admin.client.get(f"{API}/audit/verification", headers=OWNER),
    ):
        assert (reply.status_code, error(reply)["code"], reply.headers["retry-after"]) == (503, "store_unavailable", "5")
        assert "nothing was changed" in error(reply)["message"]


NUL = "%00"
CURSOR_WITH_NUL = base64.urlsafe_b64encode(b'"a\\u0000"').decode().rstrip("=")
"""What Postgres would refuse, and everybody would take for a database that is away."""


@pytest.mark.parametrize(
    ("path", "param"),
    [
        (f"/tenants/a{NUL}", "tenant"),
        (f"/tenants/{NUL}/projects", "tenant"),
        (f"/tenants/acme/projects/{NUL}", "project"),
        (f"/tenants/acme/keys/{NUL}", "key_id"),
        (f"/organisations/{NUL}", "organisation"),
        (f"/prices/{NUL}", "price_id"),
        (f"/limits/tenant:{NUL}:tokens:day", "limit_id"),
        (f"/prices?model={NUL}", "model"),
        (f"/usage?tenant={NUL}", "tenant"),
        (f"/usage?by=day&user={NUL}", "user"),
        (f"/limits/state?name={NUL}", "name"),
        (f"/limits/state?name=acme&user={NUL}", "user"),
        *(
            (f"/{where}?cursor={CURSOR_WITH_NUL}", "cursor")
            for where in ("tenants", "organisations", "limits", "prices", "tenants/acme/keys")
        ),
        ("/usage?by=model&cursor=WyJcdTAwMDAiXQ", "cursor"),
        ("/rollouts?closed=true&cursor=WzEuMCwiXHUwMDAwIl0", "cursor"),
        (f"/rollouts/{NUL}", "rollout"),
        (f"/audit?cursor={base64.urlsafe_b64encode(str(2**63).encode()).decode().rstrip('=')}", "cursor"),
        ("/audit?cursor=LTE", "cursor"),
    ],
)
async def test_text_that_no_database_takes_is_the_callers_mistake_and_named(admin: Admin, path: str, param: str) -> None:
    reply = await admin.client.get(API + path, headers=OWNER)
    assert (reply.status_code, error(reply)["param"]) == (400, param), reply.text


async def test_a_nul_in_a_body_is_named_and_the_text_that_looks_like_one_is_taken(admin: Admin) -> None:
    def post(label: str) -> Any:
        return admin.client.post(f"{API}/tenants", content=b'{"name":"acme","rights":{"models":["%b"]}}' % label.encode(), headers=JSON)

    reply = await post("a\\u0000b")
    assert (reply.status_code, error(reply)["param"]) == (400, "rights.models.0")
    assert (await post("a\\\\u0000b")).status_code == 201


async def test_a_tenant_has_room_for_so_many_keys_and_projects(tmp_path: Path) -> None:
    async with admin_port(tmp_path, bounds=DirectoryBounds(keys=2, projects=2)) as admin:
        await admin.client.post(f"{API}/tenants", json={"name": "acme"}, headers=OWNER)
        keys, projects = f"{API}/tenants/acme/keys", f"{API}/tenants/acme/projects"
        made = [await admin.client.post(keys, json={}, headers=bearer("tenant-admin")) for _ in range(3)]
        assert [one.status_code for one in made] == [201, 201, 409]
        assert (error(made[2])["code"], "tenants.max_keys" in error(made[2])["message"]) == ("too_many", True)
        replies = [await admin.client.post(projects, json={"name": name}, headers=bearer("tenant-admin")) for name in ("one", "two")]
        assert [one.status_code for one in replies] == [201, 409]
        assert "tenants.max_projects" in error(replies[1])["message"]
        revoked = await admin.client.post(f"{keys}/{made[0].json()['id']}/revoke", headers=OWNER)
        assert (revoked.status_code, (await admin.client.post(keys, json={}, headers=OWNER)).status_code) == (200, 201)


async def test_keys_of_one_tenant_share_what_is_remembered_for_it(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_journal, "MAX_REMEMBERED_OF_ONE", 2)
    await admin.client.post(f"{API}/tenants", json={"name": "acme"}, headers=OWNER)

    async def made(headers: dict[str, str], n: int) -> httpx.Response:
        return await admin.client.post(
            f"{API}/tenants/acme/projects", json={"name": f"p{n}"}, headers={**headers, "idempotency-key": f"some {n}"}
        )

    assert [(await made(bearer("tenant-admin"), n)).status_code for n in range(2)] == [201, 201]
    full = await made(bearer("tenant-admin"), 2)
    assert (full.status_code, error(full)["code"], error(full)["param"]) == (409, "idempotency_full", "idempotency-key")
    assert "tenant acme has used 2 idempotency keys" in error(full)["message"]
    assert (await made(bearer("tenant-admin"), 1)).headers["idempotency-replayed"] == "true"
    assert (await made(OWNER, 3)).status_code == 201, "others are not held up"


async def test_the_document_describes_every_route_and_needs_a_caller(admin: Admin) -> None:
    document = (await admin.client.get(f"{API}/openapi.json", headers=bearer("billing"))).json()
    assert document["servers"] == [{"url": API}]
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(method, path.replace(":path}", "}")) for method, path in ROLE_TABLE}
    assert "http" not in json.dumps(document["paths"]).replace("http(s)://", "").replace("HTTP", ""), "nothing is loaded from elsewhere"
    for methods in document["paths"].values():
        for method in methods.values():
            assert "HTTPValidationError" not in json.dumps(method)
