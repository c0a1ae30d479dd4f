"""Real vLLM behind a real gateway: two vLLM processes, one `tidegate serve`, a tiny random model.

`main` has queue, adapters, priorities and KV events, and drains on SIGTERM; `small` takes one request at a time, asks for a
key, and drops everything on SIGTERM, which is vLLM's default.

Size: all tests share two engines, which take minutes to start.
"""

import asyncio
import contextlib
import json
import re
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from backends.dialects import DIALECTS
from backends.lora.digest import lora_digest
from tests.engines.asking import LONG, ask, asked_in_every_api, cached, cut_and_continued, post, refused, until
from tests.engines.processes import (
    GAP_S,
    Process,
    Tidegate,
    engine_check,
    engine_home,
    engine_python,
    listen_kv,
    serve_tidegate,
    start_vllm,
    stopping,
    tiny_model,
)
from tests.gateway_harness import Stream, stream
from tests.otlp_receiver import OtlpReceiver, otlp_receiver
from tests.timing import HANG_S
from tests.timing import until as until_true

pytestmark = pytest.mark.real_engine

SERVED = "tiny-served"
ENGINE_KEY = "the-engines-own-key"
BLOCK, BLOCKS, SEQUENCES, QUEUE = 32, 1024, 8, 40
DRAIN_S = 240
"""A busy machine was seen to make less than 80 tokens a second for each stream."""
MODEL, ADAPTED = "main-model", "adapted-b"
Found = TypeVar("Found")


@dataclass
class Bench:
    main: Process
    small: Process
    gateway: Tidegate
    kv: Process
    adapters: Path
    receiver: OtlpReceiver
    """Gets the traces of `main` and of the gateway."""


@pytest.fixture(scope="session")
def bench() -> Iterator[Bench]:
    python = engine_python(".venv-vllm", "test-engines")
    with engine_home("vllm") as home, otlp_receiver() as receiver:
        model = tiny_model(python, home)
        # ipc, because with tcp the publisher listens on every address or not at all
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"ipc://{home}/kv",
            "replay_endpoint": f"ipc://{home}/replay",
        }
        options = ["--max-num-seqs", str(SEQUENCES), "--max-num-queued-reqs", str(QUEUE), "--scheduling-policy", "priority"]
        options += ["--enable-lora", "--max-loras", "2", "--max-lora-rank", "8", "--enable-prompt-tokens-details"]
        options += ["--shutdown-timeout", str(DRAIN_S), "--kv-events-config", json.dumps(events)]
        options += ["--otlp-traces-endpoint", receiver.url]
        main = start_vllm(python, model, home, "main", *options)
        small = start_vllm(python, model, home, "small", "--max-num-seqs", "1", "--max-num-queued-reqs", "1", key=ENGINE_KEY)
        kv = listen_kv(python, f"ipc://{home}/kv", home)
        with stopping(main, small, kv):
            main.wait_ready()
            small.wait_ready()
            (home / "engine.key").write_text(ENGINE_KEY)
            adapters = {letter: model / f"lora-{letter}" for letter in "abc"}
            loras = [{"name": f"adapter-{of}", "digest": lora_digest(path), "path": str(path)} for of, path in adapters.items()]
            wrong = {"name": "adapter-wrong", "digest": lora_digest(adapters["a"]), "path": str(adapters["b"])}
            adapted = [{"name": model_of(lora["name"]), "pool": "main", "lora": lora["name"]} for lora in (*loras, wrong)]
            traces = {"ratio": 0.0, "exporters": {"main": {"endpoint": receiver.url}}}
            served = pools(main, small, home, [*loras, wrong])
            gateway = serve_tidegate(home / "gateway", served, *adapted, sections={"traces": traces}, token_gap_s=GAP_S)
            with stopping(gateway):
                yield Bench(main, small, gateway, kv, model, receiver)


def model_of(adapter: str) -> str:
    """The public model that is an adapter."""
    return adapter.replace("adapter", "adapted")


