"""Polls of engines: whether an engine answers and serves the pool's model. `backends.health` decides what a result means."""

from typing import Final

from backends.dialects import Dialect
from backends.discovery.diagnose import of_failure, of_list, of_status
from backends.fetch import FetchError, FetchTimeout, fetch
from backends.model_list import read_model_list
from backends.ports import Polled, Upstream

POLL_TIMEOUT_S: Final = 2.0
"""A healthy engine answers its model list within milliseconds; a busy one may take a second while it prefills."""

MAX_LIST_BYTES: Final = 1024 * 1024


async def poll(upstream: Upstream, dialect: Dialect, model: str) -> Polled:
    """Poll one backend: its health, and whether it lists `model`."""
    for path in (dialect.health_path, dialect.models_path):
        try:
            reply = await fetch(upstream, path, timeout_s=POLL_TIMEOUT_S, max_bytes=MAX_LIST_BYTES)
        except FetchError as error:
            return Polled(of_failure(path, error), silent=isinstance(error, FetchTimeout))
        if reply.status != 200:
            return Polled(of_status(path, reply.status, reply.headers, reply.body))
    try:
        listed = read_model_list(reply.body)
    except ValueError:
        return Polled(of_list(dialect.models_path, reply.headers, reply.body))
    known = (*listed.models, *listed.loras)
    shown = ", ".join(ascii(name)[1:-1][:80] for name in known[:5]) or "no model"
    hint = "look whether the URL is this pool's engine, or at its served model name"
    reason = "" if model in known else f"serves {shown}, not {model}; {hint}"
    # a pool's model may be an adapter that its engines were started with; other adapters answer only requests that name them
    names = frozenset(listed.models) | ({model} & set(known))
    return Polled(reason, names, wrong=bool(reason and known), loras=frozenset(listed.loras))
