"""Three gateways on one Postgres and one Valkey are upgraded from the release before, one after the other, under load with live streams."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from backends.simengine import SimEngine, SimSettings
from tenancy.stores.sql import open_engine
from tenancy.stores.sql.schema import usage_event
from tests.databases import postgres_server
from tests.release_before import code_before
from tests.replicas import POLICY, Replica, Reply, launch, post, prepare, ready, stop
from tests.timing import until
from tests.valkey_servers import single_server

pytestmark = pytest.mark.slow

GATEWAYS = 3
HERE = Path(__file__).parent.parent.parent
ACCEPT_S = 2.0
UNSYNCED_S = 1.0
"""A killed process loses the rows of its last moment: less than this."""
LOOK_EVERY_S = 0.2
"""How often the balancer asks for readiness: well within `ACCEPT_S`."""
UNREADY_S = 5.0
"""Within this the balancer has seen that a gateway was killed, on a busy machine too."""
STREAM_TOKENS = 150
CAPPED = 40
"""Requests that the limit of the tenant `capped` allows for ever."""
PREPARE = f"""
import asyncio, json, sys
from pathlib import Path
from gateway.config.load import load_settings
from tenancy.limits import Level, Limit, Meter, Scope, Window
from domain.identity import TenantId
from tests.replicas import Tenancy
limit = Limit(Scope(Level.TENANT, TenantId("capped")), Meter.REQUESTS, Window.EVER, {CAPPED})
tenancy = Tenancy(("acme", "capped"), (limit,))
asyncio.run(tenancy.store(load_settings(Path(sys.argv[1]))))
print(json.dumps(tenancy.keys))
"""
"""Run by the release before, so that the database has its schema and its rows."""


@dataclass
class Balancer:
    """Sends every request to the next gateway that is ready, as a load balancer does: it asks `/readyz`, and sends nothing twice."""

    gateways: dict[str, Replica] = field(default_factory=dict)
    ready: list[Replica] = field(default_factory=list)
    turn: int = 0

    async def watch(self) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
            while True:
                states = await asyncio.gather(*(self._is_ready(client, one) for one in self.gateways.values()))
                self.ready = [one for one, is_ready in zip(self.gateways.values(), states, strict=True) if is_ready]
                await asyncio.sleep(LOOK_EVERY_S)

    async def _is_ready(self, client: httpx.AsyncClient, gateway: Replica) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return (await client.get(f"http://127.0.0.1:{gateway.admin_port}/readyz")).status_code == 200
        return False

    async def send(self, key: str, **fields: Any) -> tuple[Replica, Reply]:
        self.turn += 1
        gateway = self.ready[self.turn % len(self.ready)]
        body = {"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, **fields}
        return gateway, await post(gateway.data_port, "/v1/chat/completions", key, body)


@dataclass
class Load:
    """Short requests, live streams of over a second, and a tenant that asks for more than its limit allows."""

    balancer: Balancer
    keys: dict[str, str]
    short: list[tuple[Replica, Reply]] = field(default_factory=list)
    streams: list[tuple[Replica, Reply]] = field(default_factory=list)
    capped: list[tuple[Replica, Reply]] = field(default_factory=list)
    stopped: bool = False

    async def run_short(self) -> None:
        while not self.stopped:
            self.short.append(await self.balancer.send(self.keys["acme"]))
            await asyncio.sleep(0.05)

    async def run_streams(self) -> None:
        while not self.stopped:
            fields = {"max_tokens": STREAM_TOKENS, "stream": True, "ignore_eos": True}
            self.streams.append(await self.balancer.send(self.keys["acme"], **fields))

    async def run_capped(self) -> None:
        while not self.stopped:
            self.capped.append(await self.balancer.send(self.keys["capped"]))
            await asyncio.sleep(0.3)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The load, until the block ends and every request that has begun has ended."""
        watch = asyncio.create_task(self.balancer.watch())
        await until(lambda: len(self.balancer.ready) == len(self.balancer.gateways))
        work = [*(self.run_short() for _ in range(3)), *(self.run_streams() for _ in range(6)), self.run_capped()]
        tasks = [asyncio.create_task(one) for one in work]
        try:
            yield
        finally:
            self.stopped = True
            await asyncio.gather(*tasks)
            watch.cancel()

    def lost(self, text: str) -> list[tuple[Replica, Reply]]:
        """Whatever was not answered whole: every stream has to have the whole text, and its end."""
        broken = [sent for sent in self.short if sent[1].status != 200]
        broken += [sent for sent in self.streams if sent[1].status != 200 or text_of(sent[1]) != text]
        return broken + [sent for sent in self.capped if sent[1].status not in (200, 429)]

    def sent(self) -> list[tuple[Replica, Reply]]:
        """Everything that was asked."""
        return [*self.short, *self.streams, *self.capped]

    def answered(self) -> int:
        """Requests that were answered with 200."""
        return sum(reply.status == 200 for _, reply in self.sent())


def text_of(reply: Reply) -> str | None:
    """The text of a stream; None for one that has no end."""
    text = reply.body.decode()
    if text.count("data: [DONE]") != 1:
        return None
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


async def rows(sql: str) -> int:
    """Rows of the ledger; a refused request has none."""
    engine = open_engine(sql)
    async with engine.connect() as connection:
        found = await connection.scalar(sa.select(sa.func.count()).select_from(usage_event))
    await engine.dispose()
    return int(found or 0)


async def booked(sql: str, at_least: int) -> int:
    """The rows, as soon as there are so many."""
    while (found := await rows(sql)) < at_least:
        await asyncio.sleep(0.2)
    return found


