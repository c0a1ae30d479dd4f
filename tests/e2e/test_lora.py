"""Adapters as callers see them: whose they are, which answers, and what happens when engines forget."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from backends.lora.loader import LoraOrders
from backends.lora.residency import SETTLE_S
from backends.signals import Signals
from backends.simengine import SimEngine, SimSettings
from backends.simengine.faults import FaultRule
from domain.adapters import RegisteredAdapter
from gateway.fleet.adapters import RegisteredAdapters
from gateway.fleet.sources import order_drain
from tenancy.stores.memory import MemoryAdapterStore
from tests.gateway_harness import Gateway, chat, gateway, stream
from tests.pool_states import charged
from tests.scale import scaled
from tests.timing import HANG_S, until

SIM = SimSettings(models=("sim",), speed=2000, max_loras=2)
DIGESTS = {"support": "aa" * 32, "sales": "bb" * 32, "legal": "cc" * 32}
SERVED = {name: f"{name}@{digest[:12]}" for name, digest in DIGESTS.items()}
BOTS = [{"name": f"{name}-bot", "pool": "chat", "lora": name} for name in DIGESTS]
POLICIES: tuple[dict[str, Any], ...] = (
    {"tenant": "acme", "models": [{"name": "sim", "pool": "chat"}, *BOTS], "expose_headers": True},
    {"tenant": "bolt", "models": [{"name": "sim", "pool": "chat"}]},
)


def pool(slots: int = 2, digests: dict[str, str] = DIGESTS, **fields: Any) -> dict[str, Any]:
    loras = [{"name": name, "digest": digest, "path": f"/adapters/{name}"} for name, digest in digests.items()]
    return {"loras": loras, "max_loras": slots, **fields}


async def said(running: Gateway, model: str, **fields: Any) -> str:
    async with running.client(verify=False) as client:  # no TLS here, and reading the machine's certificates takes 0.1 s
        reply = await client.post("/v1/chat/completions", json=chat(model=model, max_tokens=12, **fields))
        assert reply.status_code == 200, reply.text
        assert reply.json()["model"] == model
        return str(reply.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_each_adapter_answers_in_its_own_words_under_the_public_name(dialect: str) -> None:
    settings = SimSettings(models=("sim",), speed=2000, max_loras=3, dialect=dialect)
    async with SimEngine(settings) as engine, gateway(engine.url, policies=POLICIES, pool=pool(3, dialect=dialect)) as running:
        texts = [await said(running, model) for model in ("sim", "support-bot", "sales-bot", "legal-bot")]
        assert len(set(texts)) == 4
        assert await said(running, "support-bot") == texts[1]
        async with running.client() as client:
            seen = await stream(client, model="support-bot", max_tokens=12)
        assert (seen.text, seen.done, {event["model"] for event in seen.events}) == (texts[1], True, {"support-bot"})
        asked = [json.loads(received.body)["model"] for received in engine.received]
        expected = SERVED["support"] if dialect == "vllm" else f"sim:{SERVED['support']}"
        assert asked[1] == asked[4] == asked[5] == expected
        assert engine.loras.loads == 3
        records = await running.recorded(6)
        assert [record.lora for record in records[:2]] == ["", SERVED["support"]]
        assert records[1].lora_wait_s > 0
        assert records[1].overhead_s < records[1].duration_s


@pytest.mark.req("R42")
async def test_a_forbidden_adapter_looks_like_an_unknown_model() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=POLICIES, pool=pool()) as running:
        await said(running, "support-bot")
        before = len(engine.received)
        forbidden = ["support-bot", "support", SERVED["support"], f"sim:{SERVED['support']}"]
        bodies = set()
        async with running.client("bolt") as client:
            for name in [*forbidden, "no-such-model"]:
                reply = await client.post("/v1/chat/completions", json=chat(model=name))
                listed = await client.get(f"/v1/models/{name.replace(':', '%3A')}")
                assert (reply.status_code, listed.status_code) == (404, 404)
                assert reply.json()["error"]["message"] == listed.json()["error"]["message"]
                bodies.add(reply.text.replace(name, "NAME"))
            assert [m["id"] for m in (await client.get("/v1/models")).json()["data"]] == ["sim"]
            tricky = await client.post("/v1/chat/completions", json=chat(max_tokens=12, lora_path=SERVED["support"]))
            assert (tricky.status_code, tricky.json()["error"]["param"]) == (400, "lora_path")
        assert len(bodies) == 1
        assert len(engine.received) == before
        assert {record.lora for record in running.records if record.tenant == "bolt"} == {""}


@pytest.mark.req("R42")
async def test_other_bytes_are_another_adapter_and_meet_nothing_of_the_old_one(record_property: pytest.FixtureRequest) -> None:
    changed = {**DIGESTS, "support": "dd" * 32}
    prompt = [{"role": "user", "content": "the same long words again and again " * 40}]
    repeats, hits, texts = 20, 0, []
    async with SimEngine(SIM) as engine:
        for digests in (DIGESTS, changed):
            async with gateway(engine.url, policies=POLICIES, pool=pool(digests=digests)) as running, running.client() as client:
                cached = []
                for _ in range(repeats):
                    reply = (
                        await client.post("/v1/chat/completions", json=chat(model="support-bot", messages=prompt, max_tokens=8))
                    ).json()
                    texts.append(reply["choices"][0]["message"]["content"])
                    cached.append(reply["usage"]["prompt_tokens_details"]["cached_tokens"])
                assert min(cached[1:]) > 0  # the cache works, so that the next line says something
                hits += cached[0]
        assert hits == 0
        assert set(texts[:repeats]).isdisjoint(texts[repeats:])
        names = {json.loads(received.body)["model"] for received in engine.received}
        salts = {json.loads(received.body)["cache_salt"] for received in engine.received}
        assert names == {SERVED["support"], "support@" + "dd" * 6}
        assert len(salts) == 2
    record_property("figure", f"{repeats} repeats: 0 cached tokens and 0 answers of the old version")  # type: ignore[operator]


async def test_three_adapters_share_two_slots() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=POLICIES, pool=pool()) as running:
        texts = {model: await said(running, model) for model in ("support-bot", "sales-bot", "support-bot", "legal-bot")}
        assert sorted(engine.loras.loaded) == sorted([SERVED["support"], SERVED["legal"]])
        for model, text in texts.items():
            assert await said(running, model) == text
        assert engine.loras.most == 2
        async with running.client() as client:
            asked = [chat(model=model, max_tokens=4) for model in ("support-bot", "sales-bot")] * 20
            many = await asyncio.gather(*(client.post("/v1/chat/completions", json=one) for one in asked))
        assert {reply.status_code for reply in many} == {200}
        assert engine.loras.most == 2


SLOW = SimSettings(models=("sim",), speed=1, max_loras=1)
"""One slot, and answers that last."""


async def test_another_engine_takes_what_a_full_one_cannot() -> None:
    async with (
        SimEngine(SLOW) as full,
        SimEngine(SIM) as free,
        gateway(full.url, free.url, policies=POLICIES, pool=pool(1)) as running,
        running.client() as client,
    ):
        elsewhere = charged(running.deps.pool_states, "e1", running.deps.clock(), tokens=100_000)
        begun = asyncio.create_task(stream(client, model="sales-bot", max_tokens=40, ignore_eos=True))
        await until(lambda: full.in_flight)
        running.deps.pool_states["chat"].load_table.release(elsewhere)
        reply = await client.post("/v1/chat/completions", json=chat(model="support-bot", max_tokens=2))
        assert reply.headers["x-tidegate-backend"] == "e1"
        assert (await begun).done


async def test_requests_wait_for_a_slot_and_keep_nobody_else_from_the_engine() -> None:
    """Requests use the only slot: another adapter's request waits for it, and one for the base model does not wait behind that."""
    async with SimEngine(SLOW) as full, gateway(full.url, policies=POLICIES, pool=pool(1)) as running, running.client() as client:
        begun = asyncio.create_task(stream(client, model="support-bot", max_tokens=40, ignore_eos=True))
        await until(lambda: full.in_flight)
        waits = [asyncio.create_task(client.post("/v1/chat/completions", json=chat(model="sales-bot", max_tokens=2))) for _ in range(3)]
        queue = running.deps.queues["chat"]
        await until(lambda: queue.waiting == 3)
        assert queue.in_line == 0
        assert (await client.post("/v1/chat/completions", json=chat(max_tokens=1))).status_code == 200
        assert (await client.post("/v1/chat/completions", json=chat(model="support-bot", max_tokens=1))).status_code == 200
        assert [record.queued for record in running.records] == ["", ""]
        assert (queue.waiting, begun.done()) == (3, False)
        assert (await begun).done
        assert [(await one).status_code for one in waits] == [200, 200, 200]
        waited = [record for record in await running.recorded(6) if record.lora == SERVED["sales"]]
        assert {(record.queued, record.attempts) for record in waited} == {("served", 1)}
        assert (full.loras.most, full.loras.loads) == (1, 2)
        assert (queue.waiting, queue.in_line) == (0, 0)
        assert running.deps.pool_states.total() == 0
        assert running.deps.loras.adapters_on("chat", "e0").idle