def pools(main: Process, small: Process, home: Path, loras: list[dict[str, str]]) -> list[dict[str, Any]]:
    kv = {"endpoint": f"ipc://{home}/kv", "replay": f"ipc://{home}/replay"}
    with_key = {"model": SERVED, "api_key": {"file": str(home / "engine.key")}}
    return [
        {
            "name": "main",
            "model": SERVED,
            "backends": [{"id": "main", "url": main.url, "kv_events": kv}],
            "loras": loras,
            "max_loras": 2,
        },
        {"name": "small", **with_key, "backends": [{"id": "small", "url": small.url}]},
        {"name": "both", **with_key, "backends": [{"id": "small-2", "url": small.url}, {"id": "main-2", "url": main.url}]},
        {"name": "keyless", "model": SERVED, "backends": [{"id": "keyless", "url": small.url}]},
        {"name": "ghost", "model": "not-served", "backends": [{"id": "ghost", "url": main.url}]},
    ]


# --- what check finds -----------------------------------------------------------------------------------------------------


def test_engine_check_reads_all_that_a_real_engine_tells(bench: Bench) -> None:
    needs = ["--block-size", str(BLOCK), "--sequences", str(SEQUENCES), "--lora-slots", "2"]
    found = engine_check(bench.main, "--served-name", SERVED, *needs)
    # vLLM's own default, which nobody else can compute
    assert {what: state for what, state in found.items() if state not in ("ok", "note")} == {"hash algorithm": "wrong"}
    assert {"served name", "block size", "KV events", "priority", "sequences at once", "adapter slots"} < set(found)


def test_engine_check_names_what_a_real_engine_lacks(bench: Bench) -> None:
    found = engine_check(bench.small, "--served-name", "other", "--sequences", "2", "--lora-slots", "1")
    wrong = {what for what, state in found.items() if state == "wrong"}
    flags = {"hash algorithm", "KV events", "usage details", "sequences at once", "priority", "adapters", "drain at SIGTERM"}
    assert wrong == {"served name", *flags}
    assert {what for what, state in found.items() if state == "ok"} == {"load", "prefix cache", "block size", "queue limit"}


# --- answers --------------------------------------------------------------------------------------------------------------


async def test_streaming_chunk_by_chunk_and_one_end(bench: Bench) -> None:
    async with bench.gateway.client() as client:
        seen = await stream(client, **ask(MODEL, max_tokens=40), stream_options={"include_usage": True})
        plain = await post(client, MODEL, max_tokens=40)
    assert (seen.status, seen.clean, seen.raw.count(b"data: [DONE]"), seen.errors) == (200, True, 1, [])
    texts = [event for event in seen.events if event["choices"] and "role" not in event["choices"][0]["delta"]]
    assert 1 < len(texts) <= 40, "a chunk per token, but for those that were waiting while its server was busy"
    assert {event["model"] for event in seen.events} == {MODEL}
    assert seen.text == plain.json()["choices"][0]["message"]["content"]
    assert [event["usage"]["completion_tokens"] for event in seen.events if event.get("usage")] == [40]


