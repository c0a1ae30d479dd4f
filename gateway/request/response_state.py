"""The state of Responses on the request path: the conversation that a request continues is read, and its Response is stored.

`interpret` calls `continuing` and `decide_storing`, for requests of the Responses API alone; `lifecycle.serve` calls `keep_response` where
the end of a reply waits for it, whichever step has made the reply: an engine, the answer cache, or an equal request under way. Why SQL is
asked here at all: docs/explanation/decisions/0020-state-of-responses.md.
"""

import re
from typing import Final, NoReturn

from domain import retry_after
from domain.ask import Ask
from domain.faults import Fault, Kind
from domain.identity import Caller, TenantId
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.translation import Translation
from gateway.http.openai.checks import shown
from gateway.http.openai.stored_chats import StoredChat, wants_storing
from gateway.http.responses import ResponsesTranslation
from gateway.story import Story
from policies.compile import TenantPolicy
from policies.schema import ResponsesPolicy
from tenancy.conversations import MOST_CONVERSATION_ITEMS, ConversationStore, WholeConversation
from tenancy.responses import (
    CHAT_PREFIX,
    MAX_CHAIN_BYTES,
    MAX_ID_CHARS,
    MAX_TURNS,
    ConversationTooLong,
    NoRoomForResponses,
    ResponseChain,
    ResponsesAway,
    ResponseStore,
)

FULL_S: Final = 10.0
"""For how long after a Response found no room its tenant's next ones are refused before an engine works for them."""
MOST_FULL: Final = 1000
"""Tenants that are remembered to have no room; at the bound all are forgotten, and the store is asked again."""

_ID: Final = re.compile(r"[A-Za-z0-9_-]+")


def is_id(text: str) -> bool:
    """Whether a text may be the id of a Response; no other one is looked up."""
    return len(text) <= MAX_ID_CHARS and _ID.fullmatch(text) is not None


def state_away(error: ResponsesAway, deps: Deps) -> Fault:
    """The Fault where the store cannot be asked."""
    message = "The store of Responses (stores.sql) cannot be reached right now. Try again shortly."
    return Fault(Kind.STATE_UNAVAILABLE, message, retry=retry_after.of_unknown_spend(deps.unpredictable.random()), detail=str(error))


def store_of(deps: Deps) -> ResponseStore:
    """The store. Raises Fault: STATE_UNAVAILABLE where this gateway has none."""
    if deps.responses is None:
        raise state_away(ResponsesAway("no store is configured"), deps)
    return deps.responses


def conversations_of(deps: Deps) -> ConversationStore:
    """The store of conversations. Raises Fault: STATE_UNAVAILABLE where this gateway has none."""
    if deps.conversations is None:
        raise state_away(ResponsesAway("no store is configured"), deps)
    return deps.conversations


async def continuing(translation: Translation, exchange: Exchange, caller: Caller, policy: TenantPolicy | None, deps: Deps) -> bytes:
    """The body of the chat for a request that continues an earlier Response of its tenant, or a conversation. One read of the store, with
    bounds.

    Raises:
        Fault: INVALID_VALUE with the code `previous_response_not_found`, or where the conversation is too long to be continued;
            RESPONSE_NOT_FOUND for a conversation; STATE_UNAVAILABLE; BODY_TOO_LARGE or OVERLOADED for a conversation that is larger than a
            request may be; as `request` of the translation.
    """
    assert isinstance(translation, ResponsesTranslation)
    name = translation.earlier
    try:
        if translation.conversation:
            chat = translation.within(await _whole(name, caller.tenant, deps))
        else:
            chat = translation.continuing(await _chain(name, caller.tenant, deps))
    except ResponsesAway as error:
        raise state_away(error, deps) from None
    exchange.grow(len(chat), None if policy is None else policy.widest_caps.body_bytes)
    return chat


async def _chain(name: str, tenant: TenantId, deps: Deps) -> ResponseChain:
    """The conversation that ends with a Response. Raises Fault, ResponsesAway."""
    try:
        before = await store_of(deps).chain(tenant, name) if is_id(name) and not name.startswith(CHAT_PREFIX) else None
    except ConversationTooLong:
        message = f"The conversation has more than {MAX_TURNS} Responses or {MAX_CHAIN_BYTES // 1024**2} MiB. Begin a new one."
        raise Fault(Kind.INVALID_VALUE, message, param="previous_response_id") from None
    if before is None:
        message = (
            "Previous response with this id not found: it, or a Response before it, is not complete, was not stored, has expired or was "
            "deleted. Send the whole conversation as 'input'."
        )
        raise Fault(Kind.INVALID_VALUE, message, param="previous_response_id", code="previous_response_not_found")
    return before


async def _whole(name: str, tenant: TenantId, deps: Deps) -> WholeConversation:
    """The items of a conversation. Raises Fault, ResponsesAway."""
    try:
        whole = await conversations_of(deps).read(tenant, name) if is_id(name) else None
    except ConversationTooLong:
        message = f"The conversation has more than {MOST_CONVERSATION_ITEMS} items or {MAX_CHAIN_BYTES // 1024**2} MiB. Begin a new one."
        raise Fault(Kind.INVALID_VALUE, message, param="conversation") from None
    if whole is None:
        refuse_unknown_conversation(name, "conversation")
    return whole


