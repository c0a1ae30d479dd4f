"""The placement of one request in a pool: its routing request, the prefix index's match, and the decision which backends may serve it.

`prepare` gathers the inputs of the decision, with no more work than this pool and policy need, and `decide` routes the request on the
current fleet, best backend first.
"""

from collections.abc import Coroutine, Mapping
from math import inf
from typing import Any, Final

import msgspec

from backends.breaker import ALL_CLOSED
from backends.lora.residency import Adapter
from domain import retry_after
from domain.ask import Ask
from domain.clock import Rng
from domain.faults import Fault, Kind
from gateway.deps import Deps
from gateway.placement.destination import HEADER as DESTINATION_HEADER
from gateway.placement.destination import in_named_order, others_shut
from gateway.placement.pool_state import PoolState, session_of
from gateway.placement.rest import AT_REST_S
from gateway.prompt.count import BUDGET_S
from gateway.prompt.reader import Prompt
from gateway.queue.waiter import Reserved
from gateway.story import Story
from policies.compile import ModelRule
from policies.routing_choice import Routing
from routing.fleet import Pool
from routing.output_length import PRIOR
from routing.policy_instance import PolicyInstance
from routing.ports import UNMATCHED, Adapters, Circumstances, Held, RoutingRequest
from routing.registry import POLICIES
from routing.residency import with_adapter
from routing.room import FULL, NO_SLOT
from routing.schedule import Route, place
from tenancy.estimate import likely_prompt

SESSION_HEADERS: Final = (b"x-session-id", b"x-session-affinity")
"""Headers in which coding agents send the id of their conversation. Like all headers of callers, they are not sent to engines."""
_SEVERAL_PROMPTS: Final = (b'["', b"[[")
"""The first bytes of a list of prompts."""


def session_named(ask: Ask, headers: Mapping[bytes, bytes]) -> str:
    """The caller's own name for its conversation: from a header, else from the body."""
    for name in SESSION_HEADERS:
        value = headers.get(name)
        if value is not None and len(value) <= 256:
            return value.decode("latin-1")
    return ask.session


def worth_reading(ask: Ask, pool: Pool, routing: Routing) -> bool:
    """Whether the routing of the request can depend on the text of its prompt: not with one backend up, nor with a policy that ignores
    caches. Otherwise the prompt is not read."""
    return len(pool.up) > 1 and ask.endpoint.generates and not POLICIES[routing.policy].blind


def prompt_of(ask: Ask, pool: Pool, adapter: Adapter | None, tenant: str, deps: Deps, *, wait_s: float) -> Coroutine[Any, Any, Prompt]:
    """The prompt as the router needs it. Suspends while a long prompt is tokenized, for `wait_s` at most."""
    salted = deps.salts[tenant, pool.model, pool.revision, adapter.digest if adapter is not None else ""]
    return deps.prompts.read(ask, pool.name, salted.root, tenant, wait_s=wait_s)


def lora_unavailable(detail: str, rng: Rng) -> Fault:
    """The refusal of a request whose adapter cannot be had.

    Args:
        detail: why, for operators.
    """
    return Fault(
        Kind.LORA_UNAVAILABLE,
        "No engine can serve this model right now. Try again shortly.",
        retry=retry_after.of_missing_engine(rng.random()),
        detail=detail,
    )


COMING_BACK: Final = f"{FULL}the pool was out of service and takes up its work step by step"

HELD_BACK: Final = f"{FULL}what is free is kept for tenants that have fewer requests in flight there"

UNREACHED: Final = f"{FULL}no engine of the pool can be reached at the moment"

UNDECIDED: Final = Route("", (), ())
"""The route of a request that is prepared and not yet routed."""


