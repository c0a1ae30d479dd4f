"""The models and prompts of policies that still lead to the baseline of a rollout: their requests go back to it when it is closed. Pure."""

from collections.abc import Iterator, Mapping

from policies.compile import ModelRule, PolicySet, TenantPolicy
from policies.prompts.allowed import AllowedVersions
from policies.rollout.document import RolloutDocument
from policies.schema import EVERYONE


def uses_of_baseline(policies: PolicySet, document: RolloutDocument) -> Iterator[str]:
    """Each use of the rollout's baseline by a request that takes part in the rollout, in words, by tenant."""
    for policy in policies.policies():
        if not _takes_part(policy, policies, document):
            continue
        subject = "every other tenant" if policy.tenant == EVERYONE else f"tenant {policy.tenant}"
        if document.of == "prompt":
            if (prompt := _prompt_of(policy.prompts, document.baseline)) is not None:
                yield f"{subject}, prompt {prompt}"
            continue
        for name, rule in sorted(policy.models.items()):
            is_alias = name != rule.name
            if not is_alias and (document.models is None or name in document.models) and document.baseline in _pools(rule):
                yield f"{subject}, model {name}"


def _takes_part(policy: TenantPolicy, policies: PolicySet, document: RolloutDocument) -> bool:
    if document.tenants is None:
        return True
    if policy.tenant == EVERYONE:
        return any(tenant not in policies.by_tenant for tenant in document.tenants)
    return policy.tenant in document.tenants


def _pools(rule: ModelRule) -> set[str]:
    return {pool for _, pool in rule.shares} or {rule.pool}


def _prompt_of(prompts: Mapping[str, AllowedVersions], version: str) -> str | None:
    """The id of the prompt, when requests without a version may get this version (`id@version`)."""
    prompt_id, _, number = version.partition("@")
    allowed = prompts.get(prompt_id)
    if allowed is None:
        return None
    begins = (0.0, *(end for end, _ in allowed.shares))
    given = {which for begin, (end, which) in zip(begins, allowed.shares, strict=False) if end > begin}
    return prompt_id if int(number) in given else None
