"""The messages of a chat: their roles and parts, and that nothing in them makes an engine open a connection.

Engines fetch media by URL, so a caller's URL would be a request from inside the engines' network. Only `data:` URLs pass, and URLs of
images where the caller's policy has the gateway fetch them (`images`).

Turns without a text are written in the one form that all engines take. An engine answers with `content: null` when its reasoning reached
`max_tokens`, and clients send that turn again with every later one, so a refusal would end the conversation. vLLM 0.32 refuses a null
result of a tool and `tool_calls: null`, llama.cpp refuses a turn without the key `content`; SGLang 0.5.23 takes all of these.
"""

import re
from collections.abc import Mapping
from typing import Final, NoReturn

from domain.faults import Fault, Kind
from gateway.http.openai.checks import Check, refuse, refuse_type, set_by, shown
from gateway.http.openai.images import KEY, KINDS, LINK
from policies.caps import RequestCaps

ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
"""The roles that OpenAI knows. Templates have more of them (`ipython` of Llama 3, `latest_reminder` of DeepSeek), and the engine's template
judges those."""

_ROLE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
"""The form of any other role: a name, so that no text of a template stands in it."""

MAY_BE_SILENT: Final = frozenset({"assistant", "tool", "function"})
"""Roles whose turn may have no text: an answer that is a call or was cut while reasoning, the result of a tool that returns nothing."""

TEXT_PARTS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
"""Part type to the key of its text."""

MEDIA_PARTS: Final = {
    "image_url": "image_url",
    "input_image": "image_url",
    "audio_url": "audio_url",
    "video_url": "video_url",
    "input_audio": "input_audio",
    "file": "file",
}
"""Part type to the key of its payload."""

_MEDIA_KEYS: Final = frozenset({*MEDIA_PARTS, *MEDIA_PARTS.values()})
_URL_KEYS: Final = ("image_url", "audio_url", "video_url", "file_url", "url")
_PAYLOAD_KEYS: Final = ("data", "file_data")
"""Keys of media sent in place; some engines fetch a value that looks like an address here too."""
_SCHEME: Final = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*:")
_FOREIGN: Final = ("uuid", "file_id")
"""Keys that name media which the engine has kept from an earlier request, perhaps another tenant's."""


def messages(caps: RequestCaps, *, links: bool = False) -> Check:
    """A check for the value of `messages`, which returns whether it has changed any.

    Args:
        links: whether an image may stand as an `http` or `https` URL.
    """
    most, most_parts, most_calls = caps.messages, caps.parts, caps.tool_calls

    def check(value: object, param: str) -> bool:
        changed = False
        if type(value) is not list:
            refuse_type("an array", value, param)
        if not 1 <= len(value) <= most:
            why = set_by("messages") if value else ""
            refuse(f"Invalid value for '{param}': {len(value)} messages, where 1 to {most} are allowed.{why}", param)
        for index, message in enumerate(value):
            if type(message) is not dict:
                refuse_type("an object", message, f"{param}[{index}]")
            # most messages are a role and a string; only the others cost a call
            role = message.get("role")
            if type(role) is not str or (role not in ROLES and _ROLE.fullmatch(role) is None):
                _refuse_role(message, f"{param}[{index}].role")
            if type(message.get("content")) is not str:
                changed |= _check_content(message, role, f"{param}[{index}]", most_parts, links=links)
            if len(message) > 2:
                changed |= _check_extras(message, f"{param}[{index}]", most_calls)
        return changed

    return check


def _refuse_role(message: dict[str, object], param: str) -> NoReturn:
    if "role" not in message:
        raise Fault(Kind.MISSING_PARAMETER, f"Missing required parameter: '{param}'.", param=param)
    role = message["role"]
    if type(role) is not str:
        refuse_type("a string", role, param)
    known = ", ".join(sorted(ROLES))
    refuse(f"Invalid value for '{param}': {shown(role)} is no role. Send {known}, or a name of the model's template.", param)


def _check_content(message: dict[str, object], role: str, where: str, most: int, *, links: bool) -> bool:
    """Check content that is no string: parts, or nothing where a turn may be silent, which is then written as all engines take it."""
    content = message.get("content")
    param = f"{where}.content"
    silent = role in MAY_BE_SILENT
    if content is None:
        if silent:
            message["content"] = "" if role == "tool" else None
            return True
        if "content" not in message:
            raise Fault(Kind.MISSING_PARAMETER, f"Missing required parameter: '{param}'.", param=param)
        refuse(f"Invalid value for '{param}': null is allowed only for {', '.join(sorted(MAY_BE_SILENT))}.", param)
    if type(content) is not list:
        refuse_type("a string or an array of parts", content, param)
    if not (0 if silent else 1) <= len(content) <= most:
        why = set_by("parts") if content else ""
        refuse(f"Invalid value for '{param}': {len(content)} parts, where {0 if silent else 1} to {most} are allowed.{why}", param)
    for index, part in enumerate(content):
        _check_part(part, f"{param}[{index}]", links=links)
    return False


