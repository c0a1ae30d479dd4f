"""Limits: how much of a meter a scope may use within a window. A limit's id is `level:name:meter:window`."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from domain.strict import Strict
from gateway.http.admin_api.bodies import Moment
from gateway.http.admin_api.call import Books, Call, Done, Entropy, answer
from gateway.http.admin_api.describing import CHANGE_ERRORS, POST_ERRORS, READ_ERRORS, Asking, Changing, Posting
from gateway.http.admin_api.etags import etag_of
from gateway.http.admin_api.guard import GuardedRoute
from gateway.http.admin_api.pages import PageQuery, decode_cursor, page_of
from gateway.http.admin_api.problem import Problem, not_found
from gateway.http.admin_api.rbac import governs_limit
from tenancy.accounts import LimitRecord
from tenancy.directory_ports import DirectoryChange, NotFound
from tenancy.limits import MAX_AMOUNT, Level, Limit, Meter, Scope, Window, check_soft, state_key

router = APIRouter(route_class=GuardedRoute, tags=["Limits"])

LimitId = Annotated[
    str,
    Path(
        max_length=512,
        description="`level:name:meter:window`, for instance `tenant:acme:requests:minute`, `project:acme/web:tokens:day` or "
        "`global::concurrent_requests:now`.",
    ),
]
OWN: Final = "What bounds a tenant is set for it; set limits of its projects, its keys and the users of its projects."
Amount = Annotated[int, Field(ge=0, le=MAX_AMOUNT)]


class LimitBody(Strict):
    """A limit; amounts are requests, tokens, units, or nano-dollars."""

    amount: Amount = Field(description="The hard threshold; 0 refuses everything.")
    burst: Amount | None = Field(default=None, description="Per minute only: how much may come at once; default: `amount`.")
    soft: Amount | None = Field(
        default=None, description="From here on replies carry a warning and an event is written; at most `amount`, and `burst`."
    )
    raised_to: Amount | None = Field(default=None, description="In force in place of `amount` until `raised_until_unix`.")
    raised_until_unix: Moment | None = Field(default=None, description="When the raise ends.")


class RaiseBody(Strict):
    """A raise for a time."""

    to: Amount = Field(description="In force in place of the amount.")
    until_unix: Moment = Field(description="When it ends, in seconds since 1970.")


class LimitShown(BaseModel):
    """A limit."""

    id: str
    level: str
    name: str
    meter: str
    window: str
    tenant: str
    amount: int
    burst: int | None
    soft: int | None
    raised_to: int | None
    raised_until_unix: float | None


class LimitPage(BaseModel):
    """Limits by id."""

    items: list[LimitShown]
    next_cursor: str | None


@router.get("/limits", response_model=LimitPage, responses=READ_ERRORS, summary="List limits")
async def list_all(call: Asking, query: Annotated[PageQuery, Query()]) -> Response:
    """Show limits by id; a tenant-admin sees those of his tenant and below."""
    after = decode_cursor(query.cursor, str) or ""
    async with call.parts.reading() as directory:
        records = await directory.limits.page(call.tenant, after, query.limit + 1)
    return answer(200, page_of(records, query.limit, limit_shown, lambda record: id_of(record.limit)))


async def get(call: Asking, limit_id: LimitId) -> Response:
    """Show one limit, with its ETag."""
    place = _parse_id(limit_id)
    async with call.parts.reading() as directory:
        shown = limit_shown(await directory.limits.get(call.tenant, *place))
    return answer(200, shown, etag_of(shown))


async def put(call: Changing, limit_id: LimitId, body: LimitBody) -> Response:
    """Set a limit. One that is there is only replaced with the ETag of what was seen."""
    place = _parse_id(limit_id)
    _check_own(call, place[0])

    async def work(books: Books, _entropy: Entropy) -> Done:
        record = await _find(books.directory, call, place)
        before = None if record is None else limit_shown(record)
        if before is not None:
            call.check_match(before)
        elif call.if_match is not None:
            raise not_found()
        limit = _limit(place, body.model_dump(), newly=True)
        stored = await books.directory.limits.put(call.tenant, limit, 0 if record is None else record.version)
        return _done(201 if record is None else 200, "limit.set", stored, before)

    return await call.change(work)


async def raise_(call: Posting, limit_id: LimitId, body: RaiseBody) -> Response:
    """Raise a limit until a moment; afterwards it is what it was."""
    place = _parse_id(limit_id)
    _check_own(call, place[0])

    async def work(books: Books, _entropy: Entropy) -> Done:
        record = await books.directory.limits.get(call.tenant, *place)
        limit = record.limit
        if body.until_unix <= call.parts.wall():
            raise Problem(400, "invalid_value", "until_unix: is over already.", "until_unix")
        if body.to <= limit.amount:
            raise Problem(400, "invalid_value", f"to: the limit is {limit.amount} without a raise.", "to")
        thresholds = {"amount": limit.amount, "burst": limit.burst, "soft": limit.soft}
        raised = _limit(place, {**thresholds, "raised_to": body.to, "raised_until_unix": body.until_unix})
        stored = await books.directory.limits.put(call.tenant, raised, record.version)
        return _done(200, "limit.raise", stored, limit_shown(record))

    return await call.change(work)


async def delete(call: Changing, limit_id: LimitId) -> Response:
    """Remove a limit."""
    place = _parse_id(limit_id)
    _check_own(call, place[0])

    async def work(books: Books, _entropy: Entropy) -> Done:
        record = await books.directory.limits.get(call.tenant, *place)
        before = limit_shown(record)
        call.check_match(before)
        await books.directory.limits.remove(call.tenant, *place, record.version)
        return Done(204, "limit.remove", f"limit/{limit_id}", tenant=record.tenant, before=before)

    return await call.change(work)


def add_item_routes(to: APIRouter) -> None:
    """Add the routes of single limits: last, because an id may contain slashes and would match the paths of other routes."""
    path = "/limits/{limit_id:path}"
    to.post(f"{path}/raise", response_model=LimitShown, responses=POST_ERRORS, summary="Raise a limit for a time")(raise_)
    to.get(path, response_model=LimitShown, responses=READ_ERRORS, summary="Show a limit")(get)
    created: dict[int | str, dict[str, Any]] = {201: {"model": LimitShown, "description": "It was not there before."}}
    to.put(path, response_model=LimitShown, responses={**CHANGE_ERRORS, **created}, summary="Set a limit")(put)
    to.delete(path, status_code=204, responses=CHANGE_ERRORS, summary="Remove a limit")(delete)


def id_of(limit: Limit) -> str:
    """The limit's id, `level:name:meter:window`."""
    return state_key(limit.scope, limit.meter, limit.window)