@pytest.mark.req("R11")
async def test_the_engine_goes_on_with_the_text_of_a_stream_that_was_cut(bench: Bench, record_property: Any) -> None:
    whole, seen, record = await cut_and_continued(bench.main.url, "vllm", SERVED, "hello")
    assert (seen.done, seen.errors, record.outcome, record.continued) == (True, [], "ok", 1)
    half = whole.text[: len(whole.text) // 4]
    assert half
    assert seen.text.startswith(half), (
        "a random model's text is tokenized otherwise than it was made, so that only the beginning is the same"
    )
    totals = [[event["usage"] for event in one.events if event.get("usage")][-1] for one in (whole, seen)]
    record_property("figure", f"tokens of prompt and answer: {[(t['prompt_tokens'], t['completion_tokens']) for t in totals]}")
    assert totals[1]["completion_tokens"] <= 40


async def test_messages_and_responses_are_the_same_chat(bench: Bench) -> None:
    async with bench.gateway.client() as client:
        await asked_in_every_api(client, MODEL)


async def test_usage_is_the_engines_own_count(bench: Bench) -> None:
    async with bench.gateway.client() as client:
        for n in (1, 17):
            reply = await post(client, MODEL, content=LONG, max_tokens=n)
            direct = bench.main.post("/tokenize", {"model": SERVED, "messages": ask(MODEL, LONG)["messages"]}).json()["count"]
            usage = reply.json()["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (direct, n, direct + n)
            assert reply.json()["model"] == MODEL


@pytest.mark.parametrize("streamed", [True, False])
async def test_the_engine_continues_the_trace_and_follows_the_callers_flag(bench: Bench, streamed: bool, record_property: Any) -> None:
    """vLLM's span is a child of the gateway's call to it, which stands below the caller's own span."""
    kept, left_out = f"{0xBEEF + streamed:032x}", f"{0xDEAD + streamed:032x}"
    async with bench.gateway.client() as client:
        for trace_id, flag in ((left_out, "00"), (kept, "01")):
            headers = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-{flag}"}
            body = ask(MODEL, max_tokens=4, stream=streamed)
            reply = await client.post("/v1/chat/completions", json=body, headers=headers)
            assert reply.status_code == 200
    await until_true(lambda: {"llm_request", f"chat {MODEL}"} <= bench.receiver.trace(kept).keys())
    found = bench.receiver.trace(kept)
    root, forward, call, engine = (found[name] for name in ("POST /v1/chat/completions", "forward", f"chat {MODEL}", "llm_request"))
    assert [root.parent_id, forward.parent_id, call.parent_id] == ["00f067aa0ba902b7", root.span_id, forward.span_id]
    assert engine.parent_id == call.span_id
    assert call.begin_ns <= engine.begin_ns, "one machine has one clock"
    assert engine.end_ns <= call.end_ns + 50e6, "vLLM ends its span when it has handed the last token on"
    assert engine.attributes["gen_ai.usage.completion_tokens"] == call.attributes["gen_ai.usage.output_tokens"] == 4
    assert bench.receiver.trace(left_out) == {}, "neither records what the caller does not"
    took = [engine.attributes[f"gen_ai.latency.time_in_{part}"] * 1000 for part in ("queue", "model_prefill", "model_decode")]
    record_property("figure", "vLLM's own span: queue {:.1f}, prefill {:.1f}, decode {:.1f} ms".format(*took))


@pytest.mark.parametrize("salted_for", ["acme", "bolt"])
async def test_cached_tokens_and_isolation_by_cache_salt(bench: Bench, salted_for: str) -> None:
    """A tenant finds its own prefix again, in whole blocks; another tenant does not find it."""
    prompt = f"{salted_for} begins. {LONG}"
    async with bench.gateway.client(salted_for) as client:
        first = await post(client, MODEL, content=prompt)
        again = await post(client, MODEL, content=prompt)
    async with bench.gateway.client({"acme": "bolt", "bolt": "acme"}[salted_for]) as stranger:
        other = await post(stranger, MODEL, content=prompt)
        other_again = await post(stranger, MODEL, content=prompt)
    tokens = first.json()["usage"]["prompt_tokens"]
    whole_blocks = (tokens - 1) // BLOCK * BLOCK
    assert whole_blocks > 200
    assert [cached(reply) for reply in (first, again, other, other_again)] == [0, whole_blocks, 0, whole_blocks]


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_caller_that_leaves_frees_the_engine(bench: Bench, streamed: bool, record_property: Any) -> None:
    def gauge() -> float:
        return bench.main.series("vllm:num_requests_running")

    async with bench.gateway.client() as client:
        body = ask(MODEL, max_tokens=7000, stream=streamed)
        if streamed:
            async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
                chunks = reply.aiter_raw()
                await anext(chunks)
                await until(gauge, 1.0, 30)
        else:
            task = asyncio.create_task(client.post("/v1/chat/completions", json=body))
            await until(gauge, 1.0, 30)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        took = await until(gauge, 0.0, 15)  # the figure says how soon; machines that test are busy
    record_property("figure", f"idle {took * 1000:.0f} ms after the caller left")


# --- refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [True, False])
async def test_over_long_prompts_are_refused_before_the_stream(bench: Bench, streamed: bool) -> None:
    async with bench.gateway.client() as client:
        reply = await post(client, MODEL, content=LONG * 40, stream=streamed)
    assert (reply.status_code, reply.headers["content-type"]) == (400, "application/json")
    error = refused(reply, SERVED)
    assert (error["code"], error["param"], error["type"]) == ("context_length_exceeded", "messages", "invalid_request_error")
    assert "8192" in error["message"]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"max_tokens": 100_000}, "invalid_value", "max_tokens"),
        ({"temperature": -1}, "invalid_value", "temperature"),
        ({"top_p": 3}, "invalid_value", "top_p"),
        ({"logprobs": True, "top_logprobs": 20, "n": 1, "min_tokens": 9}, None, None),
        ({"logit_bias": {"999999": 1}}, None, None),
        ({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto"}, "unsupported_parameter", "tool_choice"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nope"}}}}, None, None),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
