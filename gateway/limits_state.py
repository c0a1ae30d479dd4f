"""How the limits of one worker are counted, for metrics. Values only."""

import msgspec


class ReconcileState(msgspec.Struct, frozen=True):
    """How counters stand to the ledger, for metrics. Counts since the worker started."""

    unread: bool = False
    """What was used before is not counted yet: the database or the store is away."""
    drift: float = 0.0
    """Largest share by which a counter had drifted at the last comparison."""
    raised: int = 0
    """Counters that had missed something and were corrected."""
    lowered: int = 0
    """Counters that had counted what nobody used and were corrected."""


class LimitsState(msgspec.Struct, frozen=True):
    """How one worker's counters stand."""

    degraded: bool = False
    """It decides without the shared counters."""
    degraded_s: float = 0.0
    """For how long."""
    undelivered: int = 0
    """Settlements that wait for the store."""
    given_up: int = 0
    """Settlements that were not kept for it, since the worker started."""
    open_holds: int = 0
    reconciled: ReconcileState | None = None
    """How they stand to the ledger; None where there is none."""
    crowded: int = 0
    """Decisions about end users beyond the bound on a tenant's, since the worker started."""
