"""The routes of stored chat completions: `GET /v1/chat/completions`, and `GET`, `POST` and `DELETE` of one, and its messages.

No engine is asked, and each is a request of its key, as those of stored Responses are (`stored_responses.py`). What another tenant stored
is not there.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NoReturn
from urllib.parse import unquote

import msgspec

from domain.ask import Endpoint
from domain.faults import Fault, Kind
from domain.identity import Caller, TenantId
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.head import RequestHead
from gateway.http.openai.checks import refuse, shown
from gateway.http.openai.stored_chats import chat_deletion, completions_page, matches, messages_page, with_metadata
from gateway.request.response_state import is_id, no_room, store_of
from gateway.request.stored_responses import answer_stored, paging_of, query_of
from gateway.story import Story
from tenancy.responses import CHAT_PREFIX, NoRoomForResponses, ResponseStore, StoredResponse

PATH: Final = Endpoint.CHAT.path
BELOW: Final = f"{PATH}/"
"""How the paths of one completion begin."""
MESSAGES: Final = "messages"
METHODS: Final[Mapping[str, tuple[str, ...]]] = {"": ("GET", "HEAD", "POST", "DELETE"), MESSAGES: ("GET", "HEAD")}
"""By what follows the id: the methods."""
LOOKED_AT: Final = 2_000
"""Completions that a page with a filter looks at, at most; what lies behind is found from the last one of the page on."""
READ_AT_ONCE: Final = 100
MAX_UPDATE_BYTES: Final = 64 * 1024
"""The body of an update: sixteen pairs of metadata are 40 KB at most."""


class _Update(msgspec.Struct, gc=False):
    metadata: dict[str, object] | None = None


_decode_update = msgspec.json.Decoder(_Update).decode

Handler = Callable[[Exchange, Story, Deps], Awaitable[None]]


def chat_handler(head: RequestHead) -> Handler | None:
    """The handler of a request about stored completions, which is no chat; None for other paths. Raises Fault: METHOD_NOT_ALLOWED."""
    if head.path == PATH:
        if head.method not in ("GET", "HEAD"):
            raise Fault(Kind.METHOD_NOT_ALLOWED, "Only GET and POST are allowed here.", detail="GET, HEAD, POST")
        return _list
    if not head.path.startswith(BELOW):
        return None
    name, slash, operation = head.path.removeprefix(BELOW).partition("/")
    if not name.startswith(CHAT_PREFIX) or operation not in METHODS or bool(slash) is not bool(operation):
        return None
    methods = METHODS[operation]
    if head.method not in methods:
        listed = " and ".join(method for method in methods if method != "HEAD")
        raise Fault(Kind.METHOD_NOT_ALLOWED, f"Only {listed} {'are' if ' ' in listed else 'is'} allowed here.", detail=", ".join(methods))
    return _answer


async def _list(exchange: Exchange, story: Story, deps: Deps) -> None:
    story.asked.endpoint = BELOW  # metrics and the log tell it from a chat
    query = query_of(exchange.head)
    await answer_stored(exchange, story, deps, PATH, lambda caller: _page_of(query, caller.tenant, deps))


async def _page_of(query: Mapping[str, str], tenant: TenantId, deps: Deps) -> bytes:
    store = store_of(deps)
    newest_first, limit, after = paging_of(query, "asc")
    metadata = {key[len("metadata[") : -1]: value for key, value in query.items() if key.startswith("metadata[") and key.endswith("]")}
    found: list[StoredResponse] = []
    looked_at = 0
    more = True
    while more and len(found) <= limit and looked_at < LOOKED_AT:
        read = await store.chats(tenant, after, READ_AT_ONCE, newest_first=newest_first)
        if read is None:
            refuse(f"Invalid value for 'after': there is no stored completion {shown(after)}.", "after")
        looked_at += len(read)
        found += [one for one in read if matches(one, query.get("model", ""), metadata)]
        more = len(read) == READ_AT_ONCE
        after = read[-1].id if read else after
    return completions_page(found[:limit], more=more or len(found) > limit)


async def _answer(exchange: Exchange, story: Story, deps: Deps) -> None:
    name, _, operation = exchange.head.path.removeprefix(BELOW).partition("/")
    story.asked.endpoint = f"{BELOW}{{id}}{'/' if operation else ''}{operation}"
    await answer_stored(exchange, story, deps, PATH, lambda caller: _body_of(unquote(name), operation, exchange, caller, deps))


async def _body_of(name: str, operation: str, exchange: Exchange, caller: Caller, deps: Deps) -> bytes:
    if not is_id(name):
        _refuse_unknown(name)
    store, head = store_of(deps), exchange.head
    if head.method == "DELETE":
        if not await store.remove(caller.tenant, name):
            _refuse_unknown(name)
        return chat_deletion(name)
    stored = await store.get(caller.tenant, name)
    if stored is None:
        _refuse_unknown(name)
    if operation == MESSAGES:
        newest_first, limit, after = paging_of(query_of(head), "asc")
        return messages_page(stored, after, limit, newest_first=newest_first)
    return stored.response if head.method != "POST" else await _updated(stored, exchange, caller, store, deps)


async def _updated(stored: StoredResponse, exchange: Exchange, caller: Caller, store: ResponseStore, deps: Deps) -> bytes:
    body = await exchange.body((MAX_UPDATE_BYTES,), caller.tenant)
    try:
        update = _decode_update(body)
    except (msgspec.DecodeError, RecursionError):
        raise Fault(Kind.INVALID_JSON, "The body is not a JSON object with 'metadata', an object.") from None
    changed = with_metadata(stored, update.metadata)
    policy = deps.live.policies.for_tenant(caller.tenant)
    if policy is None or policy.responses is None:
        raise Fault(Kind.NOT_PERMITTED, "The policy keeps no completions any more: they can be read and deleted, and not changed.")
    try:
        if not await store.replace(changed, policy.responses.max_bytes):
            _refuse_unknown(stored.id)
    except NoRoomForResponses:
        raise no_room() from None
    return changed.response


def _refuse_unknown(name: str) -> NoReturn:
    raise Fault(Kind.RESPONSE_NOT_FOUND, f"Completion with id {shown(name)} not found: it was not stored, has expired or was deleted.")
