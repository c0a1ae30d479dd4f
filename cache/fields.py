"""What the keys and partitions of the cache are hashes of: fields with their lengths in front, and the members of a body. Pure."""

import functools
from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final

import msgspec

from domain.ask import Ask

if TYPE_CHECKING:
    from hashlib import _Hash

WITHOUT_EFFECT: Final = frozenset(
    {"metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "stream", "stream_options", "user"}
)
"""Members of a request that do not change its answer. Every other member enters the key, also one that the gateway does not know."""

_length = Struct(">I").pack
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
"""Members inside a value keep their order: the order of a JSON schema's properties, and of tools, changes what engines generate."""


def joined(fields: Sequence[bytes]) -> bytes:
    """Fields with their lengths (4 bytes, big-endian) in front, so that no two rows of fields are alike."""
    return b"".join([_length(len(field)) + field for field in fields])


def add(hashed: "_Hash", field: bytes) -> None:
    """Add one field with its length to a hash."""
    hashed.update(_length(len(field)))
    hashed.update(field)


MAX_REMEMBERED_BYTES: Final = 2048
"""Longer members are not remembered: 4,096 of them take 8 MiB at most."""


def effective_members(ask: Ask, owner: str) -> bytes:
    """The members of the body that change the answer, but for the first prompt field, as JSON sorted by name.

    Args:
        owner: whose request it is: what is remembered of one tenant's requests makes no other tenant's faster.
    """
    members = ask.behind_prompt
    return _remembered(members, owner) if len(members) <= MAX_REMEMBERED_BYTES else _effective(members)


def _effective(members: bytes) -> bytes:
    named = _decode_members(members)
    for name in WITHOUT_EFFECT & named.keys():
        del named[name]
    return _encode_sorted(named)


@functools.lru_cache(4096)  # most requests of an application differ in their prompt alone
def _remembered(members: bytes, owner: str) -> bytes:
    return _effective(members)
