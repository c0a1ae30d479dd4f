"""Vectors from an engine's `/v1/embeddings`. An engine that is away, slow or talks nonsense costs a miss, never a request.

numpy comes with the extra `semantic`, so nothing may import this module where the semantic cache is off.
"""

import asyncio
import binascii
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import numpy as np

from cache.semantic.ports import EmbedderAway
from domain.clock import Clock

if TYPE_CHECKING:
    from cache.semantic.ports import Vector

TIMEOUT_S: Final = 0.02
FAILURES: Final = 5
"""Failures in a row after which the engine is left alone. Finagle's failure accrual has five too."""
REST_S: Final = 5.0
"""How long it is left alone; then one request tries it."""
MAX_UNDER_WAY: Final = 64
"""Requests to the engine at once; more would only be late."""
MAX_REPLY_BYTES: Final = 16 * 1024 * 1024
REFUSALS: Final = frozenset((400, 413, 422))
"""The engine has refused these texts, such as one that is too long. That says nothing about the next ones, so it is no failure."""

Post = Callable[[bytes], Awaitable[tuple[int, bytes]]]
"""Sends a JSON body to the engine's `/v1/embeddings`; returns the status and the body. Raises OSError or EmbedderAway where that fails."""


class DimensionsChanged(EmbedderAway):
    """The engine's vectors have another length than its first ones: another model stands behind the name."""


class _Item(msgspec.Struct):
    index: int
    embedding: list[float] | str


class _Reply(msgspec.Struct):
    data: list[_Item]


_decode = msgspec.json.Decoder(_Reply).decode


class EngineEmbedder:
    """`cache.semantic.ports.Embedder` over an engine.

    Args:
        model: the name that the engine is asked for, with a revision behind an `@` where it is known; the revision is not sent.
        post: sends a request.
        clock: monotonic seconds.
        timeout_s: how long a request may take.
        dimensions: the length of its vectors; 0 takes that of the first reply.
        encoding: `base64` saves the engine the digits and needs a third of the bytes; not every engine has it.
    """

    def __init__(
        self,
        model: str,
        post: Post,
        clock: Clock,
        *,
        timeout_s: float = TIMEOUT_S,
        dimensions: int = 0,
        encoding: Literal["float", "base64"] = "float",
    ) -> None:
        self.version: Final = f"engine:{model}"
        self._model = model.partition("@")[0]
        self._post = post
        self._clock = clock
        self._timeout_s = timeout_s
        self._dimensions = dimensions
        self._encoding = encoding
        self._failed = 0
        self._rests_until: float | None = None
        self._under_way = 0

    @property
    def dimensions(self) -> int:
        """0 before the first reply, where none were given."""
        return self._dimensions

    async def vectors(self, owner: str, texts: Sequence[str]) -> "list[Vector]":
        """As the port.

        Raises:
            EmbedderAway: the engine is late, away, left alone, has refused, or has replied with something else than vectors.
            DimensionsChanged: its vectors have another length than before.
        """
        if self._rests_until is not None:
            if self._clock() < self._rests_until:
                raise EmbedderAway(f"the embeddings of {self._model!r} failed {self._failed} times in a row and rest")
            self._rests_until = self._clock() + REST_S  # one tries, the others go on resting until it is known
        if self._under_way >= MAX_UNDER_WAY:
            raise EmbedderAway(f"{MAX_UNDER_WAY} requests for embeddings of {self._model!r} are under way")
        self._under_way += 1
        try:
            vectors = await self._asked(texts)
        except _Refused:
            self._is_well()
            raise
        except EmbedderAway:
            self._failed += 1
            if self._failed >= FAILURES:
                self._rests_until = self._clock() + REST_S
            raise
        finally:
            self._under_way -= 1
        self._is_well()
        return vectors

    async def close(self) -> None:
        """Connections belong to `post`."""

    def _is_well(self) -> None:
        self._failed = 0
        self._rests_until = None

    async def _asked(self, texts: Sequence[str]) -> "list[Vector]":
        # half a surrogate pair cannot be sent
        sent = [text if text.isascii() else text.encode("utf-8", "replace").decode() for text in texts]
        body = msgspec.json.encode({"model": self._model, "input": sent, "encoding_format": self._encoding})
        try:
            async with asyncio.timeout(self._timeout_s):
                status, reply = await self._post(body)
        except TimeoutError as error:
            raise EmbedderAway(f"the embeddings of {self._model!r} took longer than {self._timeout_s * 1000:g} ms") from error
        except OSError as error:
            raise EmbedderAway(f"the embeddings of {self._model!r} cannot be had: {error}") from error
        if status in REFUSALS:
            raise _Refused(f"the engine has refused to embed with {self._model!r}: status {status}")
        if status != 200:
            raise EmbedderAway(f"the embeddings of {self._model!r} came with status {status}")
        return self._read(reply, len(texts))

    def _read(self, reply: bytes, texts: int) -> "list[Vector]":
        if len(reply) > MAX_REPLY_BYTES:
            raise EmbedderAway(f"the embeddings of {self._model!r} have more than {MAX_REPLY_BYTES} bytes")
        try:
            items = _decode(reply).data
            vectors = {item.index: _unit(item.embedding) for item in items}
        except (msgspec.DecodeError, ValueError) as error:
            raise EmbedderAway(f"the reply for {self._model!r} has no embeddings: {error}") from error
        if len(items) != texts or vectors.keys() != set(range(texts)):
            raise EmbedderAway(f"{texts} embeddings were asked of {self._model!r}, and those of {sorted(vectors)[:8]} came")
        lengths = {len(vector) for vector in vectors.values()}
        expected = self._dimensions or min(lengths, default=0)
        if lengths - {expected}:
            raise DimensionsChanged(f"{self._model!r} had embeddings of {expected} numbers and now has {sorted(lengths)[:8]}")
        self._dimensions = expected
        return [vectors[index] for index in range(texts)]


class _Refused(EmbedderAway):
    """The texts were refused."""


def _unit(embedding: list[float] | str) -> "Vector":
    """The vector, at unit length. Raises ValueError (binascii.Error is one)."""
    if isinstance(embedding, str):
        vector = np.frombuffer(binascii.a2b_base64(embedding, strict_mode=True), "<f4").astype(np.float32)
    else:
        vector = np.array(embedding, np.float32)
    if not vector.size:
        raise ValueError("an embedding is empty")
    length = float(np.sqrt(np.square(vector, dtype=np.float64).sum()))
    if not np.isfinite(length):
        raise ValueError("an embedding has a number that is none")
    return (vector / length).astype(np.float32) if length else vector
