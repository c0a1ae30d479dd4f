"""The step of `gateway/lifecycle.py` that answers a Response in the background and lets its request go on without its caller.

It stands behind `admit`, so that whatever the limits refuse is refused with a status, and not with a Response that fails later. The request
keeps its hold, its Story and its Record: it is one request, which goes through the same steps as every other one, and only the exchange
that it writes to is another one (`gateway/background/detached.py`).
"""

import asyncio
from typing import NoReturn

from domain import retry_after
from domain.faults import Fault, Kind
from domain.identity import Caller
from gateway.background.detached import detached
from gateway.background.runs import BackgroundRun, BackgroundRuns
from gateway.deps import Deps
from gateway.http.edge.attempt_faults import caller_gone
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.translation import Translation
from gateway.http.responses import DAY_S, ResponsesTranslation
from gateway.http.responses.background import BackgroundTranslation, count_events
from gateway.request.background_reads import send_events
from gateway.request.reply_headers import reply_headers
from gateway.request.response_state import no_room, state_away
from gateway.story import Story
from policies.compile import TenantPolicy
from tenancy.background import BackgroundBounds, BackgroundResponse, EventBatch, TooManyInBackground
from tenancy.responses import NoRoomForResponses, ResponsesAway


def goes_to_background(translation: Translation, policy: TenantPolicy, exchange: Exchange, deps: Deps) -> bool:
    """Whether the request asks to be run in the background; called once it is decided whether its Response is stored.

    Raises:
        Fault: INVALID_VALUE or UNSUPPORTED_PARAMETER where it asks for that and cannot have it.
    """
    if not isinstance(translation, ResponsesTranslation) or not translation.background:
        return False
    if exchange.own is not None:
        _refuse("a request of a batch has no caller who waits. Leave it out.")
    if translation.terms is None:
        if policy.responses is not None and deps.responses is not None:
            message = "A Response in the background has to be stored: send 'store': true, or leave out 'background'."
            raise Fault(Kind.INVALID_VALUE, message, param="store")
        _refuse("no Responses are stored here, as no policy says so (`responses`). Send 'stream': true and read the reply as it comes.")
    if not translation.terms.max_background:
        _refuse("the policy allows none (`responses.max_background`). Send 'stream': true and read the reply as it comes.")
    if deps.background is None:
        _refuse("this gateway runs nothing in the background. Send 'stream': true and read the reply as it comes.")
    return True


def _refuse(why: str) -> NoReturn:
    raise Fault(Kind.UNSUPPORTED_PARAMETER, f"The parameter 'background' is not supported here: {why}", param="background")


async def run_in_background(exchange: Exchange, caller: Caller, story: Story, deps: Deps) -> Exchange:
    """Keep the Response as queued, answer the caller, and return the exchange with which the request goes on.

    Raises:
        Fault: OVERLOADED, CONCURRENCY_LIMIT or QUOTA_SPENT where there is no room for a further Response; STATE_UNAVAILABLE; CLIENT_GONE.
    """
    if story.trace is not None:
        story.trace.begin("run_in_background", deps.clock())
    runs, asked = deps.background, exchange.translation
    assert runs is not None
    assert isinstance(asked, ResponsesTranslation)
    assert asked.terms is not None
    if exchange.gone:
        raise caller_gone()  # nobody would ever know the Response's id
    if runs.full:
        raise Fault(Kind.OVERLOADED, "Too many Responses are made in the background here. Try again shortly.", retry=retry_after.SOON)
    user = story.asked.user
    digest = deps.answers.digest_of_user(user) if user else ""
    translation = BackgroundTranslation(asked)
    run, told = _new_run(translation, caller, story, digest, runs)
    terms, new = asked.terms, run.began
    try:
        await runs.store.create(new, runs.worker, told, BackgroundBounds(terms.max_background, terms.max_bytes))
    except TooManyInBackground:
        most = f"{terms.max_background} Responses in the background"
        message = f"{most} are under way for this tenant, which is all that its policy allows. Wait for one, or cancel one."
        raise Fault(Kind.CONCURRENCY_LIMIT, message, param="background", retry=retry_after.SOON) from None
    except NoRoomForResponses:
        raise no_room() from None
    except ResponsesAway as error:
        raise state_away(error, deps) from None
    goes_on = run.exchange = detached(exchange, translation, run)
    goes_on.task = asyncio.current_task()
    if goes_on.task is not None:
        goes_on.task.add_done_callback(lambda _: run.task_over())
    runs.begin(run)
    _answer(exchange, asked.streams, new, story, deps)
    return goes_on


def _new_run(
    translation: BackgroundTranslation, caller: Caller, story: Story, digest: str, runs: BackgroundRuns
) -> tuple[BackgroundRun, EventBatch]:
    """A run that has not begun, and the first events of its Response."""
    terms = translation.terms
    assert terms is not None
    response, items, events = translation.queued()
    told = EventBatch(0, count_events(events) - 1, events)
    new = BackgroundResponse(
        id=translation.response_id,
        tenant=caller.tenant,
        created_unix=story.at_unix,
        expires_unix=story.at_unix + terms.keep_days * DAY_S,
        end_user=digest,
        last=told.last,
        lease_until_unix=runs.wall() + runs.times.lease_s,
        response=response,
        items=items,
    )
    began_unix = story.at_unix
    run = BackgroundRun(new, translation, terms.max_bytes, lambda: translation.stored(caller.tenant, began_unix, digest), runs)
    return run, told


def _answer(exchange: Exchange, streams: bool, new: BackgroundResponse, story: Story, deps: Deps) -> None:
    """Answer the caller with the Response as it is queued, or begin to send its events."""
    exchange.translation = None  # what is sent from here on is in the caller's API already
    if exchange.gone:
        return
    headers = reply_headers(exchange, story, None, deps, stream=streams)
    if not streams:
        exchange.reply(200, headers, new.response)
        return
    exchange.start(headers)
    exchange.task = deps.loop.create_task(send_events(exchange, new, -1, deps))
