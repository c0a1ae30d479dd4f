"""R14: every route x role x own or foreign tenant, against a real port: allowed exactly where the table says so."""

import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.admin.access import MAY_GRANT, ROLE_TABLE, may_grant
from gateway.admin.routes.requests import MOST_STREAMS
from gateway.request_log.collector import logged_request
from gateway.request_log.ring import RingLine
from routing.rates import Rates
from tenancy.rights import Role
from tests.admin_harness import API, OWNER, Admin, admin_port, bearer, kept_answer
from tests.unit.gateway.fleet.test_registry import body

ROLES = [*(role.value for role in Role), "none"]
TENANTS = ("acme", "rivals")
STALE = {"if-match": '"not-what-is-there"'}
OF_A_NAME = {"/limits/state", "/limits/forecast"}
"""Routes whose query names the tenant."""
SHARED = {
    "/usage",
    "/feedback",
    "/requests",
    "/requests/live",
    "/cache",
    "/guards",
    "/openapi.json",
    "/self",
    "/tenants",
    "/limits",
} | OF_A_NAME
"""Routes open to tenant-admins whose path names no tenant."""


class World:
    """Two tenants with everything in them."""

    def __init__(self, admin: Admin) -> None:
        self.admin = admin
        self.keys: dict[str, tuple[str, str]] = {}
        self.price = ""
        self.numbers = itertools.count()

    async def build(self) -> None:
        make = self.make
        await make("/organisations", {"name": "corp"})
        for tenant in TENANTS:
            await make("/tenants", {"name": tenant, "organisation": "corp"})
            await make(f"/tenants/{tenant}/projects", {"name": "web"})
            made = [await make(f"/tenants/{tenant}/keys", {}) for _ in range(2)]
            self.keys[tenant] = (made[0]["id"], made[1]["id"])
            for limit in (f"tenant:{tenant}", f"project:{tenant}/web"):
                reply = await self.admin.client.put(f"{API}/limits/{limit}:requests:minute", json={"amount": 10}, headers=OWNER)
                assert reply.status_code == 201, reply.text
        await make("/rollouts", {"name": "paused", "baseline": "chat", "canary": "chat-v2"})
        self.price = (await make("/prices", {"model": "m"}))["id"]
        await make("/model-revisions", {"model": "m", "revision": "1", "weights": "/m", "digest": f"sha256:{'0' * 64}"})
        log = self.admin.parts.requests
        assert log is not None
        log.streams = MOST_STREAMS  # a stream that is let in would not end
        lines = [{"at": "2026-09-21T14:13:20Z", "request_id": f"of-{tenant}", "tenant": tenant} for tenant in TENANTS]
        bare = {"outcome": "ok", "status": 200, "duration_us": 1, "overhead_us": 1}
        await log.collector.store.add([logged_request(RingLine(json.dumps(line | bare).encode()), 10_000) for line in lines], [])

    async def make(self, path: str, value: Any) -> Any:
        reply = await self.admin.client.post(API + path, json=value, headers=OWNER)
        assert reply.status_code == 201, reply.text
        return reply.json()

    async def ask(self, method: str, template: str, headers: dict[str, str], tenant: str) -> httpx.Response:
        """The request of a row, about things of one tenant. Changes carry an old ETag, so that nothing is destroyed."""
        rotated, revoked = self.keys[tenant]
        path = template.replace(":path}", "}").format_map(
            {
                "tenant": tenant,
                "organisation": "corp",
                "project": "web",
                "key_id": revoked if template.endswith("revoke") else rotated,
                "limit_id": f"project:{tenant}/web:requests:minute",
                "price_id": self.price,
                "backend_id": "s",
                "pool": "chat",
                "name": "sql",
                "request_id": "req-1" if template.endswith("explanation") else f"of-{tenant}",
                "rollout": "paused",
                "version": 1,
                "key": kept_answer(tenant).key.hex(),
                "reference": "m@1",
                "board": "tidegate-overview",
                "panel": "requests",
            }
        )
        if path.startswith("/cache/entries"):
            path += f"?tenant={tenant}"
        if path in ("/guards/events", "/guards/shadow"):
            path += f"?tenant={tenant}"
        if path in OF_A_NAME:
            path += f"?name={tenant}"
        number = next(self.numbers)
        value = {
            "/organisations": {"name": f"o{number}"},
            "/tenants": {"name": f"t{number}"},
            "/tenants/{tenant}/projects": {"name": f"p{number}"},
            "/tenants/{tenant}/keys": {},
            "/tenants/{tenant}/keys/{key_id}/rotate": {},
            "/limits/{limit_id:path}/raise": {"to": 20 + number, "until_unix": 2_000_000_000},
            "/prices": {"model": f"m{number}"},
            "/model-revisions": {"model": "m", "revision": f"r{number}", "weights": "/m", "digest": f"sha256:{'0' * 64}"},
            "/model-revisions/{reference:path}/profile": {
                "engine": "vllm",
                "served": "m",
                "measured_unix": 1.0,
                "rates": dict.fromkeys(Rates._fields, 1.0),
            },
            "/adapters": {"pool": "chat", "name": "bot", "digest": "0" * 64, "path": f"{self.admin.run_dir}/adapters/bot"},
            "/cache/purge": {"tenant": tenant},
            "/guards/test": {"tenant": tenant, "input": "hello"},
            "/rollouts": {"name": f"r{number}", "baseline": "chat", "canary": "bare"},
            "/rollouts/{rollout}/abort": {"reason": ""},
            "/gateway/reload": {},
            "/policies": {"files": {"a.yaml": ""}},
            "/policies/check": {"files": {"a.yaml": ""}},
            "/policies/rollback": {"version": 1},
            "/simulations": {"fleet": {}},
            "/requests/explanation": {"tenant": "acme", "request": {"model": "sim"}},
        }.get(template if method == "POST" else "")
        if method == "PUT":
            value = {"amount": 5} if "limit" in template else {"loras": None} if template.endswith("adapters") else {}
        if (method, template) == ("POST", "/backends"):
            return await self.admin.client.post(
                API + path, content=body(id=f"b{number}"), headers={**headers, "content-type": "application/json"}
            )
        sent = {**headers, **(STALE if method in ("PUT", "DELETE") else {})}
        return await self.admin.client.request(method, API + path, json=value, headers=sent)


