"""Routing decisions on disk, so that they can be explained after load and restarts: bounded in bytes and hours.

A request costs its worker one append to a list, and one more if it ends after its decision was written, which is then written again.
A thread of `DecisionLog` encodes decisions a few seconds later, when most of them are final, a few at a time, and appends them to a
segment. `find_written` reads the segments that a request can be in: ids of the gateway begin with their second. A decision is kept as
routing made it, without words; of a prompt only its length is kept.

A segment is a series of frames: four bytes with the length, then decisions in MessagePack, compressed. Its name begins with the second of
its first frame. Each worker writes segments of its own, and any worker deletes the oldest ones of all. A crash loses the last few seconds.
"""

import asyncio
import os
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from pydantic import BaseModel

from domain.clock import Clock, WallClock
from gateway.placement.decisions import Decision, Explained
from routing.registry import POLICIES
from routing.schedule import Route

FLUSH_S: Final = 2.0
"""Seconds between two writings; a decision is written at the second one after it was made. Most failovers are over by then."""
MAX_WRITTEN: Final = 16
"""Candidates of a decision that are written, and as many that were not eligible: nobody reads a thousand."""
MAX_PENDING: Final = 20_000
"""Decisions that wait to be written, 2 KB each; further ones are not written."""
SLICE: Final = 32
"""Decisions of one frame: to encode them takes a fraction of a millisecond, in which the event loop waits for the interpreter."""
PAUSE_S: Final = 0.001
"""Pause between two frames, so that the event loop has its turn."""
SEGMENTS: Final = 32
"""Segments of each worker that a full folder has."""
SEGMENT_S: Final = 900.0
"""Seconds that a segment covers at most."""
FREE_SHARE: Final = 10
"""The last tenth of a disk is left to the ledger and other files that matter more."""
LATE_S: Final = 7200.0
"""Longest time from a request's arrival to its last decision: its wait in queues."""
SKEW_S: Final = 60.0
"""Seconds by which a clock may have been set back meanwhile."""
SUFFIX: Final = ".decisions"

log = structlog.get_logger("tidegate.explanations")


class DecisionLog:
    """Writes one worker's decisions. `note` belongs to the event loop's thread.

    Args:
        name: different for every process.
        max_bytes: of the folder, which all workers share.
        workers: the number of processes that write into the folder.
        keep_s: seconds for which decisions are kept.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, folder: Path, name: str, *, max_bytes: int, workers: int, keep_s: float, wall: WallClock, clock: Clock) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._name = name
        self._segment_bytes = max_bytes // (SEGMENTS * workers)
        # each worker may write one more segment until the next one is begun, which is longer by a frame at most
        self._pruned_bytes = max_bytes - 2 * workers * self._segment_bytes
        self._keep_s = keep_s
        self._wall = wall
        self._clock = clock
        self._new: list[Decision] = []
        self._aging: list[Decision] = []
        self._noted = 0
        # written by the thread only, read by the loop: one writer each, so neither needs a lock
        self._done = 0
        self._segment: _Segment | None = None
        self._segments = 0
        self._params: dict[int, tuple[BaseModel, msgspec.Raw]] = {}
        self._encode = msgspec.msgpack.Encoder(enc_hook=self._plain).encode
        self._complained_at = float("-inf")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="explanations", daemon=True)
        self._thread.start()

    def note(self, decision: Decision) -> None:
        """Write a decision in a few seconds; never waits."""
        if self._noted - self._done < MAX_PENDING:
            self._noted += 1
            self._new.append(decision)

    async def close(self) -> None:
        """Write what is left."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join)

    # --- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        looked_at = self._clock()
        while not self._stop.wait(FLUSH_S):
            self._turn()
            if self._clock() - looked_at >= SEGMENT_S:  # so that old decisions go where nothing new is written
                looked_at = self._clock()
                prune(self._folder, self._pruned_bytes, self._wall() - self._keep_s)
        self._turn()
        self._turn()
        if self._segment is not None:
            self._segment.close()

    def _turn(self) -> None:
        """Write the decisions that were made before the last turn."""
        due, self._aging, self._new = self._aging, self._new, []
        for start in range(0, len(due), SLICE):
            decisions = due[start : start + SLICE]
            for decision in decisions:
                decision.taken = True  # before they are encoded: the loop notes one again that ends from now on
            try:
                self._append(zlib.compress(self._encode([_short(decision) for decision in decisions]), 1))
            except Exception as error:  # noqa: BLE001 - explanations are worth no request, whatever goes wrong here
                self._complain(error)
            self._done += len(decisions)
            self._stop.wait(PAUSE_S)

    def _append(self, frame: bytes) -> None:
        now, segment = self._wall(), self._segment
        if segment is None or segment.size > self._segment_bytes or not 0 <= now - segment.begun < SEGMENT_S:
            if segment is not None:
                self._segment = None
                segment.close()
            prune(self._folder, self._pruned_bytes, now - self._keep_s)
            disk = os.statvfs(self._folder)
            if disk.f_bavail * FREE_SHARE < disk.f_blocks:
                raise OSError(f"less than a tenth of the disk of {self._folder} is free")
            self._segments += 1
            path = self._folder / f"{int(now):08x}-{self._name}-{self._segments}{SUFFIX}"
            segment = self._segment = _Segment(path, now)
        try:
            segment.add(frame)
        except OSError:
            self._segment = None  # behind a part of a frame nothing of this file can be read
            segment.close()
            raise

    def _plain(self, value: Any) -> msgspec.Raw:
        """The parameters of a policy, which all its decisions share, as MessagePack."""
        if not isinstance(value, BaseModel):
            raise TypeError(f"a decision has a {type(value).__name__}")
        known = self._params.get(id(value))
        if known is None or known[0] is not value:
            if len(self._params) >= 1000:
                self._params.clear()
            known = self._params[id(value)] = (value, msgspec.Raw(msgspec.msgpack.encode(value.model_dump(mode="json"))))
        return known[1]

    def _complain(self, error: Exception) -> None:
        now = self._clock()
        if now - self._complained_at >= SKEW_S:
            self._complained_at = now
            log.warning("decisions are not written, and can be explained only while workers remember them", reason=str(error)[:500])


