"""A pool found in Kubernetes while requests run: what callers notice of engines that come and go (nothing), and of an API server that
is away (nothing)."""

import asyncio
import socket
import time
from typing import Any

import pytest

from backends.simengine import SimEngine, SimSettings
from routing.fleet import Availability
from tests.e2e.test_discovery import load, nothing_left_of, until_is
from tests.gateway_harness import chat, gateway
from tests.kubernetes_api import KubernetesApi, endpoint, inference_pool, kubernetes_api, labelled, leaving, pod, terminating
from tests.timing import HANG_S, until

SIM = SimSettings(models=("sim",), speed=20)


def site(api: KubernetesApi, **more: Any) -> dict[str, Any]:
    return site_of(api, service="chat", port="http", **more)


def site_of(api: KubernetesApi, *, port: str | None = None, **more: Any) -> dict[str, Any]:
    keys = ("service", "pods", "inference_pool", "llm_inference_service")
    named = {key: more.pop(key) for key in keys if key in more}
    found = {**named, "namespace": "engines", "port": port, "address": api.url}
    return {"pool": {"backends": [], "discover": {"kubernetes": found}}, "engines": {"register_networks": ["127.0.0.0/8"]}, **more}


def ports(engine: SimEngine) -> list[dict[str, Any]]:
    return [{"name": "http", "port": engine.port}, {"name": "events", "port": 5557}]


def name_of(engine: SimEngine) -> str:
    return f"chat-127.0.0.1-{engine.port}"


@pytest.mark.req("ROUTERS-29")
async def test_slices_that_change_under_load_move_the_fleet_and_cut_no_stream(record_property: Any) -> None:
    async with SimEngine(SIM) as one, SimEngine(SIM) as two:
        first, second = name_of(one), name_of(two)
        async with kubernetes_api(labelled("a", endpoint("127.0.0.1"), ports=ports(one))) as api:
            async with gateway(**site(api)) as running, load(running) as traffic:
                await until_is(running, first, Availability.UP)
                await until(lambda: one.counters.finished > 0)
                api.put(labelled("b", endpoint("127.0.0.1", ready=False), ports=ports(two)))
                api.put(labelled("b", endpoint("127.0.0.1"), ports=ports(two)))
                await until_is(running, second, Availability.UP)
                await until(lambda: two.counters.finished > 0)
                told = time.monotonic()
                api.put(labelled("a", leaving("127.0.0.1"), ports=ports(one)))
                await until_is(running, first, Availability.DRAINING)
                took_s = time.monotonic() - told
                async with asyncio.timeout(HANG_S):
                    while running.deps.pool_states.in_flight(first):
                        await asyncio.sleep(0.01)
                drained = one.counters.finished
                await asyncio.sleep(0.3)
                assert one.counters.finished == drained
                api.delete("a")
                await until_is(running, first, None)
                assert nothing_left_of(running, first)
                traffic.stop()
        assert traffic.all_whole()
        record_property("figure", f"draining {took_s * 1000:.0f} ms after its slice said so; 0 of {len(traffic.seen)} streams cut")


async def test_an_api_server_that_is_away_leaves_the_last_answer_in_force() -> None:
    async with SimEngine(SIM) as one, SimEngine(SIM) as two:
        async with kubernetes_api(labelled("a", endpoint("127.0.0.1", zone="z1"), ports=ports(one))) as api:
            async with gateway(**site(api)) as running, running.client() as client:
                api.forbidden = True
                api.cut()
                await until(lambda: "verbs" in running.fleet.membership.states()[1].trouble)
                state = running.fleet.membership.states()[1]
                assert (state.owner, state.pool, state.members) == ("kubernetes", "chat", 1)
                assert state.age_s is not None
                assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
                member = running.fleet.roster.member(name_of(one))
                assert member is not None
                assert member.traits.region == "z1"
                api.put(labelled("b", endpoint("127.0.0.1"), ports=ports(two)))
                api.forbidden = False
                await until_is(running, name_of(two), Availability.UP)
                assert running.fleet.membership.states()[1].trouble == ""
                assert api.lists == 1


