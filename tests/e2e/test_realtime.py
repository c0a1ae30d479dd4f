"""Realtime sessions through a whole gateway: a real WebSocket client on one side, the simulated engine on the other."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from backends.simengine import FaultRule, SimEngine, SimSettings
from domain.faults import Kind
from gateway.process.drain import stopping
from gateway.request.end_revoked import RevokedAnswers
from gateway.telemetry.access_log import line_of
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tests.gateway_harness import Gateway, directory, gateway
from tests.timing import until

SIM = SimSettings(models=("sim",), speed=2000)
ACME = Scope(Level.TENANT, "acme")
SECOND = bytes(32_000)
POLICY = {"tenant": "*", "models": [{"name": "ears", "pool": "chat"}]}


@asynccontextmanager
async def session(running: Gateway, query: str = "?model=ears", **options: Any) -> AsyncIterator[ClientConnection]:
    headers = options.pop("headers", {"authorization": f"Bearer {running.keys['acme']}"})
    url = f"ws://127.0.0.1:{running.port}/v1/realtime{query}"
    async with connect(url, additional_headers=headers, compression=None, proxy=None, open_timeout=60, **options) as one:
        yield one


async def say(one: ClientConnection, **event: object) -> None:
    await one.send(json.dumps(event))


async def speak(one: ClientConnection, pieces: int = 3) -> list[dict[str, Any]]:
    """One turn: the events up to the whole transcript."""
    await say(one, type="input_audio_buffer.commit")
    for _ in range(pieces):
        await say(one, type="input_audio_buffer.append", audio=base64.b64encode(SECOND).decode())
    await say(one, type="input_audio_buffer.commit", final=True)
    events = [await heard(one)]
    while events[-1]["type"] not in ("transcription.done", "error"):
        events.append(await heard(one))
    return events


async def heard(one: ClientConnection) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(await asyncio.wait_for(one.recv(), 60))
    return event


async def last_words(one: ClientConnection) -> tuple[list[dict[str, Any]], int]:
    """What comes until the session is closed, and the code."""
    events = []
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            events.append(await heard(one))
    assert closed.value.rcvd is not None
    return events, closed.value.rcvd.code


async def refused(running: Gateway, query: str = "?model=ears", **options: Any) -> tuple[int, dict[str, Any], Any]:
    with pytest.raises(InvalidStatus) as caught:
        async with session(running, query, **options):
            pass
    response = caught.value.response
    return response.status_code, json.loads(response.body)["error"], response.headers


async def used(running: Gateway, meter: Meter) -> tuple[int, int]:
    caller = running.deps.live.directory.keys.authenticate(running.keys["acme"], 0.0)
    assert caller is not None
    grant = running.deps.live.directory.grant(caller.key_id, 0.0)
    states = [state for group in grant.groups("ears") for state in await running.deps.counters.look(group)]
    return next((state.used, state.held) for state in states if state.line.meter == meter)


async def test_a_session_of_two_turns_is_one_record_with_the_engines_usage() -> None:
    limits = [Limit(ACME, Meter.TOKENS, Window.DAY, 1_000_000), Limit(ACME, Meter.REQUESTS, Window.DAY, 10)]
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY], limits=limits) as running:
        async with session(running) as one:
            assert (await heard(one))["type"] == "session.created"
            assert (await used(running, Meter.TOKENS))[1] >= 16_384
            first = await speak(one)
            second = await speak(one)
            assert engine.in_flight == 1
        assert [event["type"] for event in first] == ["transcription.delta"] * 5 + ["transcription.done"]
        assert first[-1]["text"] == "".join(event["delta"] for event in first[:-1])
        assert second[-1]["usage"] == {"prompt_tokens": 38, "completion_tokens": 5, "total_tokens": 43}
        (record,) = await running.recorded(1)
        assert (record.outcome, record.status, record.endpoint, record.model) == ("ok", 101, "/v1/realtime", "ears")
        assert (record.usage.prompt_tokens, record.usage.completion_tokens, record.usage.audio_seconds) == (76, 10, 6)
        assert await used(running, Meter.TOKENS) == (86, 0)
        assert await used(running, Meter.REQUESTS) == (1, 0)
        assert b"transcription" not in line_of(record)
        await until(lambda: engine.in_flight == 0 and not running.open_holds and not running.deps.watch.relays())
        assert running.defects == []


async def test_the_engine_hears_its_own_name_of_the_model_and_the_caller_never_does() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY]) as running, session(running) as one:
        await heard(one)
        await say(one, type="session.update", model="ears")
        await say(one, type="session.update", session={"model": "ears"})
        assert (await speak(one))[-1]["type"] == "transcription.done"
        await say(one, type="session.update", model="sim", event_id="mine")
        wrong = await heard(one)
        assert (wrong["type"], wrong["error"]["param"], wrong["error"]["event_id"]) == ("error", "model", "mine")
        assert "sim" not in wrong["error"]["message"]
        assert b"Bearer" not in b"".join(value for name, value in engine.received[0].headers.items() if name != b"host")


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("no JSON", None),
        ('{"type":"response.create"}', "invalid_value"),
        ('{"type":"input_audio_buffer.append"}', "missing_required_parameter"),
        ('{"type":"input_audio_buffer.append","audio":"***"}', "invalid_audio"),
        ('{"type":7}', None),
    ],
)
async def test_a_wrong_event_is_told_and_the_session_goes_on(message: str, code: str | None) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY]) as running, session(running) as one:
        await heard(one)
        await one.send(message)
        event = await heard(one)
        assert event["type"] == "error"
        assert event["error"]["type"] == "invalid_request_error"
        assert event["error"]["message"]
        assert event["error"]["code"] == code
        assert (await speak(one))[-1]["type"] == "transcription.done"


async def test_a_browsers_key_comes_in_a_subprotocol() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY]) as running:
        offered = ["realtime", f"openai-insecure-api-key.{running.keys['acme']}"]
        async with session(running, headers={}, subprotocols=offered) as one:
            assert one.subprotocol == "realtime"
            assert (await heard(one))["type"] == "session.created"
        status, error, _ = await refused(running, headers={}, subprotocols=["realtime", "openai-insecure-api-key.wrong"])
        assert (status, error["code"]) == (401, "invalid_api_key")


async def test_refusals_are_http_replies_in_openais_shape() -> None:
    limits = [Limit(ACME, Meter.CONCURRENT_REQUESTS, Window.NOW, 1)]
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY], limits=limits) as running:
        assert (await refused(running, headers={}))[0] == 401
        assert (await refused(running, headers={"authorization": "Bearer no"}))[0] == 401
        status, error, _ = await refused(running, "")
        assert (status, error["param"]) == (400, "model")
        status, error, _ = await refused(running, "?model=unknown")
        assert (status, error["code"]) == (404, "model_not_found")
        assert (await refused(running, "?model=ears&model=ears"))[0] == 400
        assert (await refused(running, "?model=ears&intent=conversation"))[1]["param"] == "intent"
        assert (await refused(running, "?model=ears&call_id=rtc_1"))[1]["param"] == "call_id"
        async with session(running) as one:
            await heard(one)
            status, error, headers = await refused(running)
            assert (status, error["code"]) == (429, "concurrency_limit_exceeded")
            assert "retry-after" in headers
        await until(lambda: not running.open_holds)
        async with session(running) as one:
            await heard(one)
        async with running.client() as client:
            plain = await client.get("/v1/realtime?model=ears")
            assert (plain.status_code, "WebSocket" in plain.json()["error"]["message"]) == (400, True)
            posted = await client.post("/v1/realtime", json={"model": "ears"})
            assert (posted.status_code, posted.headers["allow"]) == (405, "GET")
        assert engine.count == 2


async def test_guard_rules_that_cannot_read_a_session_refuse_it() -> None:
    rule = {"id": "all", "kind": "pattern", "pattern": "[a-z]", "mode": "block", "on": ["output"]}
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[{**POLICY, "guards": {"rules": [rule]}}]) as running:
        status, error, _ = await refused(running)
        assert (status, "/v1/audio/transcriptions" in error["message"]) == (403, True)
        assert engine.count == 0


async def test_an_engine_without_sessions_is_no_failing_engine() -> None:
    async with SimEngine(msgspec.structs.replace(SIM, dialect="sglang")) as engine, gateway(engine.url, policies=[POLICY]) as running:
        status, error, _ = await refused(running)
        assert (status, error["param"]) == (400, "model")
        assert running.deps.live.breakers.shut("", running.deps.clock()) == {}
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY], pool={"dialect": "sglang"}) as running:
        assert (await refused(running))[1]["param"] == "model"
        assert engine.count == 0


@pytest.mark.parametrize("fault", ["close_before_headers", "reset_before_headers", "garbage_http", "status_500"])
async def test_another_engine_is_tried_until_the_handshake_is_answered(fault: str) -> None:
    async with SimEngine(SIM) as bad, SimEngine(SIM) as good, gateway(bad.url, good.url, policies=[POLICY]) as running:
        bad.misbehave([FaultRule(fault)])
        for _ in range(4):
            async with session(running) as one:
                assert (await heard(one))["type"] == "session.created"
        assert good.count == 4
        assert {record.outcome for record in await running.recorded(4)} == {"ok"}


async def test_without_an_engine_the_answer_is_503() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY]) as running:
        engine.misbehave([FaultRule("reset_before_headers")])
        status, error, _ = await refused(running)
        assert (status, error["code"]) in ((502, "upstream_error"), (503, "no_backend"))


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("crash_mid_stream", Kind.BROKEN_STREAM),
        ("reset_mid_stream", Kind.BROKEN_STREAM),
        ("malformed_sse", Kind.INVALID_REPLY),
        ("oversize_event", Kind.INVALID_REPLY),
        ("garbage_chunk", Kind.INVALID_REPLY),
    ],
)
async def test_a_failing_engine_ends_the_session_with_an_event_and_1011(fault: str, kind: Kind) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY]) as running:
        engine.misbehave([FaultRule(fault, after=3)])
        async with session(running) as one:
            await say(one, type="input_audio_buffer.commit")
            for _ in range(4):
                await say(one, type="input_audio_buffer.append", audio=base64.b64encode(SECOND).decode())
            events, code = await last_words(one)
        assert [event["type"] for event in events] == ["session.created", "transcription.delta", "transcription.delta", "error"]
        assert events[-1]["error"]["code"] == "upstream_error"
        assert code == 1011
        (record,) = await running.recorded(1)
        assert record.outcome == kind.value
        assert record.usage.completion_tokens == 2, "two words had come, and are billed by their number"
        await until(lambda: not running.open_holds)


async def test_an_engine_that_closes_in_order_closes_the_session_so() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY]) as running:
        engine.misbehave([FaultRule("clean_close", after=1)])
        async with session(running) as one:
            await say(one, type="nonsense")
            await say(one, type="input_audio_buffer.append", audio="***")
            events, code = await last_words(one)
        assert (events[0]["type"], code) == ("session.created", 1000)
        assert (await running.recorded(1))[0].outcome == "ok"


@pytest.mark.parametrize(("bound", "code"), [("max_session_s", "session_expired"), ("idle_s", "session_expired")])
async def test_a_session_ends_at_its_bounds(bound: str, code: str) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY], data={"realtime": {bound: 0.2}}) as running:
        async with session(running) as one:
            events, close = await last_words(one)
        assert (events[-1]["error"]["code"], close) == (code, 1001)
        await until(lambda: engine.in_flight == 0)


async def test_a_silent_engine_is_noticed_by_its_missing_pong() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY], data={"realtime": {"ping_s": 1.0}}) as running:
        async with session(running) as one:
            await heard(one)
            assert engine.sessions
            await until(lambda: running.deps.watch.relays() != [])
            for connection in engine.sessions:
                connection.transport.pause_reading()
            events, code = await last_words(one)
        assert (events[-1]["error"]["code"], code) == ("upstream_timeout", 1011)
        assert (await running.recorded(1))[0].outcome == Kind.BACKEND_LOST.value


async def test_messages_are_bounded_and_text() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY], data={"realtime": {"max_message_bytes": 4096}}) as running:
        async with session(running) as one:
            await heard(one)
            await one.send("x" * 5000)
            assert (await last_words(one))[1] == 1009
        async with session(running) as one:
            await heard(one)
            await one.send(b"binary")
            assert (await last_words(one))[1] == 1003
        await until(lambda: engine.in_flight == 0 and not running.open_holds)


async def test_a_session_may_use_what_it_reserved() -> None:
    limits = [Limit(ACME, Meter.OUTPUT_TOKENS, Window.DAY, 4)]
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[{**POLICY, "max_output_tokens": 4}], limits=limits) as running:
        async with session(running) as one:
            await say(one, type="input_audio_buffer.commit")
            for _ in range(9):
                await say(one, type="input_audio_buffer.append", audio=base64.b64encode(SECOND).decode())
            events, code = await last_words(one)
        assert (events[-1]["error"]["code"], code) == ("session_spent", 1008)
        record = (await running.recorded(1))[0]
        assert record.usage.completion_tokens == 5


async def test_a_revoked_key_ends_its_session() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY]) as running:
        async with session(running) as one:
            await heard(one)
            running.deps.live.directory = directory([])
            RevokedAnswers().sweep(running.deps.clock(), running.deps)
            events, code = await last_words(one)
        assert (events[-1]["error"]["code"], code) == ("invalid_api_key", 1008)
        assert (await running.recorded(1))[0].outcome == Kind.KEY_REVOKED.value
        await until(lambda: engine.in_flight == 0)


async def test_a_draining_gateway_closes_quiet_sessions_at_once() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY]) as running:
        async with session(running) as quiet, session(running) as busy:
            await heard(quiet)
            await heard(busy)
            await say(busy, type="input_audio_buffer.commit")
            await say(busy, type="input_audio_buffer.append", audio=base64.b64encode(SECOND).decode())
            assert (await heard(busy))["type"] == "transcription.delta"
            running.connections.draining = True
            events, code = await last_words(quiet)
            assert (events[-1]["error"]["code"], code) == ("server_shutting_down", 1001)
            await say(busy, type="input_audio_buffer.commit", final=True)
            events, code = await last_words(busy)
            assert (events[2]["type"], events[-1]["type"], code) == ("transcription.done", "error", 1001)
        await until(lambda: engine.in_flight == 0)


async def test_a_caller_that_does_not_read_is_cut_off() -> None:
    data = {"limits": {"slow_reader_s": 0.3, "reply_buffer_bytes": 4096}}
    edge = {"reply_buffer_bytes": 4096}
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY], data=data, edge=edge) as running:
        async with session(running, max_queue=1) as one:
            await heard(one)
            one.transport.pause_reading()
            wrong = json.dumps({"type": "nonsense", "event_id": base64.b64encode(SECOND).decode()})
            with pytest.raises((ConnectionClosed, TimeoutError)):
                async with asyncio.timeout(50):
                    while True:
                        await one.send(wrong)
        record = (await running.recorded(1))[0]
        assert record.outcome == Kind.SLOW_READER.value
        await until(lambda: engine.in_flight == 0 and not running.open_holds)


async def test_a_session_in_a_turn_ends_at_the_end_of_the_grace() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY]) as running, session(running) as one:
        await heard(one)
        await say(one, type="input_audio_buffer.commit")
        await say(one, type="input_audio_buffer.append", audio=base64.b64encode(SECOND).decode())
        assert (await heard(one))["type"] == "transcription.delta"
        for relay in running.deps.watch.relays():
            relay.end_with(stopping())
        events, code = await last_words(one)
        assert (events[-1]["error"]["code"], code) == ("server_shutting_down", 1001)
        (record,) = await running.recorded(1)
        assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (12, 1), "the turn so far is charged"


async def test_an_engine_that_never_answers_the_handshake_is_left() -> None:
    engines = {"first_token_base_s": 0.2, "first_token_cap_s": 0.2}
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY], engines=engines) as running:
        engine.misbehave([FaultRule("frozen")])
        status, error, _ = await refused(running)
        assert (status, error["code"]) == (504, "upstream_timeout")
        await until(lambda: not running.open_holds and not running.deps.watch.relays())


async def test_an_engine_that_dies_ends_the_session() -> None:
    engine = SimEngine(SIM)
    await engine.__aenter__()
    async with gateway(engine.url, policies=[POLICY]) as running, session(running) as one:
        await heard(one)
        await engine.__aexit__(None, None, None)
        events, code = await last_words(one)
        assert (events[-1]["error"]["code"], code) == ("upstream_error", 1011)
        assert (await running.recorded(1))[0].outcome == Kind.BROKEN_STREAM.value


async def test_an_engine_that_does_not_read_stops_the_caller_and_ends_the_session() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY], data={"limits": {"slow_reader_s": 0.3}}) as running:
        async with session(running) as one:
            await heard(one)
            for connection in engine.sessions:
                connection.transport.pause_reading()
            piece = json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(SECOND * 10).decode()})
            with pytest.raises(ConnectionClosed):
                for _ in range(1000):
                    await one.send(piece)
        (record,) = await running.recorded(1)
        assert record.outcome == Kind.TOKEN_GAP_TIMEOUT.value


async def test_the_second_client_library_opens_sessions_too() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY], engines={"client": "aiohttp"}) as running:
        async with session(running) as one:
            await heard(one)
            assert (await speak(one))[-1]["type"] == "transcription.done"


def handshake(running: Gateway) -> bytes:
    lines = [
        "GET /v1/realtime?model=ears HTTP/1.1",
        "host: x",
        f"authorization: Bearer {running.keys['acme']}",
        "upgrade: websocket",
        "connection: Upgrade",
        "sec-websocket-version: 13",
        f"sec-websocket-key: {base64.b64encode(bytes(16)).decode()}",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


async def test_a_caller_that_leaves_during_the_handshake_leaves_nothing_behind() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY]) as running:
        engine.misbehave([FaultRule("frozen")])
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(handshake(running))
        await until(lambda: engine.count == 1)
        writer.close()
        assert (await running.recorded(1))[0].outcome == Kind.CLIENT_GONE.value
        await until(lambda: not running.open_holds and not running.deps.watch.relays() and not running.connections.open)


async def test_bytes_before_the_101_are_not_read_as_frames() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY]) as running:
        engine.misbehave([FaultRule("slow_start", delay_s=2.0)])  # a busy machine is slow to write the next bytes, too
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(handshake(running))
        await until(lambda: engine.count == 1)
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
        reply = await asyncio.wait_for(reader.read(), 60)
        assert reply.startswith(b"HTTP/1.1 400 ")
        assert reply.count(b"HTTP/1.1") == 1
        writer.close()
        await until(lambda: engine.in_flight == 0)


async def test_a_caller_that_answers_no_ping_is_gone() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY], data={"realtime": {"ping_s": 0.1}}) as running:
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(handshake(running))
        assert (await running.recorded(1))[0].outcome == Kind.CLIENT_GONE.value
        await until(lambda: engine.in_flight == 0 and not running.open_holds)
        writer.close()


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("HTTP/1.1", "HTTP/1.0"),
        ("connection: Upgrade", "connection: keep-alive"),
        ("upgrade: websocket", "upgrade: h2c"),
        ("upgrade: websocket", "upgrade: h2c, websocket"),
        ("upgrade: websocket", "upgrade: websocket\r\nupgrade: websocket"),
        ("sec-websocket-version: 13", "sec-websocket-version: 12"),
        ("host: x", "host: x\r\ntransfer-encoding: chunked"),
    ],
    ids=["http-1-0", "no-option", "another-protocol", "two-protocols", "twice", "version", "body"],
)
async def test_half_a_handshake_opens_no_session(line: str, other: str) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[POLICY]) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(handshake(running).replace(line.encode(), other.encode()))
        writer.write(b"0\r\n\r\n" if "chunked" in other else b"")
        assert (await asyncio.wait_for(reader.readline(), 60)).split()[1] == b"400"
        writer.close()
        assert engine.count == 0
