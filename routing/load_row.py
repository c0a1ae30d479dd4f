"""The load of one backend: the engine's last report, and this process's own requests (`routing.load` merges the two)."""

from collections import deque
from math import inf
from typing import Final

import msgspec

MERGED: Final = ("requests", "running", "waiting", "queue_tokens", "kv_tokens", "queue_ctx", "kv_capacity")
"""Names of the merged columns: requests on the backend, requests in its batch, requests waiting for it; uncached prompt tokens not yet
computed; tokens in its KV cache that are in use or promised; the sum over the queued tokens of the context each attends to; the KV
cache's size in tokens (0: not known). Never less than what this process alone has there; where a report is missing or stale, never less
than the mean of the other backends, so that a silent backend does not look idle (routers no. 5, 6)."""
BORROWED: Final = MERGED[:6]
"""The columns in which a backend without a recent report gets at least the mean of the others."""

USUAL_PROMPT: Final = 1024.0
"""Assumed uncached tokens of a request of unknown length, until this process has sent requests itself (SMG's default)."""
MEMORY: Final = 0.02
"""Weight of one more request in the running mean of those tokens."""
ENDS_KEPT: Final = 1024
"""Ended requests remembered until a younger report comes. A forgotten one is counted until then, so that the backend looks fuller than
it is, never emptier."""


class Charge(msgspec.Struct, eq=False, gc=False):
    """One request's in-flight load on one backend; each part is subtracted exactly once."""

    id: str
    uncached_tokens: int
    kv_tokens: int
    at: float
    """When the request was sent, monotonic seconds."""
    begun_at: float | None = None
    """When its first token came, monotonic seconds; None before."""
    uncached_ctx: int = 0
    """Sum over the uncached tokens of the context that each attends to: prefill takes longer with more context."""
    over: bool = False
    ended_at: float = 0.0

    @property
    def begun(self) -> bool:
        """Whether its first token has come."""
        return self.begun_at is not None


class BackendLoad:
    """The load of one backend: its last report, and this process's requests there."""

    __slots__ = (
        "alone",
        "asked_at",
        "begun_count",
        "charges",
        "ended",
        "ended_kv",
        "ends",
        "id",
        "kv",
        "last_begun_at",
        "new",
        "new_kv",
        "new_unbegun",
        "new_unbegun_tokens",
        "peak_kv_tokens",
        "peak_queue_tokens",
        "peak_requests",
        "read_at",
        "reported_kv_capacity",
        "reported_kv_usage",
        "reported_queue",
        "reported_running",
        "reported_waiting",
        "reporting",
        "started",
        "started_tokens",
        "unbegun_ctx",
        "unbegun_tokens",
    )

    def __init__(self, backend_id: str) -> None:
        self.id = backend_id
        # from the engine's report
        self.reporting = False
        """Whether the report is recent and has the running and waiting requests and how full the KV cache is."""
        self.read_at = self.asked_at = -inf
        self.reported_running: float | None = None
        self.reported_waiting: float | None = None
        self.reported_queue: float | None = None
        self.reported_kv_usage: float | None = None
        self.reported_kv_capacity: float | None = None
        # of this process's requests
        self.charges: dict[Charge, None] = {}
        self.begun_count = 0
        self.unbegun_tokens = 0
        self.unbegun_ctx = 0
        self.kv = 0
        # new: sent since the report was requested; started, ended: counted in the report, with a first token or an end since it was read
        self.new = self.new_kv = self.new_unbegun = self.new_unbegun_tokens = 0
        self.ended = self.ended_kv = self.started = self.started_tokens = 0
        self.ends: deque[Charge] = deque(maxlen=ENDS_KEPT)
        self.last_begun_at = -inf
        self.alone = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        """The last result of `LoadTable._merge`, before `LoadTable.settle` raises it to the mean of other backends."""
        self.peak_requests = self.peak_queue_tokens = self.peak_kv_tokens = 0.0

    def begun(self, charge: Charge, now: float) -> None:
        """Record a request's first token."""
        charge.begun_at = self.last_begun_at = now
        self.begun_count += 1
        self.unbegun_tokens -= charge.uncached_tokens
        self.unbegun_ctx -= charge.uncached_ctx
        if charge.at > self.asked_at:
            self.new_unbegun -= 1
            self.new_unbegun_tokens -= charge.uncached_tokens
        else:
            self.started += 1
            self.started_tokens += charge.uncached_tokens

    def release(self, charge: Charge, now: float) -> None:
        """Remove a request that has ended."""
        charge.over = True
        charge.ended_at = now
        del self.charges[charge]
        self.kv -= charge.kv_tokens
        if charge.begun_at is None:
            self.unbegun_tokens -= charge.uncached_tokens
            self.unbegun_ctx -= charge.uncached_ctx
        else:
            self.begun_count -= 1
        if charge.at > self.asked_at:
            self.new -= 1
            self.new_kv -= charge.kv_tokens
            if charge.begun_at is None:
                self.new_unbegun -= 1
                self.new_unbegun_tokens -= charge.uncached_tokens
        else:
            self._note_end(charge)
        self.ends.append(charge)

    def report(
        self,
        running: float | None,
        waiting: float | None,
        queued_tokens: float | None,
        kv_usage: float | None,
        kv_capacity: float | None,
        read_at: float,
        asked_at: float,
    ) -> None:
        """Replace the engine's report, and count anew which requests of this process it cannot include and which have ended since."""
        self.reported_running = running
        self.reported_waiting = waiting
        self.reported_queue = queued_tokens
        self.reported_kv_usage = kv_usage
        if kv_capacity is not None:
            self.reported_kv_capacity = kv_capacity  # constant for an engine process, which may report it only once
        self.read_at = read_at
        self.asked_at = min(asked_at, read_at)
        self.reporting = None not in (running, waiting, kv_usage, self.reported_kv_capacity)
        self.new = self.new_kv = self.new_unbegun = self.new_unbegun_tokens = 0
        self.ended = self.ended_kv = self.started = self.started_tokens = 0
        for charge in reversed(self.charges):
            if charge.at <= self.asked_at:
                break
            self._note_new(charge)
        if self.last_begun_at > read_at:
            for charge in self.charges:
                if charge.at <= self.asked_at and charge.begun_at is not None and charge.begun_at > read_at:
                    self.started += 1
                    self.started_tokens += charge.uncached_tokens
        ends = self.ends
        while ends and ends[0].ended_at <= read_at:
            ends.popleft()
        for charge in ends:
            if charge.at <= self.asked_at:
                if charge.begun_at is not None and charge.begun_at > read_at:
                    self.started += 1
                    self.started_tokens += charge.uncached_tokens
                self._note_end(charge)

    def _note_new(self, charge: Charge) -> None:
        self.new += 1
        self.new_kv += charge.kv_tokens
        if charge.begun_at is None:
            self.new_unbegun += 1
            self.new_unbegun_tokens += charge.uncached_tokens

    def _note_end(self, charge: Charge) -> None:
        self.ended += 1
        self.ended_kv += charge.kv_tokens
        if charge.begun_at is None:
            self.started += 1
            self.started_tokens += charge.uncached_tokens
