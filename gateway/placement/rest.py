"""Whether anybody asks a pool: while nobody does, its engines are read less often (`gateway.fleet.signals`)."""

from collections.abc import Callable
from math import inf
from typing import Final

from routing.load import LoadTable

AT_REST_S: Final = 3.0
"""Seconds without requests after which a pool is at rest. Nothing is lost where conversations pause for longer: the first request goes by a
reading of up to two seconds before, the next ones by new ones."""


class PoolRest:
    """When a pool was asked last, in this worker and in the others of the host. All times are of the worker's clock."""

    __slots__ = ("_load_table", "asked_at", "elsewhere_at", "on_asked")

    def __init__(self, load_table: LoadTable) -> None:
        self._load_table = load_table
        self.asked_at = -inf
        """When the last request was routed here."""
        self.elsewhere_at = -inf
        """When another worker of the host last said that requests come to it."""
        self.on_asked: Callable[[bool], None] | None = None
        """Called by the first request after a rest: the engines are read at once. The argument says whether the request came here."""

    def asked(self, now: float) -> float:
        """Note that a request is routed. Returns the seconds since the one before where the pool was at rest, else 0."""
        since_s, self.asked_at = now - self.asked_at, now
        if since_s <= AT_REST_S or now - self.elsewhere_at <= AT_REST_S or self._load_table.total():
            return 0.0
        if self.on_asked is not None:
            self.on_asked(True)
        return since_s if since_s < inf else 0.0

    def asked_elsewhere(self, now: float) -> None:
        """Note that requests come to this pool by way of another worker of the host, for which this one may read engines."""
        rested = self.at_rest(now)
        self.elsewhere_at = now
        if rested and self.on_asked is not None:
            self.on_asked(False)

    def asked_here(self, now: float) -> bool:
        """Whether this worker has requests there, or had some within `AT_REST_S`."""
        return now - self.asked_at <= AT_REST_S or self._load_table.total() > 0

    def at_rest(self, now: float) -> bool:
        """Whether no worker of the host has had requests for `AT_REST_S`: until the next one nobody needs to know the engines' load."""
        return not self.asked_here(now) and now - self.elsewhere_at > AT_REST_S