ALLOWED = {
    ("POST", "/tenants/{tenant}/keys/{key_id}/rotate"): 200,
    ("POST", "/tenants/{tenant}/keys/{key_id}/revoke"): 200,
    ("POST", "/keys/{key_id}/revoke"): 200,
    ("POST", "/limits/{limit_id:path}/raise"): 200,
    ("POST", "/model-revisions/{reference:path}/retire"): 200,
    ("POST", "/model-revisions/{reference:path}/profile"): 200,
    ("POST", "/requests/explanation"): 200,
    ("GET", "/requests/live"): 503,  # as so many are open
    ("POST", "/policies/reload"): 200,
    ("POST", "/gateway/reload"): 202,
    ("POST", "/cache/purge"): 202,
    ("POST", "/guards/test"): 200,
    ("POST", "/gateway/stop"): 202,
    ("POST", "/rollouts"): 400,
    ("POST", "/rollouts/{rollout}/pause"): {200, 409},
    ("POST", "/rollouts/{rollout}/resume"): {200, 409},
    ("POST", "/rollouts/{rollout}/promote"): {200, 409},
    ("POST", "/rollouts/{rollout}/abort"): 400,
    ("POST", "/rollouts/{rollout}/close"): {200, 409},
    ("POST", "/policies/check"): 200,
    ("POST", "/simulations"): 400,
    ("POST", "/simulations/cancel"): 409,
    ("GET", "/live"): 503,  # this port belongs to no gateway
    ("GET", "/dashboards/{board}/choices"): 503,  # no Prometheus is named
    ("GET", "/dashboards/{board}/panels/{panel}"): 503,
    ("GET", "/scaling/{pool}/hours"): 404,  # no pool has forecasts
    ("GET", "/policies"): 409,
    ("POST", "/policies"): 409,
    ("POST", "/policies/rollback"): 409,
    ("GET", "/policies/versions"): 409,
    ("GET", "/policies/versions/{version}"): 409,  # as the policies of this gateway are files
    ("POST", "/backends/{backend_id}/drain"): 202,
    ("POST", "/backends/{backend_id}/resume"): {200, 409},
    ("DELETE", "/backends/{backend_id}"): 409,
    ("POST", "/adapters"): {201, 409},
    ("DELETE", "/adapters/{pool}/{name}"): 409,
}
"""What an allowed request of `ask` is answered, where it is not 200 for GET, 201 for POST and 412 for what carries an old ETag."""


