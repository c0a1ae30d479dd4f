"""Recordings and speech through a whole gateway: what the table of `test_scoring_routes.py` leaves to this file."""

import json
import struct
from typing import Any

import httpx
import pytest

from backends.forms import read_form
from backends.simengine import FaultRule, SimEngine, SimSettings
from backends.simengine.sound import speech_of, transcript
from domain.ask import Endpoint
from gateway.telemetry.access_log import line_of
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tests.gateway_harness import Gateway, gateway
from tests.scripted_server import Peer, scripted

SIM = SimSettings(models=("sim",), speed=2000)
RECORDING = b"RIFF" + bytes(range(256)) * 300
SECONDS = 3
ROUTES = {Endpoint.TRANSCRIPTIONS: "transcribe", Endpoint.TRANSLATIONS: "translate"}
PLAIN = ("json", "text", "srt", "verbose_json", "vtt")
ACME = Scope(Level.TENANT, "acme")


def policy(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], **({"guards": {"rules": list(rules)}} if rules else {})}


async def hear(client: httpx.AsyncClient, endpoint: Endpoint = Endpoint.TRANSCRIPTIONS, **fields: Any) -> httpx.Response:
    return await client.post(endpoint.path, data={"model": "sim", **fields}, files={"file": ("talk of Ann.wav", RECORDING, "text/html")})


def events(reply: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in reply.text.split("\n\n") if line.startswith("data: {")]


def streamed(reply: httpx.Response) -> str:
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events(reply) if event["choices"])


async def used(running: Gateway, meter: Meter) -> tuple[int, int]:
    grant = running.deps.live.directory.grant(running.deps.live.directory.keys.authenticate(running.keys["acme"], 0.0).key_id, 0.0)  # type: ignore[union-attr]  # the harness made the key
    states = [state for group in grant.groups("sim") for state in await running.deps.counters.look(group)]
    return next((state.used, state.held) for state in states if state.line.meter == meter)


@pytest.mark.parametrize("endpoint", ROUTES, ids=lambda endpoint: endpoint.word)
async def test_every_form_of_a_transcript(endpoint: Endpoint) -> None:
    text = transcript(ROUTES[endpoint], RECORDING, SIM.seed)
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        replies = {form: await hear(client, endpoint, response_format=form) for form in PLAIN}
        assert {form: reply.headers["content-type"] for form, reply in replies.items()} == {
            form: "application/json" if "json" in form else "text/plain; charset=utf-8" for form in PLAIN
        }
        assert replies["json"].json() == {"text": text, "usage": {"type": "duration", "seconds": SECONDS}}
        assert replies["verbose_json"].json()["segments"][0]["text"] == replies["verbose_json"].json()["text"] == text
        assert replies["text"].text == text
        assert replies["srt"].text.startswith("1\n00:00:00,000 -->")
        assert replies["vtt"].text.startswith("WEBVTT\n")
        stream = await hear(client, endpoint, stream="true")
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert streamed(stream) == text
        assert stream.text.endswith("data: [DONE]\n\n")
        assert all("usage" not in event for event in events(stream))
        with_usage = events(await hear(client, endpoint, stream="true", stream_include_usage="true"))
        assert with_usage[-1]["usage"]["completion_tokens"] == len(text.split())
        assert {received.path for received in engine.received} == {endpoint.path}


async def test_the_engine_gets_a_form_of_the_gateways_own() -> None:
    async with (
        SimEngine(SIM) as engine,
        gateway(engine.url, policies=[{**policy(), "models": [{"name": "ears", "pool": "chat"}]}]) as running,
    ):
        async with running.client() as client:
            reply = await hear(client, model="ears", foo="1\r\n2", priority="-9", cache_salt="mine", user="ann", temperature="0.5")
            assert reply.status_code == 200, reply.text
        received = engine.received[0]
        parts = read_form(received.headers[b"content-type"], received.body)
        assert [(part.name, part.value) for part in parts if part.filename is None] == [
            ("model", b"sim"),
            ("foo", b"1\r\n2"),
            ("user", b"ann"),
            ("temperature", b"0.5"),
        ]
        assert [(part.filename, part.value) for part in parts if part.filename is not None] == [("audio.wav", RECORDING)]
        assert b"Ann" not in received.body
        assert b"text/html" not in received.body
        assert received.headers[b"content-type"].startswith(b"multipart/form-data; boundary=tidegate-")
        assert (await running.recorded(1))[0].user == "ann"


