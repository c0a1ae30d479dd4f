"""The ports of the semantic cache."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from cache.ports import Selection

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]


class EmbedderAway(Exception):
    """The embedder has no vectors in time; the text says why."""


class Embedder(Protocol):
    """Makes vectors of texts."""

    @property
    def version(self) -> str:
        """Names the model and everything else that changes vectors; a part of each partition."""
        ...

    @property
    def dimensions(self) -> int:
        """Members of a vector."""
        ...

    async def vectors(self, owner: str, texts: Sequence[str]) -> "list[Vector]":
        """A unit vector (float32, length `dimensions`) of each text; a text without any known word has a vector of zeros.

        Args:
            owner: the tenant or sharing group, whose results alone may be remembered for it.

        Raises:
            EmbedderAway: the vectors are not there in time.
        """
        ...

    async def close(self) -> None:
        """End connections and threads."""
        ...


class Question(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A question that was asked, as the index keeps it. Its answer stands in the store of answers under `key`."""

    partition: bytes
    """32 bytes: everything that has to be equal."""
    owner: str
    key: bytes
    """The exact key of the request; at most one question of a partition has it."""
    text: str
    """The text of the last user turn."""
    vector: bytes
    """float32, little-endian, of unit length."""
    kept_at: float
    """Seconds of the wall clock."""
    expires_at: float
    model: str = ""
    namespace: str = ""
    writer: str = ""
    user: str = ""
    """The keyed digest of an end user."""


class Neighbour(msgspec.Struct, frozen=True, gc=False):
    """A kept question near the one that is asked."""

    question: Question
    similarity: float
    """Cosine, -1 to 1."""


class IndexFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How one worker's index stands."""

    kind: str
    """`memory` or `postgres`."""
    questions: int = 0
    bytes: int = 0
    evicted: int = 0
    away: int = 0
    """Look-ups that were misses because the shared index was away or slow."""
    lost: int = 0
    """Questions that the shared index could not keep."""


class QuestionIndex(Protocol):
    """Finds the nearest kept questions. Every method may lose questions: a cache forgets whatever it has to."""

    async def nearest(self, partition: bytes, owner: str, vector: "Vector", most: int, now: float) -> list[Neighbour]:
        """The nearest questions inside a partition that have not expired, nearest first; none where the index is away."""
        ...

    async def add(self, question: Question) -> None:
        """Keep a question, in place of one with its partition and key. Never raises: what cannot be kept is counted and forgotten."""
        ...

    async def remove(self, partition: bytes, key: bytes) -> None:
        """Forget one question, whose answer has gone. Never raises."""
        ...

    async def purge(self, selection: Selection) -> int:
        """Remove questions, by the meaning of `Selection`; raises while the index cannot be reached."""
        ...

    def figures(self) -> IndexFigures:
        """How the index stands, as this process knows it."""
        ...

    async def close(self) -> None:
        """End connections."""
        ...
