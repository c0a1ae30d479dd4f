"""A conversation over gateways that are processes of their own, on one database: at once, killed, started anew, and without it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from backends.simengine import SimEngine, SimSettings
from tests.contract.test_ledger_crashes import database
from tests.replicas import Replica, Reply, Tenancy, admin_client, launch, post, ready, replicas

pytestmark = pytest.mark.slow

SIM = SimSettings(models=("sim",), speed=2000)
POLICY = 'tenant: "*"\nmodels:\n  - {name: sim, pool: chat}\nrouting: round_robin\nresponses: {}\n'


async def ask(replica: Replica, key: str, text: str, name: str, **fields: Any) -> Reply:
    """One Response in a conversation."""
    body = {"model": "sim", "input": text, "conversation": name, "max_output_tokens": 2, **fields}
    return await post(replica.data_port, "/v1/responses", key, body)


def users_words(body: bytes) -> list[str]:
    return [message["content"] for message in json.loads(body)["messages"] if message["role"] == "user"]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_conversation_goes_on_over_a_crash_another_gateway_and_an_outage(kind: str, tmp_path: Path) -> None:
    tenancy = Tenancy(["acme", "bolt"])
    async with SimEngine(SIM) as one, SimEngine(SIM) as other, database(kind, tmp_path) as db:
        async with replicas(tmp_path, 2, tenancy, engine=[one.url, other.url], counters="memory://", sql=db.url, policies=[POLICY]) as made:
            key = tenancy.keys["acme"]
            name = (await post(made[0].data_port, "/v1/conversations", key, {"metadata": {"a": "b"}})).json["id"]
            for number in range(20):
                if number == 10:
                    made[0].kill()
                    made[0].process = launch(made[0].home).process
                    await ready(made[0])
                reply = await ask(made[number % 2], key, f"turn {number}", name, user="ann", stream=number % 3 == 0)
                assert reply.status == 200, reply.body
            last = max((*one.received, *other.received), key=lambda received: len(received.body))
            assert users_words(last.body) == [f"turn {number}" for number in range(20)]

            replies = await asyncio.gather(*(ask(made[number % 2], key, f"at once {number}", name) for number in range(6)))
            assert [reply.status for reply in replies] == [200] * 6
            assert (await ask(made[1], key, "after", name)).status == 200
            last = max((*one.received, *other.received), key=lambda received: len(received.body))
            assert sorted(users_words(last.body)[20:-1]) == [f"at once {number}" for number in range(6)]
            assert (await ask(made[1], tenancy.keys["bolt"], "x", name)).status == 404

            if kind == "postgres":  # no other process can take a file away from SQLite
                db.stop()
                away = await ask(made[1], key, "away", name)
                assert (away.status, away.json["error"]["code"]) == (503, "state_unavailable")
                db.start()
                while (await ask(made[1], key, "back", name)).status != 200:
                    await asyncio.sleep(0.1)  # the test's own time limit ends a wait in vain
            async with admin_client() as client:
                wanted = {"tenant": "acme", "user": "ann"}
                assert (await client.post(f"{made[0].admin}/cache/purge", json=wanted)).status_code == 202
            gone = await ask(made[1], key, "gone", name)
            assert (gone.status, gone.json["error"]["param"]) == (404, "conversation")