async def test_values_the_engine_refuses(bench: Bench, fields: dict[str, Any], code: str | None, param: str | None) -> None:
    async with bench.gateway.client() as client:
        reply = await post(client, MODEL, **fields)
    assert reply.status_code == 400, reply.text
    error = refused(reply, SERVED)
    assert error["type"] == "invalid_request_error"
    if code is not None:
        assert (error["code"], error["param"]) == (code, param)


async def test_images_for_a_text_model(bench: Bench) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    async with bench.gateway.client() as client:
        reply = await client.post("/v1/chat/completions", json=ask(MODEL) | {"messages": [{"role": "user", "content": [image]}]})
    assert reply.status_code == 400
    assert refused(reply, SERVED)["param"] == "messages"


async def test_endpoints_the_engine_lacks(bench: Bench) -> None:
    async with bench.gateway.client() as client:
        reply = await client.post("/v1/embeddings", json={"model": MODEL, "input": "hello"})
    assert reply.status_code == 400
    assert refused(reply, SERVED)["code"] == "unsupported_parameter"


async def test_unknown_models_are_not_told_from_forbidden_ones(bench: Bench) -> None:
    """vLLM's own 404 lists the names it serves; callers never see it, operators read why in the list of backends."""
    listed = bench.main.post("/v1/chat/completions", ask("nope"))
    assert listed.status_code == 404
    assert SERVED in listed.text
    async with bench.gateway.client() as client:
        for name in ("nope", SERVED):
            unknown = await post(client, name)
            assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        ghost = await post(client, "ghost-model")
    assert (ghost.status_code, refused(ghost, SERVED)["code"]) == (503, "no_backend")
    # a read of an engine that is starved times out first, and says that
    await until(lambda: re.match(rf"serves {SERVED}.*, not not-served; look", bench.gateway.backend("ghost")["why"]) is not None, True, 30)
    assert not bench.gateway.backend("ghost")["up"]


