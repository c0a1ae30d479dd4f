"""What callers read of Responses in the background, and how they cancel them: the parts of the routes of stored Responses that differ.

Any gateway on the database answers. A Response whose worker has died is found by its lease, and ends as failed when it is read: nobody has
to watch for it. It is not run again, since an engine may have worked for it, and a tool may have been called.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final

import msgspec

from domain.faults import Fault, Kind
from domain.identity import TenantId
from gateway.deps import Deps
from gateway.http.edge.exchange import NOBODY, Exchange
from gateway.http.edge.reader_pace import ReaderPace
from gateway.http.edge.taps import HEARTBEAT
from gateway.http.faults import render_event
from gateway.http.responses.background import events_after
from gateway.queue.refusals import stopping
from gateway.request.response_state import state_away, store_of
from tenancy.background import BackgroundResponse
from tenancy.responses import ResponsesAway

LOOK_S: Final = 0.5
"""Between two looks at a Response that another worker makes, for a caller who reads its events."""


NUMBER_CHARS: Final = 10
"""Digits of the number of an event, at most."""


class EventsAsked(msgspec.Struct, frozen=True):
    """A request for the events of a Response."""

    seen: BackgroundResponse
    after: int
    """The sequence number of the last event that the caller has; -1 for none."""


def events_asked(query: Mapping[str, str]) -> int | None:
    """The number behind which a caller wants events, as in `EventsAsked`; None where it wants the Response.

    Raises:
        Fault: INVALID_VALUE, a parameter is none.
    """
    stream, after = query.get("stream", "false").lower(), query.get("starting_after")
    if stream not in ("true", "false"):
        raise Fault(Kind.INVALID_VALUE, "Invalid value for 'stream': send 'true' or 'false'.", param="stream")
    if after is None:
        return None if stream == "false" else -1
    if stream == "false":
        raise Fault(Kind.INVALID_VALUE, "The parameter 'starting_after' needs 'stream=true'.", param="starting_after")
    if not (after.isascii() and after.isdigit() and len(after) <= NUMBER_CHARS):
        message = "Invalid value for 'starting_after': send the 'sequence_number' of an event."
        raise Fault(Kind.INVALID_VALUE, message, param="starting_after")
    return int(after)


def lost() -> Fault:
    """Why a Response failed whose worker has died."""
    return Fault(Kind.INTERNAL, "The gateway that made this Response stopped before it was complete. Send the request again.")


async def found(tenant: TenantId, response_id: str, deps: Deps) -> BackgroundResponse | None:
    """A Response in the background; where its worker has died, it has failed. Raises ResponsesAway."""
    runs = deps.background
    if runs is None:
        return None
    seen = await runs.store.find(tenant, response_id)
    if seen is not None and seen.is_lost(runs.wall()) and (tenant, response_id) not in runs.running:
        return await runs.end(tenant, response_id, lost(), where_lost=True)
    return seen


async def response_of(seen: BackgroundResponse, deps: Deps) -> bytes | None:
    """The Response as it stands, a JSON object; None where it was deleted meanwhile. Raises ResponsesAway."""
    if seen.response:
        return seen.response
    stored = await store_of(deps).get(seen.tenant, seen.id)
    return None if stored is None else stored.response


async def cancelled(tenant: TenantId, response_id: str, deps: Deps) -> BackgroundResponse | None:
    """The Response once it is over: it is cancelled unless it was over before. None where there is none. Raises ResponsesAway."""
    seen = await found(tenant, response_id, deps)
    if seen is None or seen.is_over or deps.background is None:
        return seen
    return await deps.background.end(tenant, response_id, None)


async def removed(tenant: TenantId, response_id: str, deps: Deps) -> bool:
    """Remove a Response in the background, and end its request; False where there is none. Raises ResponsesAway."""
    if deps.background is None:
        return False
    gone = await deps.background.store.discard(tenant, response_id)
    deps.background.stop(tenant, response_id)
    return gone


async def send_events(exchange: Exchange, seen: BackgroundResponse, after: int, deps: Deps) -> None:
    """Send the events behind a number, those that are stored and those that come, and end the reply behind the last one. The head of the
    reply is out. Whatever ends it early, the Response goes on.

    Args:
        after: the sequence number of the last event that the caller has.
    """
    reader = exchange.listener = ReaderPace()
    try:
        await _send_all(exchange, reader, seen, after, deps)
    except Fault as fault:
        exchange.listener = NOBODY
        if not (exchange.gone or reader.left):
            exchange.end_broken(render_event(fault, ""))
    except Exception as error:  # noqa: BLE001 - as in lifecycle.serve: a defect never hangs
        deps.log_defect(error, seen.id)
        exchange.cut()
    else:
        exchange.listener = NOBODY
        if not (exchange.gone or reader.left):
            exchange.end()
        elif not exchange.finished:
            exchange.abandon()


async def _send_all(exchange: Exchange, reader: ReaderPace, seen: BackgroundResponse, after: int, deps: Deps) -> None:
    """Send events until the last one is out or the reader has left. Raises Fault."""
    runs = deps.background
    assert runs is not None
    silent_since = deps.clock()
    heartbeat_s = deps.timeouts.heartbeat_s
    while not reader.left:
        changed = runs.changed(seen.tenant, seen.id)
        try:
            now = await found(seen.tenant, seen.id, deps)  # first, so that all events of one that is over are there
            batches = await runs.store.events(seen.tenant, seen.id, after)
        except ResponsesAway as error:
            raise state_away(error, deps) from None
        if now is None:
            raise Fault(Kind.RESPONSE_NOT_FOUND, "The Response was deleted.")
        for batch in batches:
            if not await reader.may_write():
                return
            exchange.write(events_after(batch, after))
            after, silent_since = batch.last, deps.clock()
        if batches:
            continue
        if now.is_over:
            return
        if exchange.draining and changed is None:
            raise stopping()  # another gateway goes on from here
        if heartbeat_s and deps.clock() - silent_since >= heartbeat_s:
            exchange.write(HEARTBEAT)
            silent_since = deps.clock()
        await _wait(changed)


async def _wait(changed: asyncio.Event | None) -> None:
    """Wait until the Response has changed, as far as this worker hears of it, and for a look at most."""
    if changed is None:
        await asyncio.sleep(LOOK_S)
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOOK_S):
            await changed.wait()
