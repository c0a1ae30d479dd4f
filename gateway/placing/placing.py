"""One request's placing: the Demand, what the index says of it, the decision, and what it stakes on a backend while it runs there."""

from collections.abc import Mapping

import msgspec

from backends.loras import Adapter
from domain.ask import Ask
from domain.clock import Rng
from gateway.adapters import placed
from gateway.deps import Deps
from gateway.placing.demands import demand_of, prompt_of, session_named, worth_reading
from gateway.placing.ground import Ground
from gateway.prompt_chain import Prompt
from gateway.queueing.waiter import Staked
from policies.compile import ModelRule, TenantPolicy
from routing.choosing import Choosing
from routing.demand import Demand
from routing.fleet import Pool
from routing.ports import UNMATCHED, Match
from routing.schedule import Route


class Placing(msgspec.Struct, frozen=True, gc=False):
    """See the module."""

    pool: Pool
    ground: Ground
    choosing: Choosing
    demand: Demand
    match: Match
    route: Route
    adapter: Adapter | None
    prompt: Prompt | None
    staked: Staked | None = None
    """What a request that waited was given on the first backend of its route when it was let through, so that nobody else can have its
    place until it is sent."""

    @property
    def served(self) -> str:
        """The adapter it asks for, by its name on engines; empty for the model itself."""
        return self.adapter.served if self.adapter is not None else ""

    def held_tokens(self, backend_id: str) -> float:
        """Tokens of the prompt that the index says this backend holds, believed or not; at least one is always computed."""
        demand = self.demand
        return min(self.match.held(backend_id) * demand.block_tokens, max(0, demand.prompt_tokens - 1))


async def place_ask(
    ask: Ask,
    rule: ModelRule,
    policy: TenantPolicy,
    tenant: str,
    headers: Mapping[bytes, bytes],
    deps: Deps,
    rng: Rng,
    prompt: Prompt | None = None,
) -> Placing:
    """Place an Ask on the Fleet as it is now. Counts nothing, and remembers nothing.

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
    now = deps.clock()
    match: Match = deps.grounds.index.match(demand.chain, now, ground.among(pool)) if demand.chain else UNMATCHED
    route = placed(demand, pool, ground, match, choosing, adapter, deps, now, rng)
    return Placing(pool, ground, choosing, demand, match, route, adapter, prompt)


def place_again(before: Placing, deps: Deps, rng: Rng) -> Placing:
    """The same request on the Fleet as it is now, by the policy that it came under; its prompt is not read again. Never suspends."""
    pool, ground, demand, now = deps.live.fleet.pools[before.pool.name], before.ground, before.demand, deps.clock()
    match: Match = deps.grounds.index.match(demand.chain, now, ground.among(pool)) if demand.chain else UNMATCHED
    route = placed(demand, pool, ground, match, before.choosing, before.adapter, deps, now, rng)
    return Placing(pool, ground, before.choosing, demand, match, route, before.adapter, before.prompt)


def longest_context(placing: Placing) -> int:
    """Tokens that the most patient backend of the pool takes, up or not, where the prompt is too long for every one of them; else 0."""
    board, demand = placing.ground.board, placing.demand
    tokens = demand.prompt_tokens if demand.exact else demand.prompt_tokens // 2
    if not demand.one_prompt:
        return 0
    rows = [board.row_of.get(one.id) for one in placing.pool.backends]
    contexts = [board.facts[row].context_tokens for row in rows if row is not None]
    return max(contexts, default=0) if all(0 < one <= tokens for one in contexts) else 0
