"""A synchronous model as an `Embedder`: short texts on the event loop, long ones in a thread, joined in batches.

The way to a thread and back takes about 0.13 ms, three times as long as the packaged model takes for a question
(`python -m bench.cache.embed` prints both), and nearly all of it is the processor's work. So up to `ON_LOOP_CHARACTERS` the loop makes
the vectors itself.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Protocol

from cache.semantic.ports import EmbedderAway

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cache.semantic.ports import Vector

TIMEOUT_S: Final = 0.02
"""How long a caller waits; a look-up that takes longer is worth less than beginning with the engine."""
ON_LOOP_CHARACTERS: Final = 400
"""Up to so many characters in all are embedded on the loop: 0.2 ms, little more than the way to a thread and back."""
BATCH_CHARACTERS: Final = 16_384
"""Characters of a batch, unless one request has more: about 9 ms of work, so that whoever comes next is not late for it."""
WAITING_CHARACTERS: Final = 131_072
"""Characters that wait at most. What would wait behind more is late anyway."""


class TextModel(Protocol):
    """A model that makes vectors at once; `embed` may run in a thread, never twice at the same time there."""

    @property
    def version(self) -> str:
        """As `Embedder.version`."""
        ...

    @property
    def dimensions(self) -> int:
        """As `Embedder.dimensions`."""
        ...

    def embed(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """Unit vectors, float32 of shape (texts, dimensions)."""
        ...


class BatchedEmbedder:
    """`cache.semantic.ports.Embedder` around a model, with one thread.

    Requests that arrive while the thread works wait, and go to it together. Whoever has waited too long is not computed for.

    Args:
        model: makes the vectors; used from the loop and from the thread, so its `embed` has to allow both at once.
        timeout_s: how long a request waits.
        on_loop_characters: up to so many characters a request is answered on the loop.
    """

    def __init__(self, model: TextModel, timeout_s: float = TIMEOUT_S, on_loop_characters: int = ON_LOOP_CHARACTERS) -> None:
        self._model = model
        self._timeout_s = timeout_s
        self._on_loop = on_loop_characters
        self._waiting: deque[_Asked] = deque()
        self._waiting_characters = 0
        self._at_work: asyncio.Future[NDArray[np.float32]] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embedder")
        self._closed = False
        self.batches = 0
        """Batches that the thread was given."""

    @property
    def version(self) -> str:
        return self._model.version

    @property
    def dimensions(self) -> int:
        return self._model.dimensions

    async def vectors(self, owner: str, texts: Sequence[str]) -> "list[Vector]":
        characters = sum(map(len, texts))
        if characters <= self._on_loop:
            return list(self._model.embed(texts))
        if self._closed:
            raise EmbedderAway("the embedder is closed")
        if self._waiting and self._waiting_characters + characters > WAITING_CHARACTERS:
            raise EmbedderAway(f"more than {WAITING_CHARACTERS} characters wait for the embedder")
        asked = _Asked(texts, characters, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        self._waiting_characters += characters
        if self._at_work is None:
            self._begin()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asked.reply
        except TimeoutError as error:
            raise EmbedderAway(f"the embedder took longer than {self._timeout_s * 1000:g} ms") from error

    async def close(self) -> None:
        """Wait for the batch at work; who still waits is told that the embedder is away."""
        self._closed = True
        while self._waiting:
            asked = self._waiting.popleft()
            if not asked.reply.done():
                asked.reply.set_exception(EmbedderAway("the embedder is closed"))
        if self._at_work is not None:
            await asyncio.wait([self._at_work])
        self._thread.shutdown()

    def _begin(self) -> None:
        """Give the thread the next batch, if anybody still waits."""
        batch: list[_Asked] = []
        characters = 0
        while self._waiting and (not batch or characters + self._waiting[0].characters <= BATCH_CHARACTERS):
            asked = self._waiting.popleft()
            self._waiting_characters -= asked.characters
            if not asked.reply.done():
                batch.append(asked)
                characters += asked.characters
        if not batch:
            return
        self.batches += 1
        texts = [text for asked in batch for text in asked.texts]
        self._at_work = asyncio.get_running_loop().run_in_executor(self._thread, self._model.embed, texts)
        self._at_work.add_done_callback(lambda done: self._over(batch, done))

    def _over(self, batch: "list[_Asked]", done: "asyncio.Future[NDArray[np.float32]]") -> None:
        self._at_work = None
        if self._waiting:
            self._begin()
        failure = done.exception()
        first = 0
        for asked in batch:
            end = first + len(asked.texts)
            if not asked.reply.done():
                if failure is None:
                    # copies: a view of one row would keep the whole batch in memory for as long as the row is remembered
                    asked.reply.set_result([row.copy() for row in done.result()[first:end]])
                else:
                    away = EmbedderAway(f"the embedder failed: {failure!r}")
                    away.__cause__ = failure
                    asked.reply.set_exception(away)
            first = end


class _Asked:
    """A request that waits."""

    __slots__ = ("characters", "reply", "texts")

    def __init__(self, texts: Sequence[str], characters: int, reply: "asyncio.Future[list[Vector]]") -> None:
        self.texts = texts
        self.characters = characters
        self.reply = reply
