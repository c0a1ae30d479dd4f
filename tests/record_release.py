"""What the release before leaves in its stores, written into `tests/fixtures`. Run by that release's own code (`make release-fixtures`).

- `truth.sql`: a dump of its SQLite database, with tenants, keys, a limit, a price and rows of the ledger.
- `usage.wal`: a segment of the write-ahead log.
- `scripts.json`: the texts of its scripts for Valkey.
- `counters.json`: the keys that these scripts leave, after 12 holds of which 6 were settled.
- `facts.json`: what a reader of these has to find.
"""

import asyncio
import json
import random
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from domain.identity import KeyId, TenantId
from domain.usage import Usage
from tenancy.accounts import DEFAULT_PROJECT, Tenant
from tenancy.directory_ports import EVERYWHERE
from tenancy.hold import Hold
from tenancy.keys import KeyRecord
from tenancy.limits import Amounts, Group, Level, Limit, Meter, Scope, Window, line_of
from tenancy.stores.sql import SqlDirectory, migrate, open_engine
from tenancy.stores.sql.ledger import SqlUsageStore
from tenancy.stores.valkey import TEXTS, ValkeyCounters
from tenancy.usage import UsageEvent
from tenancy.wal_frames import frame
from tests.usage_events import random_event, sums_of
from tests.valkey_server import RedisPyScripts, open_client, valkey_server

NOW_S = 1_790_000_000
EVENTS = 30
HOLDS, SETTLED = 12, 6
WANTED, CHARGED = Amounts(10, 20), Amounts(10, 5)
LIMITS = tuple(
    Limit(Scope(Level.TENANT, "acme"), meter, window, amount)
    for meter, window, amount in (
        (Meter.REQUESTS, Window.MINUTE, 100),
        (Meter.TOKENS, Window.DAY, 10_000),
        (Meter.REQUESTS, Window.EVER, 1_000),
        (Meter.CONCURRENT_REQUESTS, Window.NOW, 50),
    )
)


def group() -> Group:
    """The limits of the recorded tenant."""
    return Group("acme", tuple(line_of(limit, NOW_S) for limit in LIMITS))


def hold(number: int) -> Hold:
    """One of the recorded holds, or a later one."""
    return Hold(f"r{number}", TenantId("acme"), WANTED, (group(),))


async def record_truth(folder: Path) -> dict[str, Any]:
    """Write the database; returns what is in it."""
    events = [random_event(number, random.Random(number)) for number in range(EVENTS)]
    with tempfile.TemporaryDirectory() as home:
        file = Path(home) / "truth.db"
        engine = open_engine(f"sqlite:///{file}")
        await migrate(engine)
        async with SqlDirectory(engine).transaction() as change:
            await change.tenants.create(Tenant(TenantId("acme")))
            key = KeyRecord(KeyId("k1"), TenantId("acme"), DEFAULT_PROJECT, "p1", (b"d" * 32,), created_unix=2.0)
            await change.keys.create(EVERYWHERE, key)
            for limit in LIMITS:
                await change.limits.put(EVERYWHERE, limit, 0)
        await SqlUsageStore(engine).write(events)
        await engine.dispose()
        connection = sqlite3.connect(file)
        (folder / "truth.sql").write_text("\n".join(connection.iterdump()) + "\n")
        (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        connection.close()
    more = [random_event(f"w{number}", random.Random(number)) for number in range(EVENTS)]
    (folder / "usage.wal").write_bytes(b"".join(map(frame, more)))
    facts = {"ledger": sums_of(events), "wal": sums_of(more), "wal_ids": [event.request_id for event in more]}
    forms = {"event": UsageEvent.__struct_fields__, "usage": Usage.__struct_fields__}
    return {"revision": revision, "fields": forms, **{name: msgspec.to_builtins(value) for name, value in facts.items()}}


def timed(texts: dict[str, str]) -> dict[str, str]:
    """Scripts that take the time from the key `now`."""
    return {name: text.replace("redis.call('TIME')", "redis.call('HMGET', 'now', 's', 'us')") for name, text in texts.items()}


async def kept(client: Any) -> dict[str, list[Any]]:
    """Every key as its type and its value, in hexadecimal digits."""
    found: dict[str, list[Any]] = {}
    for key in sorted(await client.keys("*")):
        kind = (await client.type(key)).decode()
        if kind == "string":
            value: Any = (await client.get(key)).hex()
        elif kind == "hash":
            value = {name.hex(): part.hex() for name, part in sorted((await client.hgetall(key)).items())}
        else:
            assert kind == "zset", (key, kind)
            value = {name.hex(): score for name, score in await client.zrange(key, 0, -1, withscores=True)}
        found[key.hex()] = [kind, value]
    return found


async def record_counters(folder: Path) -> None:
    """Write the scripts, and the keys that they leave."""
    (folder / "scripts.json").write_text(json.dumps(dict(TEXTS), indent=0) + "\n")
    with tempfile.TemporaryDirectory() as home, valkey_server(Path(home)) as socket:
        client = open_client(socket)
        await client.hset("now", mapping={"s": NOW_S, "us": 0})
        counters = ValkeyCounters(RedisPyScripts(client, timed(dict(TEXTS))))
        await admit_and_settle(counters, range(HOLDS), SETTLED)
        (folder / "counters.json").write_text(json.dumps(await kept(client), indent=0) + "\n")
        await client.aclose()


async def admit_and_settle(counters: Any, numbers: Sequence[int], settled: int) -> None:
    """Admit these holds, and settle the first of them."""
    for number in numbers:
        await counters.admit(hold(number))
    for number in numbers[:settled]:
        await counters.settle(hold(number), CHARGED)


async def main(folder: Path) -> None:
    """Write every file."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = await record_truth(folder)
    (folder / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")
    await record_counters(folder)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
