"""Images are counted by themselves, and nothing else leaves the count with them."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from domain.ask import Ask, Endpoint
from gateway.http.openai import interpret
from gateway.prompt.chat_template import ChatTemplate, texts_of, without_images
from gateway.prompt.count import PromptCounts
from tenancy.estimate import prompt_bound

URL = "data:image/png;base64," + "A" * 400_000
IMAGE = {"type": "image_url", "image_url": {"url": URL, "detail": "low"}}
TEXT = {"type": "text", "text": "what is this?"}


def chat(*parts: dict[str, Any]) -> Ask:
    return interpret(Endpoint.CHAT, json.dumps({"model": "m", "messages": [{"role": "user", "content": list(parts)}]}).encode())


class Words:
    slow_bytes = 10**9

    def count(self, ask: Ask, scope: str = "") -> int:
        template = ChatTemplate("{% for m in messages %}{{ m['content'] }}{% endfor %}", {}, lambda form: form)
        return len(texts_of(ask, template)[0][0].split())


async def counted(ask: Ask, vocabulary: Words | None, image_tokens: int | None) -> int | None:
    with ThreadPoolExecutor(1) as executor:
        known = {"chat": vocabulary} if vocabulary is not None else {}
        images = {"chat": image_tokens} if image_tokens is not None else {}
        return await PromptCounts(known, executor, asyncio.get_running_loop(), images).count(ask, "chat")


@pytest.mark.parametrize(
    ("parts", "images"),
    [
        ((TEXT,), 0),
        ((IMAGE, TEXT), 1),
        ((IMAGE, TEXT, IMAGE), 2),
        (({"type": "input_image", "image_url": URL},), 1),
        (({"type": "text", "text": "x", "image_url": URL},), 1),
    ],
)
def test_images_are_found_wherever_engines_look_for_them(parts: tuple[dict[str, Any], ...], images: int) -> None:
    ask = chat(*parts)
    rest, found = without_images(ask)
    assert found == images
    assert rest.prompt_bytes <= ask.prompt_bytes - 400_000 * images
    assert (rest is ask) is (images == 0)


async def test_an_image_is_held_as_what_the_settings_say_and_not_as_its_bytes() -> None:
    assert await counted(chat(IMAGE, TEXT, IMAGE), Words(), 1500) == 3 + 2 * 1500
    assert await counted(chat(TEXT), Words(), 1500) == 3
    assert await counted(chat(IMAGE, TEXT), Words(), None) is None
    without_a_tokenizer = await counted(chat(IMAGE, TEXT), None, 1500)
    assert without_a_tokenizer is not None
    assert 1500 < without_a_tokenizer < 2000
    assert await counted(chat(TEXT), None, 1500) is None


@pytest.mark.parametrize(
    "other",
    [
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64," + "A" * 9000}},
        {"type": "image_url", "image_url": URL, "video_url": "data:video/mp4;base64," + "A" * 9000},
        {"type": "image_url", "image_url": "data:video/mp4;base64," + "A" * 9000},
    ],
)
async def test_what_is_no_image_still_counts_with_all_of_its_bytes(other: dict[str, Any]) -> None:
    ask = chat(IMAGE, other)
    rest, found = without_images(ask)
    assert rest.prompt_bytes > 9000
    assert await counted(ask, Words(), 10) == prompt_bound(rest) + 10 * found


def test_text_that_speaks_of_images_is_left_alone() -> None:
    ask = chat({"type": "text", "text": json.dumps(IMAGE)})
    assert without_images(ask) == (ask, 0)
    embedding = interpret(Endpoint.EMBEDDINGS, json.dumps({"model": "m", "input": '"image_url"'}).encode())
    assert without_images(embedding) == (embedding, 0)
