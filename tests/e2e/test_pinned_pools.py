"""Pools that are pinned to a revision: callers get answers only from engines that prove it, or from others where the pool admits them."""

from typing import Any

from backends.simengine import SimEngine, SimSettings
from routing.fleet import Availability
from tests.gateway_harness import chat, gateway
from tests.timing import until

DIGEST = "sha256:0123456789ab" + "0" * 52
PROVES = SimSettings(models=("sim", "sim@sha256-0123456789ab"), speed=2000)
OTHER = SimSettings(models=("sim", "sim@sha256-ffffffffffff"), speed=2000)
PLAIN = SimSettings(models=("sim",), speed=2000)


def pinned(unproven: str = "refuse") -> dict[str, Any]:
    return {"revision": "v1", "pinned": {"digest": DIGEST, "unproven": unproven}}


async def test_only_engines_that_prove_the_revision_answer() -> None:
    async with SimEngine(PROVES) as good, SimEngine(OTHER) as other, SimEngine(PLAIN) as plain:
        async with gateway(good.url, other.url, plain.url, pool=pinned()) as running, running.client() as client:
            for _ in range(6):
                assert (await client.post("/v1/chat/completions", json=chat(max_tokens=2))).status_code == 200
            generated = [sum(b"messages" in request.body for request in engine.received) for engine in (good, other, plain)]
            assert generated == [6, 0, 0]
            reasons = [backend.reason for backend in running.deps.live.fleet.pools["chat"].backends]
            assert reasons[0] == ""
            assert "does not prove revision sim@v1: it serves sim@sha256-ffffffffffff" in reasons[1]
            assert "none of its names carries a digest" in reasons[2]
            assert "unproven: admit" in reasons[2]


async def test_a_pool_that_admits_unproven_engines_uses_them_and_says_so() -> None:
    async with SimEngine(PLAIN) as plain, gateway(plain.url, pool=pinned("admit")) as running, running.client() as client:
        assert (await client.post("/v1/chat/completions", json=chat(max_tokens=2))).status_code == 200

        def seen() -> bool:
            (backend,) = running.deps.live.fleet.pools["chat"].backends
            return backend.state is Availability.UP and "does not prove revision sim@v1" in backend.reason

        await until(seen)


async def test_no_engine_that_proves_the_revision_is_an_outage_and_not_another_model() -> None:
    async with SimEngine(OTHER) as other, gateway(other.url, pool=pinned()) as running, running.client() as client:
        assert (await client.post("/v1/chat/completions", json=chat(max_tokens=2))).status_code == 503
        assert not any(b"messages" in request.body for request in other.received)
