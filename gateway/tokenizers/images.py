"""Images of a chat, counted apart from its text: their bytes say nothing of the tokens that a model makes of them. Pure."""

from typing import Any, Final

import msgspec

from domain.ask import Ask
from gateway.http.openai.messages import media_of

KEYS: Final = ("image_url", "input_image")
"""Keys of a part in which engines look for an image, some of them whatever the part's type is."""


def without_images(ask: Ask) -> tuple[Ask, int]:
    """The request with an empty text in place of each image that was sent as a `data:` URL, and the number of these images."""
    if not ask.endpoint.has_messages or not any(b'"%b"' % key.encode() in ask.fields for key in KEYS):
        return ask, 0
    document = msgspec.json.decode(ask.fields)
    images = 0
    for message in document["messages"]:
        content = message.get("content")
        if isinstance(content, list):
            message["content"] = [_without_images(part) for part in content]
            images += sum(_count_images(part) for part in content)
    if not images:
        return ask, 0
    fields, (start, _) = msgspec.json.encode(document), ask.prompt_at
    size = max(0, ask.prompt_bytes - len(ask.fields) + len(fields))
    end = start + len(msgspec.json.encode(document["messages"]))
    media = media_of(document)[0]
    return msgspec.structs.replace(ask, fields=fields, prompt_bytes=size, prompt_at=(start, end), media=media, image_bytes=0), images


def _is_image(link: object) -> bool:
    link = link.get("url") if isinstance(link, dict) else link
    return isinstance(link, str) and link.startswith("data:image/")


def _count_images(part: dict[str, Any]) -> int:
    return sum(_is_image(part.get(key)) for key in KEYS)


def _without_images(part: dict[str, Any]) -> dict[str, Any]:
    """The part without its images: its text, or other media that an engine may find in it."""
    if not _count_images(part):
        return part
    rest = {key: value for key, value in part.items() if key != "type" and not (key in KEYS and _is_image(value))}
    rest.pop("detail", None)
    return {"text": "", **rest, "type": "text" if rest.keys() <= {"text"} else "media"}