class Placement(msgspec.Struct, frozen=True, gc=False):
    """The routing of one request in a pool: the inputs of the decision, and the route."""

    pool: Pool
    pool_state: PoolState
    policy_instance: PolicyInstance
    request: RoutingRequest
    circumstances: Circumstances
    """The inputs of the decision beside the load of the pool."""
    route: Route
    adapter: Adapter | None
    prompt: Prompt | None
    answers_like: str
    """The key under which answers' lengths are learned: requests of one kind share it."""
    reserved: Reserved | None = None
    """The load that the queue reserved on the first backend of the route when it dispatched the request, so that no other request takes
    the capacity before the request is sent."""
    rested_s: float = 0.0
    """Seconds since the pool's request before this one, where its engines were read less often meanwhile: their load is not from now."""
    destination: bytes = b""
    """The engines that the request's head names, believed or not (`gateway.placement.destination`)."""
    named: tuple[str, ...] = ()
    """The backends of the pool that a trusted endpoint picker names, the preferred one first."""

    def give_back(self) -> None:
        """Release the load that the queue reserved, if the request waited: nothing will be sent to that backend, or another reservation
        follows at once."""
        if self.reserved is not None:
            self.reserved.over()

    @property
    def served(self) -> str:
        """The adapter that the request asks for, by its name on engines; empty for the model itself."""
        return self.adapter.served if self.adapter is not None else ""

    def held_tokens(self, backend_id: str) -> float:
        """Tokens of the prompt that this backend has cached by the prefix index, trusted or not; at least one is always computed."""
        blocks, request = self.circumstances.match.blocks.get(backend_id), self.request
        if not blocks:
            return 0
        held, most = blocks * request.block_tokens, request.prompt_tokens - 1
        return held if held < most else most if most > 0 else 0


async def prepare(ask: Ask, rule: ModelRule, headers: Mapping[bytes, bytes], story: Story, deps: Deps) -> Placement:
    """Gather the inputs of the routing decision, for `routing.schedule.place`. The Story has the caller, the policy and, where it was read
    already, the prompt. Suspends only while a long prompt is read. Raises Fault (LORA_UNAVAILABLE) for a model whose adapter the pool does
    not have: nobody has registered it, or it was deleted."""
    caller, policy, prompt = story.asked.caller, story.asked.tenant_policy, story.asked.prompt
    assert caller is not None
    assert policy is not None
    tenant, routing = caller.tenant, policy.routing
    pool = deps.live.fleet.pools[rule.pool]
    pool_state = deps.pool_states[pool.name]
    adapter = deps.loras.adapter(pool.name, rule.lora) if rule.lora else None
    if rule.lora and adapter is None:
        story.placed.pool = pool.name
        raise lora_unavailable(f"pool {pool.name!r} has no adapter {rule.lora!r}; register it, or take it out of the policy", deps.rng)
    if prompt is None and worth_reading(ask, pool, routing):
        prompt = await prompt_of(ask, pool, adapter, tenant, deps, wait_s=max(0.0, BUDGET_S - story.asked.read_s))
        pool = deps.live.fleet.pools[rule.pool]  # it may have changed meanwhile
    session, destination = ask.session, b""
    if SESSION_HEADERS[0] in headers or SESSION_HEADERS[1] in headers:
        session = session_named(ask, headers)
    if DESTINATION_HEADER in headers:
        destination = headers[DESTINATION_HEADER]
    # learned per pool, because tenants name its model differently; not needed where only one backend is up
    answers_like = f"{pool.name}{ask.endpoint.path}"
    template = prompt.template if prompt is not None else 0
    expected = PRIOR if len(pool.up) == 1 else deps.lengths.expect(tenant, answers_like, template, ask.max_output_tokens)
    sequences = max(1, ask.sequences) if ask.endpoint.generates else 0
    request = RoutingRequest(
        prompt.tokens if prompt is not None else likely_prompt(ask, None) if ask.endpoint.computes else 0,
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
        ask.endpoint.has_messages or not ask.fields.startswith(_SEVERAL_PROMPTS, ask.prompt_at[0]),
        policy.tpot_slo_s,
        deps.region,
        prompt.by_tokens if prompt is not None else True,
    )
    circumstances = circumstances_of(request, pool, adapter, deps)
    rest, now, rested_s = pool_state.rest, circumstances.now, 0.0
    if now - rest.asked_at > AT_REST_S:
        rested_s = rest.asked(now)
    rest.asked_at = now
    return Placement(
        pool,
        pool_state,
        pool_state.policy_instances.get(routing.key) or pool_state.policy_instance(routing),
        request,
        circumstances,
        UNDECIDED,
        adapter,
        prompt,
        answers_like,
        rested_s=rested_s,
        destination=destination,
    )


