"""Pools that share a Service or a selector in Kubernetes: the labels `tidegate/pool` and `tidegate/revision` say whose engine a pod is."""

from typing import Any

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from policies.rollout.in_force import ActiveRollouts, Running
from routing.fleet import Availability
from tests.e2e.test_kubernetes_discovery import ports
from tests.gateway_harness import Gateway, chat, gateway
from tests.kubernetes_api import Json, KubernetesApi, endpoint, kubernetes_api, labelled, pod
from tests.timing import until

SIM = SimSettings(models=("sim",), speed=2000)
POLICY: dict[str, Any] = {"tenant": "*", "models": [{"name": "sim", "pool": "old"}], "expose_headers": True, "choose_arm": True}
HALF = Running("ro_1", "v2", "old", "new", 0.5, 0.0, counting=True, interval_s=10.0)


def two_pools(api: KubernetesApi, source: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """The pool `old` of revision r1 and the pool `new` of r2, both from one source."""
    found = {"kubernetes": {**source, "namespace": "engines", "address": api.url}}
    revisions = {"old": "r1", "new": "r2"}
    return [{"name": name, "model": "sim", "revision": r, "backends": [], "discover": found, **more} for name, r in revisions.items()]


def behind_one_service(**engines: SimEngine) -> list[Json]:
    """A slice for each port, as the engines of this test share an address, and the pods behind them."""
    pieces = []
    for name, engine in engines.items():
        pieces.append(labelled(name, endpoint("127.0.0.1", uid=name), ports=ports(engine)))
        pieces.append(pod(name, "127.0.0.1", port=engine.port, tidegate__revision=name.split("x")[0]))
    return pieces


def found(running: Gateway) -> dict[str, list[str]]:
    """The ports of the backends by pool."""
    pools = running.deps.live.fleet.pools
    return {name: sorted(backend.id.rpartition("-")[2] for backend in pool.backends) for name, pool in pools.items()}


async def until_is(running: Gateway, backend_id: str, state: Availability) -> None:
    await until(lambda: state is {b.id: b.state for pool in running.deps.live.fleet.pools.values() for b in pool.backends}.get(backend_id))


async def ask(client: httpx.AsyncClient, arm: str) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=chat(max_tokens=2), headers={"x-tidegate-rollout": arm})


@pytest.mark.parametrize("shared", ["service", "pods"])
async def test_two_revisions_behind_one_service_are_the_arms_of_a_canary(shared: str) -> None:
    """Both serve the model by the same name: nothing but the labels tells them apart."""
    async with SimEngine(SIM) as one, SimEngine(SIM) as two, SimEngine(SIM) as more:
        async with kubernetes_api(*behind_one_service(r1=one, r2=two)) as api:
            source = {"service": {"service": "chat", "port": "http"}, "pods": {"pods": "app=vllm"}}[shared]
            pools = two_pools(api, {**source, "labels": {"revision": True}})
            networks = {"register_networks": ["127.0.0.0/8"]}
            async with gateway(pools=pools, policies=[POLICY], engines=networks) as running, running.client() as client:
                running.deps.live.rollouts = ActiveRollouts({"old": HALF})
                await until_is(running, f"old-127.0.0.1-{one.port}", Availability.UP)
                await until_is(running, f"new-127.0.0.1-{two.port}", Availability.UP)
                assert found(running) == {"old": [str(one.port)], "new": [str(two.port)]}
                for arm, pool, revision in (("canary", "new", "r2"), ("baseline", "old", "r1")):
                    reply = await ask(client, arm)
                    assert (reply.headers["x-tidegate-pool"], reply.headers["x-tidegate-revision"]) == (pool, revision)
                assert [sum(b"messages" in request.body for request in engine.received) for engine in (one, two)] == [1, 1]
                assert [state.left_out for state in running.fleet.membership.states()[1:]] == [1, 1]
                for piece in behind_one_service(r2x=more):
                    api.put(piece)
                await until_is(running, f"new-127.0.0.1-{more.port}", Availability.UP)
                api.put(pod("r1", "127.0.0.1", port=one.port, tidegate__revision="r2"))
                await until(lambda: found(running) == {"old": [], "new": sorted(str(each.port) for each in (one, two, more))})
                assert (await ask(client, "baseline")).status_code == 503


async def test_pools_that_share_a_selector_take_the_pods_that_name_them() -> None:
    async with SimEngine(SIM) as one, SimEngine(SIM) as two:
        pods = [pod(name, "127.0.0.1", port=engine.port, tidegate__pool=name) for name, engine in (("a", one), ("b", two))]
        async with kubernetes_api(*pods) as api:
            pools = two_pools(api, {"pods": "app=vllm"})
            for pool, name in zip(pools, "ab", strict=True):
                kubernetes = pool["discover"]["kubernetes"]
                pool["discover"] = {"kubernetes": {**kubernetes, "labels": {"pool": name}}}
            async with gateway(pools=pools, policies=[POLICY], engines={"register_networks": ["127.0.0.0/8"]}) as running:
                await until(lambda: found(running) == {"old": [str(one.port)], "new": [str(two.port)]})
                states = running.fleet.membership.states()[1:]
                assert [(state.members, state.left_out, state.labels) for state in states] == [
                    (1, 1, ("tidegate/pool b",)),
                    (1, 1, ("tidegate/pool a",)),
                ]


@pytest.mark.parametrize("unproven", ["refuse", "admit"])
async def test_a_label_proves_nothing_where_the_pool_is_pinned_to_a_digest(unproven: str) -> None:
    """Both pods say r2, and one of them serves other weights."""
    proves, other = (SimSettings(models=("sim", f"sim@sha256-{digit * 12}"), speed=2000) for digit in "0f")
    async with SimEngine(proves) as one, SimEngine(other) as two:
        async with kubernetes_api(*behind_one_service(r2=one, r2x=two)) as api:
            source = {"service": "chat", "port": "http", "labels": {"revision": True}}
            pinned = {"digest": "sha256:" + "0" * 64, "unproven": unproven}
            pools = two_pools(api, source, pinned=pinned)
            async with gateway(pools=pools, policies=[POLICY], engines={"register_networks": ["127.0.0.0/8"]}) as running:
                await until_is(running, f"new-127.0.0.1-{one.port}", Availability.UP)
                wrong = f"new-127.0.0.1-{two.port}"
                await until_is(running, wrong, Availability.UP if unproven == "admit" else Availability.DOWN)
                backends = {backend.id: backend for backend in running.deps.live.fleet.pools["new"].backends}
                await until(lambda: "does not prove revision sim@r2: it serves sim@sha256-ffffffffffff" in backends[wrong].reason)


async def test_a_pool_that_says_no_revision_has_the_engines_of_all() -> None:
    async with SimEngine(SIM) as one, SimEngine(SIM) as two:
        async with kubernetes_api(*behind_one_service(r1=one, r2=two)) as api:
            source = {"kubernetes": {"service": "chat", "port": "http", "namespace": "engines", "address": api.url}}
            pools = [{"name": "old", "model": "sim", "backends": [], "discover": source}]
            async with gateway(pools=pools, policies=[POLICY], engines={"register_networks": ["127.0.0.0/8"]}) as running:
                await until(lambda: found(running) == {"old": sorted((str(one.port), str(two.port)))})
