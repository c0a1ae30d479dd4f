"""Stored Responses over gateways that are processes of their own, on one database: killed, started anew, and without their database."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backends.simengine import SimEngine, SimSettings
from tests.contract.test_ledger_crashes import database
from tests.replicas import Replica, Reply, Tenancy, admin_client, launch, post, ready, replicas

pytestmark = pytest.mark.slow

SIM = SimSettings(models=("sim",), speed=2000)
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
