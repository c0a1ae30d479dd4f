"""The step of `gateway/lifecycle.py` that turns body bytes into a checked Ask, finds its policy and applies it."""

from functools import partial
from typing import Final

from msgspec import structs

from backends.forms import FORM
from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from domain.identity import Caller
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange
from gateway.http.openai import check_caps
from gateway.http.openai import interpret as interpret_body
from gateway.http.openai.audio import form_document
from gateway.http.openai.images import with_images
from gateway.http.openai.parameters import check_closed, with_parameters
from gateway.http.openai.prompts import PROMPT_HEADER, with_prompt
from gateway.http.openai.realtime import session_body, without_guards
from gateway.request.authenticate import grant_of
from gateway.request.degrade import HEADER as DEGRADE_HEADER
from gateway.request.fallback_chain import FallbackChain
from gateway.request.fetch_images import fetch_images
from gateway.request.guards_asked import HEADER as GUARDS_HEADER
from gateway.request.guards_asked import applying_guards
from gateway.request.permissions import CLASS_HEADER, RETRY_HEADER, check_parameters, urgency
from gateway.request.policy_match import Asked, PolicyMatch, match_policy
from gateway.request.response_state import continuing, decide_storing, keep_chat
from gateway.request.run_in_background import goes_to_background
from gateway.rollouts.dealing import deal, deal_prompt
from gateway.story import Story
from policies.caps import USUAL_CAPS
from policies.compile import ModelRule
from policies.parameters import CLOSED, with_prompt_defaults
from tenancy.grant import Grant
from tenancy.rights import EVERYTHING

JSON_TYPE: Final = b"application/json"


async def interpret(endpoint: Endpoint, exchange: Exchange, caller: Caller, story: Story, deps: Deps) -> tuple[Ask, ModelRule, Grant]:
    """The checked Ask from the body bytes, the policy's rule for its model, and the caller's rights and limits.

    Raises:
        Fault: the body is late, large, not JSON or not acceptable; it asks for more than the caller's rights allow; the Response that it
            continues cannot be had; or the model is unknown or not allowed for this caller, which give the same answer.
    """
    if story.trace is not None:
        story.trace.begin("interpret", deps.clock())
    facts, head = story.asked, exchange.head
    translation = exchange.translation
    facts.endpoint = endpoint.path if translation is None else translation.path
    content_type = head.headers.get(b"content-type", b"")
    if (content_type != JSON_TYPE or endpoint.sound == "in") and not endpoint.duplex:
        check_type(content_type, endpoint)
    policies = deps.live.policies
    policy = policies.by_tenant.get(caller.tenant, policies.everyone)
    caps, bodies, links = (USUAL_CAPS, (), False) if policy is None else (policy.widest_caps, policy.body_caps, policy.may_fetch_images)
    received = exchange.received
    body = (
        received
        if exchange.complete and type(received) is bytes and not (bodies or head.coding)
        else await exchange.body(bodies, caller.tenant)
    )
    story.body_at = deps.clock()
    facts.request_bytes = len(body)
    upload = b""
    if translation is not None:
        body = translation.request(body)
        if translation.earlier:
            body = await continuing(translation, exchange, caller, policy, deps)
            facts.request_bytes = len(body)  # the conversation counts as if it had been sent
    elif endpoint.duplex:
        body = session_body(head)
    elif endpoint.sound == "in":
        body, upload = form_document(content_type, body)
    ask = interpret_body(endpoint, body, head.headers.get(PROMPT_HEADER), head.deployment, caps, links=links)
    if upload:
        ask = structs.replace(ask, upload=upload)
    facts.stream = ask.stream
    facts.user = caller.user or ask.user
    grant = grant_of(caller, deps)
    facts.organisation = grant.holder.organisation
    facts.policy_digest = policies.digest
    key = ask.session or facts.user or story.own_id  # the sticky key
    if ask.template is not None:
        facts.variables = ask.template.variables
        choose_version = partial(deal_prompt, ask, caller, head.headers, story, deps)
        ask, facts.template = with_prompt(ask, policies.prompts_for(caller.tenant), key, choose_version)
    asked = Asked(ask, caller, facts.user, head.headers, story.at_unix)
    match = match_policy(policies, asked, grant.rights, key)
    if match is None:
        raise Fault(Kind.MODEL_NOT_FOUND, f"The model '{ask.model}' does not exist or you do not have access to it.")
    treated, rule = apply_policy(match, ask, grant, exchange, story, deps)
    if ask.image_links:
        images = await fetch_images(ask, match.policy, caller.tenant, exchange, story, deps)
        treated, asked = with_images(treated, images), structs.replace(asked, ask=with_images(ask, images))
    if translation is not None:
        decide_storing(translation, match.policy, caller.tenant, deps)
        exchange.to_background = goes_to_background(translation, match.policy, exchange, deps)
    elif "store" in ask.names:
        keep_chat(ask, exchange, match.policy, caller.tenant, deps)
    if match.model.fallback and DEGRADE_HEADER not in asked.headers:
        facts.chain = FallbackChain(policies, asked, match, grant.rights, key)
    return treated, rule, grant


