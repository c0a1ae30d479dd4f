"""What this process has in flight on each backend. Every charge is released exactly once, by the one who took it."""

from collections.abc import Iterable

Mark = tuple[int, int]
"""Requests ever sent, and ever ended."""


class Load:
    """In-flight requests per backend id; bounded by the fleet."""

    __slots__ = ("in_flight", "sent")

    def __init__(self, backend_ids: Iterable[str]) -> None:
        backend_ids = tuple(backend_ids)
        self.in_flight: dict[str, int] = dict.fromkeys(backend_ids, 0)
        """Requests in flight per backend from this process. Policies read it; only `charge` and `release` write it."""
        self.sent: dict[str, int] = dict.fromkeys(backend_ids, 0)
        """Requests ever sent to each backend; what is not in flight any more has ended."""

    def charge(self, backend_id: str) -> None:
        """Count one request on the backend; pair it with `release` in a `finally`."""
        self.in_flight[backend_id] += 1
        self.sent[backend_id] += 1

    def release(self, backend_id: str) -> None:
        """The request is over."""
        self.in_flight[backend_id] -= 1

    def mark(self, backend_id: str) -> Mark:
        """The counts as they are, to be handed to `since` later."""
        sent = self.sent[backend_id]
        return sent, sent - self.in_flight[backend_id]

    def since(self, backend_id: str, mark: Mark) -> tuple[int, int]:
        """Requests sent and requests ended after `mark`."""
        sent, ended = self.mark(backend_id)
        return sent - mark[0], ended - mark[1]

    def total(self) -> int:
        """Requests in flight on all backends."""
        return sum(self.in_flight.values())
