"""Stored Responses over gateways that are processes of their own, on one database: killed, started anew, and without their database."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from tests.contract.test_ledger_crashes import database
from tests.replicas import Replica, Reply, Tenancy, admin_client, launch, post, ready, replicas
from tests.responses_wire import events
from tests.timing import HANG_S, until

pytestmark = pytest.mark.slow

SIM = SimSettings(models=("sim",), speed=2000)
LONG = {"max_output_tokens": 60_000, "ignore_eos": True}
"""An answer that is not over before a test is."""
POLICY = 'tenant: "*"\nmodels:\n  - {name: sim, pool: chat}\nrouting: round_robin\nresponses: {}\n'


async def ask(replica: Replica, key: str, text: str, previous: str | None, **fields: Any) -> Reply:
    """One Response."""
    fields |= {} if previous is None else {"previous_response_id": previous}
    return await post(replica.data_port, "/v1/responses", key, {"model": "sim", "input": text, "max_output_tokens": 2, **fields})


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_conversation_goes_on_over_a_crash_another_gateway_and_an_outage(kind: str, tmp_path: Path) -> None:
    tenancy = Tenancy(["acme", "bolt"])
    async with SimEngine(SIM) as one, SimEngine(SIM) as other, database(kind, tmp_path) as db:
        async with replicas(tmp_path, 2, tenancy, engine=[one.url, other.url], counters="memory://", sql=db.url, policies=[POLICY]) as made:
            key, previous = tenancy.keys["acme"], None
            for number in range(20):
                if number == 10:
                    made[0].kill()
                    made[0].process = launch(made[0].home).process
                    await ready(made[0])
                reply = await ask(made[number % 2], key, f"turn {number}", previous, user="ann")
                assert reply.status == 200, reply.body
                previous = reply.json["id"]
            last = max((*one.received, *other.received), key=lambda received: len(received.body))
            assert [b"turn %d" % number in last.body for number in range(20)] == [True] * 20
            assert min(len(one.received), len(other.received)) >= 5
            assert (await ask(made[1], tenancy.keys["bolt"], "x", previous)).status == 400

            if kind == "postgres":  # no other process can take a file away from SQLite
                db.stop()
                away = await ask(made[1], key, "away", previous)
                assert (away.status, away.json["error"]["code"]) == (503, "state_unavailable")
                assert (await made[1].ask(key)).status == 200  # a chat asks the database nothing
                db.start()

                while (await ask(made[1], key, "back", previous)).status != 200:
                    await asyncio.sleep(0.1)  # the test's own time limit ends a wait in vain
            async with admin_client() as client:
                wanted = {"tenant": "acme", "user": "ann"}
                assert (await client.post(f"{made[0].admin}/cache/purge", json=wanted)).status_code == 202
            gone = await ask(made[1], key, "gone", previous)
            assert (gone.status, gone.json["error"]["code"]) == (400, "previous_response_not_found")


async def background(replica: Replica, method: str, path: str, key: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """One call of the routes of Responses."""
    url = f"http://127.0.0.1:{replica.data_port}/v1/responses{path}"
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=HANG_S, trust_env=False) as client:
        reply = await client.request(method, url, json=body)
    assert reply.status_code == 200, reply.text
    answered: dict[str, Any] = reply.json()
    return answered


async def seen(replica: Replica, name: str, key: str, *states: str) -> dict[str, Any]:
    """The Response once it is in one of these states."""
    while (shown := await background(replica, "GET", f"/{name}", key))["status"] not in states:
        assert shown["status"] in ("queued", "in_progress"), shown
        await asyncio.sleep(0.1)
    return shown


async def following(replica: Replica, name: str, key: str) -> list[dict[str, Any]]:
    """The events of a Response until it is over."""
    url = f"http://127.0.0.1:{replica.data_port}/v1/responses/{name}?stream=true"
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=HANG_S, trust_env=False) as client:
        return events((await client.get(url)).content)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_killed_gateways_responses_in_the_background_fail_and_another_gateways_go_on(kind: str, tmp_path: Path) -> None:
    tenancy, long = Tenancy(["acme"]), {"model": "sim", "input": "hi", "background": True, **LONG}
    slow = SimSettings(models=("sim",))
    async with SimEngine(slow) as engine, database(kind, tmp_path) as db:
        settings = {"engine": engine.url, "counters": "memory://", "sql": db.url, "policies": [POLICY], "more": "ledger: {fsync_ms: 5}\n"}
        async with replicas(tmp_path, 2, tenancy, **settings) as made:
            key = tenancy.keys["acme"]
            lost = (await background(made[0], "POST", "", key, long))["id"]
            kept = (await background(made[1], "POST", "", key, {**long, "max_output_tokens": 100}))["id"]
            watched = asyncio.create_task(following(made[1], lost, key))
            await seen(made[1], lost, key, "in_progress")
            made[0].kill()
            await until(lambda: engine.counters.aborted == 1)
            failed = await seen(made[1], lost, key, "failed")  # within the lease, which the test's own time limit outlasts
            assert failed["error"]["code"] == "server_error"
            assert "stopped before it was complete" in failed["error"]["message"]
            told = await watched
            assert [event["sequence_number"] for event in told] == list(range(len(told)))
            assert (told[-1]["type"], told[-1]["response"]) == ("response.failed", failed)
            assert told == await following(made[1], lost, key)
            done = await seen(made[1], kept, key, "completed", "incomplete")
            made[0] = launch(made[0].home)
            await ready(made[0])
            assert await background(made[0], "GET", f"/{kept}", key) == done
            assert await background(made[0], "GET", f"/{lost}", key) == failed

            stopped = (await background(made[0], "POST", "", key, long))["id"]
            await seen(made[1], stopped, key, "in_progress")
            made[0].process.terminate()  # its grace of five seconds is too short for the answer
            ended = await seen(made[1], stopped, key, "failed")
            assert "stopped before it was complete" not in ended["error"]["message"]


async def test_any_worker_of_a_gateway_shows_and_cancels(tmp_path: Path) -> None:
    tenancy, long = Tenancy(["acme"]), {"model": "sim", "input": "hi", "background": True, **LONG}
    async with SimEngine(SimSettings(models=("sim",))) as engine, database("sqlite", tmp_path) as db:
        settings = {"engine": engine.url, "counters": "valkey+embedded://", "sql": db.url, "policies": [POLICY], "more": "workers: 2\n"}
        async with replicas(tmp_path, 1, tenancy, **settings) as (only,):
            key = tenancy.keys["acme"]
            for number in range(1, 6):  # each call is a connection of its own, which either worker may get
                name = (await background(only, "POST", "", key, long))["id"]
                await seen(only, name, key, "in_progress")
                ended = await background(only, "POST", f"/{name}/cancel", key)
                assert (ended["status"], await background(only, "POST", f"/{name}/cancel", key)) == ("cancelled", ended)
                await until(lambda number=number: engine.counters.aborted == number)
                assert (await following(only, name, key))[-1]["response"] == ended
