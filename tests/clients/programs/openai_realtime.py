"""openai-python's `client.realtime.connect()`: a session, one turn, and the usage of its transcript."""

import base64
import os
from typing import Any

from openai import AsyncOpenAI, OpenAI

MODEL = os.environ["CLIENT_MODEL"]
SECOND = base64.b64encode(bytes(32_000)).decode()


def plain(prompt: str) -> list[Any]:
    """A turn of the synchronous client."""
    seen = []
    with OpenAI().realtime.connect(model=MODEL) as session:
        session.session.update(session={"type": "transcription"})
        session.input_audio_buffer.commit()
        session.input_audio_buffer.append(audio=SECOND)
        session.send({"type": "input_audio_buffer.commit", "final": True})  # type: ignore[misc, arg-type]  # vLLM's end of the audio
        for event in session:
            seen.append(event.to_dict())
            if event.type in ("transcription.done", "error"):  # type: ignore[comparison-overlap]
                break
    return seen


async def stream(prompt: str) -> list[Any]:
    """A turn of the asynchronous client."""
    seen = []
    async with AsyncOpenAI().realtime.connect(model=MODEL) as session:
        await session.input_audio_buffer.commit()
        for _ in range(3):
            await session.input_audio_buffer.append(audio=SECOND)
        await session.send({"type": "input_audio_buffer.commit", "final": True})  # type: ignore[misc, arg-type]
        async for event in session:
            seen.append(event.to_dict())
            if event.type in ("transcription.done", "error"):  # type: ignore[comparison-overlap]
                break
    return seen


def extras(prompt: str) -> str:
    """What the client raises for a model that the key may not use."""
    try:
        with OpenAI().realtime.connect(model="unknown"):
            return "connected"
    except Exception as error:
        return str(error)
