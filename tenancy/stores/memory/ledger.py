"""The books of one process: open holds by id, totals by tenant. Both bounded: by requests in flight, by tenants with keys."""

from dataclasses import dataclass

from domain.identity import TenantId
from tenancy.hold import Closing, Hold


@dataclass(slots=True)
class Totals:
    """One tenant's sums since the process started, in tokens; `open_holds` is a count of now."""

    open_holds: int = 0
    held_tokens: int = 0
    used_tokens: int = 0


class MemoryLedger:
    """See `tenancy.ports.Ledger`. Nothing here suspends."""

    in_process = True

    def __init__(self) -> None:
        self._open: dict[str, Hold] = {}
        self._totals: dict[TenantId, Totals] = {}

    async def reserve(self, hold: Hold) -> None:
        """See the port."""
        if hold.id in self._open:
            return
        self._open[hold.id] = hold
        totals = self._totals.get(hold.tenant)
        if totals is None:
            totals = self._totals[hold.tenant] = Totals()
        totals.open_holds += 1
        totals.held_tokens += hold.amounts.tokens

    async def close(self, hold: Hold, closing: Closing) -> None:
        """See the port."""
        held = self._open.pop(hold.id, None)
        if held is None:
            return
        totals = self._totals[held.tenant]
        totals.open_holds -= 1
        totals.held_tokens -= held.amounts.tokens
        totals.used_tokens += closing.usage.total_tokens

    def totals(self, tenant: TenantId) -> Totals:
        """A tenant's sums; zeros for one that never asked."""
        return self._totals.get(tenant, Totals())

    @property
    def open_holds(self) -> int:
        """Holds of all tenants that are open now."""
        return len(self._open)
