"""Limits, rights and prices on real requests: what is refused, how it is said, and that nothing refused or broken stays charged."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from tenancy.hold import Admission, Beat, Hold, LimitUsage
from tenancy.limits import Amounts, Group, Level, Limit, Meter, Scope, Window
from tenancy.prices import Price, TokenRates
from tenancy.rights import Caps, Rights
from tenancy.stores.memory import MemoryCounters
from tests.gateway_harness import Gateway, chat, gateway, stream
from tests.timing import HANG_S

SIM = SimSettings(models=("sim",), speed=2000)
ACME = Scope(Level.TENANT, "acme")
PROJECT = Scope(Level.PROJECT, "acme/default")


def limit(meter: Meter, window: Window, amount: int, scope: Scope = ACME, **fields: Any) -> Limit:
    return Limit(scope, meter, window, amount, **fields)


RPM = limit(Meter.REQUESTS, Window.MINUTE, 2)
TPM = limit(Meter.TOKENS, Window.MINUTE, 1000)


async def looked(running: Gateway) -> dict[tuple[Meter, Window], Any]:
    """How every limit of acme stands."""
    grant = running.deps.live.directory.grant(running.deps.live.directory.keys.authenticate(running.keys["acme"], 0.0).key_id, 0.0)  # type: ignore[union-attr]  # the harness made the key
    states = [state for group in grant.groups("sim") for state in await running.deps.counters.look(group)]
    return {(Meter(state.line.meter), state.line.window): state for state in states}


async def test_the_third_of_two_requests_a_minute_is_told_when_to_come_again() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=[RPM]) as running, running.client() as client:
        first = await client.post("/v1/chat/completions", json=chat(max_tokens=2))
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        await client.post("/v1/chat/completions", json=chat(max_tokens=2))
        refused = await client.post("/v1/chat/completions", json=chat(max_tokens=2))
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert "tenant acme: 2 requests per minute" in refused.json()["error"]["message"]
        assert refused.headers["x-should-retry"] == "true"
        assert 25_000 < int(refused.headers["retry-after-ms"]) <= 30_000
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        async with running.client("bolt") as bolt:
            other = await bolt.post("/v1/chat/completions", json=chat(max_tokens=2))
        assert other.status_code == 200, "another tenant's limit is not this one's"
        assert "x-ratelimit-limit-requests" not in other.headers
        assert len(engine.received) == 3
        assert [record.outcome for record in await running.recorded(4)] == ["ok", "ok", "request_limit", "ok"]


async def test_unused_tokens_come_back_when_the_answer_is_over() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=[limit(Meter.TOKENS, Window.DAY, 100_000)]) as running:
        async with running.client() as client:
            usage = (await client.post("/v1/chat/completions", json=chat(max_tokens=8))).json()["usage"]
            state = (await looked(running))[Meter.TOKENS, Window.DAY]
            assert (state.used, state.held) == (usage["total_tokens"], 0)
            seen = await stream(client, max_tokens=8, stream_options={"include_usage": True})
            both = usage["total_tokens"] + seen.events[-1]["usage"]["total_tokens"]
            assert (await looked(running))[Meter.TOKENS, Window.DAY].used == both


@pytest.mark.req("GATEWAYS-9")
async def test_a_refusal_by_one_scope_consumes_nothing_in_the_others() -> None:
    limits = [
        limit(Meter.REQUESTS, Window.MINUTE, 50),
        limit(Meter.TOKENS, Window.MONTH, 10**6),
        limit(Meter.CONCURRENT_REQUESTS, Window.NOW, 5),
        limit(Meter.OUTPUT_TOKENS, Window.DAY, 10, PROJECT),
        limit(Meter.REQUESTS, Window.DAY, 50, Scope(Level.ORGANISATION, "default")),
        limit(Meter.REQUESTS, Window.DAY, 50, Scope(Level.MODEL, "sim")),
    ]
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=limits) as running, running.client() as client:
        for _ in range(3):
            assert (await client.post("/v1/chat/completions", json=chat(max_tokens=11))).status_code == 400
        assert all(state.used == 0 for state in (await looked(running)).values())
        assert len(engine.received) == 0
        assert running.open_holds == 0


async def test_a_request_larger_than_a_limit_is_no_matter_of_waiting() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=[TPM]) as running, running.client() as client:
        refused = await client.post("/v1/chat/completions", json=chat(max_tokens=1000))
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "request_exceeds_limit")
        assert "1000 tokens per minute" in refused.json()["error"]["message"]
        assert refused.headers["x-should-retry"] == "false"


async def test_spent_money_is_not_a_rate() -> None:
    limits = [limit(Meter.COST_NANOUSD, Window.DAY, 2_000)]
    prices = [Price("p1", "sim", "*", 0.0, TokenRates(1_000_000, 1_000_000, 1_000_000, 1_000_000))]  # a nano-dollar a token
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=limits, prices=prices) as running, running.client() as client:
        statuses = []
        for _ in range(40):
            reply = await client.post("/v1/chat/completions", json=chat(max_tokens=400))
            statuses.append(reply.status_code)
            if reply.status_code != 200:
                break
        assert statuses[-1] == 429
        error = reply.json()["error"]
        assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
        assert reply.headers["x-should-retry"] == "false"
        assert "retry-after" not in reply.headers
        records = await running.recorded(len(statuses))
        spent = sum(record.cost_nanousd for record in records)
        assert spent == sum(record.usage.total_tokens for record in records)
        assert (await looked(running))[Meter.COST_NANOUSD, Window.DAY].used == spent <= 2_000
        assert {record.price_id for record in records if record.outcome == "ok"} == {"p1"}


async def test_a_cap_on_output_is_written_in_only_where_a_limit_needs_it() -> None:
    policies = [{"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "max_output_tokens": 7}]
    async with SimEngine(SIM) as engine:
        async with gateway(engine.url, policies=policies) as running, running.client() as client:
            await client.post("/v1/chat/completions", json=chat())
        async with gateway(engine.url, policies=policies, limits=[limit(Meter.TOKENS, Window.DAY, 10**6)]) as running:
            async with running.client() as client:
                reply = await client.post("/v1/chat/completions", json=chat())
                await client.post("/v1/chat/completions", json=chat(max_completion_tokens=3))
        sent = [json.loads(request.body) for request in engine.received if request.path == "/v1/chat/completions"]
        assert [request.get("max_tokens") for request in sent] == [None, 7, None]
        assert reply.json()["usage"]["completion_tokens"] <= 7


async def test_a_slot_is_free_again_when_its_answer_is_over_or_its_caller_gone() -> None:
    slow = SimSettings(models=("sim",), speed=1)
    limits = [limit(Meter.CONCURRENT_REQUESTS, Window.NOW, 2)]
    async with SimEngine(slow) as engine, gateway(engine.url, limits=limits) as running, running.client() as client:
        running_ones = [asyncio.create_task(stream(client, max_tokens=2000)) for _ in range(2)]
        async with asyncio.timeout(HANG_S):
            while running.open_holds < 2:
                await asyncio.sleep(0.005)
        refused = await client.post("/v1/chat/completions", json=chat(max_tokens=1))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "concurrency_limit_exceeded")
        for one in running_ones:
            one.cancel()
        await asyncio.gather(*running_ones, return_exceptions=True)
        async with asyncio.timeout(HANG_S):
            while running.open_holds:
                await asyncio.sleep(0.005)
        assert (await client.post("/v1/chat/completions", json=chat(max_tokens=1))).status_code == 200


async def test_each_end_user_has_a_limit_of_its_own() -> None:
    limits = [limit(Meter.REQUESTS, Window.MINUTE, 1, Scope(Level.USER, "acme"))]
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=limits) as running, running.client() as client:
        codes = [
            (await client.post("/v1/chat/completions", json=chat(max_tokens=1, user=user))).status_code for user in ("a", "b", "a", "b")
        ]
        assert codes == [200, 200, 429, 429]
        assert (await client.post("/v1/chat/completions", json=chat(max_tokens=1))).status_code == 200, (
            "without a label there is nobody to limit"
        )


@pytest.mark.req("R57")
async def test_what_rights_do_not_give_is_refused_with_the_scope_and_never_sent() -> None:
    caps = Caps(max_input_tokens=200, max_output_tokens=50, max_choices=2, max_logprobs=3, tools=False)
    rights = {"acme": Rights(endpoints=frozenset({"/v1/chat/completions"}), caps=caps)}
    tool = {"type": "function", "function": {"name": "f"}}
    wrong: list[tuple[dict[str, Any], int, str | None]] = [
        ({"max_tokens": 51}, 400, "max_tokens"),
        ({"max_completion_tokens": 51}, 400, "max_tokens"),
        ({"n": 3}, 400, "n"),
        ({"logprobs": True, "top_logprobs": 4}, 400, "logprobs"),
        ({"tools": [tool]}, 403, "tools"),
        ({"functions": [tool["function"]]}, 403, "tools"),
        ({"messages": [{"role": "user", "content": "word " * 300}]}, 400, None),
    ]
    async with SimEngine(SIM) as engine, gateway(engine.url, rights=rights) as running, running.client() as client:
        for fields, status, param in wrong:
            refused = await client.post("/v1/chat/completions", json=chat(**fields))
            assert refused.status_code == status, fields
            assert refused.json()["error"]["param"] == param
            assert "tenant acme" in refused.json()["error"]["message"]
        refused = await client.post("/v1/completions", json={"model": "sim", "prompt": "x"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_permissions")
        assert len(engine.received) == 0
        allowed = await client.post("/v1/chat/completions", json=chat(n=2, max_tokens=50))
        assert allowed.status_code == 200
        unsaid = await client.post("/v1/chat/completions", json=chat())
        assert json.loads(engine.received[-1].body)["max_tokens"] == 50
        assert unsaid.status_code == 200
        assert running.open_holds == 0


@pytest.mark.req("R15")
async def test_an_unknown_and_a_forbidden_model_look_the_same() -> None:
    policies = [{"tenant": "*", "models": [{"name": name, "pool": "chat"} for name in ("sim", "secret")]}]
    rights = {"acme": Rights(models=frozenset({"sim"}))}
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=policies, rights=rights) as running, running.client() as client:
        assert [one["id"] for one in (await client.get("/v1/models")).json()["data"]] == ["sim"]
        assert (await client.get("/v1/models/secret")).status_code == 404
        bodies = []
        for name in ("secret", "nobody"):
            refused = await client.post("/v1/chat/completions", json=chat(model=name))
            assert refused.status_code == 404
            bodies.append(refused.content.replace(name.encode(), b"NAME"))
            names = sorted(refused.headers)
        assert bodies[0] == bodies[1]
        assert names == sorted(refused.headers)
        async with running.client("bolt") as bolt:
            assert (await bolt.get("/v1/models/secret")).status_code == 200


@pytest.mark.req("R15")
@pytest.mark.parametrize("level", ["acme", "acme/default", "acme/default/key"])
async def test_a_model_with_an_adapter_that_was_not_granted_is_an_unknown_model(level: str) -> None:
    loras = [{"name": name, "digest": digest * 32, "path": f"/adapters/{name}"} for name, digest in (("sql", "aa"), ("law", "bb"))]
    models = [{"name": "sim", "pool": "chat"}, *({"name": f"{one}-bot", "pool": "chat", "lora": one} for one in ("sql", "law"))]
    settings = SimSettings(models=("sim",), speed=2000, max_loras=2)
    rights = {level: Rights(loras=frozenset({"sql"}))}
    options: dict[str, Any] = {"policies": [{"tenant": "*", "models": models}], "pool": {"loras": loras, "max_loras": 2}}
    async with SimEngine(settings) as engine, gateway(engine.url, rights=rights, **options) as running, running.client() as client:
        assert [one["id"] for one in (await client.get("/v1/models")).json()["data"]] == ["sim", "sql-bot"]
        for name in ("sim", "sql-bot"):
            assert (await client.post("/v1/chat/completions", json=chat(model=name, max_tokens=1))).status_code == 200
        before, answers = len(engine.received), set()
        for name in ("law-bot", "bot-law"):
            refused = await client.post("/v1/chat/completions", json=chat(model=name))
            shown = await client.get(f"/v1/models/{name}")
            answers.add((refused.status_code, shown.status_code, *(reply.text.replace(name, "NAME") for reply in (refused, shown))))
        assert len(answers) == 1
        assert answers.pop()[0] == 404
        assert (len(engine.received), running.open_holds) == (before, 0)
        async with running.client("bolt") as bolt:
            assert (await bolt.post("/v1/chat/completions", json=chat(model="law-bot", max_tokens=1))).status_code == 200


async def test_a_failure_of_ours_costs_the_caller_nothing() -> None:
    limits = [RPM, limit(Meter.TOKENS, Window.DAY, 10**6)]
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=limits) as running, running.client() as client:
        engine.misbehave([FaultRule("reset_before_headers")])
        for _ in range(4):
            assert (await client.post("/v1/chat/completions", json=chat(max_tokens=2))).status_code in (502, 503)
        assert all(state.used == 0 and state.held == 0 for state in (await looked(running)).values())


async def test_a_broken_answer_is_charged_for_what_was_delivered() -> None:
    limits = [limit(Meter.OUTPUT_TOKENS, Window.DAY, 10**6)]
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=limits) as running, running.client() as client:
        engine.misbehave([FaultRule("reset_mid_stream", after=5)])
        broken = await stream(client, max_tokens=100)
        assert broken.errors
        record = (await running.recorded(1))[0]
        assert record.closing == "estimate"
        assert 0 < record.usage.completion_tokens <= 100
        assert (await looked(running))[Meter.OUTPUT_TOKENS, Window.DAY].used == record.usage.completion_tokens


async def test_a_soft_threshold_warns_and_does_not_refuse() -> None:
    limits = [limit(Meter.REQUESTS, Window.DAY, 10, soft=2)]
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=limits) as running, running.client() as client:
        replies = [await client.post("/v1/chat/completions", json=chat(max_tokens=1)) for _ in range(3)]
        warnings = [reply.headers.get("x-tidegate-limit-warning") for reply in replies]
        assert warnings == [None, "tenant acme: 2 requests per day", "tenant acme: 2 requests per day"]
        assert [record.soft_limits for record in await running.recorded(3)] == [(), ("tenant acme: 2 requests per day",), ()]


class SlowCounters:
    """Counters that open a hold and take their time to say so, as a store does."""

    in_process = False

    def __init__(self) -> None:
        self.own = MemoryCounters(time.time)
        self.asked = asyncio.Event()

    async def admit(self, hold: Hold) -> Admission:
        admission = await self.own.admit(hold)
        self.asked.set()
        await asyncio.sleep(10)
        return admission

    async def beat(self, beats: Sequence[Beat]) -> None:
        await self.own.beat(beats)

    async def settle(self, hold: Hold, actual: Amounts) -> None:
        await self.own.settle(hold, actual)

    async def look(self, group: Group) -> list[LimitUsage]:
        return await self.own.look(group)


async def test_a_request_that_ends_while_it_is_decided_on_leaves_nothing_open() -> None:
    counters = SlowCounters()
    limits = [limit(Meter.CONCURRENT_REQUESTS, Window.NOW, 1), limit(Meter.REQUESTS, Window.DAY, 1)]
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=limits, counters=counters) as running, running.client() as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=chat(max_tokens=1)))
        await counters.asked.wait()
        (connection,) = running.connections.open
        connection._exchange.task.cancel()  # type: ignore[union-attr]  # a request is under way on it
        async with asyncio.timeout(HANG_S):
            while any(state.used for state in (await looked(running)).values()):
                await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
