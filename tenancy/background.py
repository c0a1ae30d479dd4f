"""Responses in the background: what is kept of each while and after it is made, and the ports of their store. Pure.

A Response in the background is answered before an engine works for it. Its caller reads it later, from any gateway on the database, so its
state is a row, and its events are batches of rows behind it. The worker that makes it holds a lease on the row: while the lease runs, the
worker alone writes events. Where the lease is over, the worker has died, and whoever reads the Response next ends it as failed.

What is kept is sealed with the sealer of stored Responses. A Response that is complete is a stored Response as well, by the same id, so
that it can be continued like every other one.
"""

from collections.abc import Callable
from typing import Final, Literal, Protocol

import msgspec

from domain.identity import TenantId
from tenancy.responses import StoredResponse

BackgroundStatus = Literal["queued", "in_progress", "completed", "failed", "incomplete", "cancelled"]
OPEN: Final[tuple[BackgroundStatus, ...]] = ("queued", "in_progress")
"""The states of a Response that is not over."""


class EventBatch(msgspec.Struct, frozen=True):
    """Events that follow each other, as they are sent: each ends with an empty line."""

    first: int
    """The sequence number of the first one."""
    last: int
    events: bytes


class BackgroundResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one Response in the background. Times are seconds since the epoch."""

    id: str
    tenant: TenantId
    created_unix: float
    expires_unix: float
    end_user: str = ""
    """As `StoredResponse.end_user`."""
    status: BackgroundStatus = "queued"
    last: int = -1
    """The sequence number of its last event."""
    lease_until_unix: float = 0.0
    """Until when its worker has it; 0 once it is over."""
    response: bytes
    """The Response as it stands, a JSON object; empty where a stored Response has it."""
    items: bytes
    """As `StoredResponse.items`."""

    @property
    def is_over(self) -> bool:
        """Whether nothing of it will change."""
        return self.status not in OPEN

    def is_lost(self, now_unix: float) -> bool:
        """Whether the worker that made it has died."""
        return not self.is_over and self.lease_until_unix < now_unix


class Advance(msgspec.Struct, frozen=True, kw_only=True):
    """What its worker adds to a Response."""

    status: BackgroundStatus
    batch: EventBatch
    response: bytes | None = None
    """The Response as it stands now; None where it has not changed since the last time."""
    final: StoredResponse | None = None
    """The stored Response that it becomes; None while it is open, and for one that failed."""


End = Callable[[BackgroundResponse], tuple[BackgroundResponse, bytes] | None]
"""Gives the end of a Response that is as it is told, and the event that tells of the end, whose number is the end's `last`; None where the
Response is to go on."""


class TooManyInBackground(Exception):
    """The tenant has as many Responses in the background as it may have."""


class BackgroundWriter(Protocol):
    """The store, as the worker sees it that makes Responses."""

    async def create(self, new: BackgroundResponse, worker: str, told: EventBatch, bounds: "BackgroundBounds") -> None:
        """Keep a new Response with its first events. Nothing is kept where its tenant or its end user was erased since it began.

        Args:
            worker: the name of the worker that makes it.

        Raises:
            TooManyInBackground, NoRoomForResponses: its tenant may not have it.
            ResponsesAway: the database cannot be asked.
        """
        ...

    async def advance(self, tenant: TenantId, response_id: str, worker: str, added: Advance, max_bytes: int) -> bool:
        """Add to a Response; False, and nothing is added, where it is over, deleted, or another worker's.

        Raises:
            NoRoomForResponses: its tenant has no room for what is added.
            ResponsesAway: the database cannot be asked.
        """
        ...

    async def renew(self, worker: str, until_unix: float) -> frozenset[tuple[TenantId, str]]:
        """Renew the leases of a worker; returns the Responses that it has still to make. Raises ResponsesAway."""
        ...


class BackgroundReader(Protocol):
    """The store, as callers see it. What is past its time is there for nobody, and neither is another tenant's."""

    async def find(self, tenant: TenantId, response_id: str) -> BackgroundResponse | None:
        """One Response. Raises ResponsesAway."""
        ...

    async def events(self, tenant: TenantId, response_id: str, after: int) -> list[EventBatch]:
        """The batches with the next events behind this number, a bounded number of them; none where there are no more.

        Raises:
            ResponsesAway: the database cannot be asked.
        """
        ...

    async def end(self, tenant: TenantId, response_id: str, ends: "End") -> BackgroundResponse | None:
        """End a Response that is not over from outside of its worker, which cannot write meanwhile.

        Returns:
            The Response as it is then; None where it is not there.

        Raises:
            ResponsesAway: the database cannot be asked.
        """
        ...

    async def discard(self, tenant: TenantId, response_id: str) -> bool:
        """Remove a Response and its events; False where it is not there. Raises ResponsesAway."""
        ...


class BackgroundBounds(msgspec.Struct, frozen=True):
    """The most that a tenant may have."""

    responses: int
    """Responses in the background that are not over."""
    bytes: int
    """Sealed bytes of all its stored Responses."""


class BackgroundStore(BackgroundWriter, BackgroundReader, Protocol):
    """Both sides of the store."""
