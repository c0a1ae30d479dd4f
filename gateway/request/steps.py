"""The steps of `lifecycle.py`, in the same order. This is where the siblings (routing, tenancy, backends) meet."""

import asyncio
from functools import partial
from typing import Final

from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from domain.identity import Caller
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange, header_lines
from gateway.http.faults import render, render_event
from gateway.http.openai import interpret as interpret_body
from gateway.http.openai.prompts import PROMPT_HEADER, with_prompt
from gateway.http.openai.sizes import with_output_cap
from gateway.placement.place import prompt_of, worth_reading
from gateway.request.apply_policy import apply_policy
from gateway.request.degrade import HEADER as NO_OTHER
from gateway.request.fallback_chain import FallbackChain
from gateway.request.holds import OpenHold
from gateway.request.limit_replies import fault_of, refused_standing
from gateway.request.permissions import OUTPUT_METERS, PROMPT_METERS, check_ledger, check_prompt, counts, output_cap, sticky_key
from gateway.request.policy_match import Asked, match_policy
from gateway.request.reply_headers import common_headers
from gateway.rollouts.dealing import deal_prompt
from gateway.story import Story
from gateway.uncancelled import uncancelled
from policies.compile import ModelRule
from tenancy.estimate import likely_prompt, prompt_for_cap, worst_case
from tenancy.grant import Grant
from tenancy.hold import Admission, Hold, Refused
from tenancy.jwt import looks_like_token
from tenancy.limits import UNUSED, Amounts
from tenancy.rights import EVERYTHING

JSON_TYPE: Final = b"application/json"

UNCOUNTED: Final = Amounts()
"""The hold of a request that nothing limits."""

CLIENT_GONE_STATUS: Final = 499
"""Logged, never sent: nginx's word for a caller that left before there was an answer."""


def open_story(exchange: Exchange, deps: Deps) -> Story:
    """Begin the request's Story; the caller's own request id is kept when it is sane."""
    deps.budget.request()
    now = deps.clock()
    own_id = deps.new_id()
    return Story(exchange.head.request_id() or own_id, now, deps.wall(), now, own_id)


