"""The ports of the answer cache."""

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from cache.answers import Answer


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The entries that a purge removes: those of one owner that meet every condition that is set."""

    owner: str
    model: str = ""
    namespace: str = ""
    user: str = ""
    """The keyed digest of an end user."""
    before: float | None = None
    """Entries kept before this time, in seconds of the wall clock."""

    def covers(self, answer: Answer) -> bool:
        """Whether an entry is removed."""
        return (
            answer.owner == self.owner
            and (not self.model or answer.model == self.model)
            and (not self.namespace or answer.namespace == self.namespace)
            and (not self.user or answer.user == self.user)
            and (self.before is None or answer.kept_at < self.before)
        )


class KeptEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an entry without its content."""

    key: str
    """In hexadecimal digits."""
    model: str
    namespace: str
    bytes: int
    """Of the answer in memory, or of its sealed form in a shared store."""
    kept_at: float
    """Seconds of the wall clock."""
    expires_at: float
    writer: str
    """The id of the key whose request the answer was made for."""


class StoreFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How one worker's store stands."""

    kind: str
    """`memory`, or `shared` for a Redis or Valkey."""
    entries: int = 0
    """Answers in memory."""
    bytes: int = 0
    evicted: int = 0
    """Answers that had to make room."""
    away: int = 0
    """Look-ups that were misses because the shared store was away or slow."""
    lost: int = 0
    """Answers that the shared store could not keep."""
    refused: int = 0
    """Entries of the shared store that were damaged, or sealed with another secret."""


MAX_LOOKED_THROUGH: Final = 20_000
"""Entries of one owner that a listing looks at, so that it holds up no request for long."""


class AnswerStore(Protocol):
    """Keeps answers by key. Every method may lose entries: a cache forgets whatever it has to."""

    @property
    def in_process(self) -> bool:
        """Whether `get_now` answers without a wait."""
        ...

    def get_now(self, key: bytes, owner: str, now: float) -> Answer | None:
        """The answer, where the store is in this process; always None otherwise."""
        ...

    async def get(self, keys: Sequence[bytes], owner: str, now: float) -> list[Answer | None]:
        """The answers of several keys. A store that is away, or slower than its bound, has none."""
        ...

    async def put(self, answers: Sequence[Answer]) -> None:
        """Keep answers, all of one owner. Never raises: what cannot be kept is counted and forgotten."""
        ...

    async def purge(self, selection: Selection) -> int:
        """Remove entries here and on every replica; returns how many were removed, where the store can count them."""
        ...

    async def entries(self, selection: Selection, most: int, now: float) -> list[KeptEntry]:
        """Entries of a selection, at most so many; which of more is the store's choice. Raises while the store cannot be reached."""
        ...

    def figures(self) -> StoreFigures:
        """How the store stands, as this process knows it."""
        ...
