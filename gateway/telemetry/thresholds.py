"""A line in the log when a soft threshold is crossed: an event for whoever watches logs, and no flood of them."""

from typing import Final, Protocol

from domain.clock import Clock
from gateway.record import Record

QUIET_S: Final = 60.0
"""A limit is told of once in this time: a rate's threshold may be crossed many times a second."""
MAX_TOLD: Final = 2000
"""Limits remembered as told; beyond it the one told of longest ago is told of again."""


class Tells(Protocol):
    """A logger."""

    def warning(self, event: str, **fields: object) -> object:
        """Write one line."""
        ...


class Thresholds:
    """One per worker."""

    def __init__(self, log: Tells, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._told: dict[tuple[str, str], float] = {}

    def observe(self, record: Record) -> None:
        """Tell of the soft thresholds that a request has crossed. The end user is not named."""
        now = self._clock()
        for limit in record.soft_limits:
            key = (record.tenant, limit)
            if now < self._told.get(key, now):
                continue
            self._told.pop(key, None)
            if len(self._told) >= MAX_TOLD:
                del self._told[next(iter(self._told))]
            self._told[key] = now + QUIET_S
            self._log.warning(
                "soft threshold crossed",
                limit=limit,
                tenant=record.tenant,
                project=record.project,
                key_id=record.key_id,
                model=record.model,
            )
