"""Several `tidegate serve` on one database and one counter store, as hosts behind a load balancer, and a client that costs little.

Each has a folder, a log, a ledger and a kept directory of its own; pepper and admin token are the same for all. What the database
holds at the start is written straight into it.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from domain.identity import TenantId
from gateway.config.load import Settings, load_settings
from gateway.config.read_secrets import read_pepper
from tenancy.accounts import DEFAULT_PROJECT, Tenant
from tenancy.directory_ports import EVERYWHERE
from tenancy.keys import ENTROPY_BYTES, KeyRecord, digest_of, mint
from tenancy.limits import Limit
from tenancy.prices import Price
from tenancy.rights import NO_RIGHTS_SET, Rights
from tenancy.stores.sql import SqlDirectory, migrate, open_engine

PEPPER_TEXT = "a-pepper-that-every-replica-has-in-common"
TOKEN = "an-admin-token-of-32-characters!"
ADMIN = {"authorization": f"Bearer {TOKEN}"}
POLICY = 'tenant: "*"\nmodels:\n  - {name: sim, pool: chat}\n'
SETTINGS = """
data: {{bind: "127.0.0.1:0"}}
admin: {{bind: "127.0.0.1:0"}}
workers: 1
drain: {{accept_s: 0, grace_s: 5}}
secrets: {{pepper: {{file: ../pepper}}, admin_token: {{file: ../token}}}}
stores: {{sql: "{sql}", counters: "{counters}"}}
pools:
  - {{name: chat, model: sim, backends: [{backends}]}}
"""
AHEAD = """
import sys, time
right = time.time
time.time = lambda: right() + {ahead_s}
from gateway.cli import main
sys.argv[0] = "tidegate"
main()
"""
"""The gateway on a machine whose clock is wrong: its processes are forked, so they all see it."""


@dataclass
class Reply:
    """What came back; status 0 when nothing did."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    took_s: float = 0.0
    at: float = 0.0
    """Monotonic clock when it was whole."""

    @property
    def asked_at(self) -> float:
        """Monotonic clock when the request was begun."""
        return self.at - self.took_s

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def degraded(self) -> bool:
        return "x-tidegate-degraded" in self.headers


@dataclass
class Replica:
    """One gateway."""

    home: Path
    process: "subprocess.Popen[bytes]"
    data_port: int = 0
    admin_port: int = 0

    @property
    def admin(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}/admin/v1"

    @property
    def errors(self) -> str:
        return (self.home / "err.log").read_text()

    def pids(self) -> list[int]:
        """Its children."""
        slots = json.loads((self.home / "run" / "supervisor.json").read_text())["slots"]
        return [int(slot["pid"]) for slot in slots if slot["pid"]]

    def kill(self) -> None:
        """All of it at once, as a machine that loses power."""
        children = self.pids()
        for pid in (self.process.pid, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    async def ask(self, key: str, **fields: Any) -> Reply:
        """One chat over a connection of its own."""
        return await post(self.data_port, "/v1/chat/completions", key, {"model": "sim", "messages": MESSAGES, "max_tokens": 1, **fields})


MESSAGES = [{"role": "user", "content": "hi"}]


async def post(port: int, path: str, key: str, body: Any) -> Reply:
    """Send and read one request; a connection that breaks is status 0."""
    began = time.monotonic()
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\nconnection: close\r\n"
    )
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"%bconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (head.encode(), len(content), content))
            raw = await reader.read(-1)
        finally:
            writer.close()
    except OSError:
        raw = b""
    return read_reply(raw, began)


def read_reply(raw: bytes, began: float) -> Reply:
    """A whole reply with a length."""
    at = time.monotonic()
    head, _, rest = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if not first or len(rest) < int(headers.get("content-length", 0)):
        return Reply(0, took_s=at - began, at=at)
    return Reply(int(first.split(" ")[1]), headers, rest, at - began, at)


@dataclass
class Tenancy:
    """What the database is to hold: a key for each tenant, limits, prices; and rights of some tenants."""

    tenants: Sequence[str]
    limits: Sequence[Limit] = ()
    prices: Sequence[Price] = ()
    rights: Mapping[str, Rights] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    """By tenant; filled by `store`."""
    ids: dict[str, str] = field(default_factory=dict)

    async def store(self, settings: Settings) -> None:
        pepper = read_pepper(settings)
        engine = open_engine(settings.sql_url)
        await migrate(engine)
        async with SqlDirectory(engine).transaction() as change:
            for name in self.tenants:
                await change.tenants.create(Tenant(TenantId(name), rights=self.rights.get(name, NO_RIGHTS_SET)))
                minted = mint("live", os.urandom(ENTROPY_BYTES))
                digests = (digest_of(pepper.secret, minted.secret),)
                await change.keys.create(EVERYWHERE, KeyRecord(minted.id, TenantId(name), DEFAULT_PROJECT, pepper.kid, digests))
                self.keys[name], self.ids[name] = minted.text, minted.id
            for limit in self.limits:
                await change.limits.put(EVERYWHERE, limit, 0)
            for price in self.prices:
                await change.prices.add(price)
        await engine.dispose()


