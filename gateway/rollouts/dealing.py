"""Assigns a request to a variant (arm) of a rollout: decides which pool, or which version of a prompt, answers it."""

from collections.abc import Mapping
from typing import Final

import msgspec

from domain.ask import Ask
from domain.faults import Fault, Kind
from domain.identity import Caller
from gateway.deps import Deps
from gateway.request.permissions import sticky_key
from gateway.story import Story
from policies.compile import ModelRule, TenantPolicy
from policies.prompts.allowed import AllowedVersions
from policies.prompts.prompt import RegisteredPrompt
from policies.rollout.assignment import Arm

HEADER: Final = b"x-tidegate-rollout"
"""The header by which a tester chooses the arm."""
ARMS: Final = {arm.value: arm for arm in Arm}


def deal(
    rule: ModelRule, ask: Ask, tenant: str, policy: TenantPolicy, headers: Mapping[bytes, bytes], story: Story, deps: Deps
) -> ModelRule:
    """The rule with the pool that is to answer; the Story keeps the assignment.

    Raises:
        Fault: NOT_PERMITTED or INVALID_VALUE for a header that chooses the arm.
    """
    asked, rollouts = story.asked, deps.live.rollouts
    asked.dealt = None
    running = rollouts.by_pool.get(rule.pool)
    if running is None or not running.is_about(tenant, rule.name):
        return rule  # a header that chooses an arm is ignored here: no caller may notice other tenants' rollouts
    wanted_arm = asked_arm(headers.get(HEADER), policy)
    asked.dealt = rollouts.deal(
        rule.pool, tenant, rule.name, sticky_key(ask, asked.user, story.own_id), story.own_id, lambda pool: has_up(pool, deps), wanted_arm
    )
    if asked.dealt is None or asked.dealt.target == rule.pool:
        return rule
    return msgspec.structs.replace(rule, pool=asked.dealt.target)


def note_given_up(kind: Kind, story: Story, deps: Deps) -> None:
    """Count a request for its rollout when its pool has failed and another model is to answer. The Record will belong to that model,
    so only the rollout counts the failure here: otherwise a canary without capacity would look as good as one with capacity."""
    if story.asked.dealt is not None:
        deps.observe(msgspec.structs.replace(story.close(deps.clock()), outcome=kind.value, shadow=True, dealt_prompt=None))
        story.asked.dealt = None


def deal_prompt(
    ask: Ask, caller: Caller, headers: Mapping[bytes, bytes], story: Story, deps: Deps, prompt: RegisteredPrompt, allowed: AllowedVersions
) -> RegisteredPrompt:
    """The version of a prompt for a request that names no version; the Story keeps the assignment.

    Args:
        prompt: the version that the policy selects.
        allowed: the versions that the tenant may use.

    Raises:
        Fault: NOT_PERMITTED or INVALID_VALUE for a header that chooses the arm.
    """
    rollouts = deps.live.rollouts
    policy = deps.live.policies.for_tenant(caller.tenant)
    running = rollouts.by_prompt.get(prompt.name)
    if running is None or policy is None or not running.is_about(caller.tenant, ask.model):
        return prompt
    wanted_arm = asked_arm(headers.get(HEADER), policy)
    versions = {version.name: version for version in allowed.versions.values()}
    key = sticky_key(ask, story.asked.user, story.own_id)
    story.asked.dealt_prompt = rollouts.deal_prompt(prompt.name, caller.tenant, ask.model, key, versions.__contains__, wanted_arm)
    return prompt if story.asked.dealt_prompt is None else versions[story.asked.dealt_prompt.target]


def asked_arm(value: bytes | None, policy: TenantPolicy) -> Arm | None:
    """The arm that a tester's header asks for; None without a header. Raises Fault."""
    if value is None:
        return None
    if not policy.choose_arm:
        raise Fault(Kind.NOT_PERMITTED, f"The header '{HEADER.decode()}' may not be used here (choose_arm in the tenant's policy).")
    arm = ARMS.get(value.decode("latin-1").strip().lower())
    if arm is None:
        raise Fault(Kind.INVALID_VALUE, f"Invalid value for the header '{HEADER.decode()}': send one of {', '.join(ARMS)}.")
    return arm


def has_up(pool: str, deps: Deps) -> bool:
    """Whether this gateway has the pool, and a backend of it is up."""
    state = deps.live.fleet.pools.get(pool)
    return state is not None and bool(state.up)
