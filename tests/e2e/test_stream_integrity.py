"""Streams that never lie: kills, aborts, truncations and silence at every point, as a caller sees them."""

import asyncio
import statistics
import time

import httpx
import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from tests.gateway_harness import all_up, chat, gateway, no_engine, stream
from tests.pool_states import charged
from tests.scale import scaled
from tests.scripted_server import Peer, scripted
from tests.timing import stolen_time, timely, until

SIM = SimSettings(models=("sim",), speed=2000)
KILLS = scaled(60, 500)
ABORTS = scaled(4, 200)
FAILURES = scaled(600, 10_000)
LEAVERS = scaled(10, 250)

FATAL = [
    "crash_mid_stream",
    "reset_mid_stream",
    "eof_without_done",
    "abort_finish",
    "unknown_finish",
    "missing_finish",
    "done_after_error",
    "error_event",
    "malformed_sse",
    "truncated_json_event",
    "broken_utf8",
    "oversize_event",
    "garbage_chunk",
]
HARMLESS = [
    "split_utf8",
    "mixed_newlines",
    "one_byte_writes",
    "connection_close_framing",
    "extra_bytes_after_done",
    "close_idle",
    "no_done",
]


@pytest.mark.fault("crash mid-stream")
@pytest.mark.req("R1", "GATEWAYS-22")
async def test_every_kill_mid_stream_ends_with_one_error_event(record_property: pytest.FixtureRequest) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client(limits=httpx.Limits(max_connections=20)) as client:
        engine.inject(FaultRule(("crash_mid_stream", "reset_mid_stream")[i % 2], after=1 + i % 15) for i in range(KILLS))
        seen = await asyncio.gather(*(stream(client, max_tokens=16, ignore_eos=True) for _ in range(KILLS)))
        assert [len(s.errors) for s in seen] == [1] * KILLS
        assert not any(s.done for s in seen)
        assert not any(s.clean for s in seen)
        assert all(s.status == 200 and "request_id" in s.errors[0] for s in seen)
        records = await running.recorded(KILLS)
        assert {r.outcome for r in records} == {"broken_stream"}
        assert {r.closing for r in records} == {"estimate"}
        assert running.open_holds == 0
        record_property("figure", f"{KILLS}/{KILLS} error events, 0 [DONE]")  # type: ignore[operator]


@pytest.mark.fault("crash mid-stream")
@pytest.mark.req("R1")
async def test_the_error_event_follows_the_cut_at_once(record_property: pytest.FixtureRequest) -> None:
    cut_at = 0.0

    async def dies(peer: Peer) -> None:
        nonlocal cut_at
        while True:
            if (await peer.request()).startswith(b"GET /health"):
                await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            elif peer.received.startswith(b"GET"):
                await peer.send(b'HTTP/1.1 200 OK\r\ncontent-length: 23\r\n\r\n{"data":[{"id":"sim"}]}')
            else:
                break
        event = b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        await peer.send(head + b"%x\r\n%b\r\n" % (len(event), event))
        await asyncio.sleep(0.02)
        cut_at = time.monotonic()
        peer.reset()

    waits = []
    async with scripted(dies) as engine, gateway(engine.url) as running, running.client() as client:
        for _ in range(scaled(10, 100)):
            async with stolen_time() as stolen:
                begun = time.monotonic()
                seen = await stream(client, max_tokens=10)
                assert len(seen.errors) == 1
                waits.append(begun + seen.last_s - cut_at - stolen())
    assert max(waits) <= 0.1
    record_property("figure", f"error event within {max(waits) * 1000:.1f} ms of the cut")  # type: ignore[operator]


@pytest.mark.fault("engine aborts")
@pytest.mark.req("R2")
@pytest.mark.parametrize("name", ["abort_finish", "unknown_finish", "missing_finish", "done_after_error"])
async def test_done_after_an_abort_is_never_believed(name: str) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client(limits=httpx.Limits(max_connections=20)) as client:
        engine.inject(FaultRule(name, after=1 + i % 10) for i in range(ABORTS))
        seen = await asyncio.gather(*(stream(client, max_tokens=12, ignore_eos=True) for _ in range(ABORTS)))
        assert [(len(s.errors), s.done, s.clean) for s in seen] == [(1, False, False)] * ABORTS


