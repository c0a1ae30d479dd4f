"""Where requests go through a whole gateway, and that nothing is left of them afterwards."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers

from backends.simengine import FaultRule, SimEngine, SimSettings
from gateway.placement.explain import Would, supposed
from routing.prefix.chain import BLOCK_TOKENS
from tests.gateway_harness import Gateway, chat, gateway, stream
from tests.timing import HANG_S, until

SIM = SimSettings(models=("sim",), speed=50)
LATENCY = (
    {
        "tenant": "*",
        "models": [{"name": "sim", "pool": "chat"}],
        "expose_headers": True,
        "routing": {"policy": "predicted_latency", "explore_share": 0.0},
    },
)


def system(name: str, words: int = 3000) -> list[dict[str, str]]:
    return [{"role": "system", "content": " ".join(f"{name}{at}" for at in range(words))}]


async def ask(client: httpx.AsyncClient, messages: list[dict[str, str]], **more: Any) -> httpx.Response:
    reply = await client.post("/v1/chat/completions", json=chat(messages=messages, max_tokens=4, **more))
    assert reply.status_code == 200, reply.text
    return reply


def went(reply: httpx.Response) -> str:
    return reply.headers["x-tidegate-backend"]


@contextlib.asynccontextmanager
async def placed(count: int, settings: SimSettings = SIM, **options: Any) -> AsyncIterator[tuple[list[SimEngine], Gateway]]:
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(SimEngine(settings)) for _ in range(count)]
        yield engines, await stack.enter_async_context(gateway(*(engine.url for engine in engines), **{"policies": LATENCY, **options}))


def nothing_left(running: Gateway) -> bool:
    load_table = running.deps.pool_states["chat"].load_table
    rows = range(len(load_table.ids))
    return not load_table.total() and not any(
        load_table.loads[row].unbegun_tokens or load_table.loads[row].unbegun_ctx or load_table.loads[row].kv for row in rows
    )


async def test_what_begins_alike_goes_where_it_was() -> None:
    async with placed(4) as (_, running), running.client() as client:
        names = ("red", "green", "blue", "grey")
        first = await asyncio.gather(*(ask(client, system(name)) for name in names))
        homes = dict(zip(names, map(went, first), strict=True))
        assert len(set(homes.values())) > 1, "what is new goes where there is room: an engine that computes a prompt has less"
        for turn in range(5):
            for name, home in homes.items():
                reply = await ask(client, [*system(name), {"role": "user", "content": f"turn {turn} of {name}"}])
                assert went(reply) == home
                assert int(reply.headers["x-tidegate-prefix-hit-tokens"]) > 2000
        load_table = running.deps.pool_states["chat"].load_table
        assert min(load_table.trust) > 0.8
        assert load_table.reuse.share > 0.1, "and it is learned that what engines cache is used again"


@pytest.mark.req("ROUTERS-28")
async def test_no_tenant_is_routed_by_what_another_one_sent() -> None:
    async with placed(4) as (_, running), running.client("acme") as acme, running.client("bolt") as bolt:
        home = went(await ask(acme, system("secret")))
        for _ in range(3):
            assert went(await ask(acme, system("secret"))) == home
        probe = chat(messages=system("secret"), max_tokens=4)
        body = httpx.Request("POST", "http://x", json=probe).content
        mine, theirs = [await supposed(Would(tenant, "/v1/chat/completions", body), running.deps) for tenant in ("acme", "bolt")]
        assert mine.explained is not None
        assert theirs.explained is not None
        assert max(one.held_tokens for one in mine.explained.contenders) > 2000
        assert [one.held_tokens for one in theirs.explained.contenders] == [0.0] * 4
        cold = await supposed(Would("bolt", "/v1/chat/completions", body.replace(b"secret", b"public")), running.deps)
        assert cold.explained is not None
        told = [{one.backend: (one.cost, one.terms) for one in each.explained.contenders} for each in (theirs, cold) if each.explained]
        assert told[0] == told[1], "a prompt of another tenant is as cold as one that nobody sent"
        assert int((await ask(bolt, system("secret"))).headers["x-tidegate-prefix-hit-tokens"]) == 0


async def test_a_conversation_stays_and_its_name_is_not_kept() -> None:
    async with placed(4) as (_, running), running.client() as client:
        first = went(await ask(client, [{"role": "user", "content": "hello"}], session_id="chat-with-ann"))
        for turn in range(6):
            assert went(await ask(client, [{"role": "user", "content": f"{turn}"}], session_id="chat-with-ann")) == first
        head = {"x-session-id": "another"}
        other = await client.post("/v1/chat/completions", json=chat(max_tokens=4), headers=head)
        again = await client.post("/v1/chat/completions", json=chat(max_tokens=4), headers=head)
        assert went(other) == went(again)
        assert "ann" not in repr(running.deps.decisions.find(other.headers["x-request-id"]))


@pytest.mark.slow
@pytest.mark.req("ROUTERS-29")
async def test_counters_come_back_to_nothing_whatever_becomes_of_requests(record_property: Any) -> None:
    faults = [
        FaultRule("status_500", p=0.1),
        FaultRule("reset_before_headers", p=0.1),
        FaultRule("crash_mid_stream", after=2, p=0.1),
        FaultRule("status_503", p=0.1),
        FaultRule("frozen", p=0.03),
    ]
    quick = {"first_token_base_s": 0.5, "first_token_cap_s": 1.0, "poll_s": 0.2}
    async with placed(3, SimSettings(models=("sim",), speed=5), engines=quick) as (engines, running), running.client() as client:
        rng = random.Random(7)
        for engine in engines:
            engine.inject(faults)

        async def one(number: int) -> None:
            with contextlib.suppress(httpx.HTTPError, TimeoutError):
                async with asyncio.timeout(rng.choice((0.02, 0.2, 5.0))):
                    messages = [*system(f"s{number % 5}", 200), {"role": "user", "content": str(number)}]
                    if number % 2:
                        await stream(client, messages=messages, max_tokens=20)
                    else:
                        await client.post("/v1/chat/completions", json=chat(messages=messages, max_tokens=20))

        for _ in range(5):
            await asyncio.gather(*(one(rng.randrange(1000)) for _ in range(40)))
        await until(lambda: nothing_left(running))
        assert nothing_left(running)
        record_property("requests", len(running.records))
        record_property("outcomes", dict(Counter(record.outcome for record in running.records)))


@pytest.mark.req("ROUTERS-15")
async def test_a_dispatch_that_fails_leaves_no_prediction() -> None:
    async with placed(2) as (engines, running), running.client() as client:
        for engine in engines:
            engine.inject([FaultRule("status_503")])
        body = chat(messages=system("lost"), max_tokens=4)
        assert (await client.post("/v1/chat/completions", json=body)).status_code >= 500
        assert running.deps.pool_states.index.predicted == 0
        told = await supposed(Would("acme", "/v1/chat/completions", httpx.Request("POST", "http://x", json=body).content), running.deps)
        assert told.explained is not None
        assert {one.held_tokens for one in told.explained.contenders} == {0.0}


@pytest.mark.req("ROUTERS-10")
async def test_a_new_process_at_the_same_address_begins_with_nothing() -> None:
    async with placed(2) as (engines, running), running.client() as client:
        home = went(await ask(client, system("old")))
        messages = [*system("old"), {"role": "user", "content": "again"}]
        body = httpx.Request("POST", "http://x", json=chat(messages=messages)).content

        async def held_there() -> dict[str, float]:
            told = await supposed(Would("acme", "/v1/chat/completions", body), running.deps)
            assert told.explained is not None
            return {one.backend: one.held_tokens for one in told.explained.contenders}

        assert (await held_there())[home] > 2000
        # its counters are to have been read: by their fall a restart is known
        await until(lambda: (running.deps.live.signals[home].prefill_tokens or 0) > 1000)
        async with httpx.AsyncClient(timeout=HANG_S) as direct:  # somebody else's request, as far as the gateway knows
            await direct.post(f"{engines[int(home[1:])].url}/v1/chat/completions", json=chat(sim_fault={"name": "restart_empty_kv"}))
        await settled(held_there, lambda seen: seen[home] == 0.0)


async def test_a_backend_that_leaves_is_forgotten_at_once() -> None:
    async with placed(2) as (_, running), running.client() as client:
        home = went(await ask(client, system("gone")))
        running.fleet.roster.apply({})
        running.fleet.roster.tick()
        assert running.deps.pool_states.of(home) is None
        chain = list(range(1, 9))
        assert running.deps.pool_states.index.match(chain, running.deps.clock()).held(home) == 0


async def test_one_backend_costs_no_look_at_the_prompt() -> None:
    async with placed(1) as (_, running), running.client() as client:
        reply = await ask(client, system("alone"))
        found = running.deps.decisions.find(reply.headers["x-request-id"])
        assert found is not None
        assert (found.chain_blocks, running.deps.pool_states.index.blocks) == (0, 0)


def tokenizer(folder: Path) -> str:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "a": 1}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    return str(folder)


@contextlib.asynccontextmanager
async def told_by_events(folder: Path, **options: Any) -> AsyncIterator[tuple[list[SimEngine], Gateway]]:
    """Two engines that publish what they hold; prompts are token ids, so that both sides mean the same by them."""
    async with contextlib.AsyncExitStack() as stack:
        engines, backends = [], []
        for at in range(2):
            events, replay = f"ipc://{folder}/kv{at}", f"ipc://{folder}/replay{at}"
            given = SimSettings(models=("sim",), speed=50, kv_events=events, kv_replay=replay, **options)
            engines.append(await stack.enter_async_context(SimEngine(given)))
            backends.append({"id": f"e{at}", "url": engines[at].url, "kv_events": {"endpoint": events, "replay": replay}})
        pool = {"backends": backends, "tokenizer": tokenizer(folder)}
        yield engines, await stack.enter_async_context(gateway(pool=pool, policies=LATENCY))


async def complete(client: httpx.AsyncClient, ids: list[int]) -> httpx.Response:
    reply = await client.post("/v1/completions", json={"model": "sim", "prompt": ids, "max_tokens": 4})
    assert reply.status_code == 200, reply.text
    return reply


def held(running: Gateway, ids: list[int], tenant: str = "acme") -> Callable[[], Any]:
    body = httpx.Request("POST", "http://x", json={"model": "sim", "prompt": ids}).content

    async def look() -> dict[str, float]:
        told = await supposed(Would(tenant, "/v1/completions", body), running.deps)
        assert told.explained is not None
        return {one.backend: one.held_tokens for one in told.explained.contenders}

    return look


async def settled(look: Callable[[], Any], right: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    seen: dict[str, float] = {}
    try:
        async with asyncio.timeout(HANG_S):
            while not right(seen := await look()):
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(seen) from None
    return seen


async def test_engines_events_say_where_a_prompt_is(tmp_path: Path) -> None:
    async with told_by_events(tmp_path) as (engines, running), running.client() as client:
        await until(lambda: all(running.deps.live.kv.get(one) is not None and running.deps.live.kv[one].trusted for one in ("e0", "e1")))
        ids = list(range(1, 1025))
        home = went(await complete(client, ids))
        await asyncio.sleep(3.2)  # predictions are over by then: what is found is events
        seen = await settled(held(running, ids), lambda seen: seen[home] > 900)
        assert seen[home] == 1024 - 1 or seen[home] % BLOCK_TOKENS == 0
        assert min(seen.values()) == 0.0
        assert running.deps.pool_states.is_exact(home)
        assert went(await complete(client, [*ids, *range(2000, 2100)])) == home
        assert set((await held(running, ids, "bolt")()).values()) == {0.0}
        # the engine drops its cache, says so, and nobody is sent there for it any more
        async with httpx.AsyncClient(timeout=HANG_S) as direct:
            assert (await direct.post(f"{engines[int(home[1:])].url}/reset_prefix_cache")).status_code == 200
        await asyncio.sleep(3.2)
        await settled(held(running, ids), lambda seen: seen[home] == 0.0)


@pytest.mark.req("ROUTERS-11")
async def test_after_a_gap_that_nothing_closes_what_was_known_counts_no_more(tmp_path: Path) -> None:
    async with told_by_events(tmp_path, kv_buffer=1) as (engines, running), running.client() as client:
        await until(lambda: all(running.deps.live.kv.get(one) is not None and running.deps.live.kv[one].trusted for one in ("e0", "e1")))
        ids = list(range(1, 1025))
        home = went(await complete(client, ids))
        await asyncio.sleep(3.2)
        await settled(held(running, ids), lambda seen: seen[home] > 900)
        engine = engines[int(home[1:])]
        engine.inject([FaultRule("lose_kv_events", after=8)])
        for number in range(6):
            await complete(client, [*ids[:64], *range(5000 + number * 100, 5400 + number * 100)])
        engine.inject([])
        for number in range(6):
            await complete(client, [*ids[:64], *range(9000 + number * 100, 9400 + number * 100)])
        await settled(held(running, ids), lambda seen: seen[home] < 900)
        await until(lambda: not running.deps.live.kv[home].trusted)
