"""The routes of conversations: `/v1/conversations`, one of them, its items, and one of these.

No engine is asked, and each is a request of its key, as those of stored Responses are (`stored_responses.py`). What another tenant keeps is
not there. How a Response continues a conversation and adds to it: `response_state.py`.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NoReturn
from urllib.parse import parse_qs, unquote

import msgspec

from domain.faults import Fault, Kind
from domain.identity import Caller
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.head import RequestHead
from gateway.http.openai.checks import refuse, shown
from gateway.http.openai.json_guard import parse_body
from gateway.http.openai.metadata import check_metadata
from gateway.http.responses import DAY_S
from gateway.http.responses import PATH as RESPONSES
from gateway.http.responses.conversations import (
    check_added,
    conversation_deletion,
    conversation_object,
    item_list,
    new_items,
    refuse_known,
)
from gateway.http.responses.request import check_included
from gateway.request.response_state import conversations_of, is_id, no_room, not_kept, refuse_unknown_conversation
from gateway.request.stored_responses import answer_stored, paging_of, query_of
from gateway.story import Story
from policies.schema import ResponsesPolicy
from tenancy.conversations import CONVERSATION_PREFIX, AddedItems, Conversation, ConversationStore, ItemExists, UnknownItem
from tenancy.responses import NoRoomForResponses

PATH: Final = "/v1/conversations"
BELOW: Final = f"{PATH}/"
"""How the paths of one conversation begin."""
ITEMS: Final = "items"
_FORMS: Final[Mapping[str, tuple[str, ...]]] = {
    PATH: ("POST",),
    f"{BELOW}{{id}}": ("GET", "HEAD", "POST", "DELETE"),
    f"{BELOW}{{id}}/{ITEMS}": ("GET", "HEAD", "POST"),
    f"{BELOW}{{id}}/{ITEMS}/{{item_id}}": ("GET", "HEAD", "DELETE"),
}
"""The routes, with their methods."""

Handler = Callable[[Exchange, Story, Deps], Awaitable[None]]


class _Asked(msgspec.Struct, frozen=True):
    """What a request is about."""

    form: str
    """A key of `_FORMS`."""
    name: str
    """The id of the conversation; empty for none."""
    item: str
    """The id of the item; empty for none."""


def _asked_of(path: str) -> _Asked | None:
    """What a path names; None where no route is there."""
    if path == PATH:
        return _Asked(PATH, "", "")
    if not path.startswith(BELOW):
        return None
    name, slash, rest = path.removeprefix(BELOW).partition("/")
    kind, behind, item = rest.partition("/")
    if not name or bool(slash) is not bool(rest) or (rest and kind != ITEMS) or bool(behind) is not bool(item) or "/" in item:
        return None
    form = f"{BELOW}{{id}}{f'/{ITEMS}' if rest else ''}{'/{item_id}' if item else ''}"
    return _Asked(form, unquote(name), unquote(item))


def is_of_conversations(path: str) -> bool:
    """Whether a path is one of these routes."""
    return _asked_of(path) is not None


def conversation_handler(head: RequestHead) -> Handler | None:
    """The handler of a request for conversations; None for any other path. Raises Fault: METHOD_NOT_ALLOWED."""
    asked = _asked_of(head.path)
    if asked is None:
        return None
    methods = _FORMS[asked.form]
    if head.method not in methods:
        listed = " and ".join(method for method in methods if method != "HEAD")
        message = f"Only {listed} {'are' if ' ' in listed else 'is'} allowed here."
        raise Fault(Kind.METHOD_NOT_ALLOWED, message, detail=", ".join(methods))

    async def answer(exchange: Exchange, story: Story, deps: Deps) -> None:
        story.asked.endpoint = asked.form
        request = _Request(asked, exchange, story, deps)
        await answer_stored(exchange, story, deps, RESPONSES, request.answered)

    return answer


class _Request:
    """One request, whose caller is known and admitted when it is `answered`."""

    def __init__(self, asked: _Asked, exchange: Exchange, story: Story, deps: Deps) -> None:
        self._asked = asked
        self._exchange = exchange
        self._story = story
        self._deps = deps

    async def answered(self, caller: Caller) -> bytes:
        """The body of the answer. Raises Fault."""
        asked, method = self._asked, self._exchange.head.method
        store = conversations_of(self._deps)
        if asked.form == PATH:
            return await self._create(caller, store)
        if not is_id(asked.name):
            refuse_unknown_conversation(asked.name)
        if asked.item:
            return await self._of_item(caller, store)
        if asked.form.endswith(ITEMS):
            return await (self._add(caller, store) if method == "POST" else self._list(caller, store))
        if method == "DELETE":
            if not await store.remove(caller.tenant, asked.name):
                refuse_unknown_conversation(asked.name)
            return conversation_deletion(asked.name)
        found = await self._found(caller, store)
        return conversation_object(found if method != "POST" else await self._changed(found, caller, store))

    async def _create(self, caller: Caller, store: ConversationStore) -> bytes:
        terms = self._terms(caller)
        fields = await self._fields(caller)
        check_metadata(fields.get("metadata"))
        sent = check_added(fields.get("items", []), "items")
        began = self._story.at_unix
        new = Conversation(
            id=CONVERSATION_PREFIX + self._new_id(),
            tenant=caller.tenant,
            created_unix=began,
            expires_unix=began + terms.keep_days * DAY_S,
            end_user=self._end_user(caller),
            metadata=msgspec.json.encode(fields.get("metadata", {})),
        )
        try:
            await store.create(new, new_items(sent, self._new_id), terms.max_bytes)
        except NoRoomForResponses:
            raise no_room("") from None
        return conversation_object(new)

    async def _changed(self, found: Conversation, caller: Caller, store: ConversationStore) -> Conversation:
        terms = self._terms(caller)
        fields = await self._fields(caller)
        if "metadata" not in fields:
            _refuse_missing("metadata")
        check_metadata(fields["metadata"])
        changed = msgspec.structs.replace(found, metadata=msgspec.json.encode(fields["metadata"]))
        try:
            if not await store.change(changed, terms.max_bytes):
                refuse_unknown_conversation(found.id)
        except NoRoomForResponses:
            raise no_room("") from None
        return changed

    async def _add(self, caller: Caller, store: ConversationStore) -> bytes:
        self._check_include()
        terms = self._terms(caller)
        fields = await self._fields(caller)
        if "items" not in fields:
            _refuse_missing("items")
        sent = check_added(fields["items"], "items")
        if not sent:
            refuse("Invalid value for 'items': it is empty.", "items")
        items = new_items(sent, self._new_id)
        name = self._asked.name
        began, user = self._story.at_unix, self._end_user(caller)
        added = AddedItems(conversation=name, tenant=caller.tenant, created_unix=began, end_user=user, items=items)
        try:
            if not await store.append(added, terms.max_bytes):
                refuse_unknown_conversation(name)
        except ItemExists as there:
            refuse_known(str(there), f"items[{[one.id for one in items].index(str(there))}].id")
        except NoRoomForResponses:
            raise no_room("") from None
        return item_list(items, more=False)

    async def _list(self, caller: Caller, store: ConversationStore) -> bytes:
        self._check_include()
        newest_first, limit, after = paging_of(query_of(self._exchange.head), "desc")
        try:
            page = await store.page(caller.tenant, self._asked.name, after, limit, newest_first=newest_first)
        except UnknownItem:
            refuse(f"Invalid value for 'after': the conversation has no item {shown(after)}.", "after")
        if page is None:
            refuse_unknown_conversation(self._asked.name)
        return item_list(page.items, more=page.more)

    async def _of_item(self, caller: Caller, store: ConversationStore) -> bytes:
        asked, tenant = self._asked, caller.tenant
        self._check_include()
        if self._exchange.head.method == "DELETE":
            if not await store.drop(tenant, asked.name, asked.item):
                await self._refuse_item(caller, store)
            return conversation_object(await self._found(caller, store))
        item = await store.item(tenant, asked.name, asked.item)
        if item is None:
            await self._refuse_item(caller, store)
        return item.item

    async def _refuse_item(self, caller: Caller, store: ConversationStore) -> NoReturn:
        await self._found(caller, store)
        raise Fault(Kind.RESPONSE_NOT_FOUND, f"Item with id {shown(self._asked.item)} not found in the conversation.")

    async def _found(self, caller: Caller, store: ConversationStore) -> Conversation:
        found = await store.get(caller.tenant, self._asked.name)
        if found is None:
            refuse_unknown_conversation(self._asked.name)
        return found

    def _terms(self, caller: Caller) -> ResponsesPolicy:
        """How the caller's conversations are kept. Raises Fault: NOT_PERMITTED where they are not."""
        policy = self._deps.live.policies.for_tenant(caller.tenant)
        terms = None if policy is None else policy.treating(caller.project, "").responses
        if terms is None:
            raise not_kept()
        return terms

    async def _fields(self, caller: Caller) -> dict[str, Any]:
        """The members of the body, without those that are null; none for no body."""
        policy = self._deps.live.policies.for_tenant(caller.tenant)
        body = await self._exchange.body(() if policy is None else policy.body_caps, caller.tenant)
        self._story.asked.request_bytes = len(body)
        if not body:
            return {}
        document, _ = parse_body(body)
        return {name: value for name, value in document.items() if value is not None}

    def _check_include(self) -> None:
        """Check `include`: whatever it may name is in the items already."""
        head = self._exchange.head
        query_of(head)  # bounds the number of parameters
        values = parse_qs(head.query) if head.query else {}
        check_included([*values.get("include", ()), *values.get("include[]", ())])

    def _end_user(self, caller: Caller) -> str:
        return self._deps.answers.digest_of_user(caller.user) if caller.user else ""

    def _new_id(self) -> str:
        return self._deps.new_id().removeprefix("req-").replace("-", "")


def _refuse_missing(param: str) -> NoReturn:
    raise Fault(Kind.MISSING_PARAMETER, f"Missing required parameter: '{param}'.", param=param)