def limit_shown(record: LimitRecord) -> dict[str, Any]:
    """A limit as a body shows it."""
    limit = record.limit
    return {
        "id": id_of(limit),
        "level": limit.scope.level.value,
        "name": limit.scope.name,
        "meter": limit.meter.name.lower(),
        "window": limit.window.value,
        "tenant": record.tenant,
        **{name: getattr(limit, name) for name in ("amount", "burst", "soft", "raised_to", "raised_until_unix")},
    }


def _parse_id(limit_id: str) -> tuple[Scope, Meter, Window]:
    level, _, rest = limit_id.partition(":")
    name, _, ending = rest.rpartition(":")
    name, _, meter = name.rpartition(":")
    try:
        place = Scope(Level(level), name), Meter[meter.upper()], Window(ending)
    except (ValueError, KeyError):
        place = None
    # one spelling for each limit, as `id_of` writes it
    if place is None or state_key(*place) != limit_id or not limit_id.isprintable():
        raise not_found()
    return place


def _check_own(call: Call, scope: Scope) -> None:
    if call.tenant is None or governs_limit(scope):
        return  # the store checks which tenant the project, key or user belongs to
    if scope.level in (Level.TENANT, Level.USER) and scope.name == call.tenant:
        raise Problem(403, "forbidden", OWN)
    raise not_found()


def _limit(place: tuple[Scope, Meter, Window], fields: dict[str, Any], *, newly: bool = False) -> Limit:
    try:
        limit = Limit(*place, **fields)
        if newly:
            check_soft(limit)
        return limit
    except ValueError as error:
        named = str(error).partition(" ")[0]
        raise Problem(400, "invalid_value", f"{error}.", named if named in fields else None) from None


async def _find(directory: DirectoryChange, call: Call, place: tuple[Scope, Meter, Window]) -> LimitRecord | None:
    try:
        return await directory.limits.get(call.tenant, *place)
    except NotFound:
        return None


def _done(status: int, action: str, record: LimitRecord, before: dict[str, Any] | None) -> Done:
    shown = limit_shown(record)
    return Done(status, action, f"limit/{shown['id']}", shown, tenant=record.tenant, before=before, after=shown)
