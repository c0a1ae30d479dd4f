"""Sends requests that are to warm the answer cache to a data port, and finds out what became of each.

A reply says in `x-tidegate-cache` what the cache did, where the caller's policy has `expose_headers`. Whether the answer to a miss was kept
stands in no reply, so each miss is asked for once more with `cache-control: only-if-cached`, which reaches no engine.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from gateway.cli.warm_requests import WarmRequest

if TYPE_CHECKING:
    import httpx

RETRIES: Final = 5
"""Further tries of a request that is refused with a time to wait, or finds nobody who listens."""
MOST_WAIT_S: Final = 120.0
"""The longest wait that is kept; official clients keep none that is longer."""
REFUSED_WAIT_S: Final = 1.0
"""The wait where a connection is refused: a gateway that is being replaced listens again within a second or two."""
KEPT_WITHIN_S: Final = 0.1
"""An answer is kept right after its last byte was sent; a shared store is given 30 ms."""

State = Literal["hit", "kept", "not_kept", "unchecked", "bypassed", "no_cache", "unknown", "failed"]
_FINISHES: Final = {"length": "length", "tool_calls": "tools", "function_call": "tools"}
"""Why an answer with this `finish_reason` is not kept; the word is that of `tidegate cache stats`."""


class Became(NamedTuple):
    """What became of one request."""

    state: State
    why: str = ""
    """The word of the reply's header, the reason why an answer was not kept (empty where the reply does not tell), or the error."""


class Warming:
    """Sends requests, and has what became of them.

    Args:
        client: makes a client of the data port that holds one connection at a time, so that a worker that keeps answers of its own is the
            one that is asked whether it did.
        namespace: the part of the cache that is written; empty for the one without a name.
        check: whether each miss is asked for once more.
        wait: sleeps for seconds.
    """

    def __init__(
        self,
        client: "Callable[[], httpx.AsyncClient]",
        *,
        namespace: str = "",
        check: bool = True,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._headers = {"content-type": "application/json", **({"x-tidegate-cache-namespace": namespace} if namespace else {})}
        self._check = check
        self._wait = wait
        self.became: dict[int, Became] = {}
        """By line."""
        self.waited = 0
        """Refusals after which a request was sent again."""
        self.stopped = ""
        """Why the remaining requests were not sent; empty where all were."""

    async def run(self, requests: Iterable[WarmRequest], parallel: int) -> None:
        """Send all requests, this many at a time. Returns early where no request can be answered, and says why in `stopped`."""
        remaining = iter(requests)
        async with asyncio.TaskGroup() as senders:
            for _ in range(parallel):
                senders.create_task(self._send_some(remaining))

    async def _send_some(self, remaining: Iterator[WarmRequest]) -> None:
        missed: list[WarmRequest] = []
        async with self._client() as client:
            for request in remaining:
                reply = await self._answer(client, request, self._headers)
                if reply is None:
                    return
                became = reply if isinstance(reply, Became) else _became(reply)
                self.became[request.line] = became
                if became.state == "unchecked" and self._check:
                    missed.append(request)
            if missed:
                await self._wait(KEPT_WITHIN_S)
            for request in missed:
                await self._look(client, request)

    async def _look(self, client: "httpx.AsyncClient", request: WarmRequest) -> None:
        """Find out whether the answer to a miss was kept."""
        reply = await self._answer(client, request, {**self._headers, "cache-control": "only-if-cached"})
        if reply is None or isinstance(reply, Became):
            return
        before = self.became[request.line]
        if reply.headers.get("x-tidegate-cache", "").startswith("hit-exact"):
            self.became[request.line] = Became("kept")
        elif reply.status_code == 504 and _error_of(reply).get("code") == "not_cached":
            self.became[request.line] = Became("not_kept", before.why)

    async def _answer(self, client: "httpx.AsyncClient", request: WarmRequest, headers: dict[str, str]) -> "httpx.Response | Became | None":
        """The reply to a request, sent again after refusals; what became of it where there is none; None once `stopped` is set."""
        # imported only here: the import takes longer than all of `--help`
        import httpx

        tries = 0
        while not self.stopped:
            try:
                reply = await client.post(request.path, content=request.body, headers=headers)
            except httpx.ConnectError as error:
                if tries == RETRIES:
                    self.stopped = f"no gateway answers at {client.base_url} ({error})"
                    break
                wait_s: float | None = REFUSED_WAIT_S
            except httpx.HTTPError as error:
                return Became("failed", f"{type(error).__name__}: {error}".removesuffix(": "))
            else:
                if reply.status_code == 401:
                    self.stopped = _sentence(reply)
                    break
                wait_s = _asked_to_wait(reply)
                if wait_s is None or tries == RETRIES:
                    return reply
                self.waited += 1
            tries += 1
            await self._wait(wait_s or 0.0)
        return None


def _asked_to_wait(reply: "httpx.Response") -> float | None:
    """Seconds after which a refused request is to be sent again; None for every other reply."""
    if reply.status_code not in (429, 503) or reply.headers.get("x-should-retry") == "false":
        return None
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = reply.headers.get(name, "")
        if text.isascii() and text.isdecimal():
            wait_s = int(text) * unit_s
            return wait_s if wait_s <= MOST_WAIT_S else None
    return None


def _became(reply: "httpx.Response") -> Became:
    """What one reply says of its request."""
    if reply.status_code != 200:
        return Became("failed", _sentence(reply))
    status = reply.headers.get("x-tidegate-cache", "")
    if status.startswith("hit-") and status != "hit-partial":
        return Became("hit", status)
    if status.startswith("bypass:"):
        return Became("bypassed", plain(status.removeprefix("bypass:")))
    if status in ("miss", "hit-partial"):
        return Became("unchecked", _unfinished(reply.content))
    return Became("no_cache" if status == "none" else "unknown")


class _Finish(msgspec.Struct):
    finish_reason: str | None = None


class _Finished(msgspec.Struct):
    choices: list[_Finish] = []


def _unfinished(body: bytes) -> str:
    """Why an answer cannot be kept, as far as its finish reasons tell; empty where they do not."""
    try:
        reasons = {choice.finish_reason for choice in msgspec.json.decode(body, type=_Finished).choices} - {"stop", None}
    except msgspec.MsgspecError:
        return ""
    return _FINISHES.get(min(reasons, key=str) or "", "finish") if reasons else ""


def _error_of(reply: "httpx.Response") -> dict[str, Any]:
    with contextlib.suppress(msgspec.MsgspecError):
        error = msgspec.json.decode(reply.content, type=dict[str, Any]).get("error")
        return error if isinstance(error, dict) else {}
    return {}


def _sentence(reply: "httpx.Response") -> str:
    """Status and message of an error reply."""
    error = _error_of(reply)
    return plain(f"{reply.status_code} {error.get('code') or ''}: {error.get('message') or 'no message'}".replace(" :", ":"))


def plain(text: str) -> str:
    """A text of a server, for a terminal: without control characters, and not long."""
    return "".join(char if char.isprintable() else " " for char in text)[:300]
