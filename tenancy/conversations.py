"""Conversations of the Conversations API: what is kept of each and of its items, and the ports of their store. Pure.

A conversation is a list of items that callers and Responses add to. Whoever adds to it waits for whoever adds before: the items of one
addition stand together, in the order in which the additions came, and none is lost. A conversation ends, with all its items, at a time that
is set when it is created.

Metadata and items are sealed by `tenancy.responses.ResponseSealer`, and their bytes are those of the tenant's stored Responses: the two
have one key and one quota.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from domain.identity import TenantId
from tenancy.responses import StoredResponse

CONVERSATION_PREFIX: Final = "conv_"
"""How the ids of conversations begin."""
MOST_CONVERSATION_ITEMS: Final = 10_000
"""Items of a conversation that a Response may continue, at most: all of them are read. A thousand Responses with ten items each, as many as
`tenancy.responses.MAX_TURNS`. Its bytes have the bound of a chain of Responses, `MAX_CHAIN_BYTES`."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation, without its items. Times are seconds since the epoch."""

    id: str
    tenant: TenantId
    created_unix: float
    expires_unix: float
    end_user: str = ""
    """A keyed digest of the label of the end user whose key created it, so that it can be erased; empty for none."""
    metadata: bytes = b"{}"
    """A JSON object."""


class ConversationItem(msgspec.Struct, frozen=True):
    """One item of a conversation."""

    id: str
    item: bytes
    """The item as it is shown: a JSON object with that id."""


class AddedItems(msgspec.Struct, frozen=True, kw_only=True):
    """Items that are added to a conversation together."""

    conversation: str
    """Its id."""
    tenant: TenantId
    created_unix: float
    """When the request began that adds them."""
    end_user: str = ""
    """The digest of the end user's label; empty for none."""
    items: Sequence[ConversationItem]


class ConversationPage(msgspec.Struct, frozen=True):
    """Some items of a conversation in the order that was asked for."""

    items: Sequence[ConversationItem]
    more: bool
    """Whether there are items behind them."""


class WholeConversation(msgspec.Struct, frozen=True):
    """All items of a conversation, the oldest first."""

    items: Sequence[ConversationItem]
    bytes: int
    """Their sealed bytes."""


class UnknownItem(Exception):
    """The conversation has no such item."""


class ItemExists(Exception):
    """The conversation has an item with this id already; the message is the id."""


class Conversations(Protocol):
    """The conversations themselves. What is past its time is there for nobody, and neither is what another tenant has. All of these raise
    ResponsesAway where the database cannot be asked."""

    async def create(self, new: Conversation, items: Sequence[ConversationItem], max_bytes: int) -> None:
        """Keep a conversation with its first items. Nothing is kept where its tenant or its end user was erased since it began.

        Args:
            max_bytes: the most sealed bytes of its tenant.

        Raises:
            NoRoomForResponses: its tenant has no room for it.
        """
        ...

    async def get(self, tenant: TenantId, conversation_id: str) -> Conversation | None:
        """One conversation."""
        ...

    async def change(self, changed: Conversation, max_bytes: int) -> bool:
        """Write the metadata of a conversation anew; False where it is not there any more. Raises NoRoomForResponses."""
        ...

    async def remove(self, tenant: TenantId, conversation_id: str) -> bool:
        """Remove a conversation with all its items; False where it is not there."""
        ...


class ConversationReader(Protocol):
    """Reads items. All of these raise ResponsesAway where the database cannot be asked."""

    async def read(self, tenant: TenantId, conversation_id: str) -> WholeConversation | None:
        """All items, in one read; None where the conversation is not there, or a part of it cannot be opened.

        Raises:
            ConversationTooLong: it has more than `MOST_CONVERSATION_ITEMS` or `tenancy.responses.MAX_CHAIN_BYTES`.
        """
        ...

    async def page(self, tenant: TenantId, conversation_id: str, after: str, limit: int, *, newest_first: bool) -> ConversationPage | None:
        """Some items; None where the conversation is not there.

        Args:
            after: the id of the item before the page; empty for the first page.

        Raises:
            UnknownItem: there is no item `after`.
        """
        ...

    async def item(self, tenant: TenantId, conversation_id: str, item_id: str) -> ConversationItem | None:
        """One item; None where it or its conversation is not there."""
        ...


class ConversationWriter(Protocol):
    """Writes items. All of these raise ResponsesAway where the database cannot be asked."""

    async def append(self, added: AddedItems, max_bytes: int) -> bool:
        """Add items behind all others; False, and nothing is added, where the conversation is not there, or the tenant or the end user was
        erased since the request began.

        Raises:
            ItemExists: the conversation has an item with one of these ids.
            NoRoomForResponses: the tenant has no room for them.
        """
        ...

    async def append_answer(self, added: AddedItems, max_bytes: int, stored: StoredResponse | None) -> None:
        """Add the input and the output of a Response, and store the Response where there is one to store, together. Where the conversation
        is not there any more, the Response alone is stored. An id that an item has already gets a second item.

        Raises:
            NoRoomForResponses: the tenant has no room for them; then nothing is kept.
        """
        ...

    async def drop(self, tenant: TenantId, conversation_id: str, item_id: str) -> bool:
        """Remove one item; False where it or its conversation is not there."""
        ...


class ConversationStore(Conversations, ConversationReader, ConversationWriter, Protocol):
    """All sides of the store."""
