import asyncio
from collections.abc import Sequence
from typing import Any

from domain.identity import TenantId
from tenancy.hold import Hold
from tenancy.limits import Amounts, Group, Level, Limit, Meter, Scope, Window, line_of
from tenancy.ports import CountersAway
from tenancy.stores.valkey.counters import ValkeyCounters


class Store:
    """Takes settlements one turn of the loop later, while it is there."""

    def __init__(self) -> None:
        self.there = False
        self.settled: list[bytes] = []

    async def run(self, script: str, _keys: Sequence[bytes], args: Sequence[bytes | int]) -> Any:
        await asyncio.sleep(0)
        if not self.there:
            raise CountersAway("stopped")
        if script == "settle":
            assert isinstance(args[0], bytes)
            self.settled.append(args[0])
        return []


async def test_two_beats_at_once_make_every_late_settlement_once() -> None:
    store = Store()
    counters = ValkeyCounters(store)
    line = line_of(Limit(Scope(Level.TENANT, "acme"), Meter.REQUESTS, Window.MINUTE, 10), 0.0)
    for number in range(5):
        await counters.settle(Hold(f"r{number}", TenantId("acme"), Amounts(requests=1), (Group("acme", (line,)),)), Amounts(requests=1))
    store.there = True
    await asyncio.gather(counters.beat(()), counters.beat(()), counters.beat(()))
    assert sorted(store.settled) == [b"r0", b"r1", b"r2", b"r3", b"r4"]
