"""The request log: finished requests as they are kept and asked for, and the port of their store. Pure.

A kept request is the line that the access log writes of it, so what is kept is what `tidegate simulate` replays. A few fields of the line
stand beside it, for those who ask. The texts of a request (`SealedContent`) are kept apart from it, sealed, and only where its tenant's
policy says so.
"""

from collections.abc import Collection, Sequence
from typing import Final, Literal, Protocol

import msgspec

Order = Literal["newest", "slowest"]

OK: Final = "ok"
"""The outcome of a request that did not fail."""
CONTENT_ID: Final = "tidegate request content v1 "
"""In front of a request's id, in what its sealed texts are bound to: nothing else that is sealed has such a name."""


class LoggedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One finished request. Times are whole microseconds, since the epoch or from its beginning."""

    at_us: int
    id: str
    """The gateway's own id."""
    duration_us: int
    tenant: str = ""
    project: str = ""
    key_id: str = ""
    endpoint: str = ""
    model: str = ""
    pool: str = ""
    backend: str = ""
    outcome: str = OK
    rule: str = ""
    cache: str = ""
    end_user: str = ""
    """A keyed digest of the end user's label, so that the user's requests can be erased; empty for none."""
    expires_us: int = 0
    """When the request is no longer kept."""
    line: bytes = b""
    """The line of the access log: a JSON object."""

    @property
    def place(self) -> tuple[int, str]:
        """Where it stands in the order of time."""
        return self.at_us, self.id


class SealedContent(msgspec.Struct, frozen=True, kw_only=True):
    """The texts of one request, redacted and sealed."""

    at_us: int
    """As of its request."""
    id: str
    tenant: str
    end_user: str = ""
    expires_us: int
    kid: str
    """The id of the pepper that sealed them."""
    sealed: bytes


class RequestFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The requests that are asked for: those that meet every condition that is set."""

    tenant: str = ""
    project: str = ""
    key_id: str = ""
    endpoint: str = ""
    model: str = ""
    pool: str = ""
    backend: str = ""
    outcome: str = ""
    rule: str = ""
    cache: str = ""
    failed: bool = False
    """Only requests that did not end well."""
    min_duration_us: int = 0
    since_us: int = 0
    until_us: int | None = None
    """Only requests before this time."""

    def covers(self, request: LoggedRequest) -> bool:
        """Whether a request meets every condition."""
        return (
            all(getattr(request, name) == wanted for name in EQUAL_FIELDS if (wanted := getattr(self, name)))
            and not (self.failed and request.outcome == OK)
            and request.duration_us >= self.min_duration_us
            and request.at_us >= self.since_us
            and (self.until_us is None or request.at_us < self.until_us)
        )


EQUAL_FIELDS: Final = ("tenant", "project", "key_id", "endpoint", "model", "pool", "backend", "outcome", "rule", "cache")
"""The fields of a filter that a request has to equal."""

Cursor = tuple[int, str]
"""Where a page ended: in the order of time `LoggedRequest.place`, in that of duration the duration and the id."""


class RequestLogAway(Exception):
    """The store cannot be asked now; the message says why."""


class RequestStore(Protocol):
    """Finished requests, of all gateways that share the store. Every method raises RequestLogAway."""

    kind: str
    """`memory`, `sqlite` or `postgresql`."""

    async def add(self, requests: Sequence[LoggedRequest], contents: Sequence[SealedContent]) -> None:
        """Keep requests and contents; those that are there already are left as they are."""
        ...

    async def page(self, wanted: RequestFilter, order: Order, after: Cursor | None, limit: int) -> list[LoggedRequest]:
        """Requests behind the cursor in that order, at most so many."""
        ...

    async def get(self, request_id: str) -> LoggedRequest | None:
        """One request."""
        ...

    async def content(self, request: LoggedRequest) -> SealedContent | None:
        """The texts of a request; None where none are kept."""
        ...

    async def with_content(self, requests: Sequence[LoggedRequest]) -> set[str]:
        """The ids of those requests whose texts are kept."""
        ...

    async def erase(self, tenant: str, end_users: Collection[str], until_us: int) -> int:
        """Remove the requests of an end user that began up to this time, and their texts; returns how many requests there were."""
        ...

    async def sweep(self, now_us: int, most: int) -> int:
        """Remove what is past its time, and the oldest requests beyond so many; returns how many."""
        ...


def began_about_us(request_id: str) -> tuple[int, int] | None:
    """When a request with this id began, as bounds in microseconds: ids of the gateway have their second. None for any other id."""
    parts = request_id.split("-")
    try:
        second = int(parts[1], 16) if parts[0] == "req" and len(parts) == 3 and len(parts[1]) == 8 else None
    except ValueError:
        return None
    return None if second is None else ((second - ID_SLACK_S) * 1_000_000, (second + ID_SLACK_S + 1) * 1_000_000)


ID_SLACK_S: Final = 2
"""An id and the time of its request are taken one after the other, and a clock may be set in between."""
