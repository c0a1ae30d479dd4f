"""What the next request would meet in the queues: its predicted wait, and whether it would be refused, by pool, class and tenant.

Nobody sends such a request: it is not counted, and no queue learns from it. `WorkersQueues` is the client in the admin process, `answers`
are a worker's handlers, and `joined` makes one view of those of all workers. Each worker has queues of its own, and a connection reaches
any of them by chance, so a view has the shortest and the longest wait.
"""

import contextlib
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import Final, Protocol

import msgspec

from domain.priority import WORDS, Class
from gateway.deps import Deps
from gateway.process.worker_link import Answer, ask_every
from gateway.queue.deadlines import wait_s
from gateway.queue.pool_queue import PoolQueue
from policies.compile import PolicySet
from routing.fair_tier import QueuedRequest, in_order_s
from routing.output_length import PRIOR

OUTLOOK_LINE: Final = b"queue outlook\n"
"""Begins a question what the next request would meet; its uncached prompt tokens in decimal digits follow."""
WITHIN_S: Final = 2.0
"""Time limit for an answer: who asks has a busy gateway."""
MOST_TENANTS: Final = 50
"""Tenants of one pool's queue that are named: those with the most requests waiting."""
ANYBODY: Final = ""
"""Stands for a tenant with nothing waiting."""


class Prospect(msgspec.Struct, frozen=True):
    """What the next request of a tenant and class would meet in one worker."""

    tenant: str
    """`ANYBODY` for a tenant with nothing waiting."""
    tier: int
    waiting: int
    """Requests that wait now: of the tenant; of `ANYBODY`, those of all tenants."""
    waits: bool
    """Whether it would have to wait."""
    wait_s: float
    """The predicted wait; 0 for none, and while it is unknown."""
    may_wait_s: float
    """The wait that the tenant's policy allows."""
    refused: str = ""
    """The word of `gateway.queue.refusals`; empty where the request may wait."""


class PoolOutlook(msgspec.Struct, frozen=True):
    """One pool's queue in one worker."""

    pool: str
    reached: bool
    """Whether any backend is up and can be reached; there are no prospects where none is."""
    tokens_per_s: float
    """The drain rate; 0 while unknown."""
    prospects: tuple[Prospect, ...] = ()


class ProspectSeen(msgspec.Struct, frozen=True):
    """What the next request of a tenant and class would meet, over all workers."""

    tenant: str
    priority: str
    waiting: int
    waits: int
    """Workers in which it would have to wait."""
    least_wait_s: float
    most_wait_s: float
    may_wait_s: float
    refused: dict[str, int]
    """Workers that would refuse it, by reason."""


class PoolQueueSeen(msgspec.Struct, frozen=True):
    """One pool's queues in all workers."""

    pool: str
    workers: int
    unreached: int
    """Workers that reach no backend of the pool."""
    tokens_per_s: float
    prospects: tuple[ProspectSeen, ...]


class ForecastsQueues(Protocol):
    """Answers what the next request would meet."""

    async def outlook(self, tokens: int) -> list[PoolQueueSeen] | None:
        """Every pool; None when no worker answers.

        Args:
            tokens: uncached prompt tokens of the request.
        """
        ...


class WorkersQueues:
    """Asks the workers of this gateway."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    async def outlook(self, tokens: int) -> list[PoolQueueSeen] | None:
        """Every pool; None when no worker answers."""
        found = []
        for reply in await ask_every(self._run_dir, OUTLOOK_LINE + b"%d" % tokens, WITHIN_S):
            with contextlib.suppress(msgspec.DecodeError):  # a worker of another version, while the gateway is replaced
                found.append(msgspec.msgpack.decode(reply, type=list[PoolOutlook]))
        return joined(found) if found else None


def answers(deps_of: Callable[[], Deps | None]) -> dict[bytes, Answer]:
    """The handler of questions. It answers nothing while the worker has not loaded its policies (`deps_of` gives None)."""

    async def outlook(question: bytes) -> bytes:
        deps = deps_of()
        if deps is None:
            return b""
        now, policies = deps.clock(), deps.live.policies
        return msgspec.msgpack.encode([outlook_of(name, queue, policies, int(question), now) for name, queue in deps.queues.items()])

    return {OUTLOOK_LINE: outlook}


def outlook_of(name: str, queue: PoolQueue, policies: PolicySet, tokens: int, now: float) -> PoolOutlook:
    """What the next request would meet in one queue: that of a tenant with nothing waiting in each class, and that of each tenant in the
    classes in which it waits already.

    Args:
        tokens: its uncached prompt tokens; its answer has the usual length.
        now: of the clock that the queue reads.
    """
    state = queue.state()
    wanted = [(ANYBODY, tier, count) for tier, count in enumerate(state.waiting)]
    wanted += [(tenant, tier, count) for tenant, counts in queue.by_tenant(MOST_TENANTS) for tier, count in enumerate(counts) if count]
    prospects = []
    for tenant, tier, count in wanted:
        policy = policies.for_tenant(tenant) if tenant else None
        may_s = wait_s(Class(tier), policy.max_wait_s if policy is not None else None, inf)
        cost, order_s = max(1, tokens + 2 * PRIOR.median), in_order_s(tokens * queue.token_s, now)
        forecast = queue.forecast(QueuedRequest(tenant, tier, False, cost, now + may_s, now, 0, order_s=order_s), may_s, supposed=True)
        if forecast is None:
            return PoolOutlook(name, False, state.tokens_per_s)
        word = "" if forecast.refused is None else forecast.refused[0]
        prospects.append(Prospect(tenant, tier, count, forecast.waits, forecast.wait_s, may_s, word))
    return PoolOutlook(name, True, state.tokens_per_s, tuple(prospects))


def joined(workers: Iterable[Iterable[PoolOutlook]]) -> list[PoolQueueSeen]:
    """One view of those of all workers. A tenant that waits in one worker has nothing waiting in another: there it meets what anybody
    does."""
    pools: dict[str, list[PoolOutlook]] = {}
    for outlooks in workers:
        for outlook in outlooks:
            pools.setdefault(outlook.pool, []).append(outlook)
    return [_seen(name, outlooks) for name, outlooks in sorted(pools.items())]


def _seen(name: str, outlooks: list[PoolOutlook]) -> PoolQueueSeen:
    met = [{(one.tenant, one.tier): one for one in outlook.prospects} for outlook in outlooks if outlook.reached]
    keys = sorted({key for prospects in met for key in prospects}, key=lambda key: (key[1], key[0]))
    shown = []
    for tenant, tier in keys:
        all_met = [prospects.get((tenant, tier)) or prospects[ANYBODY, tier] for prospects in met]
        own = [one for one in all_met if one.tenant == tenant]
        refused: dict[str, int] = {}
        for one in all_met:
            if one.refused:
                refused[one.refused] = refused.get(one.refused, 0) + 1
        waits = [one.wait_s for one in all_met]
        shown.append(
            ProspectSeen(
                tenant,
                WORDS[tier],
                sum(one.waiting for one in own),
                sum(one.waits for one in all_met),
                min(waits),
                max(waits),
                own[0].may_wait_s,
                refused,
            )
        )
    rate = sum(outlook.tokens_per_s for outlook in outlooks)
    return PoolQueueSeen(name, len(outlooks), len(outlooks) - len(met), rate, tuple(shown))
