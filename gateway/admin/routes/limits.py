"""The routes of limits: how much of a meter a scope may use within a window. A limit's id is `level:name:meter:window`.

`router` lists, shows, sets, raises and removes limits; `limit_state_router` shows their current state: used, held and remaining amounts, as
the shared counters have them.

Money is the meter `cost_usd`: requests write dollars as decimal text, and bodies show nano-dollars as an integer and, in a field ending in
`_usd`, dollars as text. The older name of the meter, `cost_nanousd`, names the same limits, with whole nano-dollars in requests.
"""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema
from starlette.responses import Response

from domain.identity import TenantId
from domain.strict import Strict
from gateway.admin.access import governs_limit
from gateway.admin.call import AdminCall, Done, Entropy, Transactions, answer
from gateway.admin.describe import (
    CHANGE_ERRORS,
    POST_ERRORS,
    READ_ERRORS,
    Asking,
    Changing,
    Moment,
    PageQuery,
    Posting,
    decode_cursor,
    encode_cursor,
    page_of,
)
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import AdminProblem, etag_of, not_found, sentence
from tenancy.accounts import LimitRecord
from tenancy.directory import GLOBAL_TAG
from tenancy.directory_ports import DirectoryChange, NotFound
from tenancy.grant import digest_of_label
from tenancy.hold import LimitUsage
from tenancy.limits import (
    MAX_AMOUNT,
    METERS_BY_NAME,
    UTC,
    Group,
    Level,
    Limit,
    LimitLine,
    LimitWindow,
    Meter,
    Scope,
    check_soft,
    counted,
    line_of,
    meter_name,
    public_id,
    shown_amount,
    state_key,
    window_named,
    window_words,
)
from tenancy.money import DOLLARS, dollars_of

router = APIRouter(route_class=GuardedRoute, tags=["Limits"])

LimitId = Annotated[
    str,
    Path(
        max_length=512,
        description="`level:name:meter:window`, for instance `tenant:acme:requests:minute`, `project:acme/web:cost_usd:day`, "
        "`tenant:acme:cost_usd:rolling-30d` (any 30 days; 1 to 366) or `global::concurrent_requests:now`.",
    ),
]
NO_RAISE: Final = "the limit is {} without a raise; raise it to more, or set a lower limit"
NO_LIMIT_ID: Final = (
    "is no id of a limit; write level:name:meter:window, as tenant:acme:requests:minute, with a level of "
    f"{', '.join(level.value for level in Level)}, a meter of {', '.join(map(meter_name, Meter))}, "
    f"and a window of {', '.join(window_words())}"
)
OWN_BOUNDS_REFUSED: Final = "What bounds a tenant is set for it; set limits of its projects, its keys and the users of its projects."


