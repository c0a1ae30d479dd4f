"""What this process has in flight on each backend. Every charge is released exactly once, by the one who took it."""

from collections.abc import Iterable


class Load:
    """In-flight requests per backend id; bounded by the fleet."""

    __slots__ = ("in_flight",)

    def __init__(self, backend_ids: Iterable[str]) -> None:
        self.in_flight: dict[str, int] = dict.fromkeys(backend_ids, 0)
        """Requests in flight per backend from this process. Policies read it; only `charge` and `release` write it."""

    def charge(self, backend_id: str) -> None:
        """Count one request on the backend; pair it with `release` in a `finally`."""
        self.in_flight[backend_id] += 1

    def release(self, backend_id: str) -> None:
        """The request is over."""
        self.in_flight[backend_id] -= 1

    def total(self) -> int:
        """Requests in flight on all backends."""
        return sum(self.in_flight.values())
