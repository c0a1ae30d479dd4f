"""The calls that load, unload and list LoRA adapters on one engine, and the meaning of its replies. Which adapter to load or evict is
decided in `backends.loras`."""

from collections.abc import Iterable
from typing import Final

import msgspec

from backends.dialects.dialect import Dialect, LoraCalls
from backends.fetch import Fetched, FetchError, fetch
from backends.loras import Adapter, LoraUnavailable
from backends.model_list import read_model_list
from backends.ports import Upstream

MAX_ANSWER_BYTES: Final = 1024 * 1024
"""Room for a model list of thousands; the reply to a load is a sentence."""

_ALREADY: Final = b"already"
"""Part of the 400 for a name that is loaded: names are pinned to content, so the adapter is the wanted one."""
_ABSENT: Final = (b"cannot be found", b"does not exist")
"""Parts of the refusal to unload a name that is not loaded; vLLM sends a 404."""


class Said(msgspec.Struct, frozen=True):
    """The result of a load or unload call."""

    why: str = ""
    """Why it failed; empty when it did not."""
    sure: bool = True
    """False when the reply was lost, so that the engine may have followed the call or not."""


DONE: Final = Said()


class LoraOrders:
    """The adapter calls to one engine. `timeout_s` is always the longest wait for its reply, in seconds."""

    def __init__(self, upstream: Upstream, dialect: Dialect) -> None:
        self._upstream = upstream
        self._dialect = dialect

    async def listed(self, timeout_s: float) -> Iterable[str]:
        """The adapters that the engine lists. Raises FetchError, or LoraUnavailable when its reply is no list."""
        path = self._dialect.models_path
        reply = await fetch(self._upstream, path, timeout_s=timeout_s, max_bytes=MAX_ANSWER_BYTES)
        try:
            return read_model_list(reply.body).loras
        except ValueError as error:
            raise LoraUnavailable(f"{path}: {error}") from None

    async def load(self, adapter: Adapter, timeout_s: float) -> Said:
        """Have the engine load the adapter."""
        calls = self._calls()
        order = msgspec.json.encode({calls.name_field: adapter.served, calls.path_field: adapter.path})
        reply = await self._post(calls.load_path, order, timeout_s)
        if isinstance(reply, Said):
            return reply
        loaded = reply.status == 200 or (reply.status == 400 and _ALREADY in reply.body)
        return DONE if loaded else _refused(calls.load_path, reply)

    async def unload(self, served: str, timeout_s: float) -> Said:
        """Have the engine unload the adapter with this engine-side name."""
        calls = self._calls()
        reply = await self._post(calls.unload_path, msgspec.json.encode({calls.name_field: served}), timeout_s)
        if isinstance(reply, Said):
            return reply
        gone = reply.status in (200, 404) or any(word in reply.body for word in _ABSENT)
        return DONE if gone else _refused(calls.unload_path, reply)

    async def _post(self, path: str, order: bytes, timeout_s: float) -> Fetched | Said:
        try:
            return await fetch(self._upstream, path, timeout_s=timeout_s, max_bytes=MAX_ANSWER_BYTES, body=order)
        except FetchError as error:
            return Said(f"{path}: {error}", sure=False)

    def _calls(self) -> LoraCalls:
        calls = self._dialect.lora
        assert calls is not None  # `backends.loras` decides on no call to an engine that cannot load adapters
        return calls


def _refused(path: str, reply: Fetched) -> Said:
    """A failure with the beginning of the engine's reply, on one line; for logs."""
    excerpt = " ".join(reply.body[:200].decode("utf-8", "replace").split())
    return Said(f"{path} answers {reply.status}: {excerpt}")