async def test_seconds_are_read_and_tokens_are_the_estimate() -> None:
    limits = [Limit(ACME, Meter.TOKENS, Window.DAY, 100_000), Limit(ACME, Meter.CONCURRENT_REQUESTS, Window.NOW, 1)]
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=limits) as running, running.client() as client:
        text = (await hear(client)).json()["text"]
        record = (await running.recorded(1))[0]
        assert (record.usage.audio_seconds, record.usage.prompt_tokens) == (SECONDS, 1024)
        assert record.usage.completion_tokens == -(-len(text) // 4)
        assert json.loads(line_of(record))["audio_seconds"] == SECONDS
        assert json.loads(line_of(record))["request_bytes"] > len(RECORDING)
        assert await used(running, Meter.TOKENS) == (record.usage.total_tokens, 0)
        assert b"max_completion_tokens" in engine.received[0].body, "a limit on tokens bounds the answer"
        await hear(client, stream="true")
        streamed_record = (await running.recorded(2))[1]
        assert (streamed_record.usage.prompt_tokens, streamed_record.closing) == (4 + SECONDS, "settle")


SPOKEN = speech_of("so long and thanks " * 1600)
"""A WAV file of 1.9 seconds, which the simulated engine counts as two."""


async def tell(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/v1/audio/transcriptions", data={"model": "sim", **fields}, files={"file": ("a.wav", SPOKEN)})


async def test_a_limit_on_seconds_refuses_the_recording_that_exceeds_it_and_no_chat() -> None:
    limits = [Limit(ACME, Meter.AUDIO_SECONDS, Window.DAY, 5)]
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=limits) as running, running.client() as client:
        replies = [await tell(client) for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200, 200, 429]
        error = replies[2].json()["error"]
        assert error["message"].startswith("Quota spent (tenant acme: 5 seconds of audio per day): 4 seconds of audio used or reserved")
        await running.recorded(3)
        assert await used(running, Meter.AUDIO_SECONDS) == (4, 0)
        chat = await client.post("/v1/chat/completions", json={"model": "sim", "messages": [{"role": "user", "content": "hi"}]})
        assert chat.status_code == 200
        assert (
            (await hear(client)).json()["error"]["message"].startswith("This request may need 39 seconds of audio, more than a whole limit")
        )
        assert len([received for received in engine.received if "audio" in received.path]) == 2
        kept = [record.usage for record in await running.recorded(5) if record.usage.audio_bytes]
        assert [(usage.audio_seconds, usage.audio_bytes) for usage in kept] == [(2, len(SPOKEN))] * 2


async def test_the_bytes_of_recordings_and_of_speech_are_one_meter() -> None:
    limits = [Limit(ACME, Meter.AUDIO_BYTES, Window.DAY, 10**6), Limit(ACME, Meter.AUDIO_SECONDS, Window.DAY, 100)]
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=limits) as running, running.client() as client:
        for form in ("json", "text", "vtt"):
            assert (await tell(client, response_format=form)).status_code == 200
        assert (await tell(client, stream="true")).status_code == 200
        await running.recorded(4)
        assert await used(running, Meter.AUDIO_BYTES) == (4 * len(SPOKEN), 0)
        assert await used(running, Meter.AUDIO_SECONDS) == (8, 0)
        speech = await client.post("/v1/audio/speech", json={"model": "sim", "input": "good morning", "voice": "v"})
        await running.recorded(5)
        assert await used(running, Meter.AUDIO_BYTES) == (4 * len(SPOKEN) + len(speech.content), 0)
        assert await used(running, Meter.AUDIO_SECONDS) == (9, 0)
        long = await client.post("/v1/audio/speech", json={"model": "sim", "input": "x" * 400, "voice": "v"})
        assert long.status_code == 400, "what its text makes at most is reserved"
        assert "bytes of audio, more than a whole limit holds" in long.json()["error"]["message"]


async def test_a_recording_that_no_engine_heard_costs_nothing() -> None:
    limits = [Limit(ACME, Meter.AUDIO_SECONDS, Window.DAY, 100), Limit(ACME, Meter.AUDIO_BYTES, Window.DAY, 10**6)]
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=limits) as running, running.client() as client:
        engine.inject([FaultRule("plain_not_json")])
        assert (await tell(client)).status_code >= 500
        await running.recorded(1)
        assert await used(running, Meter.AUDIO_SECONDS) == (0, 0)
        assert await used(running, Meter.AUDIO_BYTES) == (0, 0)


@pytest.mark.parametrize("reported", ["prompt", "input"])
async def test_tokens_that_an_engine_reports_are_billed(reported: str) -> None:
    names = ("prompt_tokens", "completion_tokens") if reported == "prompt" else ("input_tokens", "output_tokens")
    usage = dict(zip(names, (70, 3), strict=True))

    async def engine(peer: Peer) -> None:
        while request := await peer.request():
            body = json.dumps({"text": "a b c", "usage": usage}).encode() if b"POST" in request[:5] else b'{"data":[{"id":"sim"}]}'
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    async with scripted(engine) as server, gateway(server.url, poll=False) as running, running.client() as client:
        assert (await hear(client)).status_code == 200
        record = (await running.recorded(1))[0]
        assert (record.usage.prompt_tokens, record.usage.completion_tokens, record.reported) == (70, 3, "")


BLOCK = {"id": "all", "kind": "pattern", "pattern": "[a-z]", "mode": "block", "on": ["input", "output"]}
MARK = {"id": "all", "kind": "pattern", "pattern": "[a-z]{1,20}", "mode": "replace", "replacement": "*", "on": ["input", "output"]}