@pytest.mark.parametrize("crossing_s", [0.0, 0.5])
async def test_requests_stay_in_the_gateways_zone_where_leaving_it_has_a_price(crossing_s: float) -> None:
    """The zones come from the slices; prompts have nothing in common."""
    routing = {"policy": "predicted_latency", "crossing_s": crossing_s, "explore_share": 0.0}
    policies = ({"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "routing": routing},)
    async with SimEngine(SIM) as near, SimEngine(SIM) as far:
        pieces = [labelled(name, endpoint("127.0.0.1", zone=name), ports=ports(engine)) for name, engine in (("z1", near), ("z2", far))]
        async with kubernetes_api(*pieces) as api:
            async with gateway(**site(api, routing={"region": "z1"}), policies=policies) as running, running.client() as client:
                for engine in (near, far):
                    await until_is(running, name_of(engine), Availability.UP)
                for number in range(12):
                    body = chat(max_tokens=1, messages=[{"role": "user", "content": f"{number} " * 200}])
                    assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        assert near.counters.finished + far.counters.finished == 12
        assert (far.counters.finished == 0) is (crossing_s > 0), "without a price both zones are alike"


@pytest.mark.parametrize(("named", "labels"), [("pods", {}), ("llm_inference_service", None)])
async def test_pods_that_change_under_load_move_the_fleet_and_cut_no_stream(named: str, labels: dict[str, str] | None) -> None:
    kserve = {"app.kubernetes.io__name": "llama", "app.kubernetes.io__part-of": "llminferenceservice", "kserve.io__component": "workload"}
    shown = kserve if labels is None else labels
    async with SimEngine(SIM) as one, SimEngine(SIM) as two:
        first = pod("a", "127.0.0.1", port=one.port, zone="z1", **shown)
        async with kubernetes_api(first) as api:
            selected: dict[str, Any] = {named: "app=vllm" if named == "pods" else "llama"}
            async with gateway(**site_of(api, **selected)) as running, load(running) as traffic:
                await until_is(running, name_of(one), Availability.UP)
                member = running.fleet.roster.member(name_of(one))
                assert member is not None
                assert member.traits.region == "z1"
                api.put(pod("b", "127.0.0.1", port=two.port, ready=False, **shown))
                api.put(pod("b", "127.0.0.1", port=two.port, **shown))
                await until_is(running, name_of(two), Availability.UP)
                await until(lambda: two.counters.finished > 0)
                api.put(terminating(first))
                await until_is(running, name_of(one), Availability.DRAINING)
                await until(lambda: not running.deps.pool_states.in_flight(name_of(one)))
                api.delete("a", "Pod")
                await until_is(running, name_of(one), None)
                traffic.stop()
        assert traffic.all_whole()


async def test_an_inference_pool_that_selects_other_ports_moves_the_fleet_and_cuts_no_stream() -> None:
    async with SimEngine(SIM) as one, SimEngine(SIM) as two:
        async with kubernetes_api(inference_pool("llama", one.port), pod("a", "127.0.0.1")) as api:
            async with gateway(**site_of(api, inference_pool="llama")) as running, load(running) as traffic:
                await until_is(running, name_of(one), Availability.UP)
                api.put(inference_pool("llama", one.port, two.port))
                await until_is(running, name_of(two), Availability.UP)
                await until(lambda: two.counters.finished > 0)
                api.put(inference_pool("llama", two.port))
                await until_is(running, name_of(one), None)
                state = running.fleet.membership.states()[1]
                assert (state.name, state.members) == ("Kubernetes InferencePool engines/llama", 1)
                traffic.stop()
        assert traffic.all_whole()


async def test_an_engine_that_is_found_publishes_its_kv_events_at_the_port_of_its_pool() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    publishing = SimSettings(models=("sim",), speed=20, kv_events=f"tcp://*:{port}")
    async with SimEngine(publishing) as one, kubernetes_api(pod("a", "127.0.0.1", port=one.port)) as api:
        settings = site_of(api, pods="app=vllm")
        settings["pool"]["discover"]["ports"] = {"kv_events": port}
        async with gateway(**settings) as running, running.client() as client:
            await until_is(running, name_of(one), Availability.UP)
            await until(lambda: running.deps.live.kv.get(name_of(one)) is not None)
            assert (await client.post("/v1/chat/completions", json=chat(max_tokens=200))).status_code == 200
            await until(lambda: (running.deps.live.kv[name_of(one)].counts.batches) > 0)
