"""Real SGLang, on CPU without its kernels, behind a real gateway: one process, one `tidegate serve`, a tiny random model."""

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from backends.lora.digest import lora_digest
from tests.engines.asking import LONG, ask, asked_in_every_api, cached, post, refused, until
from tests.engines.processes import (
    GAP_S,
    Process,
    Tidegate,
    engine_home,
    engine_python,
    free_port,
    ghost_of,
    listen_kv,
    serve_tidegate,
    start_sglang,
    stopping,
    tiny_model,
)
from tests.gateway_harness import stream

pytestmark = pytest.mark.real_engine

SERVED = "tiny-served"
MODEL = "sgl-model"
PAGE, CAPACITY, SEQUENCES, QUEUE = 16, 32768, 4, 24


@dataclass
class Bench:
    engine: Process
    gateway: Tidegate
    kv: Process
    load_at: int

    def load(self, field: str = "num_running_reqs") -> Any:
        """What the engine itself says of its load."""
        (load,) = self.engine.get("/v1/loads?include=core").json()["loads"]
        return load[field]


@pytest.fixture(scope="session")
def bench() -> Iterator[Bench]:
    python = engine_python(".venv-sglang", "test-engines-sglang")
    with engine_home("sglang") as home:
        model = tiny_model(python, home)
        # over TCP: beside events at an ipc:// endpoint it pushes no load, because it could not tell where
        events_at, replay_at, load_at = (free_port() for _ in range(3))
        kv_events = {"endpoint": f"tcp://127.0.0.1:{events_at}", "replay": f"tcp://127.0.0.1:{replay_at}"}
        events = {"publisher": "zmq", "endpoint": kv_events["endpoint"], "replay_endpoint": kv_events["replay"], "bind": True}
        options = ["--max-running-requests", str(SEQUENCES), "--max-queued-requests", str(QUEUE), "--enable-metrics"]
        options += ["--enable-cache-report", "--enable-priority-scheduling", "--kv-events-config", json.dumps(events)]
        options += ["--load-publish-endpoint", f"tcp://*:{load_at}"]
        engine = start_sglang(python, model, home, "sglang", *options)
        kv = listen_kv(python, kv_events["endpoint"], home)
        with stopping(engine, kv):
            engine.wait_ready()
            load_push = {"endpoint": f"tcp://127.0.0.1:{load_at}"}
            backend = {"id": "sgl", "url": engine.url, "kv_events": kv_events, "load_push": load_push}
            pool = {"name": "sgl", "model": SERVED, "dialect": "sglang", "backends": [backend]}
            # the same engine, to which requests are sent however many it has
            open_pool = {**pool, "name": "open", "limit": {"enabled": False}, "backends": [{"id": "open", "url": engine.url}]}
            gateway = serve_tidegate(home / "gateway", [pool, ghost_of(pool), open_pool], token_gap_s=GAP_S)
            with stopping(gateway):
                yield Bench(engine, gateway, kv, load_at)


@dataclass
class LoraBench:
    engine: Process
    gateway: Tidegate

    def loaded(self) -> set[str]:
        """The last letters of the names of the adapters that the engine lists."""
        listed = [model["id"] for model in self.engine.get("/v1/models").json()["data"] if model.get("parent")]
        return {name.partition("@")[0].removeprefix("adapter-") for name in listed}


@pytest.fixture(scope="session")
def loras() -> Iterator[LoraBench]:
    """An engine of its own, because adapters change how SGLang batches."""
    python = engine_python(".venv-sglang", "test-engines-sglang")
    with engine_home("sglang-loras") as home:
        model = tiny_model(python, home)
        options = ["--enable-lora", "--lora-backend", "torch_native", "--max-lora-rank", "8", "--lora-target-modules", "q_proj", "v_proj"]
        options += ["--max-loras-per-batch", "2", "--max-loaded-loras", "2", "--max-running-requests", str(SEQUENCES)]
        engine = start_sglang(python, model, home, "sglang-loras", *options, "--enable-metrics", "--enable-cache-report")
        with stopping(engine):
            engine.wait_ready()
            adapters = [
                {"name": f"adapter-{of}", "digest": lora_digest(model / f"lora-{of}"), "path": str(model / f"lora-{of}")} for of in "abc"
            ]
            backend = {"id": "sgl", "url": engine.url}
            pool = {"name": "sgl", "model": SERVED, "dialect": "sglang", "backends": [backend], "loras": adapters, "max_loras": 2}
            adapted = [{"name": f"model-{of}", "pool": "sgl", "lora": f"adapter-{of}"} for of in "abc"]
            gateway = serve_tidegate(home / "gateway", [pool], *adapted, token_gap_s=GAP_S)
            with stopping(gateway):
                yield LoraBench(engine, gateway)


