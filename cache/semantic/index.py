"""Kept questions in this process: an exact scan of a partition, and a graph beside it where it is large.

Memory is bounded in all, and questions for each owner. One owner's flood costs that owner its own oldest questions.
"""

import asyncio
import sys
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from cache.ports import Selection
from cache.semantic.ports import IndexFigures, Neighbour, Question

if TYPE_CHECKING:
    from cache.semantic.graph import VectorGraph
    from cache.semantic.ports import Vector

EXACT_MOST: Final = 20_000
"""Questions of a partition above which a graph is searched: the scan takes 1 ms there, and grows with every question."""
ON_LOOP_MOST: Final = 10_000
"""Questions up to which the event loop scans, in at most 0.3 ms; the way to a thread and back costs 0.1 ms and twice the work."""
OWNER_QUESTIONS: Final = 10_000
MAX_BYTES: Final = 64 * 1024 * 1024
ENTRY_BYTES: Final = 900
"""Memory of a question beside its vector and its text: the struct with its short texts, the entries of three maps."""
GRAPH_ENTRY_BYTES: Final = 500
"""Memory of a vector in a graph beside its numbers; 290 were measured while it was full, and it grows by doubling."""
BEHIND_MOST: Final = 128
"""Changes that may wait for a graph. Where it lacks more, as while it is built, the partition is scanned."""
SPARE: Final = 8
"""What is asked of a graph beyond the nearest, since it may name removed ones. Where it may name more, the partition is scanned."""
SWEPT_AT_ONCE: Final = 64
"""Expired questions that a look-up removes at most; a scan passes over the others."""

_Place = tuple[bytes, bytes]
"""A question's partition and key."""
_Columns = tuple[NDArray[np.float32], NDArray[np.float64]]