def circumstances_of(request: RoutingRequest, pool: Pool, adapter: Adapter | None, deps: Deps, held: Held = Held.WAIT) -> Circumstances:
    """The inputs of a routing decision that change with time. Each absent subject costs one comparison: no prompt, no conversation, no
    adapter, every breaker closed, no capacity reserved for other tenants, every backend reached, no outage lately."""
    now = deps.clock()
    pool_state, breakers = deps.pool_states[pool.name], deps.live.breakers
    recovery, shares = pool_state.recovery, pool_state.tenant_shares
    adapters: Adapters | None = None
    if adapter is not None:
        found = deps.loras.where(pool.name, [backend.id for backend in pool.up], adapter)
        unable = found.unable | {backend: f"{NO_SLOT}{why}" for backend, why in found.busy.items()}
        adapters = Adapters(found.having, unable, found.load_s)
    shut = breakers.shut(request.lora, now) if breakers.troubled else ALL_CLOSED
    paused = HELD_BACK if pool_state.held_back(request.tenant, pool) and deps.live.directory.several_tenants else ""
    paused = COMING_BACK if recovery.rate != inf and recovery.must_wait(now) else paused
    contacts = deps.live.contacts
    if contacts.lost:
        shut = {**shut, **contacts.lost}
        paused = UNREACHED if contacts.none_left(pool.up_ids) else paused
    return Circumstances(
        now,
        deps.pool_states.index.match(request.chain, now, pool.up_ids) if request.chain else UNMATCHED,
        pool_state.sessions.holder(request.session) if request.session else "",
        adapters,
        shut,
        shares.usable_share(request.tenant, now) if shares.reserved_share else 1.0,
        held,
        paused,
    )


def decide(placement: Placement, deps: Deps, rng: Rng, held: Held = Held.WAIT) -> Placement:
    """Route the request on the current fleet, by its policy. Never suspends, reserves nothing and remembers nothing, so a request that
    waits is routed again whenever there may be capacity for it.

    Args:
        held: what it does where its best backend has enough to do for now.
    """
    pool = deps.live.fleet.pools[placement.pool.name]
    circumstances = circumstances_of(placement.request, pool, placement.adapter, deps, held)
    load_table, named = placement.pool_state.load_table, placement.named
    placement.pool_state.rest.asked_at = circumstances.now
    placement = msgspec.structs.replace(placement, pool=pool, circumstances=circumstances)
    if named:
        # sent at once where one of them can take it: its queue is what the picker has weighed
        among = circumstances._replace(shut=others_shut(pool, named, circumstances.shut), held=Held.SEND)
        found = routed(placement, place(placement.request, pool, load_table, placement.policy_instance, among, rng))
        if (route := in_named_order(found.route, named)).ranked:
            return msgspec.structs.replace(found, route=route)
    route = place(placement.request, pool, load_table, placement.policy_instance, circumstances, rng)
    return routed(placement, route)


def routed(placement: Placement, route: Route) -> Placement:
    """The placement with this route, on which backends that have the request's adapter come first where the policy does not count the
    seconds of a load itself."""
    adapters = placement.circumstances.adapters
    if adapters is not None and not placement.policy_instance.policy.in_seconds:
        route = with_adapter(route, adapters.there, placement.pool_state.load_table)
    return msgspec.structs.replace(placement, route=route)


def longest_context(placement: Placement) -> int:
    """The longest context, in tokens, of the pool's backends, up or not, where the prompt is too long for all of them; else 0."""
    load_table, request = placement.pool_state.load_table, placement.request
    tokens = request.prompt_tokens if request.exact else request.prompt_tokens // 2
    if not request.one_prompt:
        return 0
    rows = [load_table.row_of.get(backend.id) for backend in placement.pool.backends]
    contexts = [load_table.facts[row].context_tokens for row in rows if row is not None]
    return max(contexts, default=0) if all(0 < context <= tokens for context in contexts) else 0