async def test_three_adapters_take_turns_in_two_slots(loras: LoraBench) -> None:
    """The least recently used one makes room, and each answers as itself after its return."""
    said: dict[str, set[str]] = {letter: set() for letter in "abc"}
    async with loras.gateway.client() as client:
        plain = await post(client, MODEL, content="Who are you?")
        assert plain.status_code == 200, plain.text
        for letter, there in (("a", "a"), ("b", "ab"), ("c", "bc"), ("a", "ca"), ("b", "ab")):
            reply = await post(client, f"model-{letter}", content="Who are you?")
            assert reply.status_code == 200, (reply.text, loras.engine.tail(), loras.gateway.tail())
            assert reply.json()["model"] == f"model-{letter}"
            said[letter].add(reply.json()["choices"][0]["message"]["content"])
            assert loras.loaded() == set(there)
    assert [len(texts) for texts in said.values()] == [1, 1, 1], said
    assert len(set.union(*said.values(), {plain.json()["choices"][0]["message"]["content"]})) == 4, "all say something of their own"


async def test_streaming_chunk_by_chunk_and_one_end(bench: Bench) -> None:
    async with bench.gateway.client() as client:
        seen = await stream(client, **ask(MODEL, max_tokens=40), stream_options={"include_usage": True})
        plain = await post(client, MODEL, max_tokens=40)
    assert (seen.status, seen.clean, seen.raw.count(b"data: [DONE]"), seen.errors) == (200, True, 1, [])
    assert {event["model"] for event in seen.events} == {MODEL}
    assert seen.text == plain.json()["choices"][0]["message"]["content"]
    assert [event["usage"]["completion_tokens"] for event in seen.events if event.get("usage")] == [40]
    texts = [event for event in seen.events if event["choices"] and "role" not in event["choices"][0]["delta"]]
    assert 20 < len(texts) <= 40, "a chunk per token, but none for a token that ends inside a character"


async def test_messages_and_responses_are_the_same_chat(bench: Bench) -> None:
    async with bench.gateway.client() as client:
        await asked_in_every_api(client, MODEL)


async def test_tokens_are_the_engines_own(bench: Bench) -> None:
    direct = bench.engine.post("/tokenize", {"model": SERVED, "prompt": LONG})
    assert direct.status_code == 200, direct.text
    async with bench.gateway.client() as client:
        counted = await client.post("/tokenize", json={"model": MODEL, "prompt": LONG})
        assert (counted.status_code, counted.json()["tokens"]) == (200, direct.json()["tokens"]), counted.text
        text = await client.post("/detokenize", json={"model": MODEL, "tokens": counted.json()["tokens"]})
    assert text.status_code == 200, text.text
    assert LONG.strip() in text.json()["text"]


async def test_usage_is_the_engines_own_count(bench: Bench) -> None:
    async with bench.gateway.client() as client:
        short, long = await post(client, MODEL, max_tokens=1), await post(client, MODEL, content=LONG, max_tokens=17)
    for reply, n in ((short, 1), (long, 17)):
        usage = reply.json()["usage"]
        assert usage["completion_tokens"] == n
        assert usage["total_tokens"] == usage["prompt_tokens"] + n
    assert long.json()["usage"]["prompt_tokens"] > short.json()["usage"]["prompt_tokens"] + 200


