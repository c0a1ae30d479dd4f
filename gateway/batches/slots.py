"""The requests of batches that one worker may have in flight, together and in each pool; and what a run of a batch works with.

A request of a batch starts where nobody waits, neither in the gateway's queue nor, as far as engines say it, in an engine, and where the
pool is not filled beyond a share of its room (`has_slack`). While others have any request in flight, batches have one for each engine: the
prompt of a line is computed in steps that others' prompts wait for. `python -m bench.batch_slack` measures it.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from domain.batches import StoredBatch
from gateway.deps import Deps
from gateway.record import Record
from gateway.request.holds import OpenHolds
from routing.fleet import Pool
from routing.load import LoadTable

BESIDE_OTHERS: Final = 1
"""Requests of batches for each engine while others have any in flight. With one, the 99th percentile of the time to the first
token moves by about 1 % in the simulated fleet, with two by up to 5 %."""


def has_slack(pool: Pool, table: LoadTable, waiting: int, share: float, mine: int, workers: int = 1) -> bool:
    """Whether one more request of a batch may start.

    Args:
        waiting: requests in this process's queue of the pool.
        share: part of the room that batches may fill it to, 0 to 1.
        mine: requests of batches that this process has in flight there.
        workers: processes that may have requests of batches in flight there.
    """
    if waiting or not pool.up:
        return False
    rows = table.rows(pool.up)
    if any(table.waiting[row] > 0 for row in rows):
        return False
    total = max(table.total(), mine)
    # what engines report has the requests of other processes, too
    others = max(sum([table.requests[row] for row in rows]), total) - mine
    if others >= 1.0 and mine >= max(1, BESIDE_OTHERS * len(pool.up) // workers):
        return False
    # the smallest pool has room for one, when it has nothing else to do
    return total < max(1.0, share * table.slots_of(pool.up))


@dataclass(frozen=True, slots=True)
class RunnerParts:
    """What the batches of one worker work with."""

    deps: Deps
    owner: str
    """The name of this worker on leases; no other process has it."""
    lease_s: float
    price_percent: int
    holds: OpenHolds
    """The open holds of lines."""
    note: Callable[[Record], None]
    """Called with every request that was made, for metrics and the access log."""
    book: Callable[[Record], None]
    """Called with the request that is a line's result, for the ledger."""
    durable: Callable[[], Awaitable[None]]
    """Returns once everything that was booked so far is on the disk."""
    draining: Callable[[], bool]
    """Whether this worker is about to end."""
    count: Callable[[str, int], None] = lambda _outcome, _lines: None
    """Called with what came of lines (`gateway.telemetry.families.BATCH_LINE_OUTCOMES`) and their number, for metrics."""


class LineSlots:
    """The slots of one worker.

    Args:
        most: requests of batches in flight.
        share: part of each pool's room that batches may fill it to.
        workers: of this gateway, which share what there may be beside other requests.
    """

    def __init__(self, most: int, share: float, deps: Deps, workers: int = 1) -> None:
        self._workers = workers
        self._most = most
        self._share = share
        self._deps = deps
        self._taken = 0
        self._of_pool: Counter[str] = Counter()

    def take(self, batch: StoredBatch) -> tuple[str, ...] | None:
        """Take a slot for the next line of a batch; None where there is no room now. The slot is given back with what is returned."""
        return self.take_in(self.pools(batch.tenant, batch.model))

    def take_in(self, names: tuple[str, ...]) -> tuple[str, ...] | None:
        """Take a slot for a request that any of these pools may get; as `take`."""
        if self._taken >= self._most:
            return None
        live = self._deps.live
        for name in names:
            pool = live.fleet.pools[name]
            table = self._deps.pool_states[name].load_table
            if not has_slack(pool, table, self._deps.queues[name].in_line, self._share, self._of_pool[name], self._workers):
                return None
        self._taken += 1
        self._of_pool.update(names)
        return names

    def give_back(self, names: tuple[str, ...]) -> None:
        """Give a slot back."""
        self._taken -= 1
        self._of_pool.subtract(names)

    def pools(self, tenant: str, model: str) -> tuple[str, ...]:
        """The pools that the tenant's policy names for a model; none for an unknown model, whose requests are refused at once."""
        policy = self._deps.live.policies.for_tenant(tenant)
        rule = policy.models.get(model) if policy is not None else None
        if rule is None:
            return ()
        names = dict.fromkeys([pool for _, pool in rule.shares] or [rule.pool])
        return tuple(name for name in names if name in self._deps.live.fleet.pools)
