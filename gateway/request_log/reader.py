"""The request log as the admin API asks for it: what is kept, the texts that tenants let be kept, and what happens now.

Size: it stands between the routes and their collaborators, so that routes know no seal and no worker.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.request_log.collector import RequestCollector, Sleep
from tenancy.request_log import CONTENT_ID, Cursor, LoggedRequest, Order, RequestFilter, SealedContent
from tenancy.responses import ResponseSealer

MOST_SCANNED: Final = 2000
"""Requests that `sampled` looks through for those with texts."""


class PromptedMessage(msgspec.Struct, frozen=True):
    """A message of a request's own, redacted."""

    role: str
    content: str


class PromptedRequest(msgspec.Struct, frozen=True):
    """What a request with a prompt of the registry said itself, redacted, so that another version of the prompt can be asked the same."""

    id: str
    """The id of the prompt."""
    version: int
    """The version that the request had."""
    variables: dict[str, object]
    messages: tuple[PromptedMessage, ...]
    """Those behind the prompt's."""


class RequestContent(msgspec.Struct, frozen=True):
    """The redacted texts of one request."""

    prompt: str = ""
    answer: str = ""
    prompt_cut: bool = False
    """Whether the text was longer than is kept."""
    answer_cut: bool = False
    redacted: tuple[str, ...] = ()
    """Kinds of what was redacted."""
    prompted: PromptedRequest | None = None
    """None without a prompt of the registry, and where what the request said itself cannot be kept whole."""


def sealed_content(sealer: ResponseSealer, request: LoggedRequest, content: RequestContent) -> SealedContent:
    """Texts, sealed for their request."""
    return SealedContent(
        at_us=request.at_us,
        id=request.id,
        tenant=request.tenant,
        end_user=request.end_user,
        expires_us=request.expires_us,
        kid=sealer.kid,
        sealed=sealer.sealed(request.tenant, CONTENT_ID + request.id, msgspec.msgpack.encode(content), b""),
    )


def opened_content(sealer: ResponseSealer, stored: SealedContent) -> RequestContent | None:
    """The texts; None where they were sealed with a pepper that is not known here, or are damaged."""
    opened = sealer.opened(stored.sealed, stored.kid, stored.tenant, CONTENT_ID + stored.id)
    return None if opened is None else msgspec.msgpack.decode(opened[0], type=RequestContent)


@dataclass
class RequestLog:
    """The request log of a gateway, in its admin process."""

    collector: RequestCollector
    sealer: ResponseSealer
    sleep: Sleep = asyncio.sleep
    """Waits between two updates of a stream."""
    streams: int = 0
    """Streams of live requests that are open."""

    async def page(self, wanted: RequestFilter, order: Order, after: Cursor | None, limit: int) -> list[LoggedRequest]:
        """Requests behind the cursor, at most so many. Raises RequestLogAway."""
        await self.collector.fresh()
        return await self.collector.store.page(wanted, order, after, limit)

    async def get(self, request_id: str, tenant: str | None) -> LoggedRequest | None:
        """One request, of this tenant unless it is None. Raises RequestLogAway."""
        await self.collector.fresh()
        found = await self.collector.store.get(request_id)
        return None if found is None or (tenant is not None and found.tenant != tenant) else found

    async def with_content(self, requests: Sequence[LoggedRequest]) -> set[str]:
        """The ids of those requests whose texts are kept. Raises RequestLogAway."""
        return await self.collector.store.with_content(requests)

    async def content(self, request: LoggedRequest) -> RequestContent | None:
        """The texts of a request; None where none are kept, or they cannot be opened. Raises RequestLogAway."""
        stored = await self.collector.store.content(request)
        return None if stored is None else opened_content(self.sealer, stored)

    async def sampled(self, since_unix: float, most: int, tenant: str = "") -> list[tuple[LoggedRequest, RequestContent]]:
        """Requests since a moment whose texts are kept, the newest first, at most so many. Raises RequestLogAway."""
        wanted = RequestFilter(tenant=tenant, since_us=int(since_unix * 1e6))
        requests = await self.page(wanted, "newest", None, MOST_SCANNED)
        kept = await self.with_content(requests)
        found: list[tuple[LoggedRequest, RequestContent]] = []
        for request in requests:
            content = await self.content(request) if request.id in kept and len(found) < most else None
            if content is not None:
                found.append((request, content))
        return found
