"""Stored Responses of the Responses API, and stored chat completions: what is kept of each, how it is sealed, and the port of their store.
Pure.

A Response that continues another one names it, and keeps only what it adds. So a conversation is a path through stored Responses, and a
store reads the whole path at once (`ResponseStore.chain`). Where a part of it is gone, nothing of it can be continued.

A stored chat completion is kept as a Response that continues none and is continued by none; its id begins with `CHAT_PREFIX`.

`ResponseSealer` encrypts what is kept with AES-256-GCM. Each tenant has a key of its own, derived from the pepper, whose id stands
beside the sealed bytes: after a change of the pepper the one before opens what it has sealed, for as long as it is configured.
"""

import hashlib
import hmac
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from domain.identity import TenantId
from tenancy.keys import Pepper

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAX_TURNS: Final = 1000
"""Responses of one conversation, at most: a continuation reads all of them."""
MAX_CHAIN_BYTES: Final = 32 * 1024**2
"""Sealed bytes of one conversation, at most; four times the usual size of a request."""
MAX_ID_CHARS: Final = 64
CHAT_PREFIX: Final = "chatcmpl-"
"""How the ids of chat completions begin, and of nothing else that is stored."""

FORMAT: Final = b"tgr1"
"""In front of all that is sealed; another format opens nothing."""
NONCE_BYTES: Final = 12
"""Random, so that one key may seal 2^32 times (NIST SP 800-38D, 8.3); a tenant with a thousand Responses a second would take 50 days,
and its keys differ from those of all others."""
_KEYS_AT_HAND: Final = 256


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one Response. Times are seconds since the epoch."""

    id: str
    tenant: TenantId
    created_unix: float
    expires_unix: float
    previous: str = ""
    """The id of the Response that this one continues; empty for none."""
    turn: int = 0
    """How many Responses are before it."""
    bytes_before: int = 0
    """The sealed bytes of those."""
    end_user: str = ""
    """A keyed digest of the end user's label, so that the user's Responses can be erased; empty for none."""
    response: bytes
    """The Response as it was answered: a JSON object."""
    items: bytes
    """What its request sent as input: a JSON array of items, each with an id."""


class ResponseChain(msgspec.Struct, frozen=True):
    """The Responses of a conversation, the oldest first."""

    turns: tuple[StoredResponse, ...]
    bytes: int
    """Their sealed bytes."""


class ResponsesAway(Exception):
    """The store cannot be asked now; the message says why."""


class NoRoomForResponses(Exception):
    """The tenant's stored Responses would take more bytes than they may."""


class ConversationTooLong(Exception):
    """The conversation has more Responses or bytes than one read may have."""


class ResponseStore(Protocol):
    """Stored Responses. What is past its time is there for nobody, and neither is what another tenant stored."""

    async def add(self, new: StoredResponse, max_bytes: int) -> None:
        """Store a Response durably. Nothing is stored where its tenant or its end user was erased since it began.

        Args:
            max_bytes: the most sealed bytes of its tenant.

        Raises:
            NoRoomForResponses: its tenant has no room for it.
            ResponsesAway: the database cannot be asked.
        """
        ...

    async def get(self, tenant: TenantId, response_id: str) -> StoredResponse | None:
        """One Response. Raises ResponsesAway."""
        ...

    async def chain(self, tenant: TenantId, response_id: str) -> ResponseChain | None:
        """The conversation that ends with this Response, in one read; None where the Response, or any before it, is not there.

        Raises:
            ConversationTooLong: it has more than `MAX_TURNS` or `MAX_CHAIN_BYTES`.
            ResponsesAway: the database cannot be asked.
        """
        ...

    async def remove(self, tenant: TenantId, response_id: str) -> bool:
        """Remove one Response; False where it is not there. Raises ResponsesAway."""
        ...

    async def chats(self, tenant: TenantId, after: str, limit: int, *, newest_first: bool) -> list[StoredResponse] | None:
        """Stored chat completions in the order of their time, at most so many; None where there is none `after` which to begin (empty for
        the beginning). Raises ResponsesAway."""
        ...

    async def replace(self, stored: StoredResponse, max_bytes: int) -> bool:
        """Write what is kept of a Response anew; False where it is not there any more.

        Raises:
            NoRoomForResponses: its tenant has no room for it.
            ResponsesAway: the database cannot be asked.
        """
        ...


class ResponseKeeper(Protocol):
    """Removes stored Responses, of any tenant; for the admin process."""

    async def erase(self, tenant: TenantId, end_users: Collection[str], before_unix: float | None) -> int:
        """Remove the Responses of an end user; returns how many. Takes part in the transaction that is open.

        Args:
            end_users: the digests of the label, by each pepper.
            before_unix: only those that began before this time; None for all.
        """
        ...

    async def sweep(self) -> int:
        """Remove what is past its time, and what deleted tenants left; returns how many. Raises ResponsesAway."""
        ...


class _Sealable(msgspec.Struct, array_like=True, gc=False):
    response: bytes
    items: bytes


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(_Sealable).decode


class ResponseSealer:
    """Seals what is kept of Responses, and opens it.

    Args:
        peppers: the one that seals first, and behind it those of before, which only open.
        entropy: gives so many random bytes.
    """

    def __init__(self, peppers: Sequence[Pepper], entropy: Callable[[int], bytes]) -> None:
        self._secrets = {pepper.kid: pepper.secret for pepper in reversed(peppers)}
        self._entropy = entropy
        self.kid = peppers[0].kid
        """The id of the pepper that seals."""
        self._cipher = lru_cache(_KEYS_AT_HAND)(self._new_cipher)

    def seal(self, stored: StoredResponse) -> bytes:
        """What is kept of a Response, sealed."""
        return self.sealed(stored.tenant, stored.id, stored.response, stored.items)

    def sealed(self, tenant: str, name: str, first: bytes, second: bytes) -> bytes:
        """Two texts of a tenant, sealed under a name that `opened` has to give."""
        nonce = self._entropy(NONCE_BYTES)
        packed = _pack(_Sealable(first, second))
        return FORMAT + nonce + self._cipher(self.kid, tenant).encrypt(nonce, packed, _bound_to(tenant, name))

    def opened(self, sealed: bytes, kid: str, tenant: str, response_id: str) -> tuple[bytes, bytes] | None:
        """The Response and its input; None where the bytes were sealed with another pepper, for another Response, or are damaged.

        Args:
            kid: the id of the pepper that sealed it.
        """
        if kid not in self._secrets or not sealed.startswith(FORMAT):
            return None
        from cryptography.exceptions import InvalidTag

        at = len(FORMAT) + NONCE_BYTES
        try:
            kept = _unpack(self._cipher(kid, tenant).decrypt(sealed[len(FORMAT) : at], sealed[at:], _bound_to(tenant, response_id)))
        except (InvalidTag, ValueError, msgspec.MsgspecError):
            return None
        return kept.response, kept.items

    def _new_cipher(self, kid: str, tenant: str) -> "AESGCM":
        # imported only here: it takes 3 MB and 30 ms, and most gateways store no Responses
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(hmac.digest(self._secrets[kid], b"tidegate stored responses v1" + tenant.encode(), hashlib.sha256().name))


def _bound_to(tenant: str, response_id: str) -> bytes:
    """What sealed bytes are bound to: nobody can pass off one row's bytes as another's."""
    named = tenant.encode()
    return len(named).to_bytes(4, "big") + named + response_id.encode()
