"""Reads the requests with which `tidegate cache warm` fills the answer cache. Pure.

A line is the body of a request, or a line of OpenAI's batch files, which has the body in `body` and its path in `url`. Every value stays
written as it is in the file: two requests are equal only where the gateway finds their members equal, byte by byte.
"""

from typing import Final, NamedTuple

import msgspec

from domain.ask import Endpoint

_KEPT: Final = [endpoint for endpoint in Endpoint if endpoint.kept]
_PATHS: Final = {endpoint.path: endpoint for endpoint in _KEPT}
_PROMPTS: Final = {endpoint.prompt_fields[0]: endpoint for endpoint in _KEPT}
"""The member that only the bodies of one endpoint have."""
_BATCH_MEMBERS: Final = frozenset({"custom_id", "method", "url", "body"})
_STREAMING: Final = ("stream", "stream_options")

_Members = dict[str, msgspec.Raw]
_decode: Final = msgspec.json.Decoder(_Members).decode
_decode_any: Final = msgspec.json.Decoder().decode


class WarmRequest(NamedTuple):
    """A request to send."""

    line: int
    """The line of the file, from 1."""
    path: str
    """The path of its endpoint on the data port."""
    body: bytes
    """A JSON object."""


class WrongLine(NamedTuple):
    """A line that is no request."""

    line: int
    why: str


def requests_of(raw: bytes, model: str | None, *, greedy: bool) -> tuple[list[WarmRequest], list[WrongLine]]:
    """The requests of a file in JSON Lines, and the lines that are none. Empty lines are passed over.

    Args:
        raw: the content of the file.
        model: replaces the model of every request; None leaves each its own.
        greedy: every request that generates gets a temperature of 0.
    """
    requests: list[WarmRequest] = []
    wrong: list[WrongLine] = []
    for number, text in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not text.strip():
            continue
        try:
            endpoint, members = _read(text)
            requests.append(WarmRequest(number, endpoint.path, _body(endpoint, members, model, greedy)))
        except ValueError as error:
            wrong.append(WrongLine(number, str(error)))
    return requests, wrong


def _read(text: bytes) -> tuple[Endpoint, _Members]:
    """Endpoint and body of one line. Raises ValueError with what is wrong."""
    members = _object(text, "the line")
    if members.keys().isdisjoint(_BATCH_MEMBERS):
        found = [endpoint for name, endpoint in _PROMPTS.items() if name in members]
        if len(found) != 1:
            raise ValueError(f"a body has one of {', '.join(_PROMPTS)}; this line has {'none' if not found else 'several'}")
        return found[0], members
    if "body" not in members:
        raise ValueError("has no body")
    method, url = (_text(members[name]) if name in members else None for name in ("method", "url"))
    if "method" in members and method != "POST":
        raise ValueError("method is not POST")
    if url is None:
        raise ValueError("has no url; write one of " + ", ".join(_PATHS))
    # Azure's batch files leave the version out
    endpoint = _PATHS.get(url if url.startswith("/v1/") else f"/v1{url}")
    if endpoint is None:
        raise ValueError(f"url {url!r} is none of {', '.join(_PATHS)}")
    body = _object(members["body"], "body")
    if endpoint.prompt_fields[0] not in body:
        raise ValueError(f"body has no {endpoint.prompt_fields[0]}, which {endpoint.path} needs")
    return endpoint, body


def _object(text: bytes | msgspec.Raw, what: str) -> _Members:
    try:
        # members stay unread below, so that this alone finds what is no JSON inside of them
        _decode_any(text)
        return _decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise ValueError(f"{what} is no JSON object") from None


def _text(raw: msgspec.Raw) -> str | None:
    value = _decode_any(raw)
    return value if isinstance(value, str) else None


def _body(endpoint: Endpoint, members: _Members, model: str | None, greedy: bool) -> bytes:
    """The body to send. Raises ValueError where it names no model."""
    if model is not None:
        members["model"] = msgspec.Raw(msgspec.json.encode(model))
    elif "model" not in members or not _text(members["model"]):
        raise ValueError("has no model; add one, or name it for every line with --model")
    # a streamed answer and a plain one are one entry, and a plain reply says in its status whether it failed
    for name in _STREAMING:
        members.pop(name, None)
    if greedy and endpoint.generates and ("temperature" not in members or _decode_any(members["temperature"]) != 0):
        members["temperature"] = msgspec.Raw(b"0")
    return msgspec.json.encode(members)
