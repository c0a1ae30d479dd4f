"""What is measured: counters, made ready in a context. A way to run scripts is one function and one line here."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from tenancy.counter_url import Address, CounterUrl, StoreKind
from tenancy.ports import Counters
from tenancy.stores.memory import MemoryCounters
from tenancy.stores.valkey import ValkeyCounters
from tenancy.stores.valkey.client import ValkeyScripts
from tests.valkey_server import RedisPyScripts, open_client


@asynccontextmanager
async def memory(_: Path, __: int) -> AsyncIterator[Counters]:
    yield MemoryCounters(time.time)


@asynccontextmanager
async def redis_py(socket: Path, concurrency: int) -> AsyncIterator[Counters]:
    client = open_client(socket, concurrency)
    yield ValkeyCounters(RedisPyScripts(client))
    await client.aclose()


@asynccontextmanager
async def tidegate(socket: Path, _: int) -> AsyncIterator[Counters]:
    """The connection the gateway uses."""
    scripts = ValkeyScripts(CounterUrl(StoreKind.SINGLE, (Address(str(socket), 0),)))
    if not await scripts.start():
        raise SystemExit(scripts.why)
    yield ValkeyCounters(scripts)
    await scripts.close()


Subject = Callable[[Path, int], AbstractAsyncContextManager[Counters]]
SUBJECTS: dict[str, Subject] = {"memory": memory, "redis-py": redis_py, "tidegate": tidegate}
"""Takes the socket of a Valkey, and how many requests come at once."""
