"""Asks engines whether they are there and serve the model they should. What is made of it is `backends.health`'s matter."""

from typing import Final

import msgspec

from backends.dialects import Dialect
from backends.fetch import FetchError, FetchTimeout, fetch
from backends.ports import Polled, Upstream

POLL_TIMEOUT_S: Final = 2.0
"""A healthy engine answers its model list within milliseconds; a busy one may take a second while it prefills."""

MAX_LIST_BYTES: Final = 1024 * 1024


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_decode_models = msgspec.json.Decoder(_Models).decode


async def poll(upstream: Upstream, dialect: Dialect, model: str) -> Polled:
    """Ask one backend whether it is there and serves `model`."""
    for path in (dialect.health_path, dialect.models_path):
        try:
            reply = await fetch(upstream, path, timeout_s=POLL_TIMEOUT_S, max_bytes=MAX_LIST_BYTES)
        except FetchError as error:
            return Polled(f"{path}: {error}", silent=isinstance(error, FetchTimeout))
        if reply.status != 200:
            return Polled(f"{path} answers {reply.status}")
    try:
        listed = [m.id for m in _decode_models(reply.body).data]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Polled(f"{dialect.models_path} does not answer with a model list")
    names = frozenset(listed)
    if model not in names:
        return Polled(f"serves {', '.join(listed[:5]) or 'no model'}, not {model}", names)
    return Polled("", names)
