"""What engines are told about adapters, and what their answers mean. Knows nothing of slots or of who needs what."""

from collections.abc import Iterable
from typing import Final

import msgspec

from backends.dialects.dialect import Dialect, LoraCalls
from backends.fetch import Fetched, FetchError, fetch
from backends.loras import Adapter, LoraUnavailable
from backends.model_list import read_model_list
from backends.ports import Upstream

MAX_ANSWER_BYTES: Final = 1024 * 1024
"""A model list of thousands; what engines say to a load is a sentence."""

_ALREADY: Final = b"already"
"""In the 400 for a name that is there: since names are pinned to content, that is what was wanted."""
_ABSENT: Final = (b"cannot be found", b"does not exist")
"""In the refusal to unload a name that is not there; vLLM says so with a 404."""


class Said(msgspec.Struct, frozen=True):
    """What became of an order."""

    why: str = ""
    """What went wrong; empty when it was followed."""
    sure: bool = True
    """False when the answer was lost, so that it may have been followed or not."""


DONE: Final = Said()


class LoraOrders:
    """Tells one engine. `timeout_s` is always the longest wait for its answer, in seconds."""

    def __init__(self, way: Upstream, dialect: Dialect) -> None:
        self._way = way
        self._dialect = dialect

    async def listed(self, timeout_s: float) -> Iterable[str]:
        """The adapters it says it has. Raises FetchError, or LoraUnavailable when it gives no list."""
        path = self._dialect.models_path
        reply = await fetch(self._way, path, timeout_s=timeout_s, max_bytes=MAX_ANSWER_BYTES)
        try:
            return read_model_list(reply.body).loras
        except ValueError as error:
            raise LoraUnavailable(f"{path}: {error}") from None

    async def load(self, adapter: Adapter, timeout_s: float) -> Said:
        """Have it load one."""
        calls = self._calls()
        order = msgspec.json.encode({calls.name_field: adapter.served, calls.path_field: adapter.path})
        reply = await self._told(calls.load_path, order, timeout_s)
        if isinstance(reply, Said):
            return reply
        there = reply.status == 200 or (reply.status == 400 and _ALREADY in reply.body)
        return DONE if there else _refused(calls.load_path, reply)

    async def unload(self, served: str, timeout_s: float) -> Said:
        """Have it unload one, by its engine-side name."""
        calls = self._calls()
        reply = await self._told(calls.unload_path, msgspec.json.encode({calls.name_field: served}), timeout_s)
        if isinstance(reply, Said):
            return reply
        gone = reply.status in (200, 404) or any(word in reply.body for word in _ABSENT)
        return DONE if gone else _refused(calls.unload_path, reply)

    async def _told(self, path: str, order: bytes, timeout_s: float) -> Fetched | Said:
        try:
            return await fetch(self._way, path, timeout_s=timeout_s, max_bytes=MAX_ANSWER_BYTES, body=order)
        except FetchError as error:
            return Said(f"{path}: {error}", sure=False)

    def _calls(self) -> LoraCalls:
        calls = self._dialect.lora
        assert calls is not None  # `Shelf.begin` refuses for engines that cannot
        return calls


def _refused(path: str, reply: Fetched) -> Said:
    """With the beginning of what the engine said, on one line; for logs."""
    excerpt = " ".join(reply.body[:200].decode("utf-8", "replace").split())
    return Said(f"{path} answers {reply.status}: {excerpt}")
