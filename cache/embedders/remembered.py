"""Vectors that were made already, by owner: what one tenant has asked makes no other tenant's question faster."""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from cache.semantic.ports import Embedder

if TYPE_CHECKING:
    from cache.semantic.ports import Vector

MAX_BYTES: Final = 16 * 1024 * 1024
"""About 12,000 vectors of 256 members."""
ENTRY_BYTES: Final = 400
"""Memory of an entry beside its numbers: the digest, the array's head, the entries of two maps."""
OWNER_SHARE: Final = 0.5
"""The part that one owner may fill while others have vectors."""


class RememberedVectors:
    """`cache.semantic.ports.Embedder` that remembers what another one has made.

    The key is the owner, the embedder's version and the text's SHA-256. The vector unused for longest goes first: of the owner who writes
    where it has more than its share, else of the owner who has asked least recently. Vectors that are given out cannot be written to.

    Args:
        embedder: makes what is not remembered; closed together with this.
        max_bytes: memory of all vectors.
    """

    def __init__(self, embedder: Embedder, max_bytes: int = MAX_BYTES) -> None:
        self._embedder = embedder
        self._max_bytes = max_bytes
        self._owners: OrderedDict[str, OrderedDict[bytes, Vector]] = OrderedDict()
        self._owner_bytes: dict[str, int] = {}
        self.bytes = 0
        self.hits = 0
        """Texts whose vectors were remembered."""
        self.misses = 0

    @property
    def version(self) -> str:
        return self._embedder.version

    @property
    def dimensions(self) -> int:
        return self._embedder.dimensions

    async def vectors(self, owner: str, texts: Sequence[str]) -> "list[Vector]":
        scope = self._embedder.version.encode()
        keys = [sha256(b"%d:%b%b" % (len(scope), scope, text.encode("utf-8", "surrogatepass"))).digest() for text in texts]
        own = self._owners.get(owner)
        found: dict[bytes, Vector] = {}
        if own is not None:
            self._owners.move_to_end(owner)
            for key in keys:
                vector = own.get(key)
                if vector is not None:
                    own.move_to_end(key)
                    found[key] = vector
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        self.hits += len(texts) - len(missing)
        self.misses += len(missing)
        if missing:
            made = await self._embedder.vectors(owner, list(missing.values()))
            for key, vector in zip(missing, made, strict=True):
                vector.flags.writeable = False
                found[key] = vector
                self._keep(owner, key, vector)
        return [found[key] for key in keys]

    async def close(self) -> None:
        await self._embedder.close()

    def _keep(self, owner: str, key: bytes, vector: "Vector") -> None:
        size = vector.nbytes + ENTRY_BYTES
        if size > self._max_bytes * OWNER_SHARE or key in self._owners.get(owner, ()):
            return  # it does not fit, or another request has made it meanwhile
        own = self._owners.setdefault(owner, OrderedDict())
        own[key] = vector
        self._owners.move_to_end(owner)
        self._owner_bytes[owner] = self._owner_bytes.get(owner, 0) + size
        self.bytes += size
        while self.bytes > self._max_bytes:
            self._forget(owner if self._owner_bytes[owner] > self._max_bytes * OWNER_SHARE else next(iter(self._owners)))

    def _forget(self, owner: str) -> None:
        own = self._owners[owner]
        _, vector = own.popitem(last=False)
        size = vector.nbytes + ENTRY_BYTES
        self._owner_bytes[owner] -= size
        self.bytes -= size
        if not own:
            del self._owners[owner], self._owner_bytes[owner]