async def authenticate(exchange: Exchange, story: Story, deps: Deps) -> Caller:
    """The caller behind `Authorization: Bearer` or `x-api-key`: an API key, or where issuers are configured a token. Suspends only
    for a token signed with a key that is not known yet.

    Raises:
        Fault: KEY_MISSING, or KEY_INVALID with one wording for whatever is wrong with a key or a token; IDENTITY_UNAVAILABLE
            when its issuer's keys could never be read.
    """
    headers = exchange.head.headers
    given = headers.get(b"authorization")
    token = b""
    if given is not None:
        scheme, _, token = given.partition(b" ")
        if scheme.lower() != b"bearer":
            token = b""
    token = token or headers.get(b"x-api-key", b"")
    if not token:
        raise Fault(Kind.KEY_MISSING, "You did not provide an API key. Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
    text, now_unix = token.decode("latin-1").strip(), deps.wall()
    if deps.tokens is not None and looks_like_token(text):
        caller = await deps.tokens.authenticate(text, now_unix, deps.live)
    else:
        caller = deps.live.directory.keys.authenticate(text, now_unix)
    if caller is None:
        raise _invalid_key()
    story.asked.caller = caller
    return caller


def _invalid_key() -> Fault:
    return Fault(Kind.KEY_INVALID, "The API key is not valid. Check it, or ask for a new one.")


def grant_of(caller: Caller, deps: Deps) -> Grant:
    """The caller's rights and limits.

    Raises:
        Fault: KEY_INVALID when the key, or the project of a token, was taken away since it was looked at.
    """
    directory, now_unix = deps.live.directory, deps.wall()
    if caller.by_token:
        grant = directory.for_tenant(caller.tenant, caller.project, now_unix)
        if grant is None:
            raise _invalid_key()
        return grant
    try:
        return directory.grant(caller.key_id, now_unix)
    except KeyError:
        raise _invalid_key() from None


async def interpret(endpoint: Endpoint, exchange: Exchange, caller: Caller, story: Story, deps: Deps) -> tuple[Ask, ModelRule, Grant]:
    """Body bytes to a checked Ask, the policy's rule for its model, and what its caller may do.

    Raises:
        Fault: the body is late, large, not JSON or not acceptable; it asks for more than the caller may; or the model is unknown
            or not this caller's, which look the same.
    """
    facts, head = story.asked, exchange.head
    facts.endpoint = endpoint.value
    content_type = head.headers.get(b"content-type", b"")
    if content_type != JSON_TYPE and content_type.partition(b";")[0].strip().lower() != JSON_TYPE:
        raise Fault(Kind.UNSUPPORTED_MEDIA, "Send the request as JSON, with the header 'content-type: application/json'.")
    body = await exchange.body()
    story.body_at = deps.clock()
    facts.request_bytes = len(body)
    ask = interpret_body(endpoint, body, head.headers.get(PROMPT_HEADER))
    facts.stream = ask.stream
    facts.user = caller.user or ask.user
    grant = grant_of(caller, deps)
    facts.organisation = grant.holder.organisation
    policies = deps.live.policies
    facts.policy_digest = policies.digest
    key = sticky_key(ask, facts.user, story.own_id)
    if ask.template is not None:
        dealt = partial(deal_prompt, ask, caller, head.headers, story, deps)
        ask, facts.template = with_prompt(ask, policies.prompts_for(caller.tenant), key, dealt)
    asked = Asked(ask, caller, facts.user, head.headers, story.at_unix)
    match = match_policy(policies, asked, grant.rights, key)
    if match is None:
        raise Fault(Kind.MODEL_NOT_FOUND, f"The model '{ask.model}' does not exist or you do not have access to it.")
    if match.model.fallback and NO_OTHER not in asked.headers:
        facts.chain = FallbackChain(policies, asked, match, grant.rights, key)
    return *apply_policy(match, ask, grant, exchange, story, deps), grant


async def admit(caller: Caller, ask: Ask, rule: ModelRule, grant: Grant, story: Story, deps: Deps) -> tuple[Ask, OpenHold]:
    """Reserve the worst case in every limit at once, of the output what is likely where the policy says so; the Ask comes back with
    a cap on its output where a limit needs one.

    Raises:
        Fault: the prompt is longer than the caller's may be, a limit refuses, or money limits it and the ledger's disk is full;
            nothing is reserved then.
    """
    rights, live, asked, settled = grant.rights, deps.live, story.asked, story.settled
    price = live.directory.prices.at(rule.name, live.fleet.pools[rule.pool].revision, story.at_unix)
    groups = grant.groups(rule.name, asked.user)
    if not groups and rights is EVERYTHING:
        each = ask.max_output_tokens if ask.max_output_tokens is not None else asked.output_cap
        hold = Hold(story.own_id, caller.tenant, UNCOUNTED)
        return ask, deps.holds.open(hold, price, story, likely_prompt(ask, None), each, ask.sequences)
    if deps.ledger_full():
        check_ledger(groups, deps.rng.random())
    tokens = None
    if rights.max_input_tokens is not None or counts(groups, PROMPT_METERS):
        tokens = await _counted(caller, ask, rule, story, deps)
    prompt = likely_prompt(ask, tokens)
    check_prompt(rights, prompt_for_cap(ask, tokens))
    cap = output_cap(rights, asked.output_cap, deps.context_tokens.get(rule.pool), prompt)
    if rights.max_output_tokens is not None or counts(groups, OUTPUT_METERS):
        ask = with_output_cap(ask, cap)
    usual = deps.outputs.usual(caller.tenant, rule.name) if asked.statistical else None
    hold = Hold(story.own_id, caller.tenant, worst_case(ask, tokens, cap, price, usual), groups)
    if groups:
        admission = await _decided(hold, deps)
        settled.degraded = admission.degraded
        settled.choices = ask.choices
        if isinstance(admission, Refused):
            settled.standings = (refused_standing(admission),)
            raise fault_of(admission, hold.amounts, deps.rng.random())
        settled.standings = admission.standings
    each = ask.max_output_tokens if ask.max_output_tokens is not None else cap
    return ask, deps.holds.open(hold, price, story, prompt, each, ask.sequences)


async def _counted(caller: Caller, ask: Ask, rule: ModelRule, story: Story, deps: Deps) -> int | None:
    """The prompt's tokens. A prompt that is read for placing anyway is read once."""
    pool = deps.live.fleet.pools[rule.pool]
    policy = story.asked.tenant_policy
    if policy is None or not worth_reading(ask, pool, deps.grounds[pool.name].choosing(policy.routing)):
        return await deps.prompt_counts.count(ask, rule.pool)
    adapter = deps.loras.adapter(pool.name, rule.lora) if rule.lora else None
    story.asked.prompt = await prompt_of(ask, pool, adapter, caller.tenant, deps)
    return await deps.prompts.count(story.asked.prompt, ask, rule.pool, caller.tenant)


async def _decided(hold: Hold, deps: Deps) -> Admission:
    try:
        return await deps.counters.admit(hold)
    except asyncio.CancelledError:
        # the store may have opened it all the same, and nobody would settle it
        await uncancelled(deps.counters.settle(hold, UNUSED))
        raise


def defect(error: Exception, story: Story, deps: Deps) -> Fault:
    """A defect of ours as a Fault; the details go to the log only."""
    deps.log_defect(error, story.request_id)
    return Fault(Kind.INTERNAL, "Something failed on our side. Try again; if it stays, quote the request id.", detail=type(error).__name__)


def refuse(fault: Fault, exchange: Exchange, story: Story, deps: Deps) -> None:
    """Tell the caller, in the shape that is still possible: a status, an error event, or nothing."""
    settled = story.settled
    settled.fault = fault
    fault.let_go()
    if exchange.finished or exchange.gone or fault.kind is Kind.CLIENT_GONE:
        settled.status = settled.status or (200 if exchange.started else CLIENT_GONE_STATUS)
        if not exchange.finished:
            exchange.abandon()
    elif exchange.started:
        settled.status = 200
        exchange.write(render_event(fault, story.request_id))
        exchange.cut()
    else:
        rendered = render(fault, story.request_id)
        settled.status = rendered.status
        exchange.reply(rendered.status, header_lines(rendered.headers) + common_headers(exchange, story, deps), rendered.body)


async def settle(hold: OpenHold | None, story: Story, deps: Deps) -> None:
    """Close the hold exactly once: with the engine's usage, with what was counted, or with nothing."""
    if hold is None:
        return
    deps.holds.close(hold)
    asked, settled = story.asked, story.settled
    closing = hold.closing()
    actual = hold.charged(closing)
    settled.closing = closing.word
    settled.usage = closing.usage
    if story.placed.on_used is not None:
        story.placed.on_used(closing.usage)
    settled.units = actual.units
    settled.cost_nanousd = actual.cost_nanousd
    settled.price_id = hold.price.id
    if not hold.hold.groups:
        return
    if asked.statistical and settled.choices and settled.fault is None and closing.word == "settle":
        each = -(-closing.usage.completion_tokens // settled.choices)
        deps.outputs.note(hold.hold.tenant, asked.model, each, hold.output_cap)
    try:
        if deps.counters.in_process:
            await deps.counters.settle(hold.hold, actual)  # never suspends, so nothing can cut it short
        else:
            await uncancelled(deps.counters.settle(hold.hold, actual))
    except Exception as error:  # noqa: BLE001 - a defect of the counters: its lease ends the hold, and the ledger has the request
        deps.log_defect(error, story.request_id)


def record(exchange: Exchange, story: Story, deps: Deps) -> None:
    """Close the Story; metrics, the access log, the ledger and rollouts read the Record once."""
    deps.budget.active -= 1
    story.settled.reply_bytes = exchange.written
    deps.observe(story.close(deps.clock()))