async def test_the_engines_key_and_what_stays_open_without_it(bench: Bench) -> None:
    """The engine's key guards `/v1` alone; the gateway sends it, and lets no caller near the rest."""
    with httpx.Client(base_url=bench.small.url, trust_env=False, timeout=HANG_S) as bare:
        assert bare.get("/v1/models").status_code == 401
        open_paths = ("/health", "/metrics", "/load", "/version")
        assert [bare.get(path).status_code for path in open_paths] == [200] * len(open_paths)
        said = bare.post("/tokenize", json={"model": SERVED, "prompt": "hello"}).json()
    await until(lambda: bench.gateway.backend("small")["up"], True, 30)
    await until(lambda: "401" in bench.gateway.backend("keyless")["why"], True, 30)  # an engine that is starved first times out
    keyless = bench.gateway.backend("keyless")
    assert not keyless["up"]
    assert keyless["why"].startswith("/v1/models answers 401: it wants a key")
    async with bench.gateway.client() as client:
        assert (await post(client, "small-model")).status_code == 200
        tokenized = await client.post("/tokenize", json={"model": "small-model", "prompt": "hello"})
        assert (tokenized.status_code, tokenized.json()["tokens"]) == (200, said["tokens"])
        text = await client.post("/detokenize", json={"model": "small-model", "tokens": said["tokens"]})
        assert (text.status_code, "hello" in text.json()["prompt"]) == (200, True)
        for path in (*open_paths[1:], "/v1/load_lora_adapter", "/reset_prefix_cache", "/v1/chat/completions/../../metrics"):
            assert (await client.post(path, json={})).status_code == 404, path


# --- full, and elsewhere --------------------------------------------------------------------------------------------------


async def while_full(bench: Bench, asked: Callable[[httpx.AsyncClient], Awaitable[Found]]) -> Found:
    """What `asked` finds while `small` runs one request, and its limit counts those that run.

    How long that one runs is the machine's to say: what was found counts where it still runs afterwards, or else is asked again.
    """

    def running() -> float:
        return bench.small.series("vllm:num_requests_running")

    for _ in range(5):
        # the one of the test before may not have ended there yet
        await until(lambda: bench.small.post("/v1/chat/completions", ask(SERVED, max_tokens=1)).status_code, 200, 60)
        async with bench.gateway.client() as client:
            async with client.stream("POST", "/v1/chat/completions", json=ask("small-model", max_tokens=7000, stream=True)) as reply:
                assert reply.status_code == 200, await reply.aread()
                await until(running, 1.0, 60)
                found = await asked(client)
                if await asyncio.to_thread(running) == 1.0:
                    return found
    pytest.fail("the engine was never full for as long as a few requests take")


async def test_a_full_queue_is_a_503_with_a_time_to_wait(bench: Bench) -> None:
    async def asked(client: httpx.AsyncClient) -> tuple[httpx.Response, httpx.Response]:
        direct = await asyncio.to_thread(bench.small.post, "/v1/chat/completions", ask(SERVED))
        return direct, await post(client, "small-model")

    direct, reply = await while_full(bench, asked)
    assert (direct.status_code, direct.headers.get("retry-after")) == (503, None)
    assert reply.status_code == 503, (reply.text, bench.gateway.tail())
    assert refused(reply, SERVED)["code"] == "overloaded"
    assert int(reply.headers["retry-after"]) >= 1
    assert reply.headers["x-should-retry"] == "true"


async def test_a_full_queue_sends_the_request_elsewhere(bench: Bench) -> None:
    async def asked(client: httpx.AsyncClient) -> list[httpx.Response]:
        replies = []
        for _ in range(2):  # three at once, which is what the retry budget always allows
            replies += await asyncio.gather(*(post(client, "both-model") for _ in range(3)))
        return replies

    replies = await while_full(bench, asked)
    assert {reply.status_code for reply in replies} == {200}
    assert {reply.headers["x-tidegate-backend"] for reply in replies} == {"main-2"}


async def test_priority_lower_numbers_run_first(bench: Bench) -> None:
    """At the engine itself: callers may not set priorities."""
    order: list[int] = []
    async with httpx.AsyncClient(base_url=bench.main.url, timeout=300, trust_env=False) as client:

        async def one(priority: int, tokens: int) -> None:
            reply = await client.post("/v1/chat/completions", json=ask(SERVED, priority=priority, max_tokens=tokens))
            assert reply.status_code == 200, reply.text
            order.append(priority)

        # those that run first hold their places for seconds, however late a busy machine sees that the others wait
        low = [asyncio.create_task(one(10, 3000)) for _ in range(SEQUENCES)]
        await until(lambda: bench.main.series("vllm:num_requests_running"), float(SEQUENCES), 20)
        low += [asyncio.create_task(one(10, 100)) for _ in range(16)]
        await until(lambda: bench.main.series("vllm:num_requests_waiting") >= 8, True, 20)
        high = [asyncio.create_task(one(-10, 100)) for _ in range(3)]
        await asyncio.gather(*low, *high)
    assert order.index(10) < order.index(-10), "running requests are not pushed out"
    assert max(place for place, priority in enumerate(order) if priority == -10) < len(order) - 8


