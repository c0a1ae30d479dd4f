"""The request log in memory: the last requests of one process, for gateways that keep none in SQL."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final

from tenancy.request_log import Cursor, LoggedRequest, Order, RequestFilter, SealedContent

MOST_REQUESTS: Final = 10_000
"""Requests of about 2 KB; beyond it the oldest are forgotten."""
MOST_CONTENTS: Final = 500
"""Texts of up to 32 KB; beyond it the oldest are forgotten."""


class MemoryRequests:
    """Requests in memory (`tenancy.request_log.RequestStore`)."""

    kind = "memory"

    def __init__(self, most: int = MOST_REQUESTS, most_contents: int = MOST_CONTENTS) -> None:
        self._requests: deque[LoggedRequest] = deque()
        self._ids: set[str] = set()
        self._most = most
        self._contents: dict[str, SealedContent] = {}
        self._most_contents = most_contents

    async def add(self, requests: Sequence[LoggedRequest], contents: Sequence[SealedContent]) -> None:
        for request in requests:
            if request.id not in self._ids:
                self._ids.add(request.id)
                self._requests.append(request)
        while len(self._requests) > self._most:
            self._forget(self._requests.popleft())
        for content in contents:
            self._contents.setdefault(content.id, content)
        while len(self._contents) > self._most_contents:
            del self._contents[next(iter(self._contents))]

    async def page(self, wanted: RequestFilter, order: Order, after: Cursor | None, limit: int) -> list[LoggedRequest]:
        def place(request: LoggedRequest) -> Cursor:
            return (request.duration_us, request.id) if order == "slowest" else request.place

        found = [request for request in self._requests if wanted.covers(request) and (after is None or place(request) < after)]
        return sorted(found, key=place, reverse=True)[:limit]

    async def get(self, request_id: str) -> LoggedRequest | None:
        return next((request for request in self._requests if request.id == request_id), None)

    async def content(self, request: LoggedRequest) -> SealedContent | None:
        return self._contents.get(request.id)

    async def with_content(self, requests: Sequence[LoggedRequest]) -> set[str]:
        return {request.id for request in requests if request.id in self._contents}

    async def erase(self, tenant: str, end_users: Collection[str], until_us: int) -> int:
        before = len(self._requests)
        self._keep(lambda one: one.tenant != tenant or one.end_user not in end_users or one.at_us > until_us)
        return before - len(self._requests)

    async def sweep(self, now_us: int, most: int) -> int:
        before = len(self._requests)
        self._keep(lambda one: one.expires_us > now_us)
        while len(self._requests) > most:
            self._forget(self._requests.popleft())
        return before - len(self._requests)

    def _keep(self, kept: Callable[[LoggedRequest | SealedContent], bool]) -> None:
        left = [request for request in self._requests if kept(request)]
        self._requests = deque(left)
        self._ids = {request.id for request in left}
        self._contents = {name: content for name, content in self._contents.items() if kept(content)}

    def _forget(self, request: LoggedRequest) -> None:
        self._ids.discard(request.id)
        self._contents.pop(request.id, None)