class _Segment:
    """One file that is being written."""

    def __init__(self, path: Path, begun: float) -> None:
        self.begun = begun
        self.size = 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def add(self, frame: bytes) -> None:
        data = len(frame).to_bytes(4, "little") + frame
        if os.write(self._fd, data) < len(data):
            raise OSError("the disk took a part of a frame")
        self.size += len(data)

    def close(self) -> None:
        os.close(self._fd)


def prune(folder: Path, max_bytes: int, before_unix: float) -> None:
    """Delete the oldest segments: what does not fit `max_bytes`, and what was written last before `before_unix`."""
    total = 0
    for path in sorted(folder.glob(f"*{SUFFIX}"), reverse=True):
        try:
            found = path.stat()
            total += found.st_size
            if total > max_bytes or found.st_mtime < before_unix:
                path.unlink()
        except FileNotFoundError:
            continue  # another worker was faster


def find_written(folder: Path, request_id: str, tenant: str = "") -> Explained | None:
    """The last decision on disk about a request; None when none is there. Blocks, for seconds where the id does not say its time.

    Args:
        request_id: an id of the gateway, or the caller's own where the tenant is named.
        tenant: empty for any.
    """
    found: Decision | None = None
    for path in _segments_of(folder, request_id):
        for block in _blocks(path):
            if request_id.encode("ascii", "replace") in block:
                for decision in _decode(block):
                    if decision.known_as(request_id, tenant) and (found is None or decision.at_unix >= found.at_unix):
                        found = decision
    return None if found is None else _restored(found).explained()


def _segments_of(folder: Path, request_id: str) -> list[Path]:
    """The segments that may have the request, oldest first."""
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    parts = request_id.split("-")
    try:
        at = int(parts[1], 16) if parts[0] == "req" and len(parts) == 3 and len(parts[1]) == 8 else None
        if at is None:
            return paths
        return [path for path in paths if int(path.name[:8], 16) <= at + LATE_S and path.stat().st_mtime >= at - SKEW_S]
    except (ValueError, OSError):  # an id that only looks like ours, or a segment that is just being deleted
        return paths


def _blocks(path: Path) -> Iterator[bytes]:
    """The decisions of a segment, frame by frame, up to its end or to a frame that is torn."""
    try:
        with path.open("rb") as file:
            while len(head := file.read(4)) == 4:
                frame = file.read(int.from_bytes(head, "little"))
                yield zlib.decompress(frame)
    except (OSError, zlib.error):
        return


_decoder: Final = msgspec.msgpack.Decoder(list[Decision])


def _decode(block: bytes) -> list[Decision]:
    try:
        return _decoder.decode(block)
    except msgspec.DecodeError:
        return []  # written by another version


def _short(decision: Decision) -> Decision:
    """The decision with the candidates that are written."""
    route = decision.route
    if len(route.ranked) <= MAX_WRITTEN and len(route.excluded) <= MAX_WRITTEN:
        return decision
    cut: dict[str, Any] = {name: getattr(route, name)[:MAX_WRITTEN] for name in ("ranked", "excluded", "costs", "matched", "waiting")}
    return msgspec.structs.replace(decision, route=msgspec.structs.replace(route, **cut))


def _restored(decision: Decision) -> Decision:
    """The decision with its policy's parameters as the policy reads them, and with 0 for terms that the policy got after it was written,
    which follow the others."""
    route: Route = decision.route
    policy = POLICIES.get(route.policy)
    if policy is not None and route.ranked and (lacking := len(route.terms) - len(route.ranked[0][1])) > 0:
        own = len(route.terms) - lacking - len(route.extra)
        zeros = (0.0,) * lacking
        ranked = tuple([(backend, (*terms[:own], *zeros, *terms[own:])) for backend, terms in route.ranked])
        route = msgspec.structs.replace(route, ranked=ranked)
    params = policy.params.model_validate(route.params) if policy is not None and route.params is not None else None
    return msgspec.structs.replace(decision, route=msgspec.structs.replace(route, params=params))