async def test_cached_tokens_and_isolation_by_cache_salt(bench: Bench) -> None:
    """A tenant finds its own prefix again, in whole pages; another tenant does not find it."""
    prompt = f"isolation. {LONG}"
    async with bench.gateway.client("acme") as client:
        first = await post(client, MODEL, content=prompt)
        again = await post(client, MODEL, content=prompt)
    async with bench.gateway.client("bolt") as stranger:
        other = await post(stranger, MODEL, content=prompt)
        other_again = await post(stranger, MODEL, content=prompt)
    whole_pages = (first.json()["usage"]["prompt_tokens"] - 1) // PAGE * PAGE
    assert whole_pages > 200
    assert [cached(reply) for reply in (first, again, other, other_again)] == [0, whole_pages, 0, whole_pages]


async def test_a_caller_that_leaves_a_stream_frees_the_engine(bench: Bench, record_property: Any) -> None:
    async with bench.gateway.client() as client:
        async with client.stream("POST", "/v1/chat/completions", json=ask(MODEL, max_tokens=7000, stream=True)) as reply:
            chunks = reply.aiter_raw()
            await anext(chunks)
            await until(bench.load, 1, 5)
        took = await until(bench.load, 0, 15)
    record_property("figure", f"idle {took * 1000:.0f} ms after the caller left")


async def test_a_caller_that_leaves_a_plain_request_frees_the_engine_within_5_s(bench: Bench, record_property: Any) -> None:
    """The server looks at a plain request's connection every 4 s only."""
    async with bench.gateway.client() as client:
        task = asyncio.create_task(post(client, MODEL, max_tokens=7000))
        await until(bench.load, 1, 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        took = await until(bench.load, 0, 5.0)
    record_property("figure", f"idle {took:.1f} s after the caller left")


@pytest.mark.parametrize("streamed", [True, False])
async def test_over_long_prompts_are_refused_before_the_stream(bench: Bench, streamed: bool) -> None:
    async with bench.gateway.client() as client:
        reply = await post(client, MODEL, content=LONG * 40, stream=streamed)
    assert (reply.status_code, reply.headers["content-type"]) == (400, "application/json")
    error = refused(reply, SERVED)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert "8192" in error["message"]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"max_tokens": 100_000}, "invalid_value", "max_tokens"),
        ({"top_k": -7}, None, None),
        ({"min_p": 7}, None, None),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, None, None),
        ({"chat_template_kwargs": 7}, None, None),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
async def test_values_the_engine_refuses_show_no_path_of_its_files(
    bench: Bench, fields: dict[str, Any], code: str | None, param: str | None
) -> None:
    async with bench.gateway.client() as client:
        reply = await post(client, MODEL, **fields)
    assert reply.status_code == 400, reply.text
    error = refused(reply, SERVED)
    assert error["type"] == "invalid_request_error"
    if code is not None:
        assert (error["code"], error["param"]) == (code, param)


async def test_validation_errors_of_the_engine_hold_a_path(bench: Bench) -> None:
    """What the tests above would let through if the gateway passed bodies on."""
    direct = bench.engine.post("/v1/chat/completions", {"model": SERVED})
    assert direct.status_code == 400
    assert "site-packages" in direct.text


async def test_endpoints_the_engine_lacks(bench: Bench) -> None:
    async with bench.gateway.client() as client:
        reply = await client.post("/v1/embeddings", json={"model": MODEL, "input": "hello"})
    assert reply.status_code == 400
    assert refused(reply, SERVED)["code"] == "unsupported_parameter"


async def test_unknown_models_get_a_200_from_the_engine_and_never_reach_it(bench: Bench) -> None:
    direct = bench.engine.post("/v1/chat/completions", ask("nope"))
    assert (direct.status_code, direct.json()["model"]) == (200, "nope")
    async with bench.gateway.client() as client:
        unknown = await post(client, "nope")
        ghost = await post(client, "ghost-model")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert (ghost.status_code, refused(ghost, SERVED)["code"]) == (503, "no_backend")
    await until(lambda: bench.gateway.backend("ghost")["why"].startswith(f"serves {SERVED}, not not-served; look"), True, 30)


