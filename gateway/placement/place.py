"""The placing of one request: its Demand, the prefix index's match, and the decision which backends may serve it, best first.

From an Ask to a Demand: what the router has to know of a request, with no more work than this pool and policy need.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from backends.lora.residency import Adapter
from domain.ask import Ask
from domain.clock import Rng
from gateway.deps import Deps
from gateway.placement.pool_state import PoolState, session_of
from gateway.placement.salts import salted
from gateway.prompt.reader import Prompt
from gateway.queue.waiter import Reserved
from policies.compile import ModelRule, TenantPolicy
from routing.fleet import Pool
from routing.output_length import PRIOR
from routing.policy_instance import PolicyInstance
from routing.ports import UNMATCHED, Adapters, Match, RoutingRequest
from routing.residency import with_adapter
from routing.room import FULL
from routing.schedule import Route, place
from tenancy.estimate import likely_prompt

SESSION_HEADERS: Final = (b"x-session-id", b"x-session-affinity")
"""Where coding agents name their conversation. Like every header of a caller they are not passed on to engines."""
_SEVERAL: Final = (b'["', b"[[")
"""How prompts begin that are more than one."""


def session_named(ask: Ask, headers: Mapping[bytes, bytes]) -> str:
    """The caller's own name for its conversation: from a header, else from the body."""
    for name in SESSION_HEADERS:
        value = headers.get(name)
        if value is not None and len(value) <= 256:
            return value.decode("latin-1")
    return ask.session


def worth_reading(ask: Ask, pool: Pool, policy_instance: PolicyInstance) -> bool:
    """Whether anything about its placing can depend on what stands in the prompt: with one backend, or a policy that looks at no cache,
    nothing does, and then nobody reads it."""
    return len(pool.up) > 1 and not policy_instance.policy.blind and ask.endpoint.generates


async def prompt_of(ask: Ask, pool: Pool, adapter: Adapter | None, tenant: str, deps: Deps) -> Prompt:
    """The prompt as the router sees it. Waits a moment for a long one to be tokenised."""
    return await deps.prompts.read(ask, pool.name, salted(deps.salts, deps.salt_secret, tenant, pool, adapter).root, tenant)


def routing_request_of(
    ask: Ask,
    prompt: Prompt | None,
    pool: Pool,
    adapter: Adapter | None,
    policy: TenantPolicy,
    tenant: str,
    session: str,
    deps: Deps,
) -> RoutingRequest:
    """The Demand.

    Args:
        prompt: None where nobody read it.
        session: as the caller calls it.
    """
    template = prompt.template if prompt is not None else 0
    # of one pool: what its model is called differs between tenants; and of no use where there is nothing to choose
    alone = len(pool.up) == 1
    expected = PRIOR if alone else deps.lengths.expect(tenant, route_of(ask, pool), template, ask.max_output_tokens)
    sequences = max(1, ask.sequences) if ask.endpoint.generates else 0
    return RoutingRequest(
        prompt.tokens if prompt is not None else likely_prompt(ask, None),
        prompt.chain if prompt is not None else (),
        prompt.block_tokens if prompt is not None else 64,
        expected.median * sequences,
        expected.high * sequences,
        session_of(session, tenant, deps.salt_secret) if session else 0,
        tenant,
        policy.priority,
        adapter.served if adapter is not None else "",
        policy.ttft_slo_s,
        prompt.counted if prompt is not None else ask.token_ids is not None,
        ask.endpoint.has_messages or not ask.fields.startswith(_SEVERAL, ask.prompt_at[0]),
        policy.tpot_slo_s,
        deps.region,
    )


def route_of(ask: Ask, pool: Pool) -> str:
    """The key under which answers' lengths are learned: requests of one kind share it."""
    return f"{pool.name}{ask.endpoint.path}"


COMING_BACK: Final = f"{FULL}the pool was out of service and takes up its work step by step"

UNDECIDED: Final = Route("", (), ())
"""The route of a request that is prepared and not yet decided on."""