async def test_a_wait_for_a_slot_ends_with_the_callers_patience() -> None:
    async with SimEngine(SLOW) as full, gateway(full.url, policies=POLICIES, pool=pool(1)) as running, running.client() as client:
        begun = asyncio.create_task(stream(client, model="support-bot", max_tokens=40, ignore_eos=True))
        await until(lambda: full.in_flight)
        hurried = {"x-tidegate-timeout-s": "0.1"}
        reply = await client.post("/v1/chat/completions", json=chat(model="sales-bot"), headers=hurried)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "overloaded")
        assert int(reply.headers["retry-after"]) >= 1
        assert (await begun).done
        assert await said(running, "sales-bot")


async def test_slots_that_nobody_gives_back_are_not_waited_for() -> None:
    """An operator's own adapter has the only slot; the gateway never unloads it."""
    async with SimEngine(SLOW) as full, gateway(full.url, policies=POLICIES, pool=pool(1)) as running, running.client() as client:
        full.loras.loaded["operators-own"] = "/adapters/own"
        reply = await client.post("/v1/chat/completions", json=chat(model="sales-bot"))
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_backend")
        assert "operators-own" in running.records[0].detail
        assert running.records[0].queued == ""


async def test_two_gateways_that_want_one_slot_take_turns() -> None:
    """Neither knows what the other is about to load; whoever finds the slot taken waits for it again."""
    async with (
        SimEngine(SimSettings(models=("sim",), speed=20, max_loras=1)) as engine,
        gateway(engine.url, policies=POLICIES, pool=pool(1)) as one,
        gateway(engine.url, policies=POLICIES, pool=pool(1)) as other,
    ):
        asked = [(running, name) for _ in range(6) for running, name in ((one, "support-bot"), (other, "sales-bot"))]
        answers = await asyncio.gather(*[said(running, name, ignore_eos=True) for running, name in asked])
        assert len(answers) == 12
        assert engine.loras.most == 1