@pytest.mark.parametrize("form", [*PLAIN, "stream"])
async def test_guard_rules_read_what_was_heard(form: str) -> None:
    text = transcript("transcribe", RECORDING, SIM.seed)
    fields = {"stream": "true"} if form == "stream" else {"response_format": form}
    for rule in (BLOCK, MARK):
        async with SimEngine(SIM) as engine, gateway(engine.url, policies=[policy(rule)]) as running, running.client() as client:
            reply = await hear(client, **fields)
            assert reply.status_code == 200, reply.text
            assert not any(word in reply.text for word in text.split()), form
            if form == "stream":
                assert streamed(reply) == ("" if rule is BLOCK else " ".join("*" * len(text.split())))
            if form == "verbose_json":
                assert "segments" not in reply.json()
                assert reply.json()["text"] == ("" if rule is BLOCK else " ".join("*" * len(text.split())))
            if form == "json":
                assert reply.json()["usage"] == {"type": "duration", "seconds": SECONDS}
            record = (await running.recorded(1))[0]
            assert record.guards is not None
            assert record.guards.unread == ("audio",)


async def test_a_text_that_rules_let_pass_stays_as_it_is() -> None:
    rule = {**MARK, "pattern": "never said"}
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[policy(rule)]) as running, running.client() as client:
        reply = (await hear(client, response_format="verbose_json")).json()
        assert reply["segments"][0]["text"] == reply["text"] == transcript("transcribe", RECORDING, SIM.seed)


async def test_an_engine_that_dies_in_a_stream_is_no_whole_transcript() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        engine.inject([FaultRule("reset_mid_stream", after=2)])
        with pytest.raises(httpx.RemoteProtocolError):
            await hear(client, stream="true")
        assert (await running.recorded(1))[0].outcome == "broken_stream"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"response_format": "docx"}, "response_format"),
        ({"response_format": "vtt", "stream": "true"}, "response_format"),
        ({"stream": "maybe"}, "stream"),
        ({"timestamp_granularities[]": ["hour"]}, "timestamp_granularities[][0]"),
        ({"vllm_xargs": "{}"}, "vllm_xargs"),
        ({"use_beam_search": "true"}, "use_beam_search"),
    ],
)
async def test_a_bad_field_is_named(fields: dict[str, Any], param: str) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        reply = await hear(client, **fields)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
        assert not engine.received


async def test_what_is_no_form_is_refused() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        path = Endpoint.TRANSCRIPTIONS.path
        assert (await client.post(path, json={"model": "sim", "file": {"name": "audio.wav", "bytes": 1}})).status_code == 415
        assert (await client.post("/v1/audio/speech", data={"model": "sim", "input": "a"})).status_code == 415
        header = {"content-type": "multipart/form-data; boundary=b"}
        cut = await client.post(path, headers=header, content=b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nsim\r\n')
        assert (cut.status_code, cut.json()["error"]["code"]) == (400, "invalid_value")
        none = await client.post(path, data={"model": "sim"}, files={"other": ("a.wav", b"x")})
        assert (none.status_code, none.json()["error"]["param"]) == (400, "other")
        empty = await client.post(path, data={"model": "sim"}, files={"file": ("a.wav", b"")})
        assert (empty.status_code, empty.json()["error"]["param"]) == (400, "file")
        assert not engine.received


async def test_a_recording_beyond_the_body_of_a_policy_is_a_413() -> None:
    policies = [{**policy(), "caps": {"body_bytes": 20_000}}]
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=policies) as running, running.client() as client:
        assert (await hear(client)).status_code == 413
        assert not engine.received


@pytest.mark.parametrize(("wanted", "kind"), [(None, "audio/wav"), ("mp3", "audio/mpeg"), ("pcm", "audio/pcm")])
async def test_speech_has_the_engines_type(wanted: str | None, kind: str) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        reply = await client.post("/v1/audio/speech", json={"model": "sim", "input": "hi", "voice": "alloy", "response_format": wanted})
        assert (reply.status_code, reply.headers["content-type"]) == (200, kind)
        record = (await running.recorded(1))[0]
        assert (record.closing, record.usage.completion_tokens, record.reply_bytes) == ("estimate", 0, len(reply.content))
        assert record.usage.prompt_tokens > 0


async def test_long_speech_is_passed_on_as_it_comes_and_a_cut_one_looks_cut() -> None:
    sound = struct.pack("<I", 7) * 600_000

    async def engine(peer: Peer) -> None:
        sent = 0
        while request := await peer.request():
            if b"POST" not in request[:5]:
                await peer.send(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 23\r\n\r\n{"data":[{"id":"sim"}]}')
                continue
            sent += 1
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ncontent-length: %d\r\n\r\n" % len(sound))
            await peer.send(sound if sent == 1 else sound[:-1000])
            if sent == 2:
                return

    async with scripted(engine) as server, gateway(server.url, poll=False) as running, running.client() as client:
        ask = {"model": "sim", "input": "hi", "voice": "alloy"}
        reply = await client.post("/v1/audio/speech", json=ask)
        assert reply.content == sound
        assert reply.headers["content-type"] == "audio/mpeg"
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/v1/audio/speech", json=ask)
