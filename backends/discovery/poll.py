"""Asks engines whether they are there and serve the model they should.

What progress-based health makes of it joins later; a poll alone says only "up" or why not.
"""

from typing import Final

import msgspec

from backends.dialects import Dialect
from backends.fetch import FetchError, fetch
from backends.ports import Upstream

POLL_TIMEOUT_S: Final = 2.0
"""A healthy engine answers its model list within milliseconds; a busy one may take a second while it prefills."""

MAX_LIST_BYTES: Final = 1024 * 1024


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_decode_models = msgspec.json.Decoder(_Models).decode


async def reason_down(upstream: Upstream, dialect: Dialect, model: str) -> str:
    """Poll one backend. Returns "" when it is up and serves `model`, otherwise why it is not, in words for an operator."""
    for path in (dialect.health_path, dialect.models_path):
        try:
            reply = await fetch(upstream, path, timeout_s=POLL_TIMEOUT_S, max_bytes=MAX_LIST_BYTES)
        except FetchError as error:
            return f"{path}: {error}"
        if reply.status != 200:
            return f"{path} answers {reply.status}"
    try:
        names = [m.id for m in _decode_models(reply.body).data]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return f"{dialect.models_path} does not answer with a model list"
    if model not in names:
        return f"serves {', '.join(names[:5]) or 'no model'}, not {model}"
    return ""