@contextlib.asynccontextmanager
async def three(folder: Path, sql: str, counters: str, engine: str, code: Path) -> AsyncIterator[tuple[Balancer, dict[str, str]]]:
    """Three gateways of the release before, and the keys of both tenants."""
    balancer = Balancer()
    homes = [prepare(folder, f"g{n}", sql=sql, counters=counters, engine=engine, policies=(POLICY,)) for n in range(GATEWAYS)]
    for home in homes:
        settings = (home / "tidegate.yaml").read_text()
        (home / "tidegate.yaml").write_text(settings.replace("accept_s: 0,", f"accept_s: {ACCEPT_S},").replace("grace_s: 5", "grace_s: 30"))
    command = [sys.executable, "-c", PREPARE, str(homes[0] / "tidegate.yaml")]
    done = await asyncio.to_thread(subprocess.run, command, cwd=code, env={"PYTHONPATH": str(code)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    try:
        for home in homes:
            balancer.gateways[home.name] = launch(home, code=code)
        await asyncio.gather(*map(ready, balancer.gateways.values()))
        yield balancer, json.loads(done.stdout)
    finally:
        await stop(balancer.gateways.values())


COLLECT = """
import asyncio, sys
from pathlib import Path
from gateway.process.worker_link import collect
for worker in asyncio.run(collect(Path(sys.argv[1]), 5.0)):
    print(worker.state, worker.metrics is not None)
"""
"""Asks the workers of a gateway what its admin process asks them; `code` decides which release asks."""


async def told_by_workers(gateway: Replica, code: Path) -> str:
    """What the code of one release reads of the answers that the workers of a gateway give."""
    command = [sys.executable, "-c", COLLECT, str(gateway.home / "run")]
    done = await asyncio.to_thread(subprocess.run, command, cwd=code, env={"PYTHONPATH": str(code)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def upgraded(balancer: Balancer, name: str) -> None:
    """End one gateway as an orchestrator does, then start today's code in its place."""
    old = balancer.gateways[name]
    old.process.terminate()
    assert await asyncio.to_thread(old.process.wait) == 0, old.errors[-3000:]
    new = launch(old.home)
    await ready(new)
    balancer.gateways[name] = new
    await until(lambda: new in balancer.ready)


async def more_streams(load: Load, count: int) -> None:
    """Wait until so many more streams have ended."""
    seen = len(load.streams)
    await until(lambda: len(load.streams) >= seen + count)


@pytest.mark.fault("upgrade of gateways")
@pytest.mark.req("R21")
async def test_three_gateways_are_upgraded_one_after_the_other_and_nothing_is_lost(tmp_path: Path, record_property: Any) -> None:
    code = code_before(tmp_path / "before")
    with postgres_server() as postgres, single_server(tmp_path / "valkey") as valkey:
        sql = postgres.get_uri()
        async with SimEngine(SimSettings(models=("sim",))) as engine:
            async with three(tmp_path, sql, valkey.url, engine.url, code) as (balancer, keys):
                load = Load(balancer, keys)
                async with load.running():
                    await until(lambda: load.streams)
                    text = text_of(load.streams[0][1])
                    assert text
                    told = [await told_by_workers(balancer.gateways["g0"], HERE)]
                    for name in list(balancer.gateways):
                        await upgraded(balancer, name)
                        await more_streams(load, 12)
                    told.append(await told_by_workers(balancer.gateways["g0"], code))
                    await until(lambda: len(load.capped) > CAPPED + GATEWAYS)
                lost, answered = load.lost(text), load.answered()
                assert lost == [], (lost[0][1], lost[0][0].errors[-3000:])
                found = await booked(sql, answered)

                killed = Load(balancer, keys)
                async with killed.running():
                    await until(lambda: killed.streams)
                    victim = balancer.gateways["g1"]
                    killed_at = time.monotonic()
                    victim.kill()
                    await until(lambda: victim not in balancer.ready)
                    balancer.gateways["g1"] = launch(victim.home)
                    await ready(balancer.gateways["g1"])
                    await until(lambda: len(balancer.ready) == GATEWAYS)
                cut = killed.lost(text)
                certain = [reply for gateway, reply in killed.sent() if gateway is not victim or reply.at < killed_at - UNSYNCED_S]
                rows_after = await booked(sql, answered + sum(reply.status == 200 for reply in certain))
    assert told == ["ready True\n"] * 2, "each release reads what the workers of the other one say"
    assert found == answered
    allowed = sum(reply.status == 200 for _, reply in load.capped)
    degraded = sum(reply.degraded for _, reply in (*load.short, *load.capped))
    assert allowed == CAPPED or (degraded and allowed <= 2 * CAPPED + GATEWAYS), (allowed, degraded)
    assert {id(gateway) for gateway, _ in cut} <= {id(victim)}, "what the others answer is not touched"
    assert all(reply.asked_at < killed_at + UNREADY_S for _, reply in cut), "nothing is sent to it once the balancer has seen it"
    assert rows_after <= answered + len(killed.sent()), "no row is doubled"
    record_property(
        "figure",
        f"3 gateways upgraded under load: {len(lost)} of {len(load.short)} requests lost, {len(load.streams)} streams whole; {found} rows "
        f"for {answered} answers; {allowed} of {CAPPED} requests allowed by the limit ({degraded} decided without the store); then one "
        f"killed: {len(cut)} of {len(killed.sent())} lost, all of them its own; {rows_after} rows",
    )