def refuse_unknown_conversation(name: str, param: str | None = None) -> NoReturn:
    """Raise RESPONSE_NOT_FOUND for a conversation.

    Args:
        param: the parameter that names it; None where the path does.
    """
    message = f"Conversation with id {shown(name)} not found: it never was here, has expired or was deleted."
    raise Fault(Kind.RESPONSE_NOT_FOUND, message, param=param)


def not_kept(param: str | None = None) -> Fault:
    """The Fault where the policy keeps no conversations. `param` is as before."""
    message = "Conversations are not kept here: the policy has no 'responses'. Send the whole conversation as 'input'."
    return Fault(Kind.NOT_PERMITTED, message, param=param)


def decide_storing(translation: Translation, policy: TenantPolicy, tenant: TenantId, deps: Deps) -> None:
    """Decide whether the request's Response is stored, which its first event says already, and added to its conversation.

    Raises:
        Fault: QUOTA_SPENT where the tenant had no room a moment ago; NOT_PERMITTED for a conversation where the policy keeps none.
    """
    if not isinstance(translation, ResponsesTranslation):
        return
    terms = policy.responses if deps.responses is not None and translation.wants_storing(policy.responses) else None
    appends = policy.responses if translation.wants_appending() else None
    if appends is None and translation.wants_appending():
        raise not_kept("conversation")
    if appends is not None and deps.full_of_responses.get(tenant, 0.0) > deps.clock():
        raise no_room("conversation")
    _check_room(terms, tenant, deps)
    translation.store(terms, appends)


def keep_chat(ask: Ask, exchange: Exchange, policy: TenantPolicy, tenant: TenantId, deps: Deps) -> None:
    """Decide whether a chat is stored: its request asks for it, and the policy keeps completions.

    Raises:
        Fault: INVALID_VALUE for a `store` or `metadata` that cannot be; QUOTA_SPENT where the tenant had no room a moment ago.
    """
    if not wants_storing(ask) or policy.responses is None or deps.responses is None:
        return
    _check_room(policy.responses, tenant, deps)
    exchange.translation = StoredChat(ask, policy.responses)


def _check_room(terms: ResponsesPolicy | None, tenant: TenantId, deps: Deps) -> None:
    if terms is not None and deps.full_of_responses.get(tenant, 0.0) > deps.clock():
        raise no_room()


async def keep_response(exchange: Exchange, story: Story, deps: Deps) -> None:
    """Store the Response or the chat completion whose end is held back, add it to its conversation, and send the end.

    Raises:
        Fault: QUOTA_SPENT, STATE_UNAVAILABLE, or INVALID_REPLY for a completion that cannot be stored. What went out of a stream is ended
            with an event that says so.
    """
    if story.trace is not None:
        story.trace.begin("keep_response", deps.clock())
    translation, asked = exchange.translation, story.asked
    assert isinstance(translation, ResponsesTranslation | StoredChat)
    assert asked.caller is not None
    tenant = asked.caller.tenant
    user = deps.answers.digest_of_user(asked.user) if asked.user else ""
    if isinstance(translation, StoredChat):
        translation.usage = story.attempt.usage
    param = "store"
    try:
        new = None if translation.terms is None else translation.stored(tenant, story.at_unix, user)
        if isinstance(translation, ResponsesTranslation) and translation.appends is not None:
            param = "conversation"
            added = translation.added(tenant, story.at_unix, user)
            await conversations_of(deps).append_answer(added, translation.appends.max_bytes, new)
        else:
            assert new is not None
            assert translation.terms is not None
            await store_of(deps).add(new, translation.terms.max_bytes)
    except NoRoomForResponses:
        _withhold(exchange, story)
        if len(deps.full_of_responses) >= MOST_FULL:
            deps.full_of_responses.clear()
        deps.full_of_responses[tenant] = deps.clock() + FULL_S
        raise no_room(param) from None
    except ResponsesAway as error:
        _withhold(exchange, story)
        raise state_away(error, deps) from None
    except Fault:
        _withhold(exchange, story)
        raise
    exchange.release()


def _withhold(exchange: Exchange, story: Story) -> None:
    """Drop the end of the reply. Nothing is charged where the caller has nothing of it."""
    exchange.unsent = None
    if not exchange.started:
        story.attempt.held, story.attempt.cut = True, None
        story.looked_up.hit = story.looked_up.saved = None


def no_room(param: str = "store") -> Fault:
    """The Fault of a tenant whose stored bytes are all taken.

    Args:
        param: the parameter that asks for room; empty for none.
    """
    instead = ", or send the request with 'store': false" if param == "store" else ""
    message = f"What is stored takes all the bytes that the policy allows. Delete some Responses or conversations{instead}."
    return Fault(Kind.QUOTA_SPENT, message, param=param or None)
