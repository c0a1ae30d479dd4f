"""Logs a line when a request crosses a soft limit, at most one per limit and minute."""

from typing import Final, Protocol

from domain.clock import Clock
from gateway.record import Record

QUIET_S: Final = 60.0
"""The shortest time between two lines about one limit: a rate's threshold may be crossed many times a second."""
MAX_TOLD: Final = 2000
"""Limits that are remembered as logged; beyond it the one logged longest ago is logged again."""


class Tells(Protocol):
    """A logger."""

    def warning(self, event: str, **fields: object) -> object:
        """Write one line."""
        ...


class Thresholds:
    """Watches finished requests for crossed soft limits; one per worker."""

    def __init__(self, log: Tells, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._quiet_until: dict[tuple[str, str], float] = {}

    def observe(self, record: Record) -> None:
        """Log the soft limits that a request has crossed. The end user is not named."""
        now = self._clock()
        for limit in record.soft_limits:
            key = (record.tenant, limit)
            if now < self._quiet_until.get(key, now):
                continue
            self._quiet_until.pop(key, None)
            if len(self._quiet_until) >= MAX_TOLD:
                del self._quiet_until[next(iter(self._quiet_until))]
            self._quiet_until[key] = now + QUIET_S
            self._log.warning(
                "soft threshold crossed",
                limit=limit,
                tenant=record.tenant,
                project=record.project,
                key_id=record.key_id,
                model=record.model,
            )