async def test_who_comes_later_does_not_take_the_slot_that_another_request_waits_for() -> None:
    async with SimEngine(SLOW) as full, gateway(full.url, policies=POLICIES, pool=pool(1), poll=False) as running:
        running.deps.live.signals["e0"] = Signals(read_at=running.deps.clock() + 60.0, loras=("another@" + "ee" * 6,))
        full.loras.loaded["another@" + "ee" * 6] = "/adapters/another"
        first = asyncio.create_task(said(running, "sales-bot"))
        await until(lambda: running.deps.queues["chat"].waiting)
        running.deps.live.signals["e0"] = Signals(read_at=running.deps.clock(), loras=())
        # the slot is free, and nothing has told the queue
        later = asyncio.create_task(said(running, "legal-bot"))
        await asyncio.gather(first, later)
        asked = [json.loads(received.body)["model"] for received in full.received]
        assert asked == [SERVED["sales"], SERVED["legal"]]


@pytest.mark.req("R11")
async def test_an_answer_that_has_begun_is_not_begun_again_for_want_of_a_slot() -> None:
    """The engine that was to go on with it has no slot for the adapter: the caller hears that the answer was cut, once."""
    slow = SimSettings(models=("sim",), speed=20, max_loras=1)
    async with (
        SimEngine(slow) as one,
        SimEngine(slow) as two,
        gateway(one.url, two.url, policies=POLICIES, pool=pool(1, continue_streams=True)) as running,
        running.client() as client,
    ):
        elsewhere = charged(running.deps.pool_states, "e0", running.deps.clock(), tokens=100_000)
        busy = asyncio.create_task(stream(client, model="support-bot", max_tokens=400, ignore_eos=True))
        await until(lambda: two.in_flight)
        running.deps.pool_states["chat"].load_table.release(elsewhere)
        one.misbehave([FaultRule("crash_mid_stream", after=11)])
        seen = await stream(client, model="sales-bot", max_tokens=40, ignore_eos=True)
        roles = [choice["delta"].get("role") for event in seen.events for choice in event.get("choices", ()) if "delta" in choice]
        assert [role for role in roles if role] == ["assistant"]
        assert (seen.done, len(seen.errors)) == (False, 1)
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)


