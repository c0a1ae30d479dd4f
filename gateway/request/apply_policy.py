"""The tenant's policy applied to a request: its parameters, its class and its deadline, written into its Story."""

from domain.ask import Ask
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange
from gateway.http.openai.parameters import with_parameters
from gateway.request.permissions import check_parameters, urgency
from gateway.request.policy_match import PolicyMatch
from gateway.rollouts.dealing import deal
from gateway.story import Story
from policies.compile import ModelRule
from policies.parameters import with_prompt_defaults
from tenancy.grant import Grant


def apply_policy(match: PolicyMatch, ask: Ask, grant: Grant, exchange: Exchange, story: Story, deps: Deps) -> tuple[Ask, ModelRule]:
    """The Ask with the policy's parameters, and the rule of its model, dealt out where a rollout moves requests between pools.

    Raises:
        Fault: INVALID_VALUE or NOT_PERMITTED, the request asks for more than the policy or its caller's rights allow.
    """
    policy, rule, asked = match.policy, match.model, story.asked
    asked.rule = match.rule
    if deps.live.rollouts.by_pool:
        assert asked.caller is not None
        rule = deal(rule, ask, asked.caller.tenant, policy, exchange.head.headers, story, deps)
    parameters = policy.parameters if asked.template is None else with_prompt_defaults(asked.template.parameters, policy.parameters)
    if parameters is not None:
        ask = with_parameters(ask, parameters)
    asked.model = rule.name
    asked.asked_model = ask.model if ask.model != rule.name else ""
    asked.expose = policy.expose_headers
    asked.tenant_policy = policy
    if policy.deadline_s is not None:
        asked.end_at = min(asked.end_at, story.body_at + policy.deadline_s)  # the deadline of a model before a fallback goes on
    asked.output_cap = policy.max_output_tokens
    asked.statistical = policy.statistical
    asked.priority_class, asked.retry = urgency(policy, grant.rights, ask, exchange.head.headers)
    check_parameters(grant.rights, ask)
    return ask, rule
