"""A batch whose gateway is killed: one output line and one row of the ledger for each line, and few calls of engines more than lines."""

import asyncio
import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from tests.booked import booked
from tests.replicas import Replica, Tenancy, launch, ready, replicas
from tests.scale import scaled
from tests.timing import HANG_S

MOST = 8
BATCHES = f"batches: {{max_in_flight: {MOST}, max_share: 1.0, lease_s: 1, look_every_s: 0.1}}\nfiles: {{folder: ../files}}\n"


def input_file(count: int) -> bytes:
    # as long as the batch outlasts starts on a busy machine
    chat = {"model": "sim", "max_tokens": scaled(40, 4)}
    lines = (
        {
            "custom_id": f"l{at:05}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {**chat, "messages": [{"role": "user", "content": f"{at % 7} say {at}"}]},
        }
        for at in range(count)
    )
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


def client_of(replica: Replica, key: str) -> httpx.AsyncClient:
    url = f"http://127.0.0.1:{replica.data_port}"
    return httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=HANG_S, trust_env=False)


async def progress(client: httpx.AsyncClient, batch_id: str, least: int) -> dict[str, Any]:
    """The batch, once so many lines are done or it is over."""
    while True:
        with contextlib.suppress(httpx.HTTPError):
            shown: dict[str, Any] = (await client.get(f"/v1/batches/{batch_id}")).json()
            if shown["status"] in ("completed", "failed", "expired") or shown["request_counts"]["completed"] >= least:
                return shown
        await asyncio.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_batch_survives_kills(tmp_path: Path, record_property: pytest.FixtureRequest) -> None:
    """The requirement's own figures are 10,000 lines and five kills (TIDEGATE_LONG=1)."""
    count, kills = scaled(300, 10_000), scaled(2, 5)
    tenancy = Tenancy(["acme"])
    async with SimEngine(SimSettings(models=("sim",), speed=scaled(1, 4))) as engine:
        async with replicas(tmp_path, 2, tenancy, engine=engine.url, counters="memory://", more=BATCHES) as made:
            key = tenancy.keys["acme"]
            async with client_of(made[0], key) as client:
                file = await client.post("/v1/files", files={"file": ("in.jsonl", input_file(count))}, data={"purpose": "batch"})
                asked = {"input_file_id": file.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
                batch_id = (await client.post("/v1/batches", json=asked)).json()["id"]
                await progress(client, batch_id, count // (kills + 2))
            # the batch is on one of the two: the first kill takes both, the others take each in turn
            for kill in range(1, kills + 1):
                killed = (0, 1) if kill == 1 else (kill % 2,)
                for at in killed:
                    made[at].kill()
                for at in killed:
                    made[at] = launch(made[at].home)
                await asyncio.gather(*(ready(made[at]) for at in killed))
                async with client_of(made[0], key) as client:
                    shown = await progress(client, batch_id, (kill + 1) * count // (kills + 2))
                    assert kill == kills or shown["status"] == "in_progress", "there is a batch left to be killed"
            async with client_of(made[1], key) as client:
                done = await progress(client, batch_id, count + 1)
                assert (done["status"], done["request_counts"]) == ("completed", {"total": count, "completed": count, "failed": 0})
                content = await client.get(f"/v1/files/{done['output_file_id']}/content")
            lines = [json.loads(line) for line in content.text.splitlines()]
            assert [line["custom_id"] for line in lines] == [f"l{at:05}" for at in range(count)]
            ids: Counter[str] = Counter()
            while len(ids) < count:
                await asyncio.sleep(0.2)
                ids = Counter((await booked(f"sqlite:///{tmp_path / 'shared.db'}"))[0])
            assert ids == Counter(line["id"] for line in lines), "one row of the ledger for each line, and no other"
            counters = engine.batcher.counters
            calls = counters.finished + counters.aborted
            record_property("figure", f"{kills} kills: {count} lines, {calls} calls of engines")  # type: ignore[operator]  # pytest's fixture is a function
            assert count <= calls <= count + (kills + 1) * MOST
