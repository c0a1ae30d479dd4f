"""Rollouts over the API: start, see, decide; what is refused, what is written down, what is told."""

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from starlette.routing import Mount

from domain.adapters import RegisteredAdapter
from domain.rollouts import StoredRollout
from gateway.rollouts.keeper import RolloutKeeper
from policies.rollout.state import read, state_text
from tenancy.stores.sql import SqlModelRevisions, SqlRolloutStore
from tests.admin_harness import API, OWNER, Admin, Reloads, admin_port, bearer

ROLLOUTS = f"{API}/rollouts"
DIGEST = "sha256:" + "ab" * 32
DOCUMENT: dict[str, Any] = {"name": "v2", "baseline": "chat", "canary": "chat-v2"}


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as made:
        yield made


async def start(admin: Admin, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    return await admin.client.post(ROLLOUTS, json={**DOCUMENT, **fields}, headers=headers or OWNER)


async def decide(admin: Admin, what: str, name: str = "v2", **body: Any) -> httpx.Response:
    return await admin.client.post(f"{ROLLOUTS}/{name}/{what}", json=body or None, headers=OWNER)


async def in_force(admin: Admin) -> list[StoredRollout]:
    return list(await SqlRolloutStore(admin.engine).in_force())


def error(reply: httpx.Response) -> tuple[int, str, str]:
    found = reply.json()["error"]
    return reply.status_code, found["code"], found["message"]


async def test_what_is_started_is_in_force_shown_written_down_and_told(admin: Admin) -> None:
    reply = await start(admin, bearer("operator"), models=["sim"])
    assert reply.status_code == 201, reply.text
    shown = reply.json()
    assert shown["document"] == {**DOCUMENT, "models": ["sim"]}
    assert (shown["status"], shown["phase"], shown["share"], shown["reason"]) == ("running", "1 %", 0.01, "started")
    (kept,) = await in_force(admin)
    assert (kept.id, kept.name, kept.version) == (shown["id"], "v2", 1)
    assert read(kept).state.entered_at == admin.wall.now
    assert await admin.actions() == ["rollout.start"]
    assert [(one["event"], one["rollout"], one["share"]) for one in admin.told] == [("rollout.start", "v2", 0.01)]
    admin.wall.now += 30
    again = (await admin.client.get(f"{ROLLOUTS}/v2", headers=bearer("auditor"))).json()
    assert again == {**shown, "spent_s": 30.0}
    (listed,) = (await admin.client.get(ROLLOUTS, headers=bearer("billing"))).json()["items"]
    assert listed == {name: value for name, value in again.items() if name != "document"}


async def test_the_same_request_starts_one_rollout_and_tells_once(admin: Admin) -> None:
    headers = {**OWNER, "idempotency-key": "one"}
    first, second = [await start(admin, headers) for _ in range(2)]
    assert (first.json(), second.status_code) == (second.json(), 201)
    assert second.headers["idempotency-replayed"] == "true"
    assert (len(await in_force(admin)), len(admin.told)) == (1, 1)


@pytest.mark.parametrize(
    ("fields", "status", "code", "said"),
    [
        ({"canary": "nowhere"}, 400, "unknown_pool", "there is no pool 'nowhere' in the settings; there are: bare, chat, chat-v2"),
        ({"baseline": "nowhere"}, 400, "unknown_pool", "baseline: "),
        ({"canary": "bare"}, 400, "unknown_adapter", "pool 'bare' lacks adapter 'sql', which pool 'chat' has"),
        ({"canary": "chat"}, 400, "invalid_value", "baseline and canary are the same"),
        ({"of": "prompt", "baseline": "help@1", "canary": "help@3"}, 400, "unknown_prompt", "canary: there is no prompt 'help@3' here"),
        ({"steps": [{"share": 0.5}, {"share": 0.4}]}, 400, "invalid_value", "shares have to grow"),
        ({"weight": 3}, 400, "invalid_value", "weight: is no known field"),
        ({"steps": [{"share": 0.5, "needs": "luck"}, {"share": 1}]}, 400, "invalid_value", "steps.0.needs"),
        ({"margins": {"speed": 0.1}}, 400, "invalid_value", "there is no metric 'speed'"),
    ],
)
async def test_what_cannot_be_started_says_why_and_leaves_nothing(
    admin: Admin, fields: dict[str, Any], status: int, code: str, said: str
) -> None:
    reply = await start(admin, **fields)
    assert error(reply)[:2] == (status, code)
    assert said in error(reply)[2]
    assert (await in_force(admin), await admin.actions(), admin.told) == ([], [], [])


async def test_registered_adapters_count_on_both_sides(admin: Admin) -> None:
    """`tidegate rollout check` cannot know them, and says so in a note."""
    for pool, name in (("chat", "tone"), ("chat-v2", "tone"), ("chat", "legal")):
        async with admin.parts.change() as books:
            await books.adapters.add(RegisteredAdapter(pool, name, "a" * 64, f"/adapters/{name}"), 1.0)
        status, code = (reply := await start(admin)).status_code, reply.json().get("error", {}).get("code")
        if name == "tone" and pool == "chat-v2":
            assert status == 201, reply.text
            assert (await decide(admin, "abort", reason="next")).status_code == 200
        else:
            assert (status, code, f"lacks adapter {name!r}" in error(reply)[2]) == (400, "unknown_adapter", True)


async def test_a_name_or_a_pool_in_force_is_not_taken_twice(admin: Admin) -> None:
    await start(admin)
    for fields, said in (({}, "'v2' is in force already"), ({"name": "other"}, "takes part in rollout 'v2'")):
        status, code, message = error(await start(admin, **fields))
        assert (status, code, said in message) == (409, "already_exists", True)
    assert len(await in_force(admin)) == 1


async def test_decisions_change_what_is_in_force_and_are_written_down(admin: Admin) -> None:
    await start(admin)
    shown = [(await decide(admin, what)).json() for what in ("pause", "resume", "promote", "promote", "promote", "promote")]
    assert [(one["status"], one["share"]) for one in shown] == [
        ("paused", 0.01),
        ("running", 0.01),
        ("running", 0.05),
        ("running", 0.25),
        ("running", 0.5),
        ("done", 1.0),
    ]
    assert (await in_force(admin))[0].open
    closed = (await decide(admin, "close")).json()
    assert (closed["status"], closed["share"], closed["open"]) == ("closed", 0.0, False)
    assert await in_force(admin) == []
    assert await admin.actions() == ["rollout.start", "rollout.pause", "rollout.resume", *["rollout.promote"] * 4, "rollout.close"]
    rows = await admin.journal.page(0, 100)
    assert {row.entry.target for row in rows} == {"rollout/v2"}
    assert [msgspec.json.decode(row.entry.before)["share"] for row in rows[3:7]] == [0.01, 0.05, 0.25, 0.5]
    assert [one["event"] for one in admin.told] == await admin.actions()


async def test_one_that_is_done_is_not_closed_while_policies_lead_to_the_baseline(admin: Admin) -> None:
    workers = admin.parts.reloading
    assert isinstance(workers, Reloads)
    workers.uses = ["tenant acme, model chat"]
    await start(admin)
    assert error(await decide(admin, "close"))[1] == "not_now"  # it still runs, whatever policies say
    for _ in range(4):
        await decide(admin, "promote")
    status, code, said = error(await decide(admin, "close"))
    assert (status, code) == (409, "policies_lead_to_baseline")
    assert "lead to 'chat' (tenant acme, model chat)" in said
    assert "tidegate rollout close v2 --back" in said
    assert [one.open for one in await in_force(admin)] == [True]
    workers.uses = None
    assert error(await decide(admin, "close"))[:2] == (503, "no_worker")
    workers.uses = []
    assert (await decide(admin, "close")).json()["status"] == "closed"
    assert "is closed; there is nothing left to close" in error(await decide(admin, "close"))[2]


async def test_one_that_is_done_goes_back_on_purpose(admin: Admin) -> None:
    workers = admin.parts.reloading
    assert isinstance(workers, Reloads)
    workers.uses = ["every other tenant, model chat"]
    await start(admin)
    for _ in range(4):
        await decide(admin, "promote")
    assert (await decide(admin, "close?back=true")).json()["status"] == "closed"


async def test_an_abortion_needs_a_reason_and_is_final(admin: Admin) -> None:
    await start(admin)
    assert (await decide(admin, "abort")).status_code in (400, 415)
    for bad in ("", "x" * 501, "a\nb"):
        assert error(await decide(admin, "abort", reason=bad))[0] == 400
    assert len(await in_force(admin)) == 1
    shown = (await decide(admin, "abort", reason="wrong weights")).json()
    assert (shown["status"], shown["share"], shown["reason"]) == ("rolled back", 0.0, "aborted: wrong weights")
    assert await in_force(admin) == []
    for what, why in (("pause", "; start another"), ("promote", "; start another"), ("close", ", which ended it; there is nothing left")):
        status, code, said = error(await decide(admin, what))
        assert (status, code) == (409, "not_now")
        assert f"rolled back{why}" in said
    assert (await start(admin)).status_code == 201  # name and pools are free again


@pytest.mark.parametrize(("what", "said"), [("resume", "cannot be resumed"), ("close", "promote it until it is done, or abort it")])
async def test_what_is_not_possible_now_is_refused_in_words(admin: Admin, what: str, said: str) -> None:
    await start(admin)
    status, code, message = error(await decide(admin, what))
    assert (status, code, said in message) == (409, "not_now", True)
    assert await admin.actions() == ["rollout.start"]


async def test_what_there_is_not_is_a_404(admin: Admin) -> None:
    assert (await admin.client.get(f"{ROLLOUTS}/v9", headers=OWNER)).status_code == 404
    for what in ("pause", "resume", "promote", "close"):
        assert (await decide(admin, what, "v9")).status_code == 404
    assert (await decide(admin, "abort", "v9", reason="x")).status_code == 404


async def test_those_that_are_over_are_paged_newest_first(admin: Admin) -> None:
    for _ in range(5):
        await start(admin)
        admin.wall.now += 1
        await decide(admin, "abort", reason="again")
    pages, cursor = [], ""
    while True:
        page = (await admin.client.get(f"{ROLLOUTS}?closed=true&limit=2{cursor}", headers=OWNER)).json()
        pages.append([one["changed_unix"] for one in page["items"]])
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert [len(page) for page in pages] == [2, 2, 1]
    flat = [at for page in pages for at in page]
    assert flat == sorted(flat, reverse=True)
    assert (await admin.client.get(ROLLOUTS, headers=OWNER)).json()["items"] == []


async def test_counts_that_are_written_meanwhile_do_not_hold_a_decision_up(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    await start(admin)
    find, once = SqlRolloutStore.find, []

    async def meanwhile(self: SqlRolloutStore, name: str) -> StoredRollout | None:
        found = await find(self, name)
        if found is not None and not once:  # the keeper of another gateway, between look and write
            once.append(await self.write(found))
        return found

    monkeypatch.setattr(SqlRolloutStore, "find", meanwhile)
    assert (await decide(admin, "pause")).json()["status"] == "paused"
    assert once == [True]
    assert (await in_force(admin))[0].version == 3


async def test_what_a_newer_version_started_is_not_touched(admin: Admin) -> None:
    await start(admin)
    (kept,) = await in_force(admin)
    store = SqlRolloutStore(admin.engine)
    await store.write(msgspec.structs.replace(kept, state='{"stage": 3}'))
    assert error(await decide(admin, "promote"))[:2] == (409, "unreadable")
    assert error(await admin.client.get(f"{ROLLOUTS}/v2", headers=OWNER))[:2] == (409, "unreadable")
    assert (await admin.client.get(ROLLOUTS, headers=OWNER)).json()["items"] == []


async def test_the_keeper_and_operators_write_one_history(admin: Admin) -> None:
    await start(admin, steps=[{"share": 0.5, "max_s": 60.0, "min_s": 0.0}, {"share": 1.0}])
    keeper = RolloutKeeper(SqlRolloutStore(admin.engine), admin.parts.change, admin.wall, admin.wall, admin.told.append)
    for _ in range(2):
        await keeper.look()
        admin.wall.now += 61
    assert await admin.actions() == ["rollout.start", "rollout.rollback"]
    (over,) = (await admin.client.get(f"{ROLLOUTS}?closed=true", headers=OWNER)).json()["items"]
    assert "no decision within 60 s" in over["reason"]
    assert state_text(read((await SqlRolloutStore(admin.engine).closed(None, 1))[0]).state)
    assert (await admin.journal.verify()).broken_at is None


async def test_a_rollout_is_found_by_its_id_also_when_another_has_its_name(admin: Admin) -> None:
    first = (await start(admin)).json()
    await decide(admin, "abort", reason="wrong weights")
    second = (await start(admin)).json()
    found = [(await admin.client.get(f"{ROLLOUTS}/{name}", headers=OWNER)).json() for name in (first["id"], second["id"], "v2")]
    assert [one["id"] for one in found] == [first["id"], second["id"], second["id"]]
    assert [one["open"] for one in found] == [False, True, True]


async def test_pools_that_are_pinned_compare_revisions_that_the_registry_has(admin: Admin) -> None:
    (mount,) = (route for route in admin.app.routes if isinstance(route, Mount))
    mount.app.state.parts = dataclasses.replace(admin.parts, pinned={"tide@v2": {"chat-v2": DIGEST}})  # type: ignore[attr-defined]
    status, code, message = error(await start(admin))
    assert (status, code) == (400, "unknown_revision")
    assert "pool chat-v2 is pinned to tide@v2, which the registry of models lacks" in message
    body = {"model": "tide", "revision": "v2", "weights": "/models/tide", "digest": DIGEST}
    assert (await admin.client.post(f"{API}/model-revisions", json=body, headers=OWNER)).status_code == 201
    assert (await start(admin)).status_code == 201
    assert (await decide(admin, "abort", reason="next")).status_code == 200
    await SqlModelRevisions(admin.engine).retire("tide", "v2", 1.0)
    assert error(await start(admin))[:2] == (409, "retired")


@pytest.mark.parametrize(("pool", "param"), [("chat", "baseline"), ("chat-v2", "canary")])
async def test_a_pool_that_is_pinned_with_another_digest_is_not_compared(admin: Admin, pool: str, param: str) -> None:
    (mount,) = (route for route in admin.app.routes if isinstance(route, Mount))
    other = "sha256:" + "cd" * 32
    mount.app.state.parts = dataclasses.replace(admin.parts, pinned={"tide@v2": {pool: other}})  # type: ignore[attr-defined]
    body = {"model": "tide", "revision": "v2", "weights": "/models/tide", "digest": DIGEST}
    assert (await admin.client.post(f"{API}/model-revisions", json=body, headers=OWNER)).status_code == 201
    refused = (await start(admin)).json()["error"]
    assert (refused["code"], refused["param"]) == ("digest_differs", param)
    assert f"pool {pool} is pinned to tide@v2 with {other}, and the registry of models has {DIGEST}" in refused["message"]