def _written(value: Any) -> Any:
    """The amount itself, when it can be one of some meter. Which form the meter takes is checked once the meter is known."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        raise ValueError('money is written as text, as "12.50", because a JSON number may be rounded; other amounts are whole numbers')
    elif isinstance(value, bool) or not isinstance(value, int):
        raise ValueError('write a whole number, or for cost_usd dollars as text, as "12.50"')
    elif not 0 <= value <= MAX_AMOUNT:
        raise ValueError(f"write a whole number, at least 0 and at most {MAX_AMOUNT}")
    return value


Amount = Annotated[
    int | str,
    BeforeValidator(_written),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 0, "maximum": MAX_AMOUNT}, {"type": "string", "pattern": f"^{DOLLARS.pattern}$"}]}
    ),
]
MONEY_SHOWN: Final = "The same amount in dollars, as text; null for meters other than `cost_usd`."


class LimitBody(Strict):
    """A limit; amounts are whole numbers of requests, tokens or units, and for `cost_usd` dollars as text (`"12.50"`)."""

    amount: Amount = Field(description="The hard threshold; 0 refuses everything.")
    burst: Amount | None = Field(
        default=None, description="For limits per minute only: the amount that may be used at once; default: `amount`."
    )
    soft: Amount | None = Field(
        default=None,
        description="The soft threshold: from here on replies carry a warning and an event is written; at most `amount`, and `burst`.",
    )
    raised_to: Amount | None = Field(default=None, description="Temporary override of `amount` until `raised_until_unix`.")
    raised_until_unix: Moment | None = Field(default=None, description="When the override ends, in seconds since 1970.")
    zone: str = Field(
        default="",
        max_length=64,
        description="For `day`, `week` and `month`: the IANA name of the calendar's time zone, as `Europe/Berlin`; default: UTC.",
    )


class RaiseBody(Strict):
    """A raise for a time."""

    to: Amount = Field(description="Temporary override of the amount.")
    until_unix: Moment = Field(description="When the override ends, in seconds since 1970.")


class LimitShown(BaseModel):
    """A limit."""

    id: str
    level: str
    name: str
    meter: str
    window: str
    tenant: str
    amount: int = Field(description="The hard threshold; for `cost_usd` in nano-dollars.")
    burst: int | None
    soft: int | None
    raised_to: int | None
    raised_until_unix: float | None
    zone: str = Field(description="The time zone of the calendar; empty for UTC.")
    amount_usd: str | None = Field(description=MONEY_SHOWN)
    soft_usd: str | None
    raised_to_usd: str | None


class LimitPage(BaseModel):
    """Limits by id."""

    items: list[LimitShown]
    next_cursor: str | None


class LimitQuery(PageQuery):
    """The limits to show."""

    tenant: str = Field(default="", max_length=63, description="Only limits of this tenant and of its projects, keys and end users.")
    organisation: str = Field(default="", max_length=63, description="Only limits of this organisation itself.")


@router.get("/limits", response_model=LimitPage, responses=READ_ERRORS, summary="List limits")
async def list_all(call: Asking, query: Annotated[LimitQuery, Query()]) -> Response:
    """Show limits by id; a tenant-admin sees those of his tenant and below."""
    if query.organisation:
        if query.tenant:
            raise AdminProblem(400, "invalid_value", "organisation: write tenant or organisation, not both.", "organisation")
        scope = ScopeQuery(level="organisation", name=query.organisation, cursor=query.cursor, limit=query.limit)
        records, cursor = await limits_of_scope(call, scope)
        return answer(200, {"items": list(map(limit_shown, records)), "next_cursor": cursor})
    after = decode_cursor(query.cursor, str) or ""
    owner = call.own(query.tenant) if query.tenant else call.tenant
    async with call.parts.reading() as directory:
        if query.tenant:
            await directory.tenants.get(call.tenant, TenantId(query.tenant))
        records = await directory.limits.page(owner, after, query.limit + 1)
    return answer(200, page_of(records, query.limit, limit_shown, lambda record: _cursor_of(record.limit)))


async def get(call: Asking, limit_id: LimitId) -> Response:
    """Show one limit, with its ETag."""
    place, _ = _parse_id(limit_id)
    async with call.parts.reading() as directory:
        shown = limit_shown(await directory.limits.get(call.tenant, *place))
    return answer(200, shown, etag_of(shown))


async def put(call: Changing, limit_id: LimitId, body: LimitBody) -> Response:
    """Set a limit. One that is there is only replaced with the ETag of what was seen."""
    place, meter = _parse_id(limit_id)
    _check_own(call, place[0])
    amounts = body.model_dump()
    amounts |= {name: _counted(meter, name, amounts[name]) for name in AMOUNTS}
    amounts["zone"] = "" if body.zone == UTC else body.zone

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        record = await _find(books.directory, call, place)
        before = None if record is None else limit_shown(record)
        if before is not None:
            call.check_match(before)
        elif call.if_match is not None:
            raise not_found()
        limit = _limit(place, amounts, newly=True)
        stored = await books.directory.limits.put(call.tenant, limit, 0 if record is None else record.version)
        return _done(201 if record is None else 200, "limit.set", stored, before)

    return await call.change(work)


async def raise_(call: Posting, limit_id: LimitId, body: RaiseBody) -> Response:
    """Raise a limit until a moment; afterwards it is what it was."""
    place, meter = _parse_id(limit_id)
    _check_own(call, place[0])
    to = _counted(meter, "to", body.to)

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        record = await books.directory.limits.get(call.tenant, *place)
        limit = record.limit
        if body.until_unix <= call.parts.wall():
            raise AdminProblem(400, "invalid_value", "until_unix: is over already.", "until_unix")
        if to is None or to <= limit.amount:
            raise AdminProblem(400, "invalid_value", f"to: {NO_RAISE.format(shown_amount(limit.meter, limit.amount))}.", "to")
        thresholds = {"amount": limit.amount, "burst": limit.burst, "soft": limit.soft, "zone": limit.zone}
        raised = _limit(place, {**thresholds, "raised_to": to, "raised_until_unix": body.until_unix})
        stored = await books.directory.limits.put(call.tenant, raised, record.version)
        return _done(200, "limit.raise", stored, limit_shown(record))

    return await call.change(work)


async def delete(call: Changing, limit_id: LimitId) -> Response:
    """Remove a limit."""
    place, _ = _parse_id(limit_id)
    _check_own(call, place[0])

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        record = await books.directory.limits.get(call.tenant, *place)
        before = limit_shown(record)
        call.check_match(before)
        await books.directory.limits.remove(call.tenant, *place, record.version)
        return Done(204, "limit.remove", f"limit/{before['id']}", tenant=record.tenant, before=before)

    return await call.change(work)


def add_item_routes(to: APIRouter) -> None:
    """Add the routes of single limits: last, because an id may contain slashes and would match the paths of other routes."""
    path = "/limits/{limit_id:path}"
    to.post(f"{path}/raise", response_model=LimitShown, responses=POST_ERRORS, summary="Raise a limit for a time")(raise_)
    to.get(path, response_model=LimitShown, responses=READ_ERRORS, summary="Show a limit")(get)
    created: dict[int | str, dict[str, Any]] = {201: {"model": LimitShown, "description": "It was not there before."}}
    to.put(path, response_model=LimitShown, responses={**CHANGE_ERRORS, **created}, summary="Set a limit")(put)
    to.delete(path, status_code=204, responses=CHANGE_ERRORS, summary="Remove a limit")(delete)


AMOUNTS: Final = ("amount", "burst", "soft", "raised_to")


def id_of(limit: Limit) -> str:
    """The limit's public id, `level:name:meter:window`."""
    return public_id(limit.scope, limit.meter, limit.window)


