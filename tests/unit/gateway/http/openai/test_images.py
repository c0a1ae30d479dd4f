"""Images by URL in a chat: the two places where one may stand, and the request with the images themselves."""

import json
from typing import Any

import pytest

from domain.ask import Ask, Endpoint, ImageLink
from domain.faults import Fault
from gateway.http.openai import check_caps, interpret
from gateway.http.openai.images import with_images
from policies.caps import USUAL_CAPS

URL = "https://images.example.com/a.png"
DATA = "data:image/png;base64,iVBORw0KGgo="


def read(*parts: Any, links: bool = True, **fields: Any) -> Ask:
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "?"}, *parts]}]
    return interpret(Endpoint.CHAT, json.dumps({"model": "m", "messages": messages, **fields}).encode(), links=links)


IMAGES: list[tuple[dict[str, Any], str]] = [
    ({"type": "image_url", "image_url": {"url": URL, "detail": "low"}}, ".url"),
    ({"type": "image_url", "image_url": URL}, ""),
    ({"type": "input_image", "image_url": URL}, ""),
    ({"type": "input_image", "image_url": {"url": URL.replace("https", "HTTP")}}, ".url"),
]


@pytest.mark.parametrize(("part", "ending"), IMAGES)
def test_an_image_by_url_becomes_the_image_itself(part: dict[str, Any], ending: str) -> None:
    ask = read(part, temperature=0.5, max_tokens=7)
    link = ask.image_links[0]
    assert link.param == f"messages[1].content[1].image_url{ending}"
    inline = with_images(ask, {link.url: DATA})
    direct = read(json.loads(json.dumps(part).replace(link.url, DATA)), temperature=0.5, max_tokens=7)
    assert inline.fields == direct.fields
    assert (inline.prompt, inline.media, inline.image_bytes) == (direct.prompt, 1, direct.image_bytes)
    assert inline.prompt_bytes == ask.prompt_bytes + len(DATA) - len(link.url), "counted as one that was sent inline"
    assert inline.image_links == ()
    check_caps(ask, USUAL_CAPS)


def test_without_a_policy_it_is_refused_as_ever() -> None:
    for part, ending in IMAGES:
        with pytest.raises(Fault, match="only data: URLs are accepted") as refused:
            read(part, links=False)
        assert refused.value.param == f"messages[1].content[1].image_url{ending}"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "audio_url", "audio_url": {"url": URL}},
        {"type": "video_url", "video_url": {"url": URL}},
        {"type": "file", "file": {"file_url": URL}},
        {"type": "text", "text": "x", "image_url": {"url": URL}},
        {"type": "image_url", "image_url": {"url": DATA}, "url": URL},
        {"type": "image_url", "image_url": {"url": DATA}, "video_url": {"url": URL}},
        {"type": "image_url", "image_url": {"url": DATA, "image_url": URL}},
        {"type": "image_url", "image_url": {"url": DATA, "file_url": URL}},
        {"type": "image_url", "image_url": {"url": {"url": URL}}},
        {"type": "image_url", "image_url": "file:///etc/passwd"},
        {"type": "image_url", "image_url": "ftp://images.example.com/a.png"},
        {"type": "image_url", "image_url": " https://images.example.com/a.png"},
        {"type": "image_url", "image_url": "//images.example.com/a.png"},
        {"type": "image_url", "image_url": {"url": URL, "uuid": "x"}},
    ],
)
def test_a_url_passes_nowhere_else(part: dict[str, Any]) -> None:
    with pytest.raises(Fault):
        read(part)


def test_several_and_the_same_twice() -> None:
    ask = read(IMAGES[0][0], IMAGES[1][0], {"type": "image_url", "image_url": DATA})
    assert ask.image_links == (ImageLink("messages[1].content[1].image_url.url", URL), ImageLink("messages[1].content[2].image_url", URL))
    assert with_images(ask, {URL: DATA}).fields.count(DATA.encode()) == 3


def test_an_image_that_was_not_fetched_never_passes_as_a_url() -> None:
    with pytest.raises(KeyError):
        with_images(read(IMAGES[0][0]), {})