class MemoryQuestions:
    """`cache.semantic.ports.QuestionIndex` in memory.

    Args:
        max_bytes: memory of all questions, counted as if matrices were half empty, and of graphs.
        owner_questions: the most questions of one owner; the oldest goes first.
        exact_most: questions of a partition above which its graph is searched.
        on_loop_most: questions of a partition up to which it is scanned on the event loop.
    """

    def __init__(
        self,
        max_bytes: int = MAX_BYTES,
        owner_questions: int = OWNER_QUESTIONS,
        exact_most: int = EXACT_MOST,
        on_loop_most: int = ON_LOOP_MOST,
    ) -> None:
        self._max_bytes = max_bytes
        self._owner_questions = owner_questions
        self._exact_most = exact_most
        self._on_loop_most = min(on_loop_most, exact_most)
        self._partitions: dict[bytes, dict[str, _Partition]] = {}
        self._owners: dict[str, _Owner] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._with_graph: set[_Partition] = set()
        self._entry_bytes = 0
        self.evicted = 0
        """Questions that had to make room."""
        self.lost = 0
        """Questions that could not be kept, because they are larger than everything or their vector is none."""

    @property
    def size(self) -> int:
        """Memory in use, by the same count as `max_bytes`."""
        return self._entry_bytes + sum(len(part) * _graph_bytes(part.dimensions) for part in self._with_graph)

    def __len__(self) -> int:
        return sum(len(owner.places) for owner in self._owners.values())

    async def nearest(self, partition: bytes, owner: str, vector: "Vector", most: int, now: float) -> list[Neighbour]:
        part = self._partitions.get(partition, {}).get(owner)
        if part is None or most < 1 or vector.shape != (part.dimensions,):
            return []
        for question in part.expired(now, SWEPT_AT_ONCE):
            self._drop(question)
        if len(part) <= self._on_loop_most:
            slots = _scan(part.columns(), vector, most, now)
        elif part.graph is None or part.graph.behind > BEHIND_MOST or part.graph.removing > SPARE:
            # the matrix may change meanwhile, so what comes back is compared again below
            slots = await asyncio.get_running_loop().run_in_executor(self._threads(), _scan, part.columns(), vector, most, now)
        else:
            found = await part.graph.search(vector, most + SPARE)
            slots = part.slots_of([*found, *part.graph.unfinished()])
        return part.neighbours(slots, vector, most, now)

    async def add(self, question: Question) -> None:
        vector = np.frombuffer(question.vector, "<f4").astype(np.float32) if len(question.vector) % 4 == 0 else np.empty(0, np.float32)
        size = _size(question)
        owners = self._partitions.setdefault(question.partition, {})
        part = owners.setdefault(question.owner, _Partition(len(vector)))
        if not vector.size or len(vector) != part.dimensions or size > self._max_bytes or not np.isfinite(vector).all():
            self.lost += 1
            self._forget_if_empty(question.partition, question.owner)
            return
        old = part.get(question.key)
        if old is not None:
            self._drop(old)
            owners = self._partitions.setdefault(question.partition, {})
            part = owners.setdefault(question.owner, part)
        owner = self._owners.setdefault(question.owner, _Owner())
        part.add(msgspec.structs.replace(question, vector=b""), vector)
        owner.places[question.partition, question.key] = size
        owner.bytes += size
        self._entry_bytes += size
        if part.graph is None and len(part) > self._exact_most and self.size + len(part) * _graph_bytes(part.dimensions) <= self._max_bytes:
            self._give_graph(part)
        self._make_room(question)

    async def remove(self, partition: bytes, key: bytes) -> None:
        for part in list(self._partitions.get(partition, {}).values()):
            question = part.get(key)
            if question is not None:
                self._drop(question)

    async def purge(self, selection: Selection) -> int:
        owner = self._owners.get(selection.owner)
        if owner is None:
            return 0
        questions = [self._partitions[partition][selection.owner].get(key) for partition, key in owner.places]
        gone = [question for question in questions if question is not None and _covers(selection, question)]
        for question in gone:
            self._drop(question)
        return len(gone)

    def figures(self) -> IndexFigures:
        return IndexFigures(kind="memory", questions=len(self), bytes=self.size, evicted=self.evicted, lost=self.lost)

    async def close(self) -> None:
        """Wait for the thread, if there ever was one."""
        for part in self._with_graph:
            if part.graph is not None:
                await part.graph.close()
        if self._thread is not None:
            self._thread.shutdown()

    def _threads(self) -> ThreadPoolExecutor:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="questions")
        return self._thread

    def _give_graph(self, part: "_Partition") -> None:
        from cache.semantic.graph import VectorGraph  # usearch takes 20 ms to import, and few workers ever need it

        self._with_graph.add(part)
        part.take_graph(VectorGraph(part.dimensions, self._threads()))

    def _make_room(self, written: Question) -> None:
        """Evict: expired questions of the writer, its oldest ones where it has too many, and for memory the oldest of whoever has more
        than an even part of it."""
        owner = self._owners[written.owner]
        while oldest := self._oldest(written.owner):
            if oldest.expires_at > written.kept_at:
                if len(owner.places) <= self._owner_questions:
                    break
                self.evicted += 1
            self._drop(oldest)
        while self._owners and self.size > self._max_bytes:
            fair = self._max_bytes / len(self._owners)
            name = written.owner
            if name not in self._owners or self._owners[name].bytes < fair:
                name = max(self._owners, key=lambda one: self._owners[one].bytes)
            oldest = self._oldest(name)
            if oldest is None:
                return
            self.evicted += 1
            self._drop(oldest)

    def _oldest(self, owner: str) -> Question | None:
        owned = self._owners.get(owner)
        if owned is None:
            return None
        partition, key = next(iter(owned.places))
        return self._partitions[partition][owner].get(key)

    def _drop(self, question: Question) -> None:
        part = self._partitions[question.partition][question.owner]
        part.remove(question.key)
        if part.graph is not None and len(part) <= self._exact_most // 2:
            self._with_graph.discard(part)
            part.graph.drop()
            part.graph = None
        self._forget_if_empty(question.partition, question.owner)
        owner = self._owners[question.owner]
        size = owner.places.pop((question.partition, question.key))
        owner.bytes -= size
        self._entry_bytes -= size
        if not owner.places:
            del self._owners[question.owner]

    def _forget_if_empty(self, partition: bytes, owner: str) -> None:
        owners = self._partitions[partition]
        if not len(owners[owner]):
            del owners[owner]
            if not owners:
                del self._partitions[partition]


class _Owner:
    """The questions of one owner, the oldest first, with the bytes of each."""

    __slots__ = ("bytes", "places")

    def __init__(self) -> None:
        self.places: OrderedDict[_Place, int] = OrderedDict()
        self.bytes = 0


