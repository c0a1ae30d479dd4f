"""The placing of one request: its Demand, the prefix index's match, and the decision which backends may serve it, best first."""

from collections.abc import Mapping
from typing import Final

import msgspec

from backends.lora.residency import Adapter
from domain.ask import Ask
from domain.clock import Rng
from gateway.deps import Deps
from gateway.placing.demands import demand_of, prompt_of, session_named, worth_reading
from gateway.placing.ground import Ground
from gateway.prompt_chain import Prompt
from gateway.queueing.waiter import Staked
from policies.compile import ModelRule, TenantPolicy
from routing.choosing import PolicyInstance
from routing.fleet import Pool
from routing.ports import UNMATCHED, Adapters, Match, RoutingRequest
from routing.residency import with_adapter
from routing.room import FULL
from routing.schedule import Route, place

COMING_BACK: Final = f"{FULL}the pool was out of service and takes up its work step by step"

UNDECIDED: Final = Route("", (), ())
"""The route of a request that is prepared and not yet decided on."""


class Placing(msgspec.Struct, frozen=True, gc=False):
    """One request's place in a pool."""

    pool: Pool
    ground: Ground
    choosing: PolicyInstance
    demand: RoutingRequest
    match: Match
    route: Route
    adapter: Adapter | None
    prompt: Prompt | None
    staked: Staked | None = None
    """The load that was reserved on the first backend of the route when a request that waited was let through, so that no other request
    takes its place before it is sent."""

    def give_back(self) -> None:
        """Give back what was reserved when the request was let through, if it waited: nothing will be sent there, or another
        reservation takes its place at once."""
        if self.staked is not None:
            self.staked.over()

    @property
    def served(self) -> str:
        """The adapter that the request asks for, by its name on engines; empty for the model itself."""
        return self.adapter.served if self.adapter is not None else ""

    def held_tokens(self, backend_id: str) -> float:
        """Tokens of the prompt that the index says this backend holds, believed or not; at least one is always computed."""
        demand = self.demand
        return min(self.match.held(backend_id) * demand.block_tokens, max(0, demand.prompt_tokens - 1))


async def prepare(
    ask: Ask,
    rule: ModelRule,
    policy: TenantPolicy,
    tenant: str,
    headers: Mapping[bytes, bytes],
    deps: Deps,
    prompt: Prompt | None = None,
) -> Placing:
    """Gather what the decision about an Ask depends on, for `decide`. Suspends only for a prompt that is worth reading and long.

    Args:
        prompt: where it was read already.
    """
    pool = deps.live.fleet.pools[rule.pool]
    ground = deps.grounds[pool.name]
    choosing = ground.choosing(policy.routing)
    adapter = deps.loras.adapter(pool.name, rule.lora) if rule.lora else None
    if prompt is None and worth_reading(ask, pool, choosing):
        prompt = await prompt_of(ask, pool, adapter, tenant, deps)
        pool = deps.live.fleet.pools[rule.pool]  # it may have changed meanwhile
    demand = demand_of(ask, prompt, pool, adapter, policy, tenant, session_named(ask, headers), deps)
    return Placing(pool, ground, choosing, demand, UNMATCHED, UNDECIDED, adapter, prompt)


def decide(placing: Placing, deps: Deps, rng: Rng) -> Placing:
    """Place the request on the Fleet as it is now, by the policy that it came under. Never suspends, counts nothing, and remembers
    nothing, so a request that waits is decided on as often as there may be room for it."""
    ground, demand, choosing, adapter, now = placing.ground, placing.demand, placing.choosing, placing.adapter, deps.clock()
    pool = deps.live.fleet.pools[placing.pool.name]
    match: Match = deps.grounds.index.match(demand.chain, now, ground.among(pool)) if demand.chain else UNMATCHED
    if ground.recovery.held(now):
        held = tuple([msgspec.structs.replace(backend, reason=COMING_BACK) for backend in pool.up])
        route = Route(choosing.name, (), pool.not_up + held, full=bool(held))
        return Placing(pool, ground, choosing, demand, match, route, adapter, placing.prompt)
    holder = ground.sessions.holder(demand.session)
    part = ground.holders.part(demand.tenant, now)
    shut = deps.live.breakers.shut(placing.served, now)
    adapters: Adapters | None = None
    if adapter is not None:
        adapters = Adapters(*deps.loras.where(pool.name, [backend.id for backend in pool.up], adapter))
    route = place(demand, pool, ground.board, match, choosing, now, rng, holder=holder, adapters=adapters, shut=shut, part=part)
    if adapters is not None and not choosing.policy.in_seconds:
        route = with_adapter(route, adapters.there, ground.board)
    return Placing(pool, ground, choosing, demand, match, route, adapter, placing.prompt)


def longest_context(placing: Placing) -> int:
    """Tokens that the most patient backend of the pool takes, up or not, where the prompt is too long for every one of them; else 0."""
    board, demand = placing.ground.board, placing.demand
    tokens = demand.prompt_tokens if demand.exact else demand.prompt_tokens // 2
    if not demand.one_prompt:
        return 0
    rows = [board.row_of.get(backend.id) for backend in placing.pool.backends]
    contexts = [board.facts[row].context_tokens for row in rows if row is not None]
    return max(contexts, default=0) if all(0 < context <= tokens for context in contexts) else 0
