"""Small requests of the gateway's own to an engine (health, model list, metrics, one token), over the same port as callers' requests. The
reply is awaited whole.

Why not an HTTP library: every worker asks every backend several times a second for as long as it lives, and a library's GET
costs milliseconds (`docs/explanation/decisions/0003-polls-over-the-upstream-port.md`).
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from backends.ports import Call, Loss, ReplySink, Upstream

POLL_ID: Final = "tidegate-poll"
"""The request id that engines log for the gateway's own requests."""


class FetchedReply(msgspec.Struct, frozen=True):
    """A complete reply."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes


class FetchError(Exception):
    """No usable reply came; the message says why.

    Attributes:
        loss: how the transport lost the reply; None when it did not.
        detail: the transport's description of the loss.
        received: whether the head of a reply had come before the failure.
    """

    def __init__(self, why: str, *, loss: Loss | None = None, detail: str = "", received: bool = False) -> None:
        super().__init__(why)
        self.loss = loss
        self.detail = detail
        self.received = received


class FetchTimeout(FetchError):
    """No complete reply came in time: the engine may be gone, or only busy."""


class _Collector(ReplySink):
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._body = bytearray()
        self._status = 0
        self._headers: Mapping[bytes, bytes] = {}
        self.outcome: asyncio.Future[FetchedReply] = asyncio.get_running_loop().create_future()

    @property
    def begun(self) -> bool:
        """Whether the head of a reply has come."""
        return self._status != 0

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        self._status = status
        self._headers = headers

    def on_data(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > self._max_bytes:
            self._fail(FetchError(f"answers more than {self._max_bytes} bytes"))

    def on_end(self) -> None:
        if not self.outcome.done():
            self.outcome.set_result(FetchedReply(self._status, self._headers, bytes(self._body)))

    def on_loss(self, loss: Loss, detail: str) -> None:
        self._fail(FetchError(f"{loss.value}: {detail}"[:200], loss=loss, detail=detail))

    def _fail(self, error: FetchError) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)


async def fetch(
    upstream: Upstream, path: str, *, timeout_s: float, max_bytes: int, body: bytes | None = None, request_id: str = POLL_ID
) -> FetchedReply:
    """GET `path` from the backend behind `upstream`; with a `body` (JSON), POST it there.

    Raises:
        FetchTimeout: no complete reply came within `timeout_s`.
        FetchError: the connection was lost, or the body is over `max_bytes`.
    """
    call = Call("GET" if body is None else "POST", path, body or b"", request_id)
    return await fetch_call(upstream, call, timeout_s=timeout_s, max_bytes=max_bytes)


async def fetch_call(upstream: Upstream, call: Call, *, timeout_s: float, max_bytes: int) -> FetchedReply:
    """The reply to a call. Raises FetchError as `fetch` does."""
    collector = _Collector(max_bytes)
    flight = upstream.dispatch(call, collector)
    try:
        async with asyncio.timeout(timeout_s):
            return await collector.outcome
    except TimeoutError:
        raise FetchTimeout(f"no answer within {timeout_s:g} s", received=collector.begun) from None
    finally:
        flight.abort()  # of no effect once the reply is whole
