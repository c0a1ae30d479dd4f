"""Reading the policy folder over the API: what workers agree on, what they refuse, and who may ask."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.admin.call import PolicyFiles
from gateway.admin.routes.policies import MAX_SHOWN_CHARS
from gateway.process.snapshots import PolicyState, WorkerSnapshot
from tests.admin_harness import API, OWNER, POLICY, Admin, Processes, Reloads, admin_port, bearer

RELOAD = f"{API}/policies/reload"


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as made:
        yield made


def workers(admin: Admin) -> Reloads:
    found = admin.parts.reloading
    assert isinstance(found, Reloads)
    return found


async def test_what_every_worker_has_in_force_is_told(admin: Admin) -> None:
    reply = await admin.client.post(RELOAD, headers=bearer("operator"))
    assert (reply.status_code, reply.json()) == (200, {"digest": "d1", "workers": 2, "warnings": []})


async def test_what_is_active_and_hardly_meant_is_told(admin: Admin) -> None:
    warning = "policies/a.yaml:1:9: tenant: the policy of tenant a has no model"
    workers(admin).states = [PolicyState("d1", 7.0, warnings=(warning,))]
    reply = await admin.client.post(RELOAD, headers=bearer("operator"))
    assert (reply.status_code, reply.json()["warnings"]) == (200, [warning])


async def test_mistakes_are_told_and_that_nothing_changed(admin: Admin) -> None:
    workers(admin).states[1] = PolicyState("d1", 7.0, ("policies/a.yaml:3:1: modls: is no known key",), 1)
    reply = await admin.client.post(RELOAD, headers=bearer("operator"))
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (409, "policies_refused")
    assert "1 problem; the policies before (d1) stay in force" in error["message"]
    assert "policies/a.yaml:3:1" in error["message"]


async def test_workers_that_read_different_files_and_none_at_all(admin: Admin) -> None:
    workers(admin).states[1] = PolicyState("d2", 7.0)
    reply = await admin.client.post(RELOAD, headers=bearer("operator"))
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "policies_differ")
    workers(admin).states.clear()
    assert (await admin.client.post(RELOAD, headers=bearer("operator"))).status_code == 503


async def test_only_those_who_run_the_gateway_may_ask(admin: Admin) -> None:
    for role, status in (("tenant-admin", 403), ("auditor", 403), ("none", 401)):
        assert (await admin.client.post(RELOAD, headers=bearer(role))).status_code == status


# --- policies of the database ---------------------------------------------------------------------------------------------

POLICIES = f"{API}/policies"
FIRST = {"all.yaml": 'tenant: "*"\nmodels:\n  - {name: m, pool: chat}\n'}
SECOND = {**FIRST, "acme.yaml": "tenant: acme\nexpose_headers: true\n"}


@pytest.fixture
async def stored(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path, stored=True) as made:
        yield made


async def applied(admin: Admin, files: dict[str, str], **more: object) -> dict[str, Any]:
    reply = await admin.client.post(POLICIES, json={"files": files, **more}, headers=bearer("admin"))
    assert reply.status_code == 201, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def test_versions_are_set_shown_listed_and_gone_back_to(stored: Admin) -> None:
    assert (await stored.client.get(POLICIES, headers=bearer("auditor"))).status_code == 404
    first = await applied(stored, FIRST, note="begun")
    second = await applied(stored, SECOND, after=1)
    assert (first["version"], second["version"], second["author"]) == (1, 2, "key admi@acme")
    newest = (await stored.client.get(POLICIES, headers=bearer("auditor"))).json()
    assert (newest["version"], newest["files"]) == (2, SECOND)
    back = await stored.client.post(f"{POLICIES}/rollback", json={"version": 1}, headers=bearer("admin"))
    assert (back.status_code, back.json()["version"], back.json()["digest"]) == (201, 3, first["digest"])
    page = (await stored.client.get(f"{POLICIES}/versions?limit=2", headers=bearer("auditor"))).json()
    assert [one["note"] for one in page["items"]] == ["back to version 1", ""]
    rest = (await stored.client.get(f"{POLICIES}/versions?cursor={page['next_cursor']}", headers=bearer("auditor"))).json()
    assert [one["note"] for one in rest["items"]] == ["begun"]
    old = (await stored.client.get(f"{POLICIES}/versions/2", headers=bearer("auditor"))).json()
    assert old["files"] == SECOND
    assert await stored.actions() == ["policy.apply", "policy.apply", "policy.rollback"]


async def test_files_with_mistakes_change_nothing_and_each_is_named(stored: Admin) -> None:
    await applied(stored, FIRST)
    bad = {"all.yaml": 'tenant: "*"\nmodls: []\n'}
    reply = await stored.client.post(POLICIES, json={"files": bad}, headers=bearer("admin"))
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, "policies_refused", "files")
    assert "all.yaml:2:1: modls" in error["message"]
    assert (await stored.client.get(POLICIES, headers=bearer("auditor"))).json()["version"] == 1


async def test_who_looked_at_an_older_version_is_told(stored: Admin) -> None:
    await applied(stored, FIRST)
    reply = await stored.client.post(POLICIES, json={"files": SECOND, "after": 0}, headers=bearer("admin"))
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "changed")
    gone = await stored.client.post(f"{POLICIES}/rollback", json={"version": 9}, headers=bearer("admin"))
    assert (gone.status_code, gone.json()["error"]["param"]) == (404, "version")


async def test_a_note_is_one_line_of_text(stored: Admin) -> None:
    reply = await stored.client.post(POLICIES, json={"files": FIRST, "note": "why\x1b[2Jnot"}, headers=bearer("admin"))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "note")


@pytest.mark.parametrize("role", ["operator", "auditor", "billing", "tenant-admin"])
async def test_only_admins_set_policies(stored: Admin, role: str) -> None:
    for path, body in ((POLICIES, {"files": FIRST}), (f"{POLICIES}/rollback", {"version": 1})):
        assert (await stored.client.post(path, json=body, headers=bearer(role))).status_code == 403


async def test_policies_that_are_files_are_not_set_here(admin: Admin) -> None:
    for method, path, body in (
        ("POST", POLICIES, {"files": FIRST}),
        ("POST", f"{POLICIES}/rollback", {"version": 1}),
        ("GET", POLICIES, None),
        ("GET", f"{POLICIES}/versions", None),
    ):
        reply = await admin.client.request(method, path, json=body, headers=bearer("owner"))
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "policies_are_files")


async def test_the_active_policies_and_where_they_come_from_are_shown(admin: Admin) -> None:
    shown = (await admin.client.get(f"{API}/policies/active", headers=bearer("auditor"))).json()
    assert (shown["source"], shown["folder"], shown["version"], shown["digests"]) == ("files", "/policies", None, {"d1": 1})
    assert shown["files"] == {"default.yaml": POLICY}
    assert (shown["left_out"], shown["unreadable"], shown["problems"]) == (0, "", [])


async def test_files_that_are_refused_are_told_beside_what_is_active(admin: Admin) -> None:
    refused = PolicyState("d1", 7.0, ("policies/a.yaml:3:1: modls: is no known key",), 1)
    gateway = admin.parts.gateway
    assert isinstance(gateway, Processes)
    gateway.snapshots = [WorkerSnapshot(index=0, pid=1, state="ready", started_at=0.0, policies=refused)]
    shown = (await admin.client.get(f"{API}/policies/active", headers=OWNER)).json()
    assert (shown["problems"], shown["problem_count"]) == (list(refused.problems), 1)


async def test_a_folder_too_large_for_an_answer_is_shown_in_part_and_one_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    async with admin_port(tmp_path) as admin:
        texts = {name: "#" * (MAX_SHOWN_CHARS // 2) for name in ("a.yaml", "b.yaml", "c.yaml")}
        object.__setattr__(admin.parts, "policy_files", PolicyFiles("/p", lambda: texts, lambda _files: None))  # type: ignore[arg-type,return-value]
        shown = (await admin.client.get(f"{API}/policies/active", headers=OWNER)).json()
        assert (list(shown["files"]), shown["left_out"]) == (["a.yaml", "b.yaml"], 1)

        def away() -> dict[str, str]:
            raise FileNotFoundError("/p is not there")

        object.__setattr__(admin.parts, "policy_files", PolicyFiles("/p", away, lambda _files: None))  # type: ignore[arg-type,return-value]
        shown = (await admin.client.get(f"{API}/policies/active", headers=OWNER)).json()
        assert (shown["files"], shown["unreadable"]) == ({}, "/p is not there")


async def test_a_check_tells_what_would_change_for_whom_and_changes_nothing(admin: Admin) -> None:
    files = {"default.yaml": POLICY.replace("sim", "other")}
    found = (await admin.client.post(f"{API}/policies/check", json={"files": files}, headers=bearer("operator"))).json()
    assert (found["ok"], found["problems"], found["change_count"]) == (True, [], 2)
    assert found["changes"] == ["everyone else: model other -> chat added", "everyone else: model sim removed"]
    same = (await admin.client.post(f"{API}/policies/check", json={"files": {"default.yaml": POLICY}}, headers=OWNER)).json()
    assert (same["ok"], same["changes"]) == (True, [])
    assert await admin.actions() == []


async def test_a_check_names_every_mistake_with_its_place(admin: Admin) -> None:
    files = {"default.yaml": POLICY.replace("chat", "cat")}
    found = (await admin.client.post(f"{API}/policies/check", json={"files": files}, headers=OWNER)).json()
    assert (found["ok"], found["digest"], found["changes"]) == (False, "", [])
    assert found["problems"] == ["default.yaml:2:22: models[0].pool: there is no pool 'cat'; did you mean 'chat'?"]
    assert (await admin.client.post(f"{API}/policies/check", json={"files": files}, headers=bearer("auditor"))).status_code == 403
