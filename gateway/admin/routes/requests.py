"""Finished requests: the list, one request with its timeline, and a stream of those that finish now."""

from collections.abc import AsyncIterator, Collection
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response, StreamingResponse

from domain.strict import Strict
from gateway.admin.access import CONTENT_READERS, ROLE_TABLE
from gateway.admin.call import NO_STORE, AdminCall, answer
from gateway.admin.describe import MAX_UNIX, READ_ERRORS, Asking, PageQuery, decode_cursor, encode_cursor
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import RETRY, AdminProblem, not_found
from gateway.request_log.collector import entry_of
from gateway.request_log.reader import RequestContent, RequestLog
from gateway.request_log.timeline import TimelineStep, slowest_step, timeline
from gateway.telemetry.access_log import AccessLogEntry
from tenancy.money import dollars_of
from tenancy.request_log import Cursor, LoggedRequest, RequestFilter

router = APIRouter(route_class=GuardedRoute, tags=["Requests"])

LIVE_EVERY_S: Final = 1.0
"""Between two updates of a stream: a person reads no faster."""
LIVE_ITEMS: Final = 100
"""Requests of one update; of more the newest are sent."""
HEARTBEAT_EVERY: Final = 10
"""Updates without a request until a comment is sent, so that proxies keep the connection."""
CHECKED_EVERY: Final = 5
"""Updates until the caller's key is checked again: as soon as a revoked key is refused everywhere else."""
MOST_STREAMS: Final = 16
"""Streams that are open at once: each takes one of the admin port's 64 requests for as long as it lasts."""
LIVE_ROUTE: Final = ("GET", "/requests/live")

Label = Annotated[str, Field(max_length=256, description="Only requests with this value; empty for any.")]


class LiveQuery(Strict):
    """The requests to show: those that meet every condition that is set."""

    tenant: Label = ""
    project: Label = ""
    key_id: Label = ""
    endpoint: Label = ""
    model: Label = ""
    pool: Label = ""
    backend: Label = ""
    rule: Label = ""
    cache: Label = ""
    outcome: Annotated[str, Field(max_length=64, description="`ok`, or a [kind of fault](faults.md); empty for any.")] = ""
    failed: bool = Field(default=False, strict=False, description="Only requests that did not end well.")
    min_duration_ms: float = Field(
        default=0, strict=False, ge=0, le=1e9, allow_inf_nan=False, description="Only requests that took so long or longer."
    )

    def wanted(self, call: AdminCall, since_unix: float = 0.0, until_unix: float | None = None) -> RequestFilter:
        """The filter, within what the caller may see. Raises AdminProblem 404 for another tenant."""
        if call.tenant is not None and self.tenant not in ("", call.tenant):
            raise not_found()
        same = ("project", "key_id", "endpoint", "model", "pool", "backend", "rule", "cache", "outcome", "failed")
        return RequestFilter(
            tenant=call.tenant or self.tenant,
            min_duration_us=round(self.min_duration_ms * 1000),
            since_us=round(since_unix * 1e6),
            until_us=None if until_unix is None else round(until_unix * 1e6),
            **{name: getattr(self, name) for name in same},
        )


class RequestsQuery(PageQuery, LiveQuery):
    """The page of requests to show."""

    since_unix: float = Field(
        default=0, strict=False, ge=0, le=MAX_UNIX, allow_inf_nan=False, description="Only requests that began then or later."
    )
    until_unix: float | None = Field(
        default=None, strict=False, ge=0, le=MAX_UNIX, allow_inf_nan=False, description="Only requests that began before."
    )
    order: Literal["newest", "slowest"] = Field(default="newest", description="The newest first, or those first that took longest.")
    records: bool = Field(
        default=False, strict=False, description="Whether `record` has every key of the access log, as `tidegate simulate` replays it."
    )


class RequestRow(BaseModel):
    """One finished request in short."""

    request_id: str = Field(description="The gateway's own id, as in `x-tidegate-request-id`.")
    at_unix: float = Field(description="When its head was complete.")
    tenant: str
    project: str
    key_id: str
    endpoint: str
    model: str
    outcome: str = Field(description="`ok`, or the [kind of fault](faults.md).")
    status: int
    duration_ms: float
    ttft_ms: float | None = Field(description="To the first token; of an answer that is not streamed, to the whole of it.")
    queue_ms: float
    slowest_step: str = Field(description="The step of its timeline that took longest; empty for none.")
    slowest_step_ms: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost_usd: str
    backend: str
    pool: str
    attempts: int
    stream: bool
    rule: str
    cache: str
    priority_class: str
    guard: str
    trace_id: str
    has_content: bool = Field(description="Whether its texts are kept.")
    record: dict[str, Any] | None = Field(default=None, description="Every key of its line in the access log, where that was asked for.")


