"""The guard rules that apply to a request: those of its tenant's policy, and those that its key or the request itself asks for. Pure.

A key and a request can only add rules, and only rules of the policy that say `default_on: false`. A request that names a rule which does
not exist for it is refused, because its sender would take text for guarded that is not; so no other model answers it, either, whose policy
has no such rule. The refusal lists no rules: operators' rules are not told to callers who do not know their names. A key's tag that names
no rule adds nothing, so that a rule can be removed from a policy before it is removed from keys.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import structs

from domain.ask import Ask
from domain.faults import Fault, Kind
from domain.identity import Caller
from gateway.http.openai.controls import guard_names
from guardrails.guard_set import GuardSet
from policies.compile import TenantPolicy
from policies.guards import NO_RULES, GuardChoice
from policies.guards_shown import GUARD_TAG
from policies.ladder import Smaller

HEADER: Final = b"x-tidegate-guards"
ON: Final = "on"


def applying_guards(
    policy: TenantPolicy, model: str, rule: str, ask: Ask, caller: Caller, headers: Mapping[bytes, bytes]
) -> GuardSet | None:
    """The guard rules for a request; None for no rules.

    Args:
        model: the policy's name of the model that answers.
        rule: the name of the policy's rule that matches the request; empty for none.

    Raises:
        Fault: INVALID_VALUE for a rule that does not exist for the request.
    """
    choice = _choice(policy, model, rule, caller)
    asked = _named(ask, headers)
    unknown = next((name for name in asked if name not in choice.ids), None)
    if unknown is not None:
        source = "guardrails" if unknown in ask.guards else HEADER.decode()
        message = f"There is no guard rule {ascii(unknown)[:66]} for this request. Leave it out, or ask your operator for it."
        raise Fault(Kind.INVALID_VALUE, message, param=source)
    return choice.applied(frozenset((*asked, *tagged(caller))))


def tagged(caller: Caller) -> list[str]:
    """The rules that the tags of a caller's key ask for."""
    return [name.removeprefix(GUARD_TAG) for name, value in caller.tags if name.startswith(GUARD_TAG) and value == ON]


def with_guarded_steps(policy: TenantPolicy, rule: str, ask: Ask, caller: Caller, headers: Mapping[bytes, bytes]) -> TenantPolicy:
    """The policy with the steps of its degradation ladder alone that lead to models which have the rules that the request asks for."""
    asked = _named(ask, headers)
    if not asked:
        return policy
    steps = [
        step for step in policy.degrade if not isinstance(step, Smaller) or _choice(policy, step.model, rule, caller).ids.issuperset(asked)
    ]
    return policy if len(steps) == len(policy.degrade) else structs.replace(policy, degrade=tuple(steps))


def _choice(policy: TenantPolicy, model: str, rule: str, caller: Caller) -> GuardChoice:
    return NO_RULES if policy.guards is None else policy.guards.of(caller.project, model, rule)


def _named(ask: Ask, headers: Mapping[bytes, bytes]) -> tuple[str, ...]:
    """The rules that the request names in its body and its header. Raises Fault."""
    header = headers.get(HEADER)
    if header is None:
        return ask.guards
    words = [word.strip() for word in header.decode("latin-1").split(",")]
    return (*ask.guards, *guard_names([word for word in words if word], HEADER.decode()))