def _cursor_of(limit: Limit) -> str:
    """The limit's place in the order of the stores."""
    return state_key(limit.scope, limit.meter, limit.window)


def limit_shown(record: LimitRecord) -> dict[str, Any]:
    """A limit as a body shows it."""
    limit = record.limit
    return {
        "id": id_of(limit),
        "level": limit.scope.level.value,
        "name": limit.scope.name,
        "meter": meter_name(limit.meter),
        "window": limit.window.value,
        "tenant": record.tenant,
        **{name: getattr(limit, name) for name in (*AMOUNTS, "raised_until_unix", "zone")},
        **_in_dollars(
            limit.meter, {name: getattr(limit, name) for name in AMOUNTS if name != "burst"}
        ),  # no burst of money: it has no minute
    }


def _in_dollars(meter: Meter, amounts: dict[str, int | None]) -> dict[str, str | None]:
    """Fields with the same amounts in dollars: text for the meter of money, else null."""
    money = meter is Meter.COST_NANOUSD
    return {f"{name}_usd": dollars_of(amount) if money and amount is not None else None for name, amount in amounts.items()}


def _parse_id(written: str) -> tuple[tuple[Scope, Meter, LimitWindow], str]:
    """The limit that an id names, and the meter's name as written in it."""
    level, _, rest = written.partition(":")
    name, _, ending = rest.rpartition(":")
    name, _, meter = name.rpartition(":")
    try:
        place = Scope(Level(level), name), METERS_BY_NAME[meter], window_named(ending)
    except (ValueError, KeyError):
        place = None
    # one spelling for each limit, as `id_of` writes it, and the older one of money
    if place is None or written not in (public_id(*place), state_key(*place)) or not written.isprintable():
        raise AdminProblem(404, "not_found", f"limit_id: {written[:128]!r} {NO_LIMIT_ID}.", "limit_id")
    return place, meter


def _counted(meter: str, field: str, written: int | str | None) -> int | None:
    try:
        return None if written is None else counted(meter, written)
    except ValueError as error:
        raise AdminProblem(400, "invalid_value", f"{field}: {error}.", field) from None


def _check_own(call: AdminCall, scope: Scope) -> None:
    if call.tenant is None or governs_limit(scope):
        return  # the store checks which tenant the project, key or user belongs to
    if scope.level in (Level.TENANT, Level.USER) and scope.name == call.tenant:
        raise AdminProblem(403, "forbidden", OWN_BOUNDS_REFUSED)
    raise not_found()


def _limit(place: tuple[Scope, Meter, LimitWindow], fields: dict[str, Any], *, newly: bool = False) -> Limit:
    try:
        limit = Limit(*place, **fields)
        if newly:
            check_soft(limit)
        return limit
    except ValueError as error:
        named = str(error).partition(" ")[0]
        raise AdminProblem(400, "invalid_value", sentence(error), named if named in fields else None) from None


async def _find(directory: DirectoryChange, call: AdminCall, place: tuple[Scope, Meter, LimitWindow]) -> LimitRecord | None:
    try:
        return await directory.limits.get(call.tenant, *place)
    except NotFound:
        return None


def _done(status: int, action: str, record: LimitRecord, before: dict[str, Any] | None) -> Done:
    shown = limit_shown(record)
    return Done(status, action, f"limit/{shown['id']}", shown, tenant=record.tenant, before=before, after=shown)