def _check_part(part: object, where: str, *, links: bool) -> None:
    if type(part) is not dict:
        refuse_type("an object", part, where)
    kind = part.get("type")
    if type(kind) is not str:
        refuse_type("a string", kind, f"{where}.type")
    open_key = KEY if links and kind in KINDS else ""
    if kind in TEXT_PARTS:
        key = TEXT_PARTS[kind]
        if type(part.get(key)) is not str:
            refuse_type("a string", part.get(key), f"{where}.{key}")
        if len(part) == 2:
            return
    elif kind in MEDIA_PARTS:
        key = MEDIA_PARTS[kind]
        payload = part.get(key)
        if type(payload) is dict:
            _check_links(payload, f"{where}.{key}", "url" if key == open_key else "")
        elif type(payload) is not str:
            refuse_type("an object", payload, f"{where}.{key}")
    else:
        known = ", ".join([*TEXT_PARTS, *MEDIA_PARTS])
        refuse(f"Invalid value for '{where}.type': {shown(kind)} is not one of {known}.", f"{where}.type")
    # some engines look at the keys and not at the type, so every part is searched for links
    _check_links(part, where, open_key)


def _check_links(holder: dict[str, object], where: str, open_key: str) -> None:
    """Check that an object leads engines nowhere.

    Args:
        open_key: the key whose value may be the URL of an image; empty for none.
    """
    for key in _FOREIGN:
        if holder.get(key) is not None:
            param = f"{where}.{key}"
            message = f"The parameter '{param}' is not supported: send the content itself."
            raise Fault(Kind.UNSUPPORTED_PARAMETER, message, param=param)
    for key in _PAYLOAD_KEYS:
        data = holder.get(key)
        if type(data) is str and _SCHEME.match(data, 0, 64) and not data.startswith("data:"):
            refuse_link(f"{where}.{key}")
    for key in _URL_KEYS:
        link = holder.get(key)
        if type(link) is dict:
            _check_links(link, f"{where}.{key}", "url" if key == open_key == KEY else "")
        elif link is not None and not (type(link) is str and (link.startswith("data:") or (key == open_key and LINK.match(link)))):
            refuse_link(f"{where}.{key}")


def refuse_link(param: str) -> NoReturn:
    """Refuse media that are named by URL."""
    refuse(f"Invalid value for '{param}': only data: URLs are accepted. Send the content itself, base64-encoded.", param)


def _check_extras(message: dict[str, object], where: str, most_calls: int) -> bool:
    """Check the fields beside role and content. A field that is not named here passes: engines know more fields. Returns whether
    the message was changed."""
    for key in ("name", "tool_call_id", "reasoning_content", "reasoning", "refusal"):
        value = message.get(key)
        if value is not None and type(value) is not str:
            refuse_type("a string", value, f"{where}.{key}")
    calls = message.get("tool_calls")
    if calls is not None:
        _check_tool_calls(calls, f"{where}.tool_calls", most_calls)
    elif "tool_calls" in message:
        del message["tool_calls"]
        return True
    return False


def _check_tool_calls(calls: object, param: str, most: int) -> None:
    if type(calls) is not list:
        refuse_type("an array", calls, param)
    if len(calls) > most:
        refuse(f"Invalid value for '{param}': {len(calls)} calls are too many, at most {most} are allowed.{set_by('tool_calls')}", param)
    for index, call in enumerate(calls):
        where = f"{param}[{index}]"
        if type(call) is not dict:
            refuse_type("an object", call, where)
        function = call.get("function")
        if function is None and call.get("type", "function") != "function":
            continue  # custom tools have their own shape
        if type(function) is not dict:
            refuse_type("an object", function, f"{where}.function")
        if type(function.get("name")) is not str:
            refuse_type("a string", function.get("name"), f"{where}.function.name")


def media_of(document: Mapping[str, object]) -> tuple[int, int]:
    """The number of parts with media in checked messages, wherever engines look for media, and the bytes of the images."""
    parts = image_bytes = 0
    for message in document["messages"]:  # type: ignore[attr-defined]  # `messages` has seen that it is a list of objects
        content = message.get("content")
        if type(content) is list:
            for part in content:
                media = {key: value for key in part.keys() & _MEDIA_KEYS if (value := part[key]) is not None}
                parts += bool(media)
                # by its key: an engine reads what stands under `video_url` as a video, whatever its URL says
                image_bytes += sum([_image_bytes(media[key]) for key in KINDS & media.keys()])
    return parts, image_bytes


def _image_bytes(payload: object) -> int:
    link = payload.get("url") if type(payload) is dict else payload
    return len(link) if type(link) is str and link.startswith("data:image/") else 0