@pytest.mark.fault("malformed stream")
@pytest.mark.req("R2", "R1")
@pytest.mark.parametrize("name", FATAL)
async def test_fatal_stream_faults_never_look_whole(name: str) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        engine.inject([FaultRule(name, after=3)])
        seen = await stream(client, max_tokens=12, ignore_eos=True)
        assert len(seen.errors) == 1
        assert not seen.done
        assert not seen.clean
        assert b'"abort"' not in seen.raw
        assert b"EngineCore" not in seen.raw
        assert (await running.recorded(1))[0].outcome != "ok"
        assert running.open_holds == 0


@pytest.mark.fault("malformed stream")
@pytest.mark.req("R54")
@pytest.mark.parametrize("name", HARMLESS)
async def test_odd_but_whole_streams_reach_the_caller_unharmed(name: str) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        expected = (await stream(client, max_tokens=8, ignore_eos=True)).text
        engine.inject([FaultRule(name)])
        seen = await stream(client, max_tokens=8, ignore_eos=True)
        assert (seen.text, seen.done, seen.clean, seen.errors) == (expected, True, True, [])
        after = await stream(client, max_tokens=8, ignore_eos=True)
        assert after.text == expected


async def test_a_hanging_engine_does_not_hold_the_caller_after_done() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        engine.inject([FaultRule("hang_after_done")])
        seen = await stream(client, max_tokens=4)  # for ever, if the end of the connection were waited for
        assert (seen.done, seen.clean) == (True, True)


@pytest.mark.parametrize("name", ["duplicate_usage", "usage_every_event", "no_usage"])
async def test_usage_is_settled_once_whatever_the_engine_repeats(name: str) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        engine.inject([FaultRule(name)])
        seen = await stream(client, max_tokens=6, ignore_eos=True)
        assert seen.done
        assert b'"usage"' not in seen.raw
        record = (await running.recorded(1))[0]
        assert record.closing == ("estimate" if name == "no_usage" else "settle")
        assert record.usage.completion_tokens in (6, 7)


@pytest.mark.fault("reset before headers")
@pytest.mark.req("R11", "GATEWAYS-22")
@pytest.mark.parametrize(
    "name", ["close_before_headers", "reset_before_headers", "status_500", "status_502", "status_503", "status_429", "wrong_content_type"]
)
async def test_failures_before_the_first_byte_fail_over_once(name: str) -> None:
    async with SimEngine(SIM) as bad, SimEngine(SIM) as good, gateway(bad.url, good.url) as running, running.client() as client:
        bad.misbehave([FaultRule(name)])
        for _ in range(12):
            seen = await stream(client, max_tokens=3)
            assert (seen.done, seen.errors) == (True, [])
        records = await running.recorded(12)
        assert {r.backend for r in records} == {"e1"}
        assert {r.attempts for r in records} <= {1, 2}
        assert good.counters.finished == 12


@pytest.mark.slow
@pytest.mark.fault("5xx burst")
@pytest.mark.req("R11")
async def test_attempts_stay_within_the_budget_when_everything_fails_half_the_time(record_property: pytest.FixtureRequest) -> None:
    count, lanes = FAILURES, 32
    half = SimSettings(models=("sim",), speed=2000, faults=(FaultRule("status_500", p=0.5),), seed=7)
    async with SimEngine(half) as one, SimEngine(half) as two, gateway(one.url, two.url) as running:
        async with running.client(limits=httpx.Limits(max_connections=lanes)) as client:
            gate = asyncio.Semaphore(lanes)

            async def call() -> int:
                async with gate:
                    return (await client.post("/v1/chat/completions", json=chat(max_tokens=2))).status_code

            statuses = await asyncio.gather(*(call() for _ in range(count)))
        attempts = one.count + two.count
        assert attempts >= count
        assert set(statuses) <= {200, 502}
        assert attempts <= 1.25 * count
        record_property("figure", f"{attempts / count:.2f} attempts per request")  # type: ignore[operator]


