"""Engines named by an endpoint picker in front (`x-gateway-destination-endpoint`): who is believed, and what the header cannot do."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from tests.gateway_harness import Gateway, chat, gateway
from tests.timing import HANG_S, until

SIM = SimSettings(models=("sim",), speed=5000)
HEADER = "x-gateway-destination-endpoint"
TRUSTED: dict[str, Any] = {"trusted_proxies": {"networks": ["127.0.0.1/32"], "destination_endpoint": True}}


def endpoint(engine: SimEngine) -> str:
    return f"127.0.0.1:{engine.port}"


async def ask(running: Gateway, named: str, *, times: int = 12, address: str = "127.0.0.1", **more: Any) -> None:
    headers = {"authorization": f"Bearer {running.keys['acme']}", HEADER: named}
    transport = httpx.AsyncHTTPTransport(local_address=address)
    async with httpx.AsyncClient(base_url=running.url, headers=headers, transport=transport, timeout=HANG_S) as client:
        for number in range(times):
            answer = await client.post("/v1/chat/completions", json=chat(max_tokens=2, user=f"u{number}", **more))
            assert answer.status_code == 200


def outcomes(running: Gateway) -> dict[str, int]:
    split = ("taken", "passed_over", "unknown", "untrusted")
    families = running.metrics.snapshot().families
    found = dict(families.get("tidegate_destination_endpoints_total", []))
    return {name: count for name, count in zip(split, found.get((), [0] * len(split)), strict=True) if count}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_trusted_proxy_names_the_engine(stream: bool) -> None:
    async with SimEngine(SIM) as one, SimEngine(SIM) as two, gateway(one.url, two.url, data=TRUSTED) as running:
        await ask(running, endpoint(two), stream=stream)
        assert (len(one.received), len(two.received)) == (0, 12)
        assert outcomes(running) == {"taken": 12}
        await ask(running, f"{endpoint(one)},{endpoint(two)}", stream=stream)
        assert (len(one.received), len(two.received)) == (12, 12)


async def test_a_list_is_gone_through_in_its_order() -> None:
    async with SimEngine(SIM) as two, SimEngine(SIM) as third, AsyncExitStack() as stack:
        one = await stack.enter_async_context(SimEngine(SIM))
        async with gateway(one.url, two.url, third.url, data=TRUSTED) as running:
            named = f"10.9.9.9:1,{endpoint(one)},{endpoint(two)},{endpoint(third)}"
            await stack.aclose()
            await ask(running, named, times=6)
            assert (len(two.received), len(third.received)) == (6, 0)
            assert outcomes(running) == {"taken": 6}


async def test_an_engine_at_its_limit_is_passed_over() -> None:
    slow = SimSettings(models=("sim",), speed=0.05)
    async with SimEngine(slow) as one, SimEngine(SIM) as two:
        pool = {"backends": [{"id": "one", "url": one.url, "max_in_flight": 1}, {"id": "two", "url": two.url}]}
        async with gateway(pool=pool, data=TRUSTED) as running:
            first = asyncio.create_task(ask(running, endpoint(one), times=1, ignore_eos=True))
            await until(lambda: len(one.received) == 1)
            await ask(running, endpoint(one), times=3)
            assert (len(one.received), len(two.received)) == (1, 3)
            assert outcomes(running) == {"taken": 1, "passed_over": 3}
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)


async def test_in_a_pool_of_prefill_and_decode_engines_a_name_is_passed_over() -> None:
    async with SimEngine(SIM) as one, SimEngine(SIM) as two:
        engines = [{"id": "prefill", "url": one.url, "role": "prefill"}, {"id": "whole", "url": two.url}]
        terms = {"kv_bytes_token": 1000, "bandwidth_gb_s": 10}
        async with gateway(pool={"backends": engines, "disaggregation": terms}, data=TRUSTED) as running:
            await ask(running, endpoint(one), times=3)
            assert len(two.received) >= 3
            assert outcomes(running) == {"passed_over": 3}


async def test_endpoints_that_are_none_of_the_pool_are_ignored() -> None:
    async with SimEngine(SIM) as one, SimEngine(SIM) as two, gateway(one.url, two.url, data=TRUSTED) as running:
        await ask(running, "10.9.9.9:1, not an endpoint")
        assert len(one.received) + len(two.received) == 12
        assert min(len(one.received), len(two.received)) > 0
        assert outcomes(running) == {"unknown": 12}


@pytest.mark.parametrize(
    ("data", "address"),
    [({}, "127.0.0.1"), ({"trusted_proxies": {"networks": ["127.0.0.1/32"]}}, "127.0.0.1"), (TRUSTED, "127.0.0.2")],
)
async def test_nobody_else_names_engines_and_the_header_reaches_none(data: dict[str, Any], address: str) -> None:
    async with SimEngine(SIM) as one, SimEngine(SIM) as two, gateway(one.url, two.url, data=data) as running:
        await ask(running, endpoint(two), times=24, address=address)
        assert min(len(one.received), len(two.received)) > 0
        assert outcomes(running) == {"untrusted": 24}
        assert HEADER not in repr([one.received, two.received]).lower()


async def test_the_header_gives_no_right_that_the_key_lacks() -> None:
    async with SimEngine(SIM) as one, gateway(one.url, data=TRUSTED) as running:
        headers = {HEADER: endpoint(one)}
        async with httpx.AsyncClient(base_url=running.url, headers=headers, timeout=HANG_S) as client:
            assert (await client.post("/v1/chat/completions", json=chat(max_tokens=2))).status_code == 401
            key = {"authorization": f"Bearer {running.keys['acme']}"}
            assert (await client.post("/v1/chat/completions", json=chat(model="other"), headers=key)).status_code in (403, 404)
        assert (len(one.received), outcomes(running)) == (0, {})
