"""The guard rules that `tidegate guard test` tries: those of a file, or those of a tenant's policy, made ready for each direction."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import typer

from gateway.cli.policy_files import read_policies
from gateway.cli.printing import err, fail
from guardrails.build import RuleUnusable, chain_of
from guardrails.chain import Chain
from guardrails.policy import DetectorRule, Direction, GuardPolicy, GuardRule
from policies.compile import PolicySet
from policies.yaml.located import read_yaml
from policies.yaml.problems import ConfigError, listing
from policies.yaml.validate import validated

Chains = Mapping[Direction, Chain]


def chains_of_file(file: Path) -> Chains:
    """The rules of a file; ends the command where they cannot be used."""
    try:
        policy = validated(GuardPolicy, read_yaml(file, None))
    except ConfigError as error:
        err.print(listing(error.problems), markup=False, soft_wrap=True)
        raise typer.Exit(2) from None
    try:
        return _chains(policy.rules, str(file))
    except RuleUnusable as error:
        fail(f"{file}: rule {error.rule}: {error}", code=2)


def chains_of_tenant(tenant: str, project: str, model: str, asked: Sequence[str], folder: Path | None, config: Path) -> Chains:
    """The rules for requests of a tenant; ends the command where the policies do not load, or have no such model or rule.

    Args:
        model: a model of the tenant; empty for the rules that apply whatever the model.
        asked: ids of rules that the request asks for.
    """
    policies = read_policies(folder, config, code=2)
    policy = policies.for_tenant(tenant)
    if policy is None:
        fail(f"there is no policy for {tenant}; there are: {_tenants(policies)}", code=2)
    if model and model not in policy.models:
        fail(f"the policy for {tenant} has no model {model[:64]!r}; there are: {', '.join(sorted(policy.models)) or 'none'}", code=2)
    if policy.guards is None:
        fail(f"the policy for {tenant} has no guards; try rules of a file with --rules", code=2)
    choice = policy.guards.of(project, policy.models[model].name if model else "", "")
    unknown = [name for name in asked if name not in choice.ids]
    if unknown:
        fail(f"--guards: there is no rule {unknown[0][:64]!r} here; there are: {', '.join(sorted(choice.ids)) or 'none'}", code=2)
    applying = choice.applied(frozenset(asked))
    rules = () if applying is None else applying.rules
    err.print(f"rules of {tenant}: {', '.join(rule.id for rule in rules) or 'none'}", markup=False, soft_wrap=True)
    return _chains(rules, tenant)


def _tenants(policies: PolicySet) -> str:
    names = sorted(policies.by_tenant)[:10]
    return ", ".join([*names, *(["…"] if len(policies.by_tenant) > len(names) else [])]) or "none"


def _chains(rules: Sequence[GuardRule], whose: str) -> Chains:
    left_out = [rule.id for rule in rules if isinstance(rule, DetectorRule)]
    if left_out:
        message = f"note: of {whose}, {', '.join(left_out)} would ask a detector over the network, and is left out here"
        err.print(message, markup=False, soft_wrap=True)
    directions: tuple[Direction, ...] = get_args(Direction)
    return {direction: chain_of(rules, direction) for direction in directions}