@pytest.mark.fault("crash mid-stream")
@pytest.mark.req("R11")
async def test_nothing_is_retried_after_the_first_byte() -> None:
    async with SimEngine(SIM) as one, SimEngine(SIM) as two, gateway(one.url, two.url) as running, running.client() as client:
        for engine in (one, two):
            engine.misbehave([FaultRule("crash_mid_stream", after=2)])
        for _ in range(20):
            seen = await stream(client, max_tokens=10, ignore_eos=True)
            assert len(seen.errors) == 1
        assert len(one.received) + len(two.received) == 20


@pytest.mark.fault("caller leaves")
@pytest.mark.req("R22", "GATEWAYS-11")
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_caller_that_leaves_stops_the_engine(streamed: bool, record_property: pytest.FixtureRequest) -> None:
    slow = SimSettings(models=("sim",), speed=1.0)
    async with SimEngine(slow) as engine, gateway(engine.url) as running:
        waits = []
        for n in range(LEAVERS):
            async with running.client() as client:
                call = asyncio.create_task(
                    client.post("/v1/chat/completions", json=chat(stream=streamed, max_tokens=10_000, ignore_eos=True))
                )
                await until(lambda: engine.in_flight)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
            async with stolen_time() as stolen:
                begun = running.deps.clock()
                await until(lambda: not engine.in_flight, 0.002)
                waits.append(running.deps.clock() - begun - stolen())
            assert engine.counters.aborted == n + 1
        timely(statistics.median(waits), 0.2)  # one of them may meet a stall of the machine; each ends the engine's work, as counted above
        await running.recorded(LEAVERS)
        assert {r.outcome for r in running.records} == {"client_gone"}
        assert running.open_holds == 0
        record_property("figure", f"abort p50 {statistics.median(waits) * 1000:.0f} ms, slowest {max(waits) * 1000:.0f} ms of {LEAVERS}")  # type: ignore[operator]


@pytest.mark.fault("accepts, never answers")
@pytest.mark.parametrize("streamed", [True, False])
async def test_an_engine_that_never_answers_is_a_504(streamed: bool) -> None:
    engines = {"first_token_base_s": 0.2, "first_token_cap_s": 0.2, "plain_timeout_s": 0.2}
    async with SimEngine(SIM) as engine, gateway(engine.url, engines=engines) as running, running.client() as client:
        engine.inject([FaultRule("frozen")])
        reply = await client.post("/v1/chat/completions", json=chat(stream=streamed))
        assert reply.status_code == 504
        assert reply.json()["error"]["code"] == "upstream_timeout"
        assert running.open_holds == 0


@pytest.mark.fault("slow drip")
async def test_silence_mid_stream_is_ended_with_an_error() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, engines={"token_gap_s": 0.2}) as running, running.client() as client:
        engine.inject([FaultRule("frozen_mid_stream", after=2)])
        seen = await stream(client, max_tokens=10, ignore_eos=True)
        assert seen.errors[0]["code"] == "upstream_timeout"
        assert not seen.done
        assert (await running.recorded(1))[0].outcome == "token_gap_timeout"


@pytest.mark.req("GATEWAYS-17")
async def test_heartbeats_fill_a_long_prefill() -> None:
    engines = {"heartbeat_s": 0.05, "first_token_base_s": 5.0}
    async with SimEngine(SIM) as engine, gateway(engine.url, engines=engines) as running, running.client() as client:
        engine.inject([FaultRule("slow_start", delay_s=0.3)])
        async with stolen_time() as stolen:
            seen = await stream(client, max_tokens=3)
        assert seen.raw.startswith(b": ping\n\n"), "before the first token, which comes after 0.3 s"
        assert seen.raw.count(b": ping\n\n") >= 3 or stolen() > 0.1
        assert (seen.done, seen.errors) == (True, [])
        assert seen.first_s is not None
        assert seen.first_s < 0.25 + stolen()