# --- what the engine reports ----------------------------------------------------------------------------------------------


async def test_signals_are_complete_and_move_with_the_load(bench: Bench) -> None:
    await until(
        lambda: [bench.gateway.backend("main")["signals"][name] for name in ("running", "waiting")], [0, 0], 60
    )  # of the test before
    idle = bench.gateway.backend("main")["signals"]
    assert (idle["missing"], idle["waiting"]) == ([], 0)
    assert (idle["block_size"], idle["kv_capacity_tokens"]) == (BLOCK, BLOCK * BLOCKS)
    assert abs(idle["started_unix"] - time.time()) < 900
    assert idle["asleep"] is False
    unknown = {name for name, value in idle.items() if value is None}
    assert unknown == {"waiting_uncached_tokens", "prefill_busy_s", "pushed_at"}, "signals vLLM does not report"
    before = bench.main.series("vllm:prompt_tokens_by_source_total")
    async with bench.gateway.client() as client:
        tasks = [asyncio.create_task(post(client, MODEL, content=f"{n} {LONG}", max_tokens=2500)) for n in range(3)]
        busy: dict[str, Any] = {}

        def three_run() -> bool:
            busy.update(bench.gateway.backend("main"))
            return bool(busy["signals"]["running"] == busy["in_flight"] == 3)

        await until(three_run, True, 20)
        assert 0.02 < busy["signals"]["kv_usage"] < 0.4, "three requests of 20 to 100 blocks each, of 1,024"
        assert busy["signals_age_s"] < 2.0
        tokens = sum(reply.json()["usage"]["prompt_tokens"] for reply in await asyncio.gather(*tasks))
    await until(lambda: bench.gateway.backend("main")["signals"]["running"], 0, 20)
    assert bench.main.series("vllm:prompt_tokens_by_source_total") - before == tokens
    read = DIALECTS["vllm"].read_signals
    assert read is not None
    now = read(bench.main.get("/metrics").content, 0.0)
    assert now.prefill_tokens is not None and now.prefix_queries is not None
    assert now.prefill_tokens - idle["prefill_tokens"] == tokens
    assert now.prefix_queries - idle["prefix_queries"] == tokens


async def test_kv_events_carry_blocks_tokens_and_the_salt(bench: Bench) -> None:
    """Why the socket has to be treated as a secret: prompts and salts stand in it in clear."""
    assert bench.main.post("/reset_prefix_cache", {}).status_code == 200
    prompt = f"events. {LONG}"
    async with bench.gateway.client() as client:
        tokens = (await post(client, MODEL, content=prompt, max_tokens=1)).json()["usage"]["prompt_tokens"]
    wanted = tokens // BLOCK  # the one token of the answer is not computed upon

    def events() -> list[dict[str, Any]]:
        """Since the last time the cache was emptied."""
        seen = [event for batch in bench.kv.json_lines() for event in batch["events"]]
        cleared = max((n for n, event in enumerate(seen) if event["type"] == "AllBlocksCleared"), default=-1)
        return seen[cleared + 1 :] if cleared >= 0 else []

    await until(lambda: sum(len(event["block_hashes"]) for event in events()), wanted, 20)
    batches = bench.kv.json_lines()
    first = batches[0]["seq"]
    assert [batch["seq"] for batch in batches] == list(range(first, first + len(batches)))
    (head,) = (event for event in events() if event["parent_block_hash"] is None)
    assert head["type"] == "BlockStored"
    assert head["block_size"] == BLOCK
    assert len(head["token_ids"]) == BLOCK * len(head["block_hashes"])
    assert all(0 <= block < 2**64 for block in head["block_hashes"])
    assert head["extra_keys"][0][0].startswith("tg1-"), "the tenant's salt"