def check_type(content_type: bytes, endpoint: Endpoint) -> None:
    """Check the type of a body. Raises Fault: UNSUPPORTED_MEDIA."""
    kind = content_type.partition(b";")[0].strip().lower()
    if endpoint.sound == "in":
        if kind != FORM:
            raise Fault(Kind.UNSUPPORTED_MEDIA, "Send the request as a form, with the header 'content-type: multipart/form-data'.")
    elif kind != JSON_TYPE:
        raise Fault(Kind.UNSUPPORTED_MEDIA, "Send the request as JSON, with the header 'content-type: application/json'.")


def apply_policy(match: PolicyMatch, ask: Ask, grant: Grant, exchange: Exchange, story: Story, deps: Deps) -> tuple[Ask, ModelRule]:
    """The Ask with the policy's parameters, and the rule of its model, with the pool that a rollout assigned where one is active.

    Raises:
        Fault: INVALID_VALUE, UNSUPPORTED_PARAMETER or NOT_PERMITTED where the request asks for more than the policy or its caller's
            rights allow, or for a guard rule that there is not.
    """
    policy, rule, asked = match.policy, match.model, story.asked
    asked.rule = match.rule
    if deps.live.rollouts.by_pool:
        assert asked.caller is not None
        if exchange.own is not None and exchange.own.pool:
            rule = structs.replace(rule, pool=exchange.own.pool)
        else:
            rule = deal(rule, ask, asked.caller.tenant, policy, exchange.head.headers, story, deps)
    if policy.caps is not policy.widest_caps:
        check_caps(ask, policy.caps)
    if policy.body_caps:
        exchange.check_body(asked.request_bytes + asked.image_bytes, policy.caps.body_bytes)
    parameters = policy.parameters if asked.template is None else with_prompt_defaults(asked.template.parameters, policy.parameters)
    if not CLOSED.isdisjoint(ask.names):
        check_closed(ask, parameters)
    if parameters is not None:
        ask = with_parameters(ask, parameters)
    asked.model = rule.name
    asked.asked_model = ask.model if ask.model != rule.name else ""
    asked.expose = policy.expose_headers
    asked.tenant_policy = policy
    if policy.guards is not None or ask.guards or GUARDS_HEADER in exchange.head.headers:
        assert asked.caller is not None
        asked.guards = applying_guards(policy, rule.name, match.rule, ask, asked.caller, exchange.head.headers)
        if ask.endpoint.duplex and asked.guards is not None:
            raise without_guards()
    if policy.deadline_s is not None:
        asked.end_at = min(asked.end_at, story.body_at + policy.deadline_s)  # after a fallback, the first model's deadline still counts
    asked.output_cap = policy.max_output_tokens
    asked.statistical = policy.statistical
    rights, headers = grant.rights, exchange.head.headers
    if ask.flex or CLASS_HEADER in headers or RETRY_HEADER in headers:
        asked.priority_class, asked.retry = urgency(policy, rights, ask, headers)
    else:
        asked.priority_class, asked.retry = max(policy.priority_class, rights.priority_class), False
    if rights is not EVERYTHING:
        check_parameters(rights, ask, asked.endpoint)
    return ask, rule