class RequestPage(BaseModel):
    """Finished requests."""

    items: list[RequestRow]
    next_cursor: str | None
    store: str = Field(description="Where they are kept: `memory`, `sqlite` or `postgresql`.")
    dropped: int = Field(description="Requests that this gateway could not keep, since its admin process started.")


class StepShown(BaseModel):
    """One step of a request."""

    step: str = Field(
        description="`body`, `gateway`, `queue`, `fallback`, `lora`, `first_token`, `answer`, `engine`, `guards`, `decode`, `cache` or "
        "`delivery`."
    )
    start_ms: float = Field(description="From the beginning of the request.")
    length_ms: float
    note: str = Field(description="The step in words.")


class ContentKept(BaseModel):
    """The texts of a request, as its tenant's policy lets them be kept."""

    prompt: str
    answer: str
    prompt_cut: bool = Field(description="Whether the text was longer than is kept.")
    answer_cut: bool
    redacted: list[str] = Field(description="Kinds of what was redacted.")


class RequestShown(RequestRow):
    """One finished request."""

    caller_request_id: str
    detail: str = Field(description="For operators: the cause behind a fault.")
    asked_model: str
    revision: str
    lora: str
    queued: str
    queued_ahead: int
    overhead_ms: float
    decode_ms: float | None
    request_bytes: int
    reply_bytes: int
    reasoning_tokens: int
    closing: str
    degraded: bool
    prefill: str
    rollout: str
    arm: str
    prompt: str
    policy: str
    user: str = Field(description="The end user's label, where `log.end_user` is on.")
    client: str
    user_agent: str
    timeline: list[StepShown] = Field(description="Where its time went, in order.")
    failed: list[str] = Field(description="Backends whose attempt failed before another one was tried.")
    hedged: list[str]
    continued: int
    fell_back: list[str] = Field(description="Models that could not answer, and how each failed.")
    steps: list[str] = Field(description="Steps of the degradation ladder that were applied.")
    passed_over: list[str]
    limits: list[str] = Field(description="Limits whose soft threshold it crossed, in words.")
    slo_missed: list[str] = Field(description="Service levels of its tenant's policy that it missed.")
    explanation: str | None = Field(description="The path of its routing decision; null for a request that was not routed.")
    content: ContentKept | None = Field(description="Its texts; null where none are kept, or the caller may not read them.")


@router.get("/requests", response_model=RequestPage, responses=READ_ERRORS, summary="List finished requests")
async def requests(call: Asking, query: Annotated[RequestsQuery, Query()]) -> Response:
    """List finished requests of every gateway that shares the log, as soon as a second after their end; a tenant-admin sees those of its
    tenant."""
    log = _log_of(call)
    after = decode_cursor(query.cursor, Cursor)
    found = await log.page(query.wanted(call, query.since_unix, query.until_unix), query.order, after, query.limit + 1)
    shown, last = found[: query.limit], found[query.limit - 1 : query.limit]
    more = len(found) > query.limit
    cursor = encode_cursor((last[0].duration_us, last[0].id) if query.order == "slowest" else last[0].place) if more else None
    collector = log.collector
    items = _rows(shown, await log.with_content(shown), records=query.records)
    return answer(200, {"items": items, "next_cursor": cursor, "store": collector.store.kind, "dropped": collector.lost})


@router.get(
    "/requests/live",
    responses={**READ_ERRORS, 200: {"content": {"text/event-stream": {}}, "description": "Server-sent events."}},
    response_class=StreamingResponse,
    summary="Watch requests finish",
)
async def live(call: Asking, request: Request, query: Annotated[LiveQuery, Query()]) -> Response:
    """Send finished requests as they finish, once a second: events `requests` with `items` and how many were `dropped`, comments while
    there are none, and `end` with the reason when the caller's key is no longer valid."""
    log = _log_of(call)
    wanted = query.wanted(call)
    if log.streams >= MOST_STREAMS:
        raise AdminProblem(503, "overloaded", f"{MOST_STREAMS} streams of live requests are open. Close one, or try later.", headers=RETRY)
    authorization, address = request.headers.get("authorization", ""), call.address
    return StreamingResponse(
        _events(log, call, wanted, authorization, address), media_type="text/event-stream", headers={**NO_STORE, "x-accel-buffering": "no"}
    )


@router.get("/requests/{request_id}", response_model=RequestShown, responses=READ_ERRORS, summary="Show a finished request")
async def one(
    call: Asking,
    request_id: Annotated[
        str, Path(pattern=r"^[A-Za-z0-9._:-]{1,64}$", description="The request id in `x-tidegate-request-id` or the access log.")
    ],
) -> Response:
    """Show where the time of a request went, what it met on its way, and its texts where they are kept and the caller may read them."""
    log = _log_of(call)
    found = await log.get(request_id, call.tenant)
    if found is None:
        raise not_found()
    content = await log.content(found) if call.roles & CONTENT_READERS else None
    kept = await log.with_content([found])
    return answer(200, _whole(found, has_content=found.id in kept, content=content))