class _Partition:
    """The questions of one owner in one partition: a row of a matrix for each, without gaps."""

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self.graph: VectorGraph | None = None
        self._vectors = np.empty((1, dimensions), np.float32)
        self._ends = np.empty(1, np.float64)
        self._questions: list[Question] = []
        self._numbers: list[int] = []
        """By slot: what the graph knows the question by. A number is never used again."""
        self._slots: dict[bytes, int] = {}
        self._slot_of_number: dict[int, int] = {}
        self._next_number = 0

    def __len__(self) -> int:
        return len(self._questions)

    def get(self, key: bytes) -> Question | None:
        slot = self._slots.get(key)
        return None if slot is None else self._questions[slot]

    def take_graph(self, graph: "VectorGraph") -> None:
        """Give the graph every vector, and from now on every change."""
        self.graph = graph
        for slot, number in enumerate(self._numbers):
            graph.add(number, self._vectors[slot])

    def add(self, question: Question, vector: NDArray[np.float32]) -> None:
        slot, number = len(self), self._next_number
        if slot == len(self._vectors):
            self._resize(slot * 2 if slot < 1024 else slot + slot // 2)
        self._vectors[slot] = vector
        self._ends[slot] = question.expires_at
        self._questions.append(question)
        self._numbers.append(number)
        self._slots[question.key] = slot
        self._slot_of_number[number] = slot
        self._next_number += 1
        if self.graph is not None:
            self.graph.add(number, vector)

    def remove(self, key: bytes) -> None:
        """The last row takes the place of the one that goes."""
        slot, last = self._slots.pop(key), len(self) - 1
        number = self._numbers[slot]
        del self._slot_of_number[number]
        if self.graph is not None:
            self.graph.remove(number)
        if slot != last:
            self._vectors[slot] = self._vectors[last]
            self._ends[slot] = self._ends[last]
            self._questions[slot] = self._questions[last]
            self._numbers[slot] = self._numbers[last]
            self._slots[self._questions[slot].key] = slot
            self._slot_of_number[self._numbers[slot]] = slot
        self._questions.pop()
        self._numbers.pop()
        if last < len(self._vectors) // 2:
            self._resize(max(1, last + last // 4))

    def expired(self, now: float, most: int) -> list[Question]:
        return [self._questions[slot] for slot in np.flatnonzero(self._ends[: len(self)] <= now)[:most].tolist()]

    def columns(self) -> "_Columns":
        """The vectors and the ends of their time, as they are now; rows may change under a thread that reads them."""
        return self._vectors[: len(self)], self._ends[: len(self)]

    def slots_of(self, numbers: list[int]) -> list[int]:
        """Slots of those that are still there, each once."""
        return list({slot for number in numbers if (slot := self._slot_of_number.get(number)) is not None})

    def neighbours(self, slots: list[int], vector: NDArray[np.float32], most: int, now: float) -> list[Neighbour]:
        """What stands in some slots by now, nearest first, and of equals the newest first."""
        slots = [slot for slot in slots if slot < len(self) and self._questions[slot].expires_at > now]
        similarities = np.vecdot(self._vectors[slots], vector).tolist()
        ranked = sorted(zip(similarities, slots, strict=True), key=lambda one: (-one[0], -self._questions[one[1]].kept_at))
        return [
            Neighbour(msgspec.structs.replace(self._questions[slot], vector=self._vectors[slot].astype("<f4").tobytes()), similarity)
            for similarity, slot in ranked[:most]
        ]

    def _resize(self, rows: int) -> None:
        # new arrays, never a change of the old ones' size: a thread may be scanning those
        kept = len(self)
        vectors, ends = np.empty((rows, self.dimensions), np.float32), np.empty(rows, np.float64)
        vectors[:kept], ends[:kept] = self._vectors[:kept], self._ends[:kept]
        self._vectors, self._ends = vectors, ends


def _scan(columns: _Columns, vector: NDArray[np.float32], most: int, now: float) -> list[int]:
    """Slots of the nearest that have not expired, in no order."""
    vectors, ends = columns
    if len(vectors) <= most:
        return list(range(len(vectors)))
    # np.vecdot and not a product of matrices, which BLAS gives to threads of its own: on a busy machine that took 4 ms instead of 0.1
    similarities = np.vecdot(vectors, vector)
    similarities[ends <= now] = -np.inf
    nearest: list[int] = np.argpartition(similarities, len(vectors) - most)[len(vectors) - most :].tolist()
    return nearest


def _graph_bytes(dimensions: int) -> int:
    """Memory of one vector in a graph: its numbers in half precision, and its neighbours."""
    return 2 * dimensions + GRAPH_ENTRY_BYTES


def _size(question: Question) -> int:
    """Memory of a question at most: its row is in a matrix that is at least half full."""
    return 2 * len(question.vector) + sys.getsizeof(question.text) + len(question.user) + ENTRY_BYTES


def _covers(selection: Selection, question: Question) -> bool:
    return (
        question.owner == selection.owner
        and (not selection.model or question.model == selection.model)
        and (not selection.namespace or question.namespace == selection.namespace)
        and (not selection.user or question.user == selection.user)
        and (selection.before is None or question.kept_at < selection.before)
    )