async def test_requests_that_lose_a_race_for_a_slot_do_not_ask_the_engine_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another gateway has loaded its adapter into the only slot, before this one has read the engine's list again."""
    lists: list[str] = []
    listed = LoraOrders.listed

    async def counted(self: LoraOrders, timeout_s: float) -> Iterable[str]:
        found = await listed(self, timeout_s)
        lists.append(",".join(found))
        return found

    async with (
        SimEngine(SLOW) as engine,
        gateway(engine.url, policies=POLICIES, pool=pool(1)) as one,
        gateway(engine.url, policies=POLICIES, pool=pool(1)) as other,
        other.client() as client,
    ):
        await until(lambda: one.deps.live.signals.get("e0"))
        begun = asyncio.create_task(stream(client, model="support-bot", max_tokens=60, ignore_eos=True))
        await until(lambda: engine.loras.loaded)
        monkeypatch.setattr(LoraOrders, "listed", counted)
        waits = [asyncio.create_task(said(one, "sales-bot")) for _ in range(2)]
        await asyncio.gather(begun, *waits)
        assert engine.loras.most == 1
    assert len(lists) <= 12, "a list for each load that is tried, and one is tried when the slot may be free"


async def test_a_restarted_engine_is_given_its_adapters_again_without_an_error() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=POLICIES, pool=pool(), poll=False) as running:
        text = await said(running, "support-bot")
        for _ in range(scaled(5, 50)):
            engine.loras.loaded.clear()
            assert await said(running, "support-bot") == text
        assert {record.outcome for record in running.records} == {"ok"}
        assert max(record.attempts for record in running.records) == 2


async def test_a_restart_that_a_poll_sees_costs_no_failed_attempt() -> None:
    sections = {"engines": {"poll_s": 0.02}}
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=POLICIES, pool=pool(), **sections) as running:
        await said(running, "support-bot")
        engine.loras.loaded.clear()
        async with asyncio.timeout(HANG_S):
            while running.deps.loras.resident("e0"):
                await asyncio.sleep(0.01)
        await said(running, "support-bot")
        assert [record.attempts for record in running.records] == [1, 1]


async def test_a_path_that_is_not_there_is_an_operators_matter_and_costs_other_models_nothing() -> None:
    broken = pool()
    broken["loras"][0]["path"] = "/nosuch/support"
    async with SimEngine(SIM) as one, SimEngine(SIM) as other:
        async with gateway(one.url, other.url, policies=POLICIES, pool=broken) as running, running.client() as client:
            replies = [await client.post("/v1/chat/completions", json=chat(model="support-bot")) for _ in range(3)]
            assert {reply.status_code for reply in replies} == {503}
            assert all("retry-after" in reply.headers and "nosuch" not in reply.text for reply in replies)
            assert "No adapter found for /nosuch/support" in running.records[0].detail
            assert [record.outcome for record in running.records] == ["lora_unavailable", "no_backend", "no_backend"]
            assert await said(running, "sales-bot")
            assert await said(running, "sim")
            assert len(one.received) + len(other.received) == 2


