"""Conversations as OpenAI's API shows them, and the items that go into them. Sans-io: values in, bytes out.

Items are kept in the form in which they are shown (`kept.py`). What is added has to be something that a Response can be made of, so it is
checked as the `input` of a request is: a conversation with an item that nobody can translate could not be continued any more.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

import msgspec

from gateway.http.openai.checks import refuse, refuse_type, shown
from gateway.http.responses.items import ChatMessages
from gateway.http.responses.kept import stored_items
from gateway.http.responses.tools import ResponseTools
from tenancy.conversations import Conversation, ConversationItem

MOST_ADDED: Final = 20
"""Items that one request to the Conversations API may add, as the vendor has it. Responses add what they have."""
ITEM_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _RawOutput(msgspec.Struct, gc=False):
    output: list[msgspec.Raw]


class _Named(msgspec.Struct, gc=False):
    id: str


_decode_output = msgspec.json.Decoder(_RawOutput).decode
_decode_named = msgspec.json.Decoder(_Named).decode


def conversation_object(shown_one: Conversation) -> bytes:
    """A conversation."""
    fields = {"id": shown_one.id, "object": "conversation", "created_at": int(shown_one.created_unix)}
    return _encode({**fields, "metadata": msgspec.Raw(shown_one.metadata)})


def conversation_deletion(conversation_id: str) -> bytes:
    """What says that a conversation is deleted."""
    return _encode({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


def item_list(items: Sequence[ConversationItem], *, more: bool) -> bytes:
    """A list of items. The ids at its ends are empty where it is, since the API's description has no null for them."""
    ends = {"first_id": items[0].id if items else "", "last_id": items[-1].id if items else "", "has_more": more}
    return _encode({"object": "list", "data": [msgspec.Raw(one.item) for one in items], **ends})


def check_added(sent: object, param: str) -> list[dict[str, Any]]:
    """Check items that are to be added by a request to the Conversations API, and return them.

    Raises:
        Fault: INVALID_VALUE, MISSING_PARAMETER or UNSUPPORTED_PARAMETER with the path of what is wrong.
    """
    if type(sent) is not list:
        refuse_type("an array", sent, param)
    if len(sent) > MOST_ADDED:
        refuse(f"Invalid value for '{param}': it has {len(sent)} items, and {MOST_ADDED} may be added at a time.", param)
    if sent:
        ChatMessages(ResponseTools()).add(sent, param)
        check_ids(sent, (), param)
    return sent


def check_ids(sent: object, known: Collection[str], param: str) -> None:
    """Check the ids of items that a caller sends for a conversation.

    Args:
        sent: a text, or items that can be translated.
        known: the ids that the conversation has already.

    Raises:
        Fault: INVALID_VALUE for one that is no id, and for one that there is already.
    """
    seen: set[str] = set()
    for index, item in enumerate(sent if type(sent) is list else ()):
        name = item.get("id")
        if name is None:
            continue
        where = f"{param}[{index}].id"
        if type(name) is not str:
            refuse_type("a string", name, where)
        if ITEM_ID.fullmatch(name) is None:
            refuse(f"Invalid value for '{where}': an id has up to 64 letters, digits, '_' and '-'. Leave it out to get one.", where)
        if name in seen or name in known:
            refuse_known(name, where)
        seen.add(name)


def refuse_known(name: str, where: str) -> None:
    """Raise INVALID_VALUE for an item that the conversation has already."""
    message = f"Duplicate item: the conversation has an item with the id {shown(name)}. Leave the item out, or send it without its id."
    refuse(message, where)


def new_items(sent: object, new_id: Callable[[], str]) -> list[ConversationItem]:
    """The items of a request as they are kept.

    Args:
        sent: a text, or items that were checked.
        new_id: makes the digits of an id.
    """
    return list(_named(_decode_raws(stored_items(sent, new_id))))


def answered_items(kept: bytes, response: bytes) -> list[ConversationItem]:
    """What a Response adds to its conversation: its input and its output.

    Args:
        kept: its input, as `stored_items` made it.
        response: the Response as it was answered.
    """
    return [*_named(_decode_raws(kept)), *_named(_decode_output(response).output)]


def _named(raws: list[msgspec.Raw]) -> Iterator[ConversationItem]:
    for raw in raws:
        yield ConversationItem(_decode_named(raw).id, bytes(raw))


def read_items(items: Sequence[ConversationItem]) -> Iterator[dict[str, Any]]:
    """The items of a conversation, to be put in front of a request's own."""
    for one in items:
        yield _decode(one.item)
