"""The start and the end of a request: opens its Story, sends a fault to the caller, settles the hold once, and records the Story."""

from typing import Final

from domain.faults import Fault, Kind
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange, header_lines
from gateway.http.faults import render, render_event
from gateway.request.holds import OpenHold
from gateway.request.reply_headers import common_headers
from gateway.story import Story
from gateway.uncancelled import uncancelled

CLIENT_GONE_STATUS: Final = 499
"""Logged, never sent: nginx's status for a caller that left before there was an answer."""


def open_story(exchange: Exchange, deps: Deps) -> Story:
    """Open the request's Story; the caller's own request id is kept when it is valid."""
    deps.budget.active += 1
    deps.budget.arrived += 1
    now = deps.clock()
    own_id = deps.new_id()
    head = exchange.head
    headers = head.headers
    callers_id = head.request_id() if b"x-request-id" in headers else None
    trace, state = head.trace() if b"traceparent" in headers else (None, None)
    agent = headers.get(b"user-agent", b"")
    notes = None if deps.tracing is None else deps.tracing.opened(trace, state, now)
    return Story(callers_id or own_id, now, deps.wall(), now, own_id, exchange.client, agent, trace, notes)


def defect(error: Exception, story: Story, deps: Deps) -> Fault:
    """The Fault for an unexpected exception; the details go to the log only."""
    deps.log_defect(error, story.gateway_id)
    return Fault(Kind.INTERNAL, "Something failed on our side. Try again; if it stays, quote the request id.", detail=type(error).__name__)


def refuse(fault: Fault, exchange: Exchange, story: Story, deps: Deps) -> None:
    """Send the fault to the caller in the form that is still possible: a status, an error event, or nothing."""
    settled = story.settled
    settled.fault = fault
    fault.drop_traceback()
    if exchange.finished or exchange.gone or fault.kind is Kind.CLIENT_GONE:
        settled.status = settled.status or (200 if exchange.started else CLIENT_GONE_STATUS)
        if not exchange.finished:
            exchange.abandon()
    elif exchange.started:
        settled.status = 200
        if story.asked.stream:
            translation = exchange.translation
            exchange.end_broken(
                render_event(fault, story.gateway_id) if translation is None else translation.broken(fault, story.gateway_id)
            )
        elif exchange.chunked:
            exchange.cut()
        else:
            exchange.abandon()  # the end of its connection would look like the end of the reply
    else:
        translation = exchange.translation
        rendered = render(fault, story.request_id) if translation is None else translation.refusal(fault, story.request_id)
        settled.status = rendered.status
        exchange.reply(rendered.status, header_lines(rendered.headers) + common_headers(exchange, story, deps), rendered.body)


async def settle(hold: OpenHold | None, story: Story, deps: Deps) -> None:
    """Close the hold exactly once: with the engine's usage, with the estimated usage, or with nothing."""
    if story.trace is not None:
        story.trace.begin("settle", deps.clock())
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
    if story.looked_up.saved is not None:
        story.looked_up.saved_nanousd = hold.saved_nanousd(story.looked_up)
    if not hold.hold.groups:
        return
    if asked.statistical and settled.choices and settled.fault is None and closing.word == "settle":
        per_choice = -(-closing.usage.completion_tokens // settled.choices)
        deps.outputs.note(hold.hold.tenant, asked.model, per_choice, hold.output_cap)
    try:
        if deps.counters.in_process:
            await deps.counters.settle(hold.hold, actual)  # never suspends, so no cancellation can interrupt it
        else:
            await uncancelled(deps.counters.settle(hold.hold, actual))
    except Exception as error:  # noqa: BLE001 - a defect of the counters: its lease ends the hold, and the ledger has the request
        deps.log_defect(error, story.gateway_id)


def record(exchange: Exchange, story: Story, deps: Deps) -> None:
    """Close the Story; explanations, metrics, the access log, the ledger and rollouts read the Record once."""
    deps.budget.active -= 1
    story.settled.reply_bytes = exchange.written
    if story.trace is not None and deps.tracing is not None:
        policy = story.asked.tenant_policy
        deps.tracing.settle(story.trace, None if policy is None else policy.traces)
    finished = story.close(deps.clock())
    deps.decisions.end(story.placed.decision, finished)
    if story.attempt.captured is not None and deps.captures is not None:
        deps.captures.keep(story.attempt.captured, finished)
    deps.observe(finished)