async def test_the_base_models_answer_is_not_taken_for_an_adapters() -> None:
    class Careless(SimEngine):
        """Answers whatever is asked as the base model, and says so."""

        def _infer(self, connection: Any, kind: str) -> None:
            connection.body = connection.body.replace(SERVED["support"].encode(), b"sim")
            super()._infer(connection, kind)

    async with Careless(SIM) as engine, gateway(engine.url, policies=POLICIES, pool=pool()) as running, running.client() as client:
        reply = await client.post("/v1/chat/completions", json=chat(model="support-bot", max_tokens=4))
        assert reply.status_code == 502
        assert running.records[0].outcome == "wrong_model"
        assert await said(running, "sim")  # the model itself is served as before
        assert (await client.post("/v1/chat/completions", json=chat(model="support-bot"))).status_code == 503


async def test_requests_prefer_who_has_the_adapter_but_not_for_ever() -> None:
    slower = SimSettings(models=("sim",), speed=20, max_loras=2)
    async with SimEngine(slower) as one, SimEngine(slower) as other:
        by_load = [{**policy, "routing": "least_load"} for policy in POLICIES]
        async with gateway(one.url, other.url, policies=by_load, pool=pool()) as running, running.client() as client:
            for _ in range(10):
                await said(running, "support-bot")
            assert sorted([one.loras.loads, other.loras.loads]) == [0, 1]
            slow = [asyncio.create_task(stream(client, model="support-bot", max_tokens=200, ignore_eos=True)) for _ in range(40)]
            assert all(seen.done for seen in await asyncio.gather(*slow))
            assert [one.loras.loads, other.loras.loads] == [1, 1]
            reply = await client.post("/v1/chat/completions", json=chat(model="support-bot", max_tokens=2))
            assert "adapter_absent=0" in reply.headers["x-tidegate-reason"]


async def test_fifty_callers_of_a_cold_adapter_wait_for_one_load_per_engine() -> None:
    slow = SimSettings(models=("sim",), speed=2000, max_loras=2, lora_load_s=200)
    async with SimEngine(slow) as one, SimEngine(slow) as other:
        async with gateway(one.url, other.url, policies=POLICIES, pool=pool()) as running:
            assert len(set(await asyncio.gather(*(said(running, "support-bot") for _ in range(50))))) == 1
            assert one.loras.loads <= 1 and other.loras.loads <= 1
            assert {record.attempts for record in running.records} == {1}


async def test_a_load_that_takes_too_long_is_given_up() -> None:
    stuck = SimSettings(models=("sim",), max_loras=2, lora_load_s=3600)
    sections = {"engines": {"lora_load_s": 0.2, "poll_s": 0.02}}
    async with SimEngine(stuck) as engine, gateway(engine.url, policies=POLICIES, pool=pool(), **sections) as running:
        async with running.client() as client:
            reply = await client.post("/v1/chat/completions", json=chat(model="support-bot"))
        assert reply.status_code == 503
        assert "within 0.2 s" in running.records[0].detail or "no answer within" in running.records[0].detail
        assert engine.count == 0
        assert running.deps.pool_states.total() == 0


async def test_a_load_does_not_spend_the_time_in_which_another_engine_is_tried() -> None:
    slow = SimSettings(models=("sim",), speed=2000, max_loras=2, lora_load_s=1200)  # 0.6 s
    sections = {"engines": {"first_token_base_s": 1.0, "first_token_cap_s": 1.0, "plain_timeout_s": 1.0}}
    async with SimEngine(slow) as one, SimEngine(slow) as other:
        async with gateway(one.url, other.url, policies=POLICIES, pool=pool(), **sections) as running:
            one.misbehave([FaultRule("status_500")])
            other.misbehave([FaultRule("status_500")])
            async with running.client() as client:
                await client.post("/v1/chat/completions", json=chat(model="support-bot"))
            assert (running.records[0].attempts, running.records[0].lora_wait_s > 1.0) == (2, True)


async def test_a_caller_that_leaves_while_an_adapter_is_loaded_ends_its_wait_and_not_the_load() -> None:
    slow = SimSettings(models=("sim",), max_loras=2, lora_load_s=1.5)
    async with SimEngine(slow) as engine, gateway(engine.url, policies=POLICIES, pool=pool()) as running:
        async with running.client(verify=False) as client:
            call = asyncio.create_task(client.post("/v1/chat/completions", json=chat(model="support-bot")))
            await until(running.deps.pool_states.total)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        (record,) = await running.recorded(1)
        assert (record.outcome, engine.loras.loads) == ("client_gone", 0), "while it is loaded"
        assert running.deps.pool_states.total() == 0
        assert await said(running, "support-bot")
        assert engine.loras.loads == 1


