"""The steps of `lifecycle.py`, in the same order. This is where the siblings (routing, tenancy, backends) meet."""

from typing import Final

from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind, Retry
from domain.identity import Caller
from gateway.adapters import placed
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange, header_lines
from gateway.http.faults import render, render_event
from gateway.http.openai import interpret as interpret_body
from gateway.reply_headers import common_headers
from gateway.story import Story
from gateway.uncancelled import uncancelled
from policies.compile import ModelRule
from routing.fleet import Pool
from routing.schedule import Route, schedule
from tenancy.estimate import worst_case
from tenancy.hold import RELEASED, Closing, Hold, estimated, settled

JSON_TYPE: Final = b"application/json"

CLIENT_GONE_STATUS: Final = 499
"""Logged, never sent: nginx's word for a caller that left before there was an answer."""


def open_story(exchange: Exchange, deps: Deps) -> Story:
    """Begin the notebook; the caller's own request id is kept when it is sane."""
    deps.budget.request()
    now = deps.clock()
    own_id = deps.new_id()
    return Story(exchange.head.request_id() or own_id, now, deps.wall(), now, own_id)


def authenticate(exchange: Exchange, story: Story, deps: Deps) -> Caller:
    """The caller behind `Authorization: Bearer` or `x-api-key`.

    Raises:
        Fault: KEY_MISSING, or KEY_INVALID with one wording for unknown, expired, revoked and mistyped keys.
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
    caller = deps.live.keys.authenticate(token.decode("latin-1").strip(), deps.wall())
    if caller is None:
        raise Fault(Kind.KEY_INVALID, "The API key is not valid. Check it, or ask for a new one.")
    story.caller = caller
    return caller


async def interpret(endpoint: Endpoint, exchange: Exchange, caller: Caller, story: Story, deps: Deps) -> tuple[Ask, ModelRule]:
    """Body bytes to a checked Ask, and the policy's rule for its model.

    Raises:
        Fault: the body is late, large, not JSON or not acceptable; or the model is unknown or not this tenant's, which
            look the same.
    """
    story.ask_endpoint = endpoint.value
    content_type = exchange.head.headers.get(b"content-type", b"")
    if content_type != JSON_TYPE and content_type.partition(b";")[0].strip().lower() != JSON_TYPE:
        raise Fault(Kind.UNSUPPORTED_MEDIA, "Send the request as JSON, with the header 'content-type: application/json'.")
    body = await exchange.body()
    story.body_at = deps.clock()
    story.request_bytes = len(body)
    ask = interpret_body(endpoint, body)
    story.stream = ask.stream
    policies = deps.live.policies
    story.policy = policies.digest
    policy = policies.for_tenant(caller.tenant)
    rule = policy.models.get(ask.model) if policy is not None else None
    if policy is None or rule is None:
        raise Fault(Kind.MODEL_NOT_FOUND, f"The model '{ask.model}' does not exist or you do not have access to it.")
    story.model = rule.name
    story.expose = policy.expose_headers
    story.routing = policy.routing
    story.output_cap = policy.max_output_tokens
    return ask, rule


async def admit(caller: Caller, ask: Ask, story: Story, deps: Deps) -> Hold:
    """Reserve the worst case. Nothing is limited yet, so nothing is refused; the books are real."""
    hold = Hold(story.own_id, caller.tenant, worst_case(ask, story.output_cap))
    await deps.ledger.reserve(hold)
    return hold


def choose(ask: Ask, rule: ModelRule, story: Story, deps: Deps) -> tuple[Pool, Route]:
    """Place the Ask on the Fleet as it is now.

    Raises:
        Fault: NO_BACKEND when nobody in the pool can serve.
    """
    pool = deps.live.fleet.pools[rule.pool]
    story.pool, story.revision = pool.name, pool.revision
    route = schedule(ask, pool, deps.load, deps.clock(), deps.rng, story.routing)
    if rule.lora:
        adapter = deps.loras.adapter(pool.name, rule.lora)
        story.lora = adapter.served
        route = placed(route, adapter, pool, deps)
    story.route = route
    if not route.ranked:
        raise Fault(
            Kind.NO_BACKEND,
            "No engine can serve this model right now. Try again shortly.",
            retry=Retry(should=True, after_s=1.0 + 4.0 * deps.rng.random()),
            detail=route.explanation().sentence(),
        )
    return pool, route


def defect(error: Exception, story: Story, deps: Deps) -> Fault:
    """A defect of ours as a Fault; the details go to the log only."""
    deps.log_defect(error, story.request_id)
    return Fault(Kind.INTERNAL, "Something failed on our side. Try again; if it stays, quote the request id.", detail=type(error).__name__)


def refuse(fault: Fault, exchange: Exchange, story: Story, deps: Deps) -> None:
    """Tell the caller, in the shape that is still possible: a status, an error event, or nothing."""
    story.fault = fault
    if exchange.finished or exchange.gone or fault.kind is Kind.CLIENT_GONE:
        story.status = story.status or (200 if exchange.started else CLIENT_GONE_STATUS)
        if not exchange.finished:
            exchange.abandon()
    elif exchange.started:
        story.status = 200
        exchange.write(render_event(fault, story.request_id))
        exchange.cut()
    else:
        rendered = render(fault, story.request_id)
        story.status = rendered.status
        exchange.reply(rendered.status, header_lines(rendered.headers) + common_headers(exchange, story, deps), rendered.body)


async def settle(hold: Hold | None, story: Story, deps: Deps) -> None:
    """Close the hold exactly once: with the engine's usage, with what was counted, or with nothing."""
    if hold is None:
        return
    closing = _closing(hold, story)
    story.closing = closing.word
    if deps.ledger.in_process:
        await deps.ledger.close(hold, closing)  # never suspends, so nothing can cut it short
    else:
        await uncancelled(deps.ledger.close(hold, closing))


def _closing(hold: Hold, story: Story) -> Closing:
    if story.usage_reported:
        return settled(story.usage)
    if story.events:
        counted = hold.counted(story.events)
        story.usage = counted
        return estimated(counted)
    return RELEASED


def record(exchange: Exchange, story: Story, deps: Deps) -> None:
    """Close the Story; whoever observes requests reads the Record once."""
    deps.budget.active -= 1
    story.reply_bytes = exchange.written
    deps.observe(story.close(deps.clock()))