async def test_signals_are_complete_and_move_with_the_load(bench: Bench) -> None:
    def signals() -> dict[str, Any]:
        return dict(bench.gateway.backend("sgl")["signals"])

    await until(lambda: signals()["running"], 0, 10)
    idle = signals()
    assert (idle["missing"], idle["waiting"], idle["kv_capacity_tokens"]) == ([], 0, CAPACITY)
    async with bench.gateway.client() as client:
        count = SEQUENCES + 2
        tasks = [asyncio.create_task(post(client, MODEL, content=f"{n} {LONG}", max_tokens=200)) for n in range(count)]
        await until(lambda: (signals()["running"], signals()["waiting"]), (SEQUENCES, 2), 10)
        assert 0.02 < signals()["kv_usage"] < 0.5
        tokens = sum(reply.json()["usage"]["prompt_tokens"] for reply in await asyncio.gather(*tasks))
    await until(lambda: (signals()["running"], signals()["waiting"]), (0, 0), 10)
    now = signals()
    probes = 200  # every call of /health computes a token or a few
    assert 0 < now["prefill_tokens"] - idle["prefill_tokens"] <= tokens + probes
    assert now["prefill_busy_s"] > idle["prefill_busy_s"]


async def test_the_load_it_pushes_is_the_load_it_tells_when_asked(bench: Bench, record_property: Any) -> None:
    """With everything sent behind the gateway's back, and asked once a second only, the gateway follows by what is pushed."""
    told = bench.engine.get("/server_info").json()["kv_events"]
    assert (told["load_endpoint_port_base"], told["load_topic"], told["dp_size"]) == (bench.load_at, "load", 1)

    def seen() -> dict[str, Any]:
        return bench.gateway.backend("sgl")

    def pushed(*names: str) -> list[Any]:
        signals = seen()["signals"]
        return [signals[name] for name in names]

    await until(lambda: (seen()["push"]["reason"], *pushed("running", "waiting")), ("", 0, 0), 10)
    assert set(seen()["signals"]["pushed"]) == {"running", "waiting", "waiting_uncached_tokens", "kv_usage", "kv_capacity_tokens"}
    names = ("num_running_reqs", "num_waiting_reqs", "num_waiting_uncached_tokens", "max_total_num_tokens")
    async with httpx.AsyncClient(base_url=bench.engine.url, timeout=60, trust_env=False) as client:
        count = SEQUENCES + 3
        bodies = [ask(SERVED, content=f"{n} pushed. {LONG}", max_tokens=400) for n in range(count)]
        tasks = [asyncio.create_task(client.post("/v1/chat/completions", json=body)) for body in bodies]
        took = await until(lambda: pushed("running", "waiting"), [SEQUENCES, 3], 15)
        record_property("figure", f"a queue is known {took * 1000:.0f} ms after it was sent")
        both = [pushed("running", "waiting", "waiting_uncached_tokens", "kv_capacity_tokens"), [bench.load(name) for name in names]]
        assert both[0] == both[1]
        assert both[0][2] > 3 * 200
        for reply in await asyncio.gather(*tasks):
            assert reply.status_code == 200, reply.text
    await until(lambda: pushed("running", "waiting", "kv_usage"), [0, 0, 0.0], 10)
    counts = seen()["push"]["counts"]
    assert counts["reports"] > 10
    assert (counts["gaps"], counts["restarts"], counts["refused"]) == (0, 0, 0)


async def test_priority_higher_numbers_run_first(bench: Bench) -> None:
    """The other way round than vLLM; at the engine itself, because callers may not set priorities."""
    order: list[int] = []
    async with httpx.AsyncClient(base_url=bench.engine.url, timeout=60, trust_env=False) as client:

        async def one(priority: int) -> None:
            reply = await client.post("/v1/chat/completions", json=ask(SERVED, priority=priority, max_tokens=150))
            assert reply.status_code == 200, reply.text
            order.append(priority)

        low = [asyncio.create_task(one(0)) for _ in range(SEQUENCES * 4)]
        await until(lambda: bench.load("num_waiting_reqs") >= SEQUENCES * 2, True, 10)
        high = [asyncio.create_task(one(5)) for _ in range(2)]
        await asyncio.gather(*low, *high)
    assert max(place for place, priority in enumerate(order) if priority == 5) < len(order) - SEQUENCES


