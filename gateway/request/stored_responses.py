"""The routes of stored Responses: `GET` and `DELETE /v1/responses/{id}`, `GET …/input_items` and `POST …/cancel`.

No engine is asked. Each is a request of its key, as a judgement of guard rules is (`guard_texts.py`), so that a limit on requests bounds
what callers ask of the database. What another tenant stored is not there.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NoReturn
from urllib.parse import parse_qs, unquote

from domain.ask import Endpoint
from domain.faults import Fault, Kind
from domain.identity import Caller, TenantId
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.head import RequestHead
from gateway.http.openai.checks import shown
from gateway.http.responses import PATH
from gateway.http.responses.kept import deletion, input_page
from gateway.request.admit import admit_without_tokens
from gateway.request.authenticate import authenticate, grant_of
from gateway.request.background_reads import EventsAsked, cancelled, events_asked, found, removed, response_of, send_events
from gateway.request.reply_headers import reply_headers
from gateway.request.response_state import is_id, state_away, store_of
from gateway.request.settle import settle
from gateway.story import Story
from tenancy.responses import CHAT_PREFIX, ResponsesAway

BELOW: Final = f"{PATH}/"
"""How the paths of these routes begin."""
ITEMS: Final = "input_items"
CANCEL: Final = "cancel"
METHODS: Final[Mapping[str, tuple[str, ...]]] = {"": ("GET", "HEAD", "DELETE"), ITEMS: ("GET", "HEAD"), CANCEL: ("POST",)}
"""By what follows the id: the methods."""
MOST_PARAMETERS: Final = 32
"""Parameters of a query; the routes have four."""
USUAL_ITEMS: Final = 20
MOST_ITEMS: Final = 100
"""Items of a page; both are those of the vendor's API."""

Handler = Callable[[Exchange, Story, Deps], Awaitable[None]]
BodyOf = Callable[[Caller], Awaitable[bytes | EventsAsked]]
"""Makes the answer for a caller, or asks for the events of a Response."""


def handler_of(head: RequestHead) -> Handler | None:
    """The handler of a path below `BELOW`; None where no route is there. Raises Fault: METHOD_NOT_ALLOWED."""
    name, slash, operation = head.path.removeprefix(BELOW).partition("/")
    if not name or operation not in METHODS or bool(slash) is not bool(operation):
        return None
    methods = METHODS[operation]
    if head.method not in methods:
        listed = [method for method in methods if method != "HEAD"]
        message = f"Only {' and '.join(listed)} {'is' if len(listed) == 1 else 'are'} allowed here."
        raise Fault(Kind.METHOD_NOT_ALLOWED, message, detail=", ".join(methods))
    return _answer


async def _answer(exchange: Exchange, story: Story, deps: Deps) -> None:
    head = exchange.head
    name, _, operation = head.path.removeprefix(BELOW).partition("/")
    story.asked.endpoint = f"{BELOW}{{id}}{'/' if operation else ''}{operation}"
    await answer_stored(exchange, story, deps, PATH, lambda caller: _body_of(unquote(name), operation, head, caller.tenant, deps))


async def answer_stored(exchange: Exchange, story: Story, deps: Deps, path: str, body_of: BodyOf) -> None:
    """Answer a request about something stored: it is authenticated, admitted as one request, and settled.

    Args:
        path: the endpoint that the caller's rights have to allow; a right to chats is enough.
        body_of: makes the answer.

    Raises:
        Fault: the caller may not, a limit refuses, the store is away, or as `body_of`.
    """
    caller = await authenticate(exchange, story, deps)
    grant = grant_of(caller, deps)
    refusing_scope = grant.rights.refuses_endpoint(path)
    if refusing_scope is not None and grant.rights.refuses_endpoint(Endpoint.CHAT.path) is not None:
        raise Fault(Kind.NOT_PERMITTED, f"{path} may not be used here (set for {refusing_scope}).")
    hold = await admit_without_tokens(caller, grant, story, deps)
    try:
        body = await body_of(caller)
        if isinstance(body, EventsAsked):
            await _stream(body, exchange, story, deps)
            return
        story.settled.status = 200
        exchange.reply(200, reply_headers(exchange, story, None, deps, stream=False) + b"cache-control: no-store\r\n", body)
    except ResponsesAway as error:
        story.settled.fault = fault = state_away(error, deps)
        raise fault from None
    except Fault as fault:
        story.settled.fault = fault
        raise
    finally:
        await settle(hold, story, deps)