def expected(method: str, template: str) -> set[int]:
    found = ALLOWED.get((method, template), {"GET": 200, "POST": 201, "PUT": 412, "DELETE": 412}[method])
    return found if isinstance(found, set) else {found}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with admin_port(tmp_path) as admin:
        made = World(admin)
        await made.build()
        yield made


@pytest.mark.slow
@pytest.mark.req("R14")
async def test_every_route_answers_every_role_as_the_table_says(world: World, record_property: Any) -> None:
    cases = 0
    for (method, template), roles in ROLE_TABLE.items():
        for role, tenant in itertools.product(ROLES, TENANTS):
            reply = await world.ask(method, template, bearer(role, "acme"), tenant)
            allowed = role != "none" and Role(role) in roles
            foreign = role == "tenant-admin" and tenant == "rivals" and (template not in SHARED or template in OF_A_NAME)
            wanted = {401} if role == "none" else {403} if not allowed else {404} if foreign else expected(method, template)
            assert reply.status_code in wanted, (method, template, role, tenant, reply.status_code, reply.text)
            if role == "tenant-admin" and allowed:
                assert "rivals" not in reply.text, (template, reply.text)
            cases += 1
    assert cases == len(ROLE_TABLE) * len(ROLES) * 2
    record_property("figure", f"{cases} of {cases} route x role x tenant as the table says")


@pytest.mark.req("R14")
async def test_what_belongs_to_another_tenant_looks_like_what_does_not_exist(world: World) -> None:
    mine = bearer("tenant-admin", "acme")
    foreign_key = world.keys["rivals"][0]
    for foreign, missing in (
        ("/tenants/rivals", "/tenants/nobody"),
        ("/tenants/rivals/projects", "/tenants/nobody/projects"),
        (f"/tenants/rivals/keys/{foreign_key}", "/tenants/acme/keys/0000000000"),
        (f"/tenants/acme/keys/{foreign_key}", "/tenants/acme/keys/0000000000"),
        ("/limits/tenant:rivals:requests:minute", "/limits/tenant:nobody:requests:minute"),
        ("/limits/organisation:corp:requests:minute", "/limits/organisation:none:requests:minute"),
        ("/limits/state?name=rivals", "/limits/state?name=nobody"),
        ("/limits/forecast?name=rivals", "/limits/forecast?name=nobody"),
        ("/limits?tenant=rivals", "/limits?tenant=nobody"),
        ("/cache/entries?tenant=rivals", "/cache/entries?tenant=nobody"),
        (f"/cache/entries/{'6b' * 32}?tenant=rivals", f"/cache/entries/{'6b' * 32}?tenant=nobody"),
    ):
        one, two = [await world.admin.client.get(API + path, headers=mine) for path in (foreign, missing)]
        assert (one.status_code, one.content) == (404, two.content)
        assert two.status_code == 404