def prepare(
    folder: Path, name: str, *, sql: str, counters: str, engine: str | Sequence[str], policies: Sequence[str], more: str = ""
) -> Path:
    """Everything one needs to start, in a folder of its own. `more` are further lines of the settings."""
    engines = [engine] if isinstance(engine, str) else engine
    backends = ", ".join(f'{{id: e{number}, url: "{url}"}}' for number, url in enumerate(engines))
    home = folder / name
    (home / "policies").mkdir(parents=True, exist_ok=True)
    (folder / "pepper").write_text(PEPPER_TEXT)
    (folder / "token").write_text(TOKEN)
    for number, policy in enumerate(policies):
        (home / "policies" / f"{number}.yaml").write_text(policy)
    settings = SETTINGS.format(sql=sql, counters=counters, backends=backends)
    (home / "tidegate.yaml").write_text((settings.replace("workers: 1\n", "") if "workers:" in more else settings) + more)
    return home


def launch(home: Path, ahead_s: float = 0.0, code: Path | None = None) -> Replica:
    """Begin one, or one that has ended anew; it is not ready yet. `code`: the folder of another version that it is to run."""
    environment = {**os.environ, "PYTHONPATH": str(code)} if code else None
    (home / "run" / "ready.json").unlink(missing_ok=True)
    program = ["-c", AHEAD.format(ahead_s=ahead_s)] if ahead_s else ["-m", "gateway"]
    command = [sys.executable, *program, "serve", "-c", "tidegate.yaml", "--run-dir", str(home / "run")]
    with (home / "out.log").open("ab") as out, (home / "err.log").open("ab") as err:
        return Replica(home, subprocess.Popen(command, cwd=home, stdout=out, stderr=err, env=environment))


async def ready(replica: Replica) -> None:
    """Wait until it serves. The test's own time limit, which grows with the load of the machine, ends a wait in vain."""
    file = replica.home / "run" / "ready.json"
    try:
        while not file.exists():
            assert replica.process.poll() is None, replica.errors
            await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        print(replica.errors)
        raise
    told = json.loads(file.read_text())
    replica.data_port, replica.admin_port = told["data_port"], told["admin_port"]


@contextlib.asynccontextmanager
async def replicas(
    folder: Path,
    count: int,
    tenancy: Tenancy,
    *,
    engine: str | Sequence[str],
    counters: str,
    sql: str = "",
    ahead_s: Sequence[float] = (),
    policies: Sequence[str] = (POLICY,),
    more: str = "",
) -> AsyncIterator[list[Replica]]:
    """So many gateways, all ready. `ahead_s`: by how much the clock of each is wrong."""
    sql = sql or f"sqlite:///{folder / 'shared.db'}"
    homes = [
        prepare(folder, f"g{number}", sql=sql, counters=counters, engine=engine, policies=policies, more=more) for number in range(count)
    ]
    await tenancy.store(load_settings(homes[0] / "tidegate.yaml"))
    made: list[Replica] = []
    try:
        wrong = [*ahead_s, *([0.0] * (count - len(ahead_s)))]
        made += (launch(home, ahead) for home, ahead in zip(homes, wrong, strict=True))
        await asyncio.gather(*map(ready, made))
        yield made
    finally:
        await stop(made)


async def stop(made: Iterable[Replica]) -> None:
    """End them, all at once."""
    for replica in made:
        if replica.process.poll() is None:
            replica.process.terminate()
    for replica in made:
        try:
            await asyncio.to_thread(replica.process.wait, 20)
        except subprocess.TimeoutExpired:
            replica.kill()


async def burst(made: Sequence[Replica], key: str, count: int, at_once: int = 10**6, **fields: Any) -> list[Reply]:
    """So many requests, `at_once` of them at the same time, spread over all."""
    turns = asyncio.Semaphore(at_once)

    async def one(n: int) -> Reply:
        async with turns:
            return await made[n % len(made)].ask(key, **fields)

    return await asyncio.gather(*map(one, range(count)))


def statuses(replies: Iterable[Reply]) -> dict[int, int]:
    """How many of each."""
    found: dict[int, int] = {}
    for reply in replies:
        found[reply.status] = found.get(reply.status, 0) + 1
    return found


def admin_client() -> httpx.AsyncClient:
    """For the owner."""
    return httpx.AsyncClient(trust_env=False, headers=ADMIN, timeout=30)
