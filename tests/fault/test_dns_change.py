"""A DNS name that stands for another engine from now on, and name servers that fail: what callers notice of it (nothing)."""

import asyncio
import time
from typing import Any

import pytest

from backends.simengine import SimEngine, SimSettings
from routing.fleet import Availability
from tests.e2e.test_discovery import Load, load, nothing_left_of, until_is
from tests.gateway_harness import Gateway, gateway
from tests.scale import scaled
from tests.timing import HANG_S, timely
from tests.wire.test_dns import RECORDS, SERVFAIL, name_server

pytestmark = pytest.mark.slow

EVERY_S = scaled(1, 5)
"""5 s is the default."""
FAILS_S = scaled(3, 590)
"""Names are kept for ten minutes."""
NAME = ("moved.test.", "A")
SIM = {"models": ("sim",), "speed": 20}


def backend_at(address: str, port: int) -> str:
    return f"chat-{address}-{port}"


async def moved(running: Gateway, to: SimEngine, traffic: Load) -> float:
    """Seconds until it got a request, after the name was given its address."""
    RECORDS[NAME] = [to.settings.host]
    told, before = time.monotonic(), to.counters.finished
    async with asyncio.timeout(HANG_S):
        while to.counters.finished == before:
            await asyncio.sleep(0.02)
    took_s = time.monotonic() - told
    await until_is(running, backend_at(to.settings.host, to.port), Availability.UP)
    return took_s


@pytest.mark.req("R52")
@pytest.mark.fault("DNS change")
async def test_a_name_that_moves_cuts_no_stream(monkeypatch: pytest.MonkeyPatch, record_property: Any) -> None:
    async with SimEngine(SimSettings(host="127.0.0.1", **SIM)) as one:
        async with SimEngine(SimSettings(host="127.0.0.2", port=one.port, **SIM)) as two, name_server(monkeypatch):
            monkeypatch.setitem(RECORDS, NAME, ["127.0.0.1"])
            discover = {"dns": "moved.test", "port": one.port, "every_s": EVERY_S}
            async with gateway(pool={"backends": [], "discover": discover}, engines={"register_networks": ["127.0.0.0/8"]}) as running:
                await until_is(running, backend_at("127.0.0.1", one.port), Availability.UP)
                async with load(running) as traffic:
                    await asyncio.sleep(1.0)
                    took = [await moved(running, two, traffic)]
                    await until_is(running, backend_at("127.0.0.1", one.port), None)
                    assert nothing_left_of(running, backend_at("127.0.0.1", one.port))

                    RECORDS[NAME] = [SERVFAIL]
                    failing, served = time.monotonic(), two.counters.finished
                    await asyncio.sleep(FAILS_S)
                    assert any("moved.test" in state.trouble for state in running.fleet.membership.states())
                    assert two.counters.finished > served
                    lasted_s = time.monotonic() - failing
                    took.append(await moved(running, one, traffic))
                    traffic.stop()
    record_property(
        "figure",
        f"a new address used after {max(took):.1f} s; name server failing for {lasted_s:.0f} s; 0 of {len(traffic.seen)} streams cut",
    )
    assert [seen for seen in traffic.seen if seen.status != 200 or not seen.clean or not seen.done or seen.errors] == []
    timely(max(took), 10.0)
