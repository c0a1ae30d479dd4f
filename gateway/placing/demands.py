"""From an Ask to a Demand: what the router has to know of a request, with no more work than this pool and policy need."""

from collections.abc import Mapping
from typing import Final

from backends.lora.residency import Adapter
from domain.ask import Ask
from gateway.deps import Deps
from gateway.placing.salts import salted
from gateway.placing.sessions import session_of
from gateway.prompt_chain import Prompt
from policies.compile import TenantPolicy
from routing.choosing import PolicyInstance
from routing.fleet import Pool
from routing.output_length import PRIOR
from routing.ports import RoutingRequest
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


def worth_reading(ask: Ask, pool: Pool, choosing: PolicyInstance) -> bool:
    """Whether anything about its placing can depend on what stands in the prompt: with one backend, or a policy that looks at no cache,
    nothing does, and then nobody reads it."""
    return len(pool.up) > 1 and not choosing.policy.blind and ask.endpoint.generates


async def prompt_of(ask: Ask, pool: Pool, adapter: Adapter | None, tenant: str, deps: Deps) -> Prompt:
    """The prompt as the router sees it. Waits a moment for a long one to be tokenised."""
    return await deps.prompts.read(ask, pool.name, salted(deps.salts, deps.salt_secret, tenant, pool, adapter).root, tenant)


def demand_of(
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
