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

    def add(self, backend_id: str) -> None:
        """A backend joins, with nothing in flight."""
        self.in_flight.setdefault(backend_id, 0)
        self.sent.setdefault(backend_id, 0)

    def drop(self, backend_id: str) -> None:
        """A backend has left. Raises ValueError while something is in flight on it: its release would have nowhere to go."""
        if self.in_flight.get(backend_id):
            raise ValueError(f"{self.in_flight[backend_id]} requests are in flight on {backend_id!r}")
        self.in_flight.pop(backend_id, None)
        self.sent.pop(backend_id, None)

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
