"""One engine's KV events in order: sequence numbers, gaps, replays, restarts, and whether what is known is all there is. Pure.

`KvStream` is the stream of one backend. Batches are numbered from 0 by each engine process. A gap is closed by a replay of what the engine
keeps (its last 10,000 batches by default); when that fails, everything known is dropped and built up again from what still comes. Until the
engine clears its cache or restarts, such a state is a lower bound: every block in it is there, and there may be others. `trusted` is
said of a state that is exact.

Sequence numbers do not tell processes apart, so every replay begins with the last batch that is known: a batch of that number
with other bytes was sent by another process. The one assumption is that a process's batches do not come after its successor's,
which separate connections see to.

Both buffers of a stream are bounded: `WaitingBatches` wait for a replay, `RecentBatches` are stamps of the last ones applied. Batches are
decoded by `backends.kv.events`, and the transport is `backends.clients.kv_subscriber`.
"""

from collections import deque
from typing import Final

import msgspec

from backends.kv.blocks import KvConsumer, KvCounts, KvState, hand_over
from backends.kv.events import decode
from backends.kv.hashes import Recognition

MAX_WAITING: Final = 10_000
"""Batches kept while a replay is under way, as many as engines keep for one."""
MAX_WAITING_BYTES: Final = 64 * 1024 * 1024
RECENT_BATCHES: Final = 64
"""Batches remembered, to tell a repeated batch from another process's."""
STAMP_BYTES: Final = 64
"""Length of the beginning of a batch that identifies it: its whole time, and the beginning of its first event."""


class WaitingBatches:
    """Batches that wait for the end of a replay, in order of arrival, bounded in number and bytes."""

    __slots__ = ("_batches", "_bytes")

    def __init__(self) -> None:
        self._batches: deque[tuple[int, bytes]] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, seq: int, payload: bytes) -> bool:
        """Add a batch; False when the bound is exceeded, and then all batches are dropped."""
        self._batches.append((seq, payload))
        self._bytes += len(payload)
        if len(self._batches) <= MAX_WAITING and self._bytes <= MAX_WAITING_BYTES:
            return True
        self.clear()
        return False

    @property
    def first(self) -> int:
        """The sequence number of the oldest batch."""
        return self._batches[0][0]

    def take(self) -> tuple[int, bytes]:
        """Remove and return the oldest batch with its sequence number."""
        seq, payload = self._batches.popleft()
        self._bytes -= len(payload)
        return seq, payload

    def clear(self) -> None:
        """Drop all batches."""
        self._batches.clear()
        self._bytes = 0


class RecentBatches:
    """Stamps of the last `RECENT_BATCHES` batches."""

    __slots__ = ("_stamps",)

    def __init__(self) -> None:
        self._stamps: dict[int, bytes] = {}

    def add(self, seq: int, payload: bytes) -> None:
        """Remember this batch, and forget the oldest."""
        self._stamps[seq] = payload[:STAMP_BYTES]
        if len(self._stamps) > RECENT_BATCHES:
            del self._stamps[next(iter(self._stamps))]

    def __contains__(self, seq: int) -> bool:
        return seq in self._stamps

    def same(self, seq: int, payload: bytes) -> bool:
        """Whether this very batch is among them."""
        return self._stamps.get(seq) == payload[:STAMP_BYTES]


MAX_ROUNDS: Final = 20
"""Replays in a row, each of which brought something: a ROUTER socket drops what does not fit in its queue of 1,000, and ten
of those are all that an engine keeps."""