@pytest.mark.req("R14")
async def test_nobody_gives_away_or_takes_over_more_than_he_has(world: World) -> None:
    client = world.admin.client
    for holder, wanted in itertools.product(("owner", "admin", "tenant-admin"), Role):
        reply = await client.post(f"{API}/tenants/acme/keys", json={"roles": [wanted.value]}, headers=bearer(holder))
        assert reply.status_code == (201 if wanted in MAY_GRANT[Role(holder)] else 403), (holder, wanted)
    owners = (await client.post(f"{API}/tenants/acme/keys", json={"roles": ["owner"]}, headers=OWNER)).json()["id"]
    for holder in ("admin", "tenant-admin"):
        path = f"{API}/tenants/acme/keys/{owners}"
        for reply in (
            await client.post(f"{path}/rotate", json={}, headers=bearer(holder)),
            await client.post(f"{path}/revoke", headers=bearer(holder)),
            await client.put(path, json={}, headers={**bearer(holder), "if-match": "*"}),
        ):
            assert (reply.status_code, reply.json()["error"]["param"]) == (403, "roles")
    assert not may_grant([], [Role.AUDITOR])
    assert may_grant([], [])


INSIDE = {"project": "acme/web", "key": "", "user of a project": "acme/web"}
BOUNDS = {"tenant": "acme", "user": "acme"}
OUTSIDE = {"organisation": "corp", "model": "m", "global": ""}


@pytest.mark.req("R14")
async def test_what_bounds_a_tenant_is_not_changed_by_its_admin_and_what_lies_inside_is(world: World) -> None:
    client, mine, theirs = world.admin.client, bearer("tenant-admin"), bearer("tenant-admin", "rivals")
    scopes = {**INSIDE, **BOUNDS, **OUTSIDE, "key": world.keys["acme"][0]}
    for what, name in scopes.items():
        path = f"{API}/limits/{what.partition(' ')[0]}:{name}:tokens:day"
        made = await client.put(path, json={"amount": 100}, headers=OWNER)
        assert made.status_code == 201, made.text
        before = (await client.get(path, headers=OWNER)).json()
        for who, wanted in ((mine, 403 if what in BOUNDS else 404), (theirs, 404)):
            if who is mine and what in INSIDE:
                continue
            refused = [
                await client.put(path, json={"amount": 10**6}, headers={**who, "if-match": "*"}),
                await client.post(f"{path}/raise", json={"to": 10**6, "until_unix": 1_900_000_000}, headers=who),
                await client.delete(path, headers={**who, "if-match": "*"}),
            ]
            assert [reply.status_code for reply in refused] == [wanted] * 3, (what, [reply.text for reply in refused])
            assert (await client.get(path, headers=OWNER)).json() == before
        if what in INSIDE:
            changed = await client.put(path, json={"amount": 50}, headers={**mine, "if-match": "*"})
            raised = await client.post(f"{path}/raise", json={"to": 60, "until_unix": 1_900_000_000}, headers=mine)
            gone = await client.delete(path, headers={**mine, "if-match": "*"})
            assert [reply.status_code for reply in (changed, raised, gone)] == [200, 200, 204], (what, changed.text)
            assert (await client.put(path, json={"amount": 7}, headers=mine)).status_code == 201
        else:
            await client.delete(path, headers={**OWNER, "if-match": "*"})
            assert (await client.put(path, json={"amount": 7}, headers=mine)).status_code == (403 if what in BOUNDS else 404)


@pytest.mark.req("R14")
async def test_a_tenants_own_rights_are_not_set_by_its_admin(world: World) -> None:
    client, mine = world.admin.client, {**bearer("tenant-admin"), "if-match": "*"}
    for path, value in (
        ("/tenants/acme", {"rights": {"models": ["everything"]}, "organisation": "default"}),
        ("/tenants/acme/adapters", {"loras": ["sql"]}),
        ("/organisations/corp", {"rights": {}}),
    ):
        assert (await client.put(API + path, json=value, headers=mine)).status_code == 403
    for path in ("/tenants/acme/projects/web", f"/tenants/acme/keys/{world.keys['acme'][0]}"):
        assert (await client.put(API + path, json={"rights": {"models": ["m"]}}, headers=mine)).status_code == 200


