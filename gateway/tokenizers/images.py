"""Images of a chat, which are counted by themselves: their bytes say nothing of the tokens a model makes of them. Pure."""

from typing import Any, Final

import msgspec

from domain.ask import Ask
from gateway.http.openai.messages import media_of

KEYS: Final = ("image_url", "input_image")
"""Where engines look for an image in a part, some of them whatever its type says."""


def without_images(ask: Ask) -> tuple[Ask, int]:
    """The request with an empty text in the place of each image sent as a `data:` URL, and how many those are."""
    if not ask.endpoint.has_messages or not any(b'"%b"' % key.encode() in ask.fields for key in KEYS):
        return ask, 0
    document = msgspec.json.decode(ask.fields)
    found = 0
    for message in document["messages"]:
        content = message.get("content")
        if isinstance(content, list):
            message["content"] = [_without(part) for part in content]
            found += sum(_images(part) for part in content)
    if not found:
        return ask, 0
    fields, (start, _) = msgspec.json.encode(document), ask.prompt_at
    size = max(0, ask.prompt_bytes - len(ask.fields) + len(fields))
    end = start + len(msgspec.json.encode(document["messages"]))
    media = media_of(document)[0]
    return msgspec.structs.replace(ask, fields=fields, prompt_bytes=size, prompt_at=(start, end), media=media, image_bytes=0), found


def _is_image(link: object) -> bool:
    link = link.get("url") if isinstance(link, dict) else link
    return isinstance(link, str) and link.startswith("data:image/")


def _images(part: dict[str, Any]) -> int:
    return sum(_is_image(part.get(key)) for key in KEYS)


def _without(part: dict[str, Any]) -> dict[str, Any]:
    """The part without its images: its text, or whatever else an engine may find in it, which is then no text."""
    if not _images(part):
        return part
    rest = {key: value for key, value in part.items() if key != "type" and not (key in KEYS and _is_image(value))}
    rest.pop("detail", None)
    return {"text": "", **rest, "type": "text" if rest.keys() <= {"text"} else "media"}
