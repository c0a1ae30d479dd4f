"""Images that a chat names by URL: the places where they stand, and the Ask with the images themselves in these places. Pure.

A URL stands where `messages` lets it pass and nowhere else: in `image_url` of a part of the type `image_url` or `input_image`, alone or as
the `url` of an object. An image that an Ask needs and does not get is a KeyError, so that no URL ever reaches an engine.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from domain.ask import Ask, ImageLink

LINK: Final = re.compile(r"https?://", re.IGNORECASE)
KINDS: Final = frozenset({"image_url", "input_image"})
"""The types of parts with images, which have them in `image_url`."""
KEY: Final = "image_url"

_encode = msgspec.json.Encoder().encode


def image_links(messages: Any) -> tuple[ImageLink, ...]:
    """The images that checked messages name by URL, in their order."""
    return tuple([ImageLink(f"messages[{at}].content[{place}].{KEY}{end}", link) for at, place, end, link, _ in _links(messages)])


def with_images(ask: Ask, images: Mapping[str, str]) -> Ask:
    """The Ask with the images in place of their URLs.

    Args:
        images: the images as `data:` URLs, by their URLs.
    """
    messages = msgspec.json.decode(ask.prompt)
    added = 0
    for _, _, _, link, part in _links(messages):
        image = images[link]
        payload = part[KEY]
        part[KEY] = {**payload, "url": image} if type(payload) is dict else image
        added += len(image)
    prompt = _encode(messages)
    start, end = ask.prompt_at
    return msgspec.structs.replace(
        ask,
        fields=ask.fields[:start] + prompt + ask.fields[end:],
        prompt_bytes=ask.prompt_bytes + len(prompt) - (end - start),
        image_bytes=ask.image_bytes + added,
        prompt_at=(start, start + len(prompt)),
        image_links=(),
    )


def _links(messages: Any) -> Iterator[tuple[int, int, str, str, dict[str, Any]]]:
    """The message and the part of each URL, the end of its path, the URL and the part."""
    for at, message in enumerate(messages):
        content = message.get("content")
        for place, part in enumerate(content if type(content) is list else ()):
            if part.get("type") in KINDS:
                payload = part.get(KEY)
                link = payload.get("url") if type(payload) is dict else payload
                if type(link) is str and LINK.match(link):
                    yield at, place, ".url" if type(payload) is dict else "", link, part
