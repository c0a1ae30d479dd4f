"""A directory's contents as sealed bytes, for a gateway that has to start while its database is away. Pure.

    magic, HMAC-SHA256 over the rest, MessagePack of the contents and when they were read from the database

The key is derived from the pepper, so nobody without it can write a directory that a gateway accepts. The bytes have digests of
secrets, never secrets, and names, limits and prices in clear: only their owner may be able to read them.
"""

import hashlib
import hmac
from typing import Final

import msgspec

from tenancy.accounts import Contents
from tenancy.keys import Pepper

MAGIC: Final = b"tidegate directory 1\n"
_MAC_BYTES: Final = 32


class SealedDirectory(msgspec.Struct, frozen=True):
    """A directory's contents, and when they were last known to be current (seconds since the epoch)."""

    at_unix: float
    contents: Contents


class NotSealed(ValueError):
    """The bytes were not sealed with this pepper, or not by this version; the message says which."""


def seal(kept: SealedDirectory, pepper: Pepper) -> bytes:
    """The contents as sealed bytes."""
    body = msgspec.msgpack.encode(kept)
    return MAGIC + _mac(body, pepper) + body


def unseal(data: bytes, pepper: Pepper) -> SealedDirectory:
    """The contents in sealed bytes.

    Raises:
        NotSealed: nothing in the bytes can be trusted.
    """
    if not data.startswith(MAGIC):
        raise NotSealed("it is no directory of this version")
    mac = data[len(MAGIC) : len(MAGIC) + _MAC_BYTES]
    body = data[len(MAGIC) + _MAC_BYTES :]
    if not hmac.compare_digest(mac, _mac(body, pepper)):
        raise NotSealed("it is damaged, or was sealed with another pepper")
    try:
        return msgspec.msgpack.decode(body, type=SealedDirectory)
    except msgspec.DecodeError as error:
        raise NotSealed(f"it holds what this version does not know: {error}") from None


def _mac(body: bytes, pepper: Pepper) -> bytes:
    key = hmac.digest(pepper.secret, b"tidegate directory snapshot v1", hashlib.sha256().name)
    return hmac.digest(key, MAGIC + body, hashlib.sha256().name)