def _log_of(call: AdminCall) -> RequestLog:
    log = call.parts.requests
    if log is None:
        raise AdminProblem(503, "store_unavailable", "This gateway keeps no request log.")
    return log


async def _events(log: RequestLog, call: AdminCall, wanted: RequestFilter, authorization: str, address: str) -> AsyncIterator[bytes]:
    log.streams += 1
    watcher = log.collector.watch()
    quiet = turn = 0
    try:
        yield b": live\n\n"
        while True:
            await log.sleep(LIVE_EVERY_S)
            turn += 1
            if turn % CHECKED_EVERY == 0 and (reason := await _refusal(call, authorization, address)):
                yield b"event: end\ndata: %b\n\n" % msgspec.json.encode({"reason": reason})
                return
            found, missed = watcher.take()
            shown = [one for one in found if wanted.covers(one)]
            quiet = 0 if shown or missed else quiet + 1
            if quiet == 0:
                rows = _rows(shown[-LIVE_ITEMS:], ())
                update = {"items": rows, "dropped": missed + max(len(shown) - LIVE_ITEMS, 0)}
                yield b"event: requests\ndata: %b\n\n" % msgspec.json.encode(update)
            elif quiet % HEARTBEAT_EVERY == 0:
                yield b": heartbeat\n\n"
    finally:
        log.collector.unwatch(watcher)
        log.streams -= 1


async def _refusal(call: AdminCall, authorization: str, address: str) -> str:
    """Why the caller may no longer watch; empty while it may."""
    try:
        principal = await call.parts.authenticator.authenticate(authorization, *LIVE_ROUTE, address)
    except AdminProblem as problem:
        return "unavailable" if problem.status >= 500 else "revoked"
    same = principal.roles & ROLE_TABLE[LIVE_ROUTE] == call.roles and principal.tenant == call.principal.tenant
    return "" if same else "revoked"


def _rows(found: Collection[LoggedRequest], with_content: Collection[str], *, records: bool = False) -> list[dict[str, Any]]:
    rows = []
    for request in found:
        entry = entry_of(request)
        row = _row(request, entry, timeline(entry), has_content=request.id in with_content)
        rows.append({**row, "record": msgspec.Raw(request.line)} if records else row)
    return rows


def _row(request: LoggedRequest, entry: AccessLogEntry, steps: list[TimelineStep], *, has_content: bool) -> dict[str, Any]:
    slowest, slowest_ms = slowest_step(steps)
    same = ("tenant", "project", "key_id", "endpoint", "model", "outcome", "status")
    tokens = ("prompt_tokens", "completion_tokens", "cached_tokens")
    names = ("backend", "pool", "attempts", "stream", "rule", "cache", "priority_class", "guard", "trace_id")
    return {
        "request_id": request.id,
        "at_unix": request.at_us / 1e6,
        **{name: getattr(entry, name) for name in same},
        "duration_ms": entry.duration_us / 1000,
        "ttft_ms": _ms(entry.ttft_us),
        "queue_ms": entry.queue_us / 1000,
        "slowest_step": slowest,
        "slowest_step_ms": slowest_ms,
        **{name: getattr(entry, name) for name in tokens},
        "cost_usd": dollars_of(entry.cost_nanousd),
        **{name: getattr(entry, name) for name in names},
        "has_content": has_content,
    }


def _whole(request: LoggedRequest, *, has_content: bool, content: RequestContent | None) -> dict[str, Any]:
    entry = entry_of(request)
    steps = timeline(entry)
    names = ("caller_request_id", "detail", "asked_model", "revision", "lora", "queued", "queued_ahead", "request_bytes", "reply_bytes")
    more = ("reasoning_tokens", "closing", "degraded", "prefill", "rollout", "arm", "prompt", "policy", "user", "client", "user_agent")
    return {
        **_row(request, entry, steps, has_content=has_content),
        **{name: getattr(entry, name) for name in (*names, *more)},
        "overhead_ms": entry.overhead_us / 1000,
        "decode_ms": _ms(entry.decode_us),
        "timeline": [msgspec.structs.asdict(step) for step in steps],
        "failed": _list(entry.failed, ","),
        "hedged": _list(entry.hedged, ","),
        "continued": entry.continued,
        "fell_back": _list(entry.fell_back, "; "),
        "steps": _list(entry.steps, ", "),
        "passed_over": _list(entry.passed_over, "; "),
        "limits": _list(entry.limits, "; "),
        "slo_missed": _list(entry.slo_missed, ","),
        "record": msgspec.Raw(request.line),
        "explanation": f"/admin/v1/requests/{request.id}/explanation" if entry.pool else None,
        "content": None if content is None else {name: getattr(content, name) for name in ContentKept.model_fields},
    }


def _list(joined: str, by: str) -> list[str]:
    return joined.split(by) if joined else []


def _ms(length_us: int | None) -> float | None:
    return None if length_us is None else length_us / 1000