class Placement(msgspec.Struct, frozen=True, gc=False):
    """One request's place in a pool."""

    pool: Pool
    pool_state: PoolState
    policy_instance: PolicyInstance
    request: RoutingRequest
    match: Match
    route: Route
    adapter: Adapter | None
    prompt: Prompt | None
    reserved: Reserved | None = None
    """The load that was reserved on the first backend of the route when a request that waited was let through, so that no other request
    takes its place before it is sent."""

    def give_back(self) -> None:
        """Give back what was reserved when the request was let through, if it waited: nothing will be sent there, or another
        reservation takes its place at once."""
        if self.reserved is not None:
            self.reserved.over()

    @property
    def served(self) -> str:
        """The adapter that the request asks for, by its name on engines; empty for the model itself."""
        return self.adapter.served if self.adapter is not None else ""

    def held_tokens(self, backend_id: str) -> float:
        """Tokens of the prompt that the index says this backend holds, believed or not; at least one is always computed."""
        request = self.request
        return min(self.match.held(backend_id) * request.block_tokens, max(0, request.prompt_tokens - 1))


async def prepare(
    ask: Ask,
    rule: ModelRule,
    policy: TenantPolicy,
    tenant: str,
    headers: Mapping[bytes, bytes],
    deps: Deps,
    prompt: Prompt | None = None,
) -> Placement:
    """Gather what the decision about an Ask depends on, for `decide`. Suspends only for a prompt that is worth reading and long.

    Args:
        prompt: where it was read already.
    """
    pool = deps.live.fleet.pools[rule.pool]
    pool_state = deps.pool_states[pool.name]
    policy_instance = pool_state.policy_instance(policy.routing)
    adapter = deps.loras.adapter(pool.name, rule.lora) if rule.lora else None
    if prompt is None and worth_reading(ask, pool, policy_instance):
        prompt = await prompt_of(ask, pool, adapter, tenant, deps)
        pool = deps.live.fleet.pools[rule.pool]  # it may have changed meanwhile
    request = routing_request_of(ask, prompt, pool, adapter, policy, tenant, session_named(ask, headers), deps)
    return Placement(pool, pool_state, policy_instance, request, UNMATCHED, UNDECIDED, adapter, prompt)


def decide(placement: Placement, deps: Deps, rng: Rng) -> Placement:
    """Place the request on the Fleet as it is now, by the policy that it came under. Never suspends, counts nothing, and remembers
    nothing, so a request that waits is decided on as often as there may be room for it."""
    pool_state, request, policy_instance, adapter, now = (
        placement.pool_state,
        placement.request,
        placement.policy_instance,
        placement.adapter,
        deps.clock(),
    )
    pool = deps.live.fleet.pools[placement.pool.name]
    match: Match = deps.pool_states.index.match(request.chain, now, pool_state.among(pool)) if request.chain else UNMATCHED
    if pool_state.recovery.held(now):
        held = tuple([msgspec.structs.replace(backend, reason=COMING_BACK) for backend in pool.up])
        route = Route(policy_instance.name, (), pool.not_up + held, full=bool(held))
        return Placement(pool, pool_state, policy_instance, request, match, route, adapter, placement.prompt)
    holder = pool_state.sessions.holder(request.session)
    part = pool_state.tenant_shares.part(request.tenant, now)
    shut = deps.live.breakers.shut(placement.served, now)
    adapters: Adapters | None = None
    if adapter is not None:
        adapters = Adapters(*deps.loras.where(pool.name, [backend.id for backend in pool.up], adapter))
    route = place(
        request, pool, pool_state.load_table, match, policy_instance, now, rng, holder=holder, adapters=adapters, shut=shut, part=part
    )
    if adapters is not None and not policy_instance.policy.in_seconds:
        route = with_adapter(route, adapters.there, pool_state.load_table)
    return Placement(pool, pool_state, policy_instance, request, match, route, adapter, placement.prompt)


def longest_context(placement: Placement) -> int:
    """Tokens that the most patient backend of the pool takes, up or not, where the prompt is too long for every one of them; else 0."""
    load_table, request = placement.pool_state.load_table, placement.request
    tokens = request.prompt_tokens if request.exact else request.prompt_tokens // 2
    if not request.one_prompt:
        return 0
    rows = [load_table.row_of.get(backend.id) for backend in placement.pool.backends]
    contexts = [load_table.facts[row].context_tokens for row in rows if row is not None]
    return max(contexts, default=0) if all(0 < context <= tokens for context in contexts) else 0
