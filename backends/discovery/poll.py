"""Asks engines whether they are there and serve the model they should. What is made of it is `backends.health`'s matter."""

from typing import Final

from backends.dialects import Dialect
from backends.fetch import FetchError, FetchTimeout, fetch
from backends.model_list import read_model_list
from backends.ports import Polled, Upstream

POLL_TIMEOUT_S: Final = 2.0
"""A healthy engine answers its model list within milliseconds; a busy one may take a second while it prefills."""

MAX_LIST_BYTES: Final = 1024 * 1024


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
        listed = read_model_list(reply.body)
    except ValueError:
        return Polled(f"{dialect.models_path} does not answer with a model list")
    known = (*listed.models, *listed.loras)
    reason = "" if model in known else f"serves {', '.join(known[:5]) or 'no model'}, not {model}"
    # a pool's model may be an adapter its engines were started with; other adapters answer to their own requests only
    return Polled(reason, frozenset(listed.models) | ({model} & set(known)), loras=frozenset(listed.loras))