async def test_a_full_queue_is_a_503_with_a_time_to_wait(bench: Bench) -> None:
    """The engine's queue is filled behind the gateway's back: what comes through a gateway waits in the gateway, before the queue of the
    engine is full, and is answered later."""
    async with httpx.AsyncClient(base_url=bench.engine.url, timeout=300, trust_env=False) as direct, bench.gateway.client() as client:
        held: list[asyncio.Task[httpx.Response]] = []

        def send(count: int) -> None:
            bodies = [ask(SERVED, content=f"full {len(held) + n}", max_tokens=7000) for n in range(count)]
            held.extend(asyncio.create_task(direct.post("/v1/chat/completions", json=body)) for body in bodies)

        try:
            send(SEQUENCES)  # first, because the engine counts a request as queued until it runs
            await until(bench.load, SEQUENCES, 60)
            send(QUEUE)
            await until(lambda: bench.load("num_waiting_reqs"), QUEUE, 60)
            there = await direct.post("/v1/chat/completions", json=ask(SERVED))
            reply = await post(client, "open-model")
            still = bench.load("num_waiting_reqs")
        finally:
            for task in held:
                task.cancel()
            await asyncio.gather(*held, return_exceptions=True)
    assert (there.status_code, still) == (503, QUEUE), there.text
    assert (reply.status_code, refused(reply, SERVED)["code"]) == (503, "overloaded"), bench.gateway.tail()
    assert int(reply.headers["retry-after"]) >= 1
    await until(lambda: (bench.load(), bench.load("num_waiting_reqs")), (0, 0), 60)


async def test_kv_events_carry_pages_tokens_and_the_salt(bench: Bench) -> None:
    prompt = f"events. {LONG}"
    before = len(bench.kv.json_lines())
    async with bench.gateway.client() as client:
        tokens = (await post(client, MODEL, content=prompt)).json()["usage"]["prompt_tokens"]

    def stored() -> list[dict[str, Any]]:
        return [e for batch in bench.kv.json_lines()[before:] for e in batch["events"] if e["type"] == "BlockStored"]

    await until(lambda: sum(len(event["block_hashes"]) for event in stored()) >= tokens // PAGE, True, 5)
    batches = bench.kv.json_lines()
    first = batches[0]["seq"]
    assert [batch["seq"] for batch in batches] == list(range(first, first + len(batches)))
    heads = [event for event in stored() if event.get("cache_salt")]
    assert heads
    for event in heads:
        assert event["block_size"] == PAGE
        assert len(event["token_ids"]) == PAGE * len(event["block_hashes"])
        assert all(-(2**63) <= block < 2**63 for block in event["block_hashes"]), "signed, unlike vLLM's"
        assert event["cache_salt"].startswith("tg1-"), "the tenant's salt, in clear as the tokens are"


async def test_the_gateway_knows_what_the_engine_holds(bench: Bench) -> None:
    """From the events alone, and how the engine hashes."""
    before = bench.gateway.backend("sgl")["kv"]["blocks"]
    async with bench.gateway.client() as client:
        prompts = [(await post(client, MODEL, content=f"{n} holds. {LONG}", max_tokens=1)).json()["usage"]["prompt_tokens"] for n in "ab"]

    def known() -> tuple[bool, bool]:
        kv = bench.gateway.backend("sgl")["kv"]
        return kv["trusted"], kv["blocks"] - before >= sum(tokens // PAGE for tokens in prompts) - 1

    await until(known, (True, True), 5)
    assert bench.gateway.backend("sgl")["kv"]["hashing"] == "sglang"


@pytest.mark.ends_engine
async def test_sigterm_finishes_streams(bench: Bench, record_property: Any) -> None:
    async with bench.gateway.client() as client:
        task = asyncio.create_task(stream(client, **ask(MODEL, max_tokens=3000)))
        await until(bench.load, 1, 5)
        begun = time.monotonic()
        bench.engine.child.send_signal(signal.SIGTERM)
        seen = await task
    record_property("figure", f"whole answer {time.monotonic() - begun:.1f} s after SIGTERM")
    assert (seen.done, seen.errors) == (True, [])