def test_the_page_lists_every_route_with_its_roles() -> None:
    page = (Path(__file__).parents[4] / "docs" / "reference" / "admin-api.md").read_text()
    for (method, path), roles in ROLE_TABLE.items():
        who = "every role" if roles == frozenset(Role) else ", ".join(role.value for role in Role if role in roles)
        assert f"| {method} | `{path.replace(':path}', '}')}` | {who} |" in page


async def test_networks_of_a_key_are_kept_and_checked(world: World) -> None:
    keys = f"{API}/tenants/acme/keys"
    made = await world.admin.client.post(keys, json={"networks": ["203.0.113.0/24", "10.0.0.1"]}, headers=OWNER)
    assert (made.status_code, made.json()["networks"]) == (201, ["10.0.0.1/32", "203.0.113.0/24"])
    path = f"{keys}/{made.json()['id']}"
    wrong = await world.admin.client.put(path, json={"networks": ["10.0.0.1/8"]}, headers={**OWNER, "if-match": "*"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "networks")
    assert "10.0.0.1/8" in wrong.json()["error"]["message"]
    none = await world.admin.client.put(path, json={"networks": []}, headers={**OWNER, "if-match": "*"})
    assert (none.status_code, none.json()["networks"]) == (200, [])


@pytest.mark.req("R14")
async def test_tags_that_operators_rules_may_read_are_not_set_by_a_tenants_admin(world: World) -> None:
    client, mine = world.admin.client, bearer("tenant-admin")
    keys = f"{API}/tenants/acme/keys"
    refused = await client.post(keys, json={"tags": {"tier": "gold"}}, headers=mine)
    assert (refused.status_code, refused.json()["error"]["param"]) == (403, "tags")
    made = await client.post(keys, json={"tags": {"own.team": "search"}}, headers=mine)
    assert (made.status_code, made.json()["tags"]) == (201, {"own.team": "search"})
    path = f"{keys}/{made.json()['id']}"
    gold = {"tags": {"tier": "gold"}}
    assert (await client.put(path, json=gold, headers={**mine, "if-match": "*"})).status_code == 403
    assert (await client.put(path, json=gold, headers={**OWNER, "if-match": "*"})).status_code == 200
    for tags in ({}, {"tier": "silver"}, {"tier": "gold", "vip": "1"}):  # what an owner set is neither removed nor changed
        assert (await client.put(path, json={"tags": tags}, headers={**mine, "if-match": "*"})).status_code == 403, tags
    kept = await client.put(path, json={"label": "ours", "tags": {"tier": "gold", "own.a": "b"}}, headers={**mine, "if-match": "*"})
    assert (kept.status_code, kept.json()["tags"]) == (200, {"tier": "gold", "own.a": "b"})


@pytest.mark.req("R14")
async def test_a_tenants_admin_locks_no_operators_key_out_by_its_project(world: World) -> None:
    client, mine = world.admin.client, {**bearer("tenant-admin"), "if-match": "*"}
    project = f"{API}/tenants/acme/projects/web"
    operators = (await client.post(f"{API}/tenants/acme/keys", json={"project": "web", "roles": ["operator"]}, headers=OWNER)).json()["id"]
    refused = await client.put(project, json={"disabled": True}, headers=mine)
    assert (refused.status_code, refused.json()["error"]["param"]) == (403, "disabled")
    assert operators in refused.json()["error"]["message"]
    assert (await client.put(project, json={"disabled": False, "label": "the web"}, headers=mine)).status_code == 200
    assert (await client.put(project, json={"disabled": True}, headers={**OWNER, "if-match": "*"})).status_code == 200
    # an admin's decision may be kept by the tenant's admin, who changes something else
    assert (await client.put(project, json={"disabled": True, "label": "web"}, headers=mine)).status_code == 200
    assert (await client.put(project, json={"disabled": False}, headers=mine)).status_code == 200
    assert (await client.post(f"{API}/tenants/acme/keys/{operators}/revoke", headers=OWNER)).status_code == 200
    assert (await client.put(project, json={"disabled": True}, headers=mine)).status_code == 200