limit_state_router = APIRouter(route_class=GuardedRoute, tags=["Limits"])

TAG_PREFIXES: Final = {"organisation": "org/", "model": "model/", "global": GLOBAL_TAG, "tenant": ""}


class ScopeQuery(PageQuery):
    """The scope whose limits to show."""

    level: Literal["global", "model", "organisation", "tenant"] = Field(
        default="tenant", description="Level of the limits; `tenant` includes all levels below the tenant."
    )
    name: str = Field(default="", max_length=256, description="Name of the tenant, organisation or model.")


class StateQuery(ScopeQuery):
    """The scope whose limits to show."""

    user: str | None = Field(default=None, max_length=512, description="An end user; without one, limits per user are left out.")


class LimitState(BaseModel):
    """How one limit stands."""

    id: str
    meter: str
    window: str
    zone: str = Field(description="The time zone of the calendar; empty for UTC.")
    amount: int = Field(description="The threshold that is active now; amounts of `cost_usd` are nano-dollars.")
    used: int = Field(description="Committed usage and open reservations together.")
    held: int = Field(description="Reservations of requests in flight.")
    remaining: int
    reset_s: float = Field(description="Seconds until the whole amount is available again; 0 when it is.")
    amount_usd: str | None = Field(description=MONEY_SHOWN)
    used_usd: str | None
    held_usd: str | None
    remaining_usd: str | None


class LimitStates(BaseModel):
    """How limits stand, by id."""

    items: list[LimitState]
    next_cursor: str | None


@limit_state_router.get("/limits/state", response_model=LimitStates, responses=READ_ERRORS, summary="How limits stand now")
async def state(call: Asking, query: Annotated[StateQuery, Query()]) -> Response:
    """Show how the limits of one tenant, organisation or model, or of the gateway, stand."""
    records, cursor = await limits_of_scope(call, query)
    label = "" if query.user is None else digest_of_label(query.user)
    states = await states_of(call, query, [line for record in records if (line := _line(call, record, label)) is not None])
    return answer(200, {"items": list(map(_shown, states)), "next_cursor": cursor})


async def limits_of_scope(call: AdminCall, query: ScopeQuery) -> tuple[list[LimitRecord], str | None]:
    """A page of the limits of a scope, and the cursor of the next one. Raises Problem."""
    if call.tenant is not None and (query.level, query.name) != ("tenant", call.tenant):
        raise not_found()
    if bool(query.name) is (query.level == "global"):
        raise AdminProblem(
            400, "invalid_value", "name: the name of a tenant, organisation or model is needed, and of nothing else.", "name"
        )
    after = decode_cursor(query.cursor, str) or ""
    async with call.parts.reading() as directory:
        records = await _records(directory, query, after)
    shown = records[: query.limit]
    return shown, encode_cursor(_cursor_of(shown[-1].limit)) if len(records) > query.limit else None


async def states_of(call: AdminCall, query: ScopeQuery, lines: list[LimitLine]) -> list[LimitUsage]:
    """How lines of the limits of one scope stand now."""
    return await call.parts.limit_states(Group(f"{TAG_PREFIXES[query.level]}{query.name}", tuple(lines))) if lines else []


async def _records(directory: DirectoryChange, query: ScopeQuery, after: str) -> list[LimitRecord]:
    if query.level == "tenant":
        owner = TenantId(query.name)
        await directory.tenants.get(owner, owner)
        return await directory.limits.page(owner, after, query.limit + 1)
    if query.level == "organisation":
        await directory.organisations.get(query.name)
    # limits of one scope are neighbours: their ids begin with the scope
    records = await directory.limits.page(None, after or f"{query.level}:{query.name}:", query.limit + 1)
    return [record for record in records if (record.limit.scope.level.value, record.limit.scope.name) == (query.level, query.name)]


def _line(call: AdminCall, record: LimitRecord, label: str) -> LimitLine | None:
    limit = record.limit
    if limit.scope.level is not Level.USER:
        return line_of(limit, call.parts.wall())
    return line_of(limit, call.parts.wall(), label) if label else None


def _shown(state: LimitUsage) -> dict[str, Any]:
    limit = state.line.limit
    amounts: dict[str, int | None] = {
        "amount": state.line.amount,
        "used": state.used,
        "held": state.held,
        "remaining": state.remaining,
    }
    return {
        "id": id_of(limit),
        "meter": meter_name(limit.meter),
        "window": limit.window.value,
        "zone": limit.zone,
        **amounts,
        "reset_s": state.reset_us / 1e6,
        **_in_dollars(limit.meter, amounts),
    }
