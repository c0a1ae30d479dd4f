"""A request comes under its tenant's policy: the parameters that it may set, and how it is treated, written into its Story."""

from domain.ask import Ask
from gateway.admission import check_parameters, urgency
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange
from gateway.http.openai.parameters import with_parameters
from gateway.rollouts.dealing import deal
from gateway.ruling import Governed
from gateway.story import Story
from policies.compile import ModelRule
from policies.parameters import with_prompt_defaults
from tenancy.grant import Grant


def come_under(found: Governed, ask: Ask, grant: Grant, exchange: Exchange, story: Story, deps: Deps) -> tuple[Ask, ModelRule]:
    """The Ask as its policy has it, and its model, dealt out where a rollout is about that.

    Raises:
        Fault: INVALID_VALUE or NOT_PERMITTED, it asks for more than the policy or its caller's rights let it.
    """
    policy, rule, story.rule = found.policy, found.model, found.rule
    if deps.live.rollouts.by_pool:
        assert story.caller is not None
        rule = deal(rule, ask, story.caller.tenant, policy, exchange.head.headers, story, deps)
    parameters = policy.parameters if story.template is None else with_prompt_defaults(story.template.parameters, policy.parameters)
    if parameters is not None:
        ask = with_parameters(ask, parameters)
    story.model = rule.name
    story.asked_model = ask.model if ask.model != rule.name else ""
    story.expose = policy.expose_headers
    story.placed_by = policy
    if policy.deadline_s is not None:
        story.end_at = min(story.end_at, story.body_at + policy.deadline_s)  # that of a model before it goes on
    story.output_cap = policy.max_output_tokens
    story.statistical = policy.statistical
    story.priority_class, story.retry = urgency(policy, grant.rights, ask, exchange.head.headers)
    check_parameters(grant.rights, ask)
    return ask, rule