async def test_a_drain_ends_the_wait_for_an_adapter(tmp_path: Path) -> None:
    stuck = SimSettings(models=("sim",), max_loras=2, lora_load_s=20)
    async with SimEngine(stuck) as engine, gateway(engine.url, policies=POLICIES, pool=pool(), run_dir=tmp_path) as running:
        async with running.client() as client:
            waiting = asyncio.create_task(client.post("/v1/chat/completions", json=chat(model="support-bot")))
            while not running.deps.pool_states.total():
                await asyncio.sleep(0.01)
            order_drain(tmp_path, "e0", 60.0)
            reply = await waiting  # for 20 s, if the load were waited for
        assert (reply.status_code, "retry-after" in reply.headers) == (503, True)
        assert running.records[0].detail == "e0: it has left the fleet"
        assert running.deps.pool_states.total() == 0


async def test_what_the_engine_says_it_runs_is_not_unloaded_by_us() -> None:
    """Another gateway's requests count: only the engine knows of them."""
    async with (
        SimEngine(SIM) as engine,
        gateway(engine.url, policies=POLICIES, pool=pool(1), poll=False) as running,
    ):
        await said(running, "support-bot")
        running.deps.live.signals["e0"] = Signals(read_at=running.deps.clock() + SETTLE_S, loras=(SERVED["support"],))
        waits = asyncio.create_task(said(running, "sales-bot"))
        await until(lambda: running.deps.queues["chat"].waiting)
        assert [*engine.loras.loaded] == [SERVED["support"]]
        running.deps.live.signals["e0"] = Signals(read_at=running.deps.clock(), loras=())
        assert await waits
        assert [*engine.loras.loaded] == [SERVED["sales"]]


async def test_adapters_wait_for_room_as_well_and_hold_their_place_while_they_load() -> None:
    slow = SimSettings(models=("sim",), max_loras=2, lora_load_s=0.2, max_queued=1)
    async with SimEngine(slow) as engine, gateway(engine.url, policies=POLICIES, pool=pool(limit={"enabled": False})) as running:
        running.deps.pool_states["chat"].load_table.set_limit("e0", requests=1)
        answers = await asyncio.gather(*[said(running, name) for name in ("support-bot", "sales-bot", "support-bot", "sim")])
        assert len(answers) == 4
        assert {(record.outcome, record.attempts) for record in running.records} == {("ok", 1)}
        assert [record.queued for record in running.records] == ["", "served", "served", "served"]
        assert running.deps.pool_states.total() == 0


async def test_an_adapter_that_is_registered_while_the_gateway_runs_answers_until_it_is_deleted(tmp_path: Path) -> None:
    store = MemoryAdapterStore()
    async with (
        SimEngine(SIM) as engine,
        gateway(engine.url, policies=POLICIES, pool={"lora_folder": "/adapters", "max_loras": 2}) as running,
    ):
        registered = RegisteredAdapters(store, tmp_path, running.deps.loras.register)
        await registered.first()

        async def status() -> int:
            async with running.client() as client:
                reply = await client.post("/v1/chat/completions", json=chat(model="support-bot", max_tokens=4))
            assert reply.status_code == 200 or reply.json()["error"]["code"] == "no_backend", reply.text
            return reply.status_code

        assert await status() == 503
        await store.add(RegisteredAdapter("chat", "support", DIGESTS["support"], "/adapters/support"), 0.0)
        await registered.look()
        assert await status() == 200
        assert json.loads(engine.received[-1].body)["model"] == SERVED["support"]
        before = len(engine.received)
        await store.remove("chat", "support")
        await registered.look()
        assert await status() == 503
        assert len(engine.received) == before
        records = await running.recorded(3)
        assert [(record.outcome, record.pool) for record in records] == [
            ("lora_unavailable", "chat"),
            ("ok", "chat"),
            ("lora_unavailable", "chat"),
        ]
        assert "pool 'chat' has no adapter 'support'" in records[0].detail
