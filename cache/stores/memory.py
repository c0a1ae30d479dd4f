"""Answers in this process: bounded by bytes, the least recently used goes first; each owner has a share of the bytes."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import Final

from cache.answers import Answer
from cache.ports import MAX_LOOKED_THROUGH, KeptEntry, Selection, StoreFigures

OWNER_SHARE: Final = 0.5
"""The part of the store that one owner may fill while others have entries in it: nobody empties it of everybody else's answers."""


class MemoryAnswers:
    """`cache.ports.AnswerStore` in memory.

    Args:
        max_bytes: all entries together, counted by `Answer.size`.
    """

    __slots__ = ("_by_owner", "_entries", "_max_bytes", "bytes", "evicted")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: dict[bytes, Answer] = {}
        self._by_owner: dict[str, _Owned] = {}
        self.bytes = 0
        """The size of all entries."""
        self.evicted = 0
        """Entries that had to make room."""

    in_process = True

    def __len__(self) -> int:
        return len(self._entries)

    def get_now(self, key: bytes, owner: str, now: float) -> Answer | None:
        answer = self._entries.get(key)
        if answer is None or answer.owner != owner:
            return None
        if answer.expires_at <= now:
            self._drop(answer)
            return None
        owned = self._by_owner[owner]
        owned.keys.move_to_end(key)
        self._by_owner[owner] = self._by_owner.pop(owner)
        return answer

    async def get(self, keys: Sequence[bytes], owner: str, now: float) -> list[Answer | None]:
        return [self.get_now(key, owner, now) for key in keys]

    def put_now(self, answer: Answer) -> None:
        """Keep an answer; one that is larger than its owner's share is not kept."""
        old = self._entries.get(answer.key)
        if old is not None:
            self._drop(old)
        if answer.size > self._max_bytes * OWNER_SHARE:
            return
        owned = self._by_owner[answer.owner] = self._by_owner.pop(answer.owner, _Owned())
        self._entries[answer.key] = answer
        owned.keys[answer.key] = None
        owned.bytes += answer.size
        self.bytes += answer.size
        while self.bytes > self._max_bytes:
            self._evict(answer.owner)

    async def put(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            self.put_now(answer)

    async def purge(self, selection: Selection) -> int:
        return self.purge_now(selection)

    def purge_now(self, selection: Selection) -> int:
        """Remove the entries of a selection; returns their number."""
        owned = self._by_owner.get(selection.owner)
        if owned is None:
            return 0
        gone = [answer for key in owned.keys if selection.covers(answer := self._entries[key])]
        for answer in gone:
            self._drop(answer)
        return len(gone)

    async def entries(self, selection: Selection, most: int, now: float) -> list[KeptEntry]:
        """The entries that were used last."""
        owned = self._by_owner.get(selection.owner)
        if owned is None:
            return []
        lately_used = (self._entries[key] for key in islice(reversed(owned.keys), MAX_LOOKED_THROUGH))
        return [_entry(answer) for answer in islice((one for one in lately_used if one.expires_at > now and selection.covers(one)), most)]

    def figures(self) -> StoreFigures:
        return StoreFigures(kind="memory", entries=len(self), bytes=self.bytes, evicted=self.evicted)

    def owner_bytes(self, owner: str) -> int:
        """The size of an owner's entries."""
        owned = self._by_owner.get(owner)
        return 0 if owned is None else owned.bytes

    def _evict(self, writer: str) -> None:
        """Make room: of the writer's own entries where it has more than its share, else of the owner that has read or written least
        recently."""
        owned = self._by_owner[writer]
        owner = writer if owned.bytes > self._max_bytes * OWNER_SHARE else next(iter(self._by_owner))
        oldest = next(iter(self._by_owner[owner].keys))
        self._drop(self._entries[oldest])
        self.evicted += 1

    def _drop(self, answer: Answer) -> None:
        del self._entries[answer.key]
        owned = self._by_owner[answer.owner]
        del owned.keys[answer.key]
        owned.bytes -= answer.size
        self.bytes -= answer.size
        if not owned.keys:
            del self._by_owner[answer.owner]


def _entry(answer: Answer) -> KeptEntry:
    return KeptEntry(
        key=answer.key.hex(),
        model=answer.model,
        namespace=answer.namespace,
        bytes=answer.size,
        kept_at=answer.kept_at,
        expires_at=answer.expires_at,
        writer=answer.writer,
    )


class _Owned:
    """The entries of one owner, the least recently used first."""

    __slots__ = ("bytes", "keys")

    def __init__(self) -> None:
        self.keys: OrderedDict[bytes, None] = OrderedDict()
        self.bytes = 0