@pytest.mark.req("GATEWAYS-17", "R11")
async def test_a_request_may_still_move_on_after_heartbeats() -> None:
    pinged = asyncio.Event()

    async def dies_in_prefill(peer: Peer) -> None:
        if b"GET" in await peer.request():
            return
        await pinged.wait()
        peer.reset()

    engines = {"heartbeat_s": 0.05, "first_token_base_s": 5.0}
    async with SimEngine(SIM) as good, scripted(dies_in_prefill) as bad, gateway(bad.url, good.url, engines=engines, poll=False) as running:
        running.deps.live.fleet = all_up(running.deps.live.fleet)
        charged(running.deps.pool_states, "e1", running.deps.clock())  # so that the one that dies is tried first
        async with running.client() as client:
            seen = await stream(client, begun=pinged, max_tokens=3)
        assert seen.raw.startswith(b": ping\n\n")
        assert (seen.done, seen.clean, seen.errors) == (True, True, [])
        record = (await running.recorded(1))[0]
        assert (record.outcome, record.backend, record.failed, record.attempts) == ("ok", "e1", ("e0",), 2)
        assert running.open_holds == 0


@pytest.mark.fault("slow reader")
@pytest.mark.req("R23")
async def test_a_slow_reader_pauses_the_engine_and_is_cut_in_the_end() -> None:
    limits = {"reply_buffer_bytes": 4096, "slow_reader_s": 0.3}
    flood = SimSettings(models=("sim",), instant=True)
    async with SimEngine(flood) as engine, gateway(engine.url, data={"limits": limits}) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port, limit=1024)
        body = b'{"model":"sim","messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":100000}'
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {running.keys['acme']}\r\n"
        writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        record = (await running.recorded(1))[0]
        assert record.outcome == "slow_reader"
        assert record.reply_bytes < 16 * 1024 * 1024  # of the 20 MB the engine had ready; the rest is the kernel's buffers
        writer.close()
        assert reader


@pytest.mark.fault("wrong model")
@pytest.mark.req("R43")
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_swapped_model_answers_nobody(streamed: bool, record_property: pytest.FixtureRequest) -> None:
    count = scaled(20, 200)
    async with SimEngine(SIM) as swapped, SimEngine(SIM) as good, gateway(swapped.url, good.url) as running, running.client() as client:
        swapped.misbehave([FaultRule("wrong_model")])
        for _ in range(count):
            reply = await client.post("/v1/chat/completions", json=chat(stream=streamed, max_tokens=3))
            assert reply.status_code == 200
            assert '"model":"sim"' in reply.text
        records = await running.recorded(count)
        assert {r.backend for r in records} == {"e1"}
        assert swapped.count < count / 2, "it is out until a poll finds it right"
        record_property("figure", f"0 of {count} answers from a swapped model")  # type: ignore[operator]


@pytest.mark.fault("wrong model")
@pytest.mark.req("R43")
async def test_when_every_engine_serves_another_model_nobody_gets_its_answer() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, poll=False) as running, running.client() as client:
        engine.misbehave([FaultRule("wrong_model")])
        refused = await client.post("/v1/chat/completions", json=chat(max_tokens=3))
        assert (refused.status_code, refused.json()["error"]["code"]) == (502, "upstream_error")
        assert (await client.post("/v1/chat/completions", json=chat(max_tokens=3))).json()["error"]["code"] == "no_backend"
        assert [r.outcome for r in await running.recorded(2)] == ["wrong_model", "no_backend"]
        assert "another" not in refused.text


async def test_nobody_to_serve_is_a_503_with_a_jittered_retry_after() -> None:
    async with no_engine() as address, gateway(address) as running, running.client() as client:
        reply = await client.post("/v1/chat/completions", json=chat())
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_backend")
        assert 1 <= int(reply.headers["retry-after"]) <= 5
        assert reply.headers["x-should-retry"] == "true"
        assert running.open_holds == 0


@pytest.mark.parametrize(
    "name", ["plain_truncated", "plain_not_json", "plain_error_200", "abort_finish", "wrong_content_type", "huge_headers", "garbage_http"]
)
async def test_broken_plain_replies_become_an_honest_status(name: str) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        engine.misbehave([FaultRule(name)])
        reply = await client.post("/v1/chat/completions", json=chat(max_tokens=3))
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "upstream_error")
        assert running.open_holds == 0