async def _stream(asked: EventsAsked, exchange: Exchange, story: Story, deps: Deps) -> None:
    story.settled.status = 200
    story.asked.stream = True
    exchange.start(reply_headers(exchange, story, None, deps, stream=True))
    await send_events(exchange, asked.seen, asked.after, deps)


async def _body_of(name: str, operation: str, head: RequestHead, tenant: TenantId, deps: Deps) -> bytes | EventsAsked:
    store = store_of(deps)
    if not is_id(name) or name.startswith(CHAT_PREFIX):
        _refuse_unknown(name)
    if head.method == "DELETE":
        in_background = await removed(tenant, name, deps)
        if not await store.remove(tenant, name) and not in_background:
            _refuse_unknown(name)
        return deletion(name)
    query = query_of(head)
    if operation == CANCEL:
        return await _cancel(name, tenant, deps)
    if operation != ITEMS and head.method == "GET" and (after := events_asked(query)) is not None:
        return await _events(name, after, tenant, deps)
    stored = await store.get(tenant, name)
    if stored is None:
        seen = await found(tenant, name, deps)
        body = None if seen is None else seen.items if operation == ITEMS else await response_of(seen, deps)
        if body is None:
            _refuse_unknown(name)
        return _items(body, query) if operation == ITEMS else body
    return _items(stored.items, query) if operation == ITEMS else stored.response


async def _cancel(name: str, tenant: TenantId, deps: Deps) -> bytes:
    seen = await cancelled(tenant, name, deps)
    body = None if seen is None else await response_of(seen, deps)
    if body is not None:
        return body
    if await store_of(deps).get(tenant, name) is None:
        _refuse_unknown(name)
    raise Fault(Kind.INVALID_VALUE, "Only a Response that was made with 'background': true can be cancelled, and this one is complete.")


async def _events(name: str, after: int, tenant: TenantId, deps: Deps) -> EventsAsked:
    seen = await found(tenant, name, deps)
    if seen is not None:
        return EventsAsked(seen, after)
    if await store_of(deps).get(tenant, name) is None:
        _refuse_unknown(name)
    message = "The events of a Response are kept only where it was made with 'background': true. Leave 'stream' out to get it whole."
    raise Fault(Kind.INVALID_VALUE, message, param="stream")


def query_of(head: RequestHead) -> dict[str, str]:
    """The last value of each parameter."""
    try:
        return {key: values[-1] for key, values in parse_qs(head.query, max_num_fields=MOST_PARAMETERS).items()} if head.query else {}
    except ValueError:
        raise Fault(Kind.INVALID_VALUE, f"The query has more than {MOST_PARAMETERS} parameters.") from None


def paging_of(query: Mapping[str, str], usual_order: str) -> tuple[bool, int, str]:
    """Whether the newest come first, how many there are on a page, and after which one it begins. Raises Fault: INVALID_VALUE."""
    order, limit, after = query.get("order", usual_order), query.get("limit", str(USUAL_ITEMS)), query.get("after", "")
    if order not in ("asc", "desc"):
        raise Fault(Kind.INVALID_VALUE, "Invalid value for 'order': send 'asc' or 'desc'.", param="order")
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 3 and 1 <= int(limit) <= MOST_ITEMS):
        raise Fault(Kind.INVALID_VALUE, f"Invalid value for 'limit': send a number from 1 to {MOST_ITEMS}.", param="limit")
    return order == "desc", int(limit), after


def _items(items: bytes, query: Mapping[str, str]) -> bytes:
    newest_first, limit, after = paging_of(query, "desc")
    page = input_page(items, after, limit, newest_first=newest_first)
    if page is None:
        raise Fault(Kind.INVALID_VALUE, f"Invalid value for 'after': the input has no item {shown(after)}.", param="after")
    return page


def _refuse_unknown(name: str) -> NoReturn:
    raise Fault(Kind.RESPONSE_NOT_FOUND, f"Response with id {shown(name)} not found: it was not stored, has expired or was deleted.")