async def test_the_gateway_knows_what_the_engine_holds(bench: Bench) -> None:
    """From the events alone, and how the engine hashes."""
    assert bench.main.post("/reset_prefix_cache", {}).status_code == 200
    async with bench.gateway.client() as client:
        replies = [await post(client, MODEL, content=f"{n} holds. {LONG}", max_tokens=1) for n in range(3)]
    wanted = sum(reply.json()["usage"]["prompt_tokens"] // BLOCK for reply in replies)

    def known() -> tuple[bool, int]:
        kv = bench.gateway.backend("main")["kv"]
        return kv["trusted"], kv["blocks"]

    await until(known, (True, wanted), 20)
    assert bench.gateway.backend("main")["kv"]["hashing"] == "vllm-sha256"


async def test_adapters_are_loaded_and_unloaded(bench: Bench) -> None:
    """By the engine's own endpoint, as the gateway uses it."""
    name, path = "adapter-a", str(bench.adapters / "lora-a")
    loaded = bench.main.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
    assert loaded.status_code == 200, loaded.text
    assert bench.main.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path}).status_code == 400
    listed = {model["id"]: model["parent"] for model in bench.main.get("/v1/models").json()["data"]}
    assert (listed[SERVED], listed[name]) == (None, SERVED)
    texts = {
        model: bench.main.post("/v1/chat/completions", ask(model)).json()["choices"][0]["message"]["content"] for model in (SERVED, name)
    }
    assert len(set(texts.values())) == 2, "the adapter changes what the model says"
    assert bench.main.post("/v1/unload_lora_adapter", {"lora_name": name}).status_code == 200
    gone = bench.main.post("/v1/chat/completions", ask(name))
    assert gone.status_code == 404
    missing = bench.main.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": "/nowhere"})
    assert missing.status_code == 404


async def test_a_tenants_adapter_is_loaded_on_demand(bench: Bench) -> None:
    """Nobody loads it beforehand; its prefixes are its own, and it is named nowhere in the answer."""
    assert SERVED in bench.main.get("/v1/models").text
    assert "adapter-b" not in bench.main.get("/v1/models").text
    async with bench.gateway.client() as client:
        adapted = [await post(client, ADAPTED, content=f"adapted. {LONG}") for _ in range(2)]
        base = await post(client, MODEL, content=f"adapted. {LONG}")
    assert {reply.status_code for reply in (*adapted, base)} == {200}
    assert "adapter-b@" in bench.main.get("/v1/models").text
    assert [cached(reply) > 0 for reply in (*adapted, base)] == [False, True, False]
    said, plain = (reply.json()["choices"][0]["message"]["content"] for reply in (adapted[0], base))
    assert said != plain
    assert adapted[0].json()["model"] == ADAPTED
    assert "adapter-b" not in adapted[0].text


