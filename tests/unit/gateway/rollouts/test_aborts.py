"""Aborts that the database could not take: in force on this gateway at once, kept in a file, written once it is there again."""

import dataclasses
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.routing import Mount

from domain.rollouts import StoredRollout
from gateway.rollouts.aborts import PendingAborts, RolloutAborts
from gateway.rollouts.keeper import RolloutKeeper
from policies.rollout.progress import Status
from policies.rollout.state import RolloutStatus, read, standing, state_text
from tenancy.journal import JournalAway
from tenancy.stores.sql import SqlRolloutStore
from tests.admin_harness import API, OWNER, Admin, admin_port, bearer

ROLLOUTS = f"{API}/rollouts"
DOCUMENT = {"name": "v2", "baseline": "chat", "canary": "chat-v2"}


class Gateway:
    """A gateway's admin process and its workers on a database that can be away."""

    def __init__(self, admin: Admin, path: Path) -> None:
        self.admin = admin
        self.path = path
        self.away = False
        self.deaf = False
        self.back: list[list[str]] = []
        """What the workers were told, one list for each time."""
        self.known: list[RolloutStatus] = []
        self.started()

    async def sums(self, wanted: object) -> dict[str, list[str]]:
        return {}

    async def send_back(self, rollouts: Collection[str]) -> None:
        if self.deaf:
            raise OSError("no worker answers")
        self.back.append(list(rollouts))

    def change(self) -> Any:
        if self.away:
            raise JournalAway("no connection")
        return self.admin.parts.change()

    def started(self) -> None:
        """The admin process starts (anew), and knows nothing but the file."""
        self.pending = PendingAborts(self.path)
        admin = self.admin
        self.aborts = RolloutAborts(self.pending, self, self.change, admin.wall, admin.told.append, lambda: self.known)
        (mount,) = (route for route in admin.app.routes if isinstance(route, Mount))
        mount.app.state.parts = dataclasses.replace(admin.parts, change=self.change, aborts=self.aborts)  # type: ignore[attr-defined]

    async def stored(self) -> StoredRollout:
        found = await SqlRolloutStore(self.admin.engine).find("v2")
        assert found is not None
        return found

    async def start(self) -> None:
        """A rollout is in force, and the keeper has read it."""
        reply = await self.admin.client.post(ROLLOUTS, json=DOCUMENT, headers=OWNER)
        assert reply.status_code == 201, reply.text
        stored = await self.stored()
        self.known = [standing(stored, read(stored), self.admin.wall.now)]

    async def abort(self, role: str = "operator") -> tuple[int, dict[str, Any]]:
        reply = await self.admin.client.post(f"{ROLLOUTS}/v2/abort", json={"reason": "wrong weights"}, headers=bearer(role))
        return reply.status_code, reply.json()


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with admin_port(tmp_path) as admin:
        made = Gateway(admin, tmp_path / "aborted")
        await made.start()
        yield made


async def test_an_abort_without_the_database_is_in_force_at_once_and_written_when_it_is_back(gateway: Gateway) -> None:
    (known,) = gateway.known
    gateway.away = True
    status, shown = await gateway.abort()
    assert (status, shown["pending"], shown["id"], shown["baseline"]) == (202, True, known.id, "chat")
    assert gateway.back == [[known.id]], "the workers know before the operator has the answer"
    await gateway.aborts.write()
    assert (await gateway.stored()).open
    assert len(gateway.pending.entries()) == 1
    gateway.away = False
    await gateway.aborts.write()
    over = await gateway.stored()
    assert (over.open, read(over).state.status) == (False, Status.ROLLED_BACK)
    assert read(over).state.reason == "aborted: wrong weights (ordered while the database was away)"
    row = (await gateway.admin.journal.page(0, 100))[-1].entry
    assert (row.action, row.target, row.actor, row.role) == ("rollout.abort", "rollout/v2", "key oper@acme", "operator")
    assert (msgspec.json.decode(row.before)["status"], msgspec.json.decode(row.after)["share"]) == ("running", 0.0)
    assert [one["event"] for one in gateway.admin.told] == ["rollout.start", "rollout.abort"]
    told = len(gateway.back)
    await gateway.aborts.write()
    assert (gateway.pending.entries(), gateway.path.exists(), len(gateway.back)) == ((), False, told), "nothing is left to do"
    assert (await gateway.admin.journal.verify()).broken_at is None


