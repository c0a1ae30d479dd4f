"""How much of their limits tenants have left."""

from typing import Final

HEADROOM_GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "tidegate_limit_headroom_ratio": (
        "What the tenant has left of its rates and concurrent requests: of all its limits the least share.",
        ("tenant",),
    ),
    "tidegate_budget_headroom_ratio": (
        "What the tenant has left of its limits over a period of the calendar, a rolling window or for ever: the least share.",
        ("tenant",),
    ),
    "tidegate_headroom_looked_timestamp_seconds": ("When every tenant's limits were last looked at for these gauges.", ()),
}
