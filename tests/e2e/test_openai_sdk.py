"""The official `openai` client, unmodified, through the whole gateway."""

from collections.abc import AsyncIterator

import openai
import pytest

from backends.simengine import SimEngine, SimSettings
from tests.gateway_harness import Gateway, gateway

FAST = SimSettings(models=("sim",), speed=1000)
ASK = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def served() -> AsyncIterator[tuple[Gateway, openai.AsyncOpenAI]]:
    async with SimEngine(FAST) as engine, gateway(engine.url) as running:
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key=running.keys["acme"], max_retries=0) as client:
            yield running, client


async def test_plain_chat(served: tuple[Gateway, openai.AsyncOpenAI]) -> None:
    running, client = served
    answer = await client.chat.completions.create(model="sim", messages=ASK, max_tokens=7)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 7
    record = (await running.recorded(1))[0]
    assert (record.outcome, record.closing, record.usage.completion_tokens) == ("ok", "settle", 7)
    assert running.open_holds == 0


@pytest.mark.parametrize("asked", [True, False])
async def test_streamed_chat_meters_usage_and_shows_it_only_when_asked(served: tuple[Gateway, openai.AsyncOpenAI], asked: bool) -> None:
    running, client = served
    options = {"stream_options": {"include_usage": True}} if asked else {}
    chunks = [c async for c in await client.chat.completions.create(model="sim", messages=ASK, max_tokens=5, stream=True, **options)]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    plain = await client.chat.completions.create(model="sim", messages=ASK, max_tokens=5)
    assert text == plain.choices[0].message.content
    usages = [c.usage for c in chunks if c.usage]
    assert [u.completion_tokens for u in usages] == ([5] if asked else [])
    assert all(("usage" in c.model_fields_set) == asked for c in chunks)
    records = await running.recorded(2)
    assert [r.usage.completion_tokens for r in records] == [5, 5]


async def test_raw_and_streaming_responses(served: tuple[Gateway, openai.AsyncOpenAI]) -> None:
    _, client = served
    raw = await client.chat.completions.with_raw_response.create(model="sim", messages=ASK, max_tokens=3)
    assert raw.request_id
    assert int(raw.headers["openai-processing-ms"]) >= 0
    assert raw.headers["x-tidegate-backend"] == "e0"
    async with client.chat.completions.with_streaming_response.create(model="sim", messages=ASK, max_tokens=3, stream=True) as reply:
        lines = [line async for line in reply.iter_lines()]
    assert lines[-2 if lines[-1] == "" else -1] == "data: [DONE]"


async def test_several_choices_completions_embeddings_models(served: tuple[Gateway, openai.AsyncOpenAI]) -> None:
    _, client = served
    several = await client.chat.completions.create(model="sim", messages=ASK, max_tokens=4, n=3)
    assert [c.index for c in several.choices] == [0, 1, 2]
    texts = await client.completions.create(model="sim", prompt=["a b", "c d"], max_tokens=4)
    assert len(texts.choices) == 2
    streamed = [c async for c in await client.completions.create(model="sim", prompt="a b", max_tokens=4, stream=True)]
    assert streamed[-1].choices[0].finish_reason == "length"
    vectors = await client.embeddings.create(model="sim", input=["a", "b"])  # the client asks for base64 by itself
    assert [len(v.embedding) for v in vectors.data] == [256, 256]
    floats = await client.embeddings.create(model="sim", input="a", encoding_format="float")
    assert sum(x * x for x in floats.data[0].embedding) == pytest.approx(1.0)
    assert [m.id async for m in client.models.list()] == ["sim"]
    assert (await client.models.retrieve("sim")).id == "sim"


async def test_errors_raise_the_right_exceptions(served: tuple[Gateway, openai.AsyncOpenAI]) -> None:
    running, client = served
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.chat.completions.create(model="nope", messages=ASK)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model="sim", messages=ASK, n=1000)
    assert (bad.value.param, bad.value.code) == ("n", "invalid_value")
    with pytest.raises(openai.BadRequestError) as long:
        await client.chat.completions.create(model="sim", messages=[{"role": "user", "content": "word " * 140_000}])
    assert long.value.code == "context_length_exceeded"
    stranger = client.with_options(api_key="gw_test_aaaaaaaaaa_" + "a" * 49)
    with pytest.raises(openai.AuthenticationError) as refused:
        await stranger.chat.completions.create(model="sim", messages=ASK)
    assert refused.value.code == "invalid_api_key"
    assert refused.value.response.headers["x-should-retry"] == "false"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("nope")
    assert running.open_holds == 0


def test_the_synchronous_client(tmp_path: object) -> None:
    """In a thread beside the loop that serves it."""
    import asyncio

    async def serve_and_call() -> str:
        async with SimEngine(FAST) as engine, gateway(engine.url) as running:

            def call() -> str:
                with openai.OpenAI(base_url=f"{running.url}/v1", api_key=running.keys["acme"], max_retries=0) as client:
                    stream = client.chat.completions.create(model="sim", messages=ASK, max_tokens=6, stream=True)
                    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

            return await asyncio.to_thread(call)

    assert len(asyncio.run(serve_and_call()).split()) == 6


async def test_recordings_and_speech(served: tuple[Gateway, openai.AsyncOpenAI]) -> None:
    running, client = served
    recording = ("talk.mp3", b"x" * 64_000)
    heard = await client.audio.transcriptions.create(model="sim", file=recording, language="en", temperature=0)
    assert heard.text
    detailed = await client.audio.transcriptions.create(
        model="sim", file=recording, response_format="verbose_json", timestamp_granularities=["segment", "word"]
    )
    assert (detailed.text, detailed.segments[0].text) == (heard.text, heard.text)
    assert await client.audio.transcriptions.create(model="sim", file=recording, response_format="text") == heard.text
    assert (await client.audio.translations.create(model="sim", file=recording)).text
    stream = await client.audio.transcriptions.create(model="sim", file=recording, stream=True)
    chunks = [event async for event in stream]
    assert "".join(chunk.choices[0]["delta"]["content"] for chunk in chunks) == heard.text
    spoken = await client.audio.speech.create(model="sim", voice="alloy", input="hello", response_format="mp3")
    assert (spoken.response.headers["content-type"], spoken.content[:4]) == ("audio/mpeg", b"RIFF")
    # of a text and of a stream the engine tells no length: an MP3 counts a second for each 2,000 bytes, and the speech is a WAV file
    assert [record.usage.audio_seconds for record in await running.recorded(6)] == [2, 2, 32, 2, 32, 1]
