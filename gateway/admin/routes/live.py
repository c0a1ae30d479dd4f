"""Live values of the gateway, as server-sent events: one sample a second for as long as the caller listens."""

from collections.abc import AsyncIterator
from typing import Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from gateway.admin.call import AdminCall
from gateway.admin.describe import READ_ERRORS, Asking
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import AdminProblem

router = APIRouter(route_class=GuardedRoute, tags=["Gateway"])

CHECK_EVERY: Final = 5
"""Samples after which the caller's credential is checked again: a revoked key stops listening as fast as it stops asking."""
EVENTS: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""`x-accel-buffering` keeps nginx from collecting events."""

encoder: Final = msgspec.json.Encoder()


@router.get("/live", responses=READ_ERRORS, summary="Live values, one sample a second")
async def live(call: Asking, request: Request) -> Response:
    """Stream samples of the gateway and its backends.

    The first event is `history`, a list of the samples that were kept without their backends; each further one is `sample`.
    """
    feed = call.parts.live
    if feed is None:
        raise AdminProblem(503, "no_supervisor", "This admin port belongs to no running gateway.")
    listening = feed.listen()
    kept, _ = await anext(listening)

    async def events() -> AsyncIterator[bytes]:
        yield b"event: history\ndata: " + encoder.encode(kept) + b"\n\n"
        told = 0
        try:
            async for _, sample in listening:
                told += 1
                if told % CHECK_EVERY == 0 and not await _still_allowed(call, request):
                    yield b'event: end\ndata: {"reason":"The credential does not count any more."}\n\n'
                    return
                yield b"event: sample\ndata: " + encoder.encode(sample) + b"\n\n"
        finally:
            await listening.aclose()

    return StreamingResponse(events(), headers=EVENTS, media_type="text/event-stream")


async def _still_allowed(call: AdminCall, request: Request) -> bool:
    """Whether the caller's credential still counts, with the roles that the stream began with."""
    try:
        now = await call.parts.authenticator.authenticate(request.headers.get("authorization", ""), "GET", "/live", call.address)
    except AdminProblem:
        return False
    return now.roles >= call.roles and now.tenant == call.principal.tenant
