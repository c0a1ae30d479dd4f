"""A kept answer, and its sealed form in a store. Pure."""

import hashlib
import hmac
import zlib
from typing import Final

import msgspec

from domain.usage import Usage

FORMAT: Final = b"tca1"
"""In front of each sealed answer; another format is a miss."""
COMPRESSED_FROM_BYTES: Final = 1024
"""A shorter document is stored as it is: deflate saves little of it."""
MAC_BYTES: Final = 16
MAX_UNPACKED_BYTES: Final = 64 * 1024**2


class Answer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A whole answer that was given once."""

    owner: str
    """The tenant, or the sharing group, whose requests may get it; compared with the reader's on each read."""
    key: bytes
    """The key it is stored under; compared on each read as well."""
    document: bytes
    """The plain reply as JSON, whose members `id`, `created` and `usage` are replaced when it is given again; of embeddings, one vector."""
    usage: Usage
    """What the engine reported when it made the answer."""
    model: str
    """The public name of the model."""
    kept_at: float
    """Seconds of the wall clock."""
    expires_at: float
    namespace: str = ""
    """The namespace that the request named; empty for none."""
    writer: str = ""
    """The id of the key whose request the answer was made for."""
    user: str = ""
    """A keyed digest of the end user's label, so that the user's answers can be erased; empty for none."""

    @property
    def size(self) -> int:
        """The bytes that it takes in memory, about."""
        return len(self.document) + len(self.key) + OVERHEAD_BYTES


OVERHEAD_BYTES: Final = 480
"""The bytes of an entry beside its document and key: the struct, its strings, and its place in the tables."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Answer).decode


class Sealer:
    """Seals answers for a store that others can write to, and opens them: compressed, with a MAC over owner, key and content.

    Args:
        secret: at least 32 bytes; the same in all processes that share the store.
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if len(secret) < 32:
            raise ValueError("the secret of the answer cache has under 32 bytes")
        self._secret = hashlib.sha256(b"tidegate answer cache" + secret).digest()

    def seal(self, answer: Answer) -> bytes:
        """The bytes to store."""
        packed = _encode(answer)
        body = b"z" + zlib.compress(packed, 1) if len(packed) >= COMPRESSED_FROM_BYTES else b"p" + packed
        return FORMAT + self._mac(answer.owner, answer.key, body) + body

    def opened(self, sealed: bytes, owner: str, key: bytes) -> Answer | None:
        """The answer; None where the bytes are of another format, key or owner, damaged, or not sealed with this secret."""
        if not sealed.startswith(FORMAT):
            return None
        mac, body = sealed[len(FORMAT) : len(FORMAT) + MAC_BYTES], sealed[len(FORMAT) + MAC_BYTES :]
        if not hmac.compare_digest(mac, self._mac(owner, key, body)):
            return None
        try:
            packed = _inflated(body[1:]) if body[:1] == b"z" else body[1:]
            answer = _decode(packed)
        except (zlib.error, msgspec.MsgspecError, ValueError):
            return None
        return answer if answer.owner == owner and answer.key == key else None

    def _mac(self, owner: str, key: bytes, body: bytes) -> bytes:
        named = owner.encode()
        return hmac.digest(self._secret, len(named).to_bytes(4, "big") + named + len(key).to_bytes(4, "big") + key + body, "sha256")[
            :MAC_BYTES
        ]


def _inflated(data: bytes) -> bytes:
    inflate = zlib.decompressobj()
    out = inflate.decompress(data, MAX_UNPACKED_BYTES)
    if inflate.unconsumed_tail or not inflate.eof:
        raise ValueError("the stored answer is cut or too long")
    return out
