"""The state of one worker's limit counters, for metrics. Values only."""

import msgspec


class ReconcileState(msgspec.Struct, frozen=True):
    """The reconciliation of counters with the ledger. Counts since the worker started."""

    unread: bool = False
    """Whether earlier usage is not counted yet, because the database or the counter store is away."""
    drift: float = 0.0
    """Largest share by which a counter had drifted at the last comparison."""
    raised: int = 0
    """Counters that were too low and were corrected."""
    lowered: int = 0
    """Counters that were too high and were corrected."""


class LimitsState(msgspec.Struct, frozen=True):
    """The state of one worker's counters."""

    degraded: bool = False
    """Whether limits are decided without the shared counters."""
    degraded_s: float = 0.0
    """Seconds since limits are decided so."""
    undelivered: int = 0
    """Settlements that wait for the counter store."""
    given_up: int = 0
    """Settlements that were dropped while the counter store was away, since the worker started."""
    open_holds: int = 0
    reconciled: ReconcileState | None = None
    """The reconciliation with the ledger; None where there is no ledger."""
    crowded: int = 0
    """Decisions about end users beyond the bound on a tenant's, since the worker started."""