class KvStream:
    """The event stream of one backend, handed to `consumer` in order. The caller reports connections (`connected`, `disconnected`) and
    messages (`batch`, `replayed`, `replay_over`), and after each report calls `next_replay`, which returns the batch from which the engine
    must be asked for a replay. After `replay_over` the caller calls `go_on` until it returns False.

    Args:
        consumer: takes the events.
        can_replay: whether the engine has a replay address.
    """

    def __init__(self, consumer: KvConsumer, *, can_replay: bool) -> None:
        self.counts = KvCounts()
        self.epoch = 0
        """Number of restarts of the engine's process that were seen."""
        self._consumer = consumer
        self._can_replay = can_replay
        self.up = False
        """Whether the connection to the engine's socket is up."""
        self._waiting = WaitingBatches()
        self._catching = ""
        """Why a replay is needed; empty when none is."""
        self._routine = False
        """The replay is a mere check: there is no sign that a batch is missing."""
        self._replaying = False
        self._rest: str | None = None
        """Set while the batches that came during a replay are applied after its end: why no other replay may be requested; empty when one
        may be."""
        self._rounds = 0
        self._forget()

    def _forget(self) -> None:
        self.next = 0
        """The sequence number of the next batch."""
        self._recent = RecentBatches()
        self._first_at: float | None = None
        self._last_at = 0.0
        self._heard = False
        self._lost = ""
        self._hashing = Recognition()
        self._overlap = False
        """The replay's first batch should be the last known batch."""
        self._hole = False
        """A batch is missing in the replay, so that its rest is of no use."""
        self._begun_at = 0
        """The sequence number of the next batch when the replay was requested."""

    @property
    def reason(self) -> str:
        """Why the state is not exact, in words; empty when it is."""
        if not self.up:
            return "not connected"
        if self._catching and not self._routine:
            return f"catching up: {self._catching}"
        if not self._heard:
            return self._lost or "nothing heard from the engine yet"
        return self._lost or self._consumer.overflow

    @property
    def trusted(self) -> bool:
        """Whether the consumer holds exactly what the engine did after batch `next - 1`."""
        return not self.reason

    def state(self) -> KvState:
        """The state at this moment."""
        reason = self.reason
        counts = msgspec.structs.replace(self.counts)
        return KvState(self._consumer.count, not reason, reason, self.epoch, self._hashing.name, counts)

    def connected(self) -> None:
        """The connection is up, for the first time or again: batches published in between are not known."""
        self.up = True
        if self._can_replay:
            self._catch_up("the connection is new")
            self._waiting.clear()  # the replay brings these batches again, in order
        elif self._heard:
            self._lose("the connection was lost, and without a replay address nothing tells what was missed")

    def disconnected(self) -> None:
        """The connection is lost; a replay under way will not be completed."""
        self.up = False
        self._replaying = False
        self._catching = ""
        self._rest = None
        self._waiting.clear()

    def restarted(self, at_unix: float) -> None:
        """The engine's process started at this time of its own clock. Does nothing when batches of that process are known."""
        if self._first_at is None or self._first_at < at_unix:
            self.gone()
            if self.up and self._can_replay:
                self._catch_up("the engine restarted")
                self._waiting.clear()

    def gone(self) -> None:
        """The publishing process has ended: forget its blocks. The next process numbers its batches from 0."""
        if self._heard or self._lost:
            self.epoch += 1
        self._consumer.cleared()
        self._routine = False
        self._forget()

    def check(self) -> None:
        """Request a replay to see whether there are newer batches; to be called after a silence. The last batches can be lost without a
        gap that shows it."""
        if self.up and self._can_replay and not self._catching and self._heard:
            self._catch_up("a check")
            self._routine = True

    def batch(self, seq: int, payload: bytes) -> None:
        """Take a published batch."""
        if self._catching:
            self._keep(seq, payload)
        elif seq == self.next:
            self._apply(seq, payload)
        elif seq > self.next:
            self._gap(seq, payload)
        else:
            self._behind(seq, payload)

    def _gap(self, seq: int, payload: bytes) -> None:
        missing = seq - self.next
        self.counts.gaps += 1
        self.counts.missed += missing
        why = _gap_of(missing) if self._heard else f"listening since batch {seq} only"
        if self._can_replay:
            self._catch_up(why)
            self._keep(seq, payload)
        else:
            self._jump(seq, payload, f"{why}, and there is no replay address")

    def _behind(self, seq: int, payload: bytes) -> None:
        """Take a batch whose number came before: the same batch again, a late one, or another process's."""
        if self._recent.same(seq, payload):
            self.counts.repeated += 1
        elif self._can_replay:
            self._catch_up("the sequence went back")
            self._keep(seq, payload)
        elif seq in self._recent or self._is_newer(payload):
            self.gone()
            self.batch(seq, payload)
        else:
            self.counts.repeated += 1
            if not self._lost:
                self._lose(f"batch {seq} came after batch {self.next - 1}, and there is no replay address")

    def _is_newer(self, payload: bytes) -> bool:
        try:
            return decode(payload).at > self._last_at
        except ValueError:
            return False

    def _keep(self, seq: int, payload: bytes) -> None:
        if not self._waiting.add(seq, payload):
            why = self._catching
            self._catching = ""
            self._replaying = False
            self._rest = None
            self._jump(seq, payload, f"{why}; too many batches came while waiting for the replay")

    def next_replay(self) -> int | None:
        """The number of the first batch to request, when a new replay is needed; None when none is needed or the needed one is under way.
        The call marks the replay as begun; an older one still under way is out of date."""
        if not self._catching or self._replaying or self._rest is not None:
            return None
        self._replaying = True
        self.counts.replays += 1
        return self.next - 1 if self._overlap else self.next

    def _catch_up(self, why: str) -> None:
        self._catching = why
        self._routine = False
        self._rounds = 0
        self._begin_round()

    def _begin_round(self) -> None:
        self._replaying = self._hole = False
        self._rest = None
        self._overlap = self.next - 1 in self._recent
        self._begun_at = self.next

    def _again(self) -> bool:
        """Request another replay; False after `MAX_ROUNDS` of them."""
        self._rounds += 1
        if self._rounds >= MAX_ROUNDS:
            return False
        if not self._heard:
            self._catching = "the engine restarted"
        self._begin_round()
        return True

    def replayed(self, seq: int, payload: bytes) -> None:
        """Take a batch out of the engine's replay buffer."""
        if not self._replaying or self._hole or seq < self.next - 1:
            return
        if self._overlap:
            self._overlap = False
            if seq == self.next - 1:
                if not self._recent.same(seq, payload):
                    self.gone()
                    self._hole = True  # the rest belongs to a process whose first batches are not known: request those first
                return
            self._jump(seq, payload, f"{self._cause()}, and the engine's buffer begins at batch {seq}")
        elif seq == self.next:
            self._apply(seq, payload)
        elif seq > self.next == self._begun_at:
            self._jump(seq, payload, f"{self._cause()}, and the engine's buffer begins at batch {seq}")
        else:
            self._hole = seq > self.next

    def replay_over(self, failed: str = "") -> None:
        """The replay has ended: with everything the engine keeps, or with `failed`, the failure in words."""
        was_replaying = self._replaying
        self._replaying = False
        if not was_replaying or (failed and self.next > self._begun_at and self._again()):
            return  # the replay brought batches: the engine's queue had no room for its end
        why = f"{self._cause()}, and the replay failed: {failed}" if failed else ""
        if failed:
            if not self._routine:
                self._lose(why)
        elif self._overlap or self._hole:
            if self._overlap:
                self.gone()  # a new process that has not published as many batches as its predecessor
            if self._again():
                return
            self._lose(why := f"{self._cause()}, and {MAX_ROUNDS} replays were not enough")
        else:
            self._heard = True
        self._rest = why
        self.go_on()

    def go_on(self) -> bool:
        """Apply one of the batches that came during a replay that is over; returns whether more of them wait. There may be 10,000, so the
        caller decides when to apply the next one."""
        why = self._rest
        if why is None:
            return False
        if self._waiting:
            if not why and self._waiting.first > self.next > self._begun_at and self._again():
                return False
            seq, payload = self._waiting.take()
            if seq == self.next:
                self._apply(seq, payload)
            elif seq > self.next:
                self._jump(seq, payload, why or f"{_gap_of(seq - self.next)} that the replay did not close")
        if not self._waiting:
            self._catching = ""
            self._routine = False
            self._rest = None
        return self._rest is not None

    def _cause(self) -> str:
        return "something was missed" if self._routine else self._catching

    def _jump(self, seq: int, payload: bytes, why: str) -> None:
        """Give up the missing batches and continue with this one."""
        self._lose(why)
        self._apply(seq, payload)

    def _lose(self, why: str) -> None:
        self._lost = why
        self._consumer.cleared()

    def _apply(self, seq: int, payload: bytes) -> None:
        self.next = seq + 1
        self._heard = True
        self.counts.batches += 1
        self._recent.add(seq, payload)
        if seq == 0:
            self._lost = ""  # there is nothing before it
        try:
            batch = decode(payload)
        except ValueError as error:
            self.counts.refused += 1
            self._lose(f"batch {seq} {error}")
            return
        self._last_at = batch.at
        if self._first_at is None:
            self._first_at = batch.at
        if hand_over(batch.events, self._consumer, self.counts, self._hashing.look):
            self._lost = ""


def _gap_of(batches: int) -> str:
    return f"gap of {batches} batch{'es' if batches != 1 else ''}"