async def test_three_adapters_take_turns_in_two_slots(bench: Bench) -> None:
    """The least recently used one makes room; each answers as itself after its return, a stream keeps its adapter where it is, and where
    streams use both slots a third adapter waits."""

    def loaded() -> set[str]:
        listed = (model["id"].partition("@")[0] for model in bench.main.get("/v1/models").json()["data"] if "@" in model["id"])
        return {name.removeprefix("adapter-") for name in listed}

    said: dict[str, set[str]] = {letter: set() for letter in "abc"}
    async with bench.gateway.client() as client:
        for letter, there in (("a", ""), ("b", "ab"), ("c", "bc"), ("a", "ca"), ("b", "ab")):
            reply = await post(client, model_of(f"adapter-{letter}"), content="Who are you?")
            assert reply.status_code == 200, reply.text
            said[letter].add(reply.json()["choices"][0]["message"]["content"])
            assert loaded() == set(there) or not there, "what was there before the first is another test's"
        begun = asyncio.Event()
        busy = asyncio.create_task(stream(client, begun=begun, **ask(model_of("adapter-a"), max_tokens=2500)))
        await asyncio.wait_for(begun.wait(), 60)
        assert (await post(client, model_of("adapter-c"), content="Who are you?")).status_code == 200
        assert loaded() == {"a", "c"}, "adapter-b was used later than adapter-a, and has no request"
        begun = asyncio.Event()
        shorter = asyncio.create_task(stream(client, begun=begun, **ask(model_of("adapter-c"), max_tokens=500)))
        await asyncio.wait_for(begun.wait(), 60)
        assert not busy.done()
        waits = asyncio.create_task(post(client, model_of("adapter-b"), content="Who are you?"))
        assert (await post(client, MODEL, max_tokens=1)).status_code == 200
        assert not waits.done(), "who needs no slot does not wait for one"
        assert (await waits).status_code == 200, "requests use both slots, so it waits until one has ended"
        assert shorter.done() or busy.done()
        assert "b" in loaded()
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)
    assert [len(texts) for texts in said.values()] == [1, 1, 1], said
    assert len(set.union(*said.values())) == 3, "three adapters say three things"


async def test_an_adapter_with_other_bytes_than_its_digest_names_is_never_loaded(bench: Bench) -> None:
    """The gateway can read the files on this machine: the folder of adapter-b under the digest of adapter-a."""
    async with bench.gateway.client() as client:
        reply = await post(client, model_of("adapter-wrong"))
    assert reply.status_code == 503
    assert "adapter-wrong" not in bench.main.get("/v1/models").text
    assert "have the digest" in bench.gateway.log.read_text()


# --- the end --------------------------------------------------------------------------------------------------------------


async def streams_over_sigterm(bench: Bench, engine: Process, model: str) -> list[Stream]:
    async with bench.gateway.client() as client:
        begun = [asyncio.Event() for _ in range(3 if model == MODEL else 1)]
        tasks = [asyncio.create_task(stream(client, begun=one, **ask(model, max_tokens=2500))) for one in begun]

        def running() -> float:
            over = [task.result() for task in tasks if task.done()]
            assert not over, [(one.status, one.first_s, one.last_s, one.raw[-300:]) for one in over]
            return engine.series("vllm:num_requests_running")

        await until(running, float(len(tasks)), 60)
        await asyncio.wait_for(asyncio.gather(*(one.wait() for one in begun)), 60)
        engine.child.send_signal(signal.SIGTERM)
        return await asyncio.gather(*tasks)


@pytest.mark.ends_engine
async def test_sigterm_without_a_shutdown_timeout_becomes_an_error_event(bench: Bench, record_property: Any) -> None:
    """vLLM's default leaves streams without data, error or close; the gateway's limit on silence ends them."""
    begun = time.monotonic()
    (seen,) = await streams_over_sigterm(bench, bench.small, "small-model")
    record_property("figure", f"told after {time.monotonic() - begun:.1f} s")
    assert (seen.done, seen.clean) == (False, False)
    assert [error["code"] for error in seen.errors] in (["upstream_timeout"], ["upstream_error"])


@pytest.mark.ends_engine
async def test_sigterm_with_a_shutdown_timeout_finishes_streams(bench: Bench) -> None:
    seen = await streams_over_sigterm(bench, bench.main, MODEL)
    assert [(one.done, one.errors) for one in seen] == [(True, [])] * 3
    assert [one.events[-1]["choices"][0]["finish_reason"] for one in seen] == ["length"] * 3
    await until(bench.main.child.poll, 0, DRAIN_S)
    async with bench.gateway.client() as client:
        reply = await post(client, MODEL)
    assert reply.status_code in (502, 503)
    refused(reply, SERVED)