async def test_a_restart_of_the_admin_process_forgets_no_abort(gateway: Gateway) -> None:
    gateway.away = True
    assert (await gateway.abort())[0] == 202
    gateway.known = []
    gateway.started()
    gateway.back.clear()
    await gateway.aborts.write()
    assert len(gateway.back) == 1, "workers that started meanwhile are told, too"
    gateway.away = False
    await gateway.aborts.write()
    assert not (await gateway.stored()).open
    assert gateway.path.exists() is False


async def test_an_order_that_is_repeated_is_kept_once_and_workers_that_did_not_hear_it_are_told_again(gateway: Gateway) -> None:
    gateway.away = gateway.deaf = True
    assert [(await gateway.abort())[0] for _ in range(2)] == [202, 202]
    assert (len(gateway.pending.entries()), gateway.back) == (1, [])
    gateway.deaf = False
    await gateway.aborts.write()
    assert gateway.back == [[gateway.known[0].id]]


async def test_what_another_gateway_wrote_meanwhile_does_not_save_the_rollout(gateway: Gateway) -> None:
    gateway.away = True
    await gateway.abort()
    stored = await gateway.stored()
    assert await SqlRolloutStore(gateway.admin.engine).write(msgspec.structs.replace(stored, changed_unix=stored.changed_unix + 1))
    gateway.away = False
    await gateway.aborts.write()
    assert not (await gateway.stored()).open


async def test_a_rollout_that_ended_meanwhile_is_left_as_it_is(gateway: Gateway) -> None:
    """Ended by the keeper, or done: an abort that comes too late writes nothing, and is not tried forever."""
    gateway.away = True
    await gateway.abort()
    stored = await gateway.stored()
    done = msgspec.structs.replace(read(stored).state, status=Status.DONE)
    assert await SqlRolloutStore(gateway.admin.engine).write(msgspec.structs.replace(stored, state=state_text(done)))
    gateway.away = False
    await gateway.aborts.write()
    assert ((await gateway.stored()).open, gateway.pending.entries()) == (True, ())
    gateway.away = True
    await gateway.abort()
    gateway.away = False
    assert await SqlRolloutStore(gateway.admin.engine).write(msgspec.structs.replace(await gateway.stored(), open=False))
    await gateway.aborts.write()
    assert gateway.pending.entries() == ()
    assert await gateway.admin.actions() == ["rollout.start"]


@pytest.mark.parametrize("action", ["pause", "resume", "promote", "close?back=true"])
async def test_decisions_that_may_give_the_canary_more_need_the_database(gateway: Gateway, action: str) -> None:
    gateway.away = True
    assert (await gateway.admin.client.post(f"{ROLLOUTS}/v2/{action}", headers=OWNER)).status_code == 503
    assert gateway.back == []


async def test_what_cannot_be_aborted_is_refused_without_the_database_too(gateway: Gateway) -> None:
    gateway.away = True
    assert (await gateway.abort("auditor"))[0] == 403
    (known,) = gateway.known
    gateway.known = [msgspec.structs.replace(known, status="done")]
    status, body = await gateway.abort()
    assert (status, body["error"]["code"]) == (409, "not_now")
    gateway.known = []
    status, body = await gateway.abort()
    assert (status, "has read no rollout 'v2'" in body["error"]["message"]) == (503, True)
    assert (gateway.back, gateway.path.exists()) == ([], False)


async def test_a_folder_that_takes_no_file_is_said(gateway: Gateway, tmp_path: Path) -> None:
    gateway.path = tmp_path / "nowhere" / "aborted"
    gateway.started()
    gateway.away = True
    status, body = await gateway.abort()
    assert (status, "cannot be kept on this gateway" in body["error"]["message"]) == (503, True)
    assert gateway.back == [], "what is not kept would come back with a restart"


async def test_the_keeper_tells_what_is_in_force(gateway: Gateway) -> None:
    keeper = RolloutKeeper(SqlRolloutStore(gateway.admin.engine), gateway.change, gateway.admin.wall, gateway.admin.wall, print)
    await keeper.look()
    assert [(one.id, one.name) for one in keeper.state.standings] == [(one.id, one.name) for one in gateway.known]
