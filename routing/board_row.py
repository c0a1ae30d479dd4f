"""One backend's two owners of numbers, the engine's last report and this process's own charges, and how they are joined."""

from collections import deque
from math import inf
from typing import Final

import msgspec

MERGED: Final = ("requests", "running", "waiting", "queue_tokens", "kv_tokens", "queue_ctx", "kv_capacity")
"""Requests on the backend, those of them in its batch and not yet in it; uncached prompt tokens not yet computed; tokens in its KV
cache that are in use or promised; the sum over the queued tokens of the context each attends to; the KV cache's size in tokens (0: not
known). Never less than what this process alone has there; where a report is missing or stale, never less than the mean of the others,
so that silence does not look idle (routers no. 5, 6)."""
BORROWED: Final = MERGED[:6]
"""What a row that is not told gets from the others."""

USUAL_PROMPT: Final = 1024.0
"""Uncached tokens of a request of which nobody says how long it is, until this process has sent some itself (SMG's default)."""
MEMORY: Final = 0.02
"""Weight of one more request in the mean of those tokens."""
ENDS_KEPT: Final = 1024
"""Requests that ended lately, remembered until a report is younger. One that is forgotten counts for as long as that report
stands, so the backend looks fuller than it is and never emptier."""


class Charge(msgspec.Struct, eq=False, gc=False):
    """One request on one backend; each part is taken back exactly once."""

    id: str
    uncached_tokens: int
    kv_tokens: int
    at: float
    """When it was sent, monotonic seconds."""
    begun_at: float | None = None
    """When its first token came."""
    uncached_ctx: int = 0
    """Sum over those uncached tokens of what stands before each: they attend to it, so they take longer the more it is."""
    over: bool = False
    ended_at: float = 0.0

    @property
    def begun(self) -> bool:
        """Whether its first token has come."""
        return self.begun_at is not None


class Row:
    """One backend."""

    __slots__ = (
        "alone", "asked_at", "begun_count", "charges", "ended", "ended_kv", "ends", "id", "kv", "last_begun_at", "new", "new_kv",
        "new_unbegun", "new_unbegun_tokens", "peak_kv_tokens", "peak_queue_tokens", "peak_requests", "read_at",
        "reported_kv_capacity", "reported_kv_usage", "reported_queue", "reported_running", "reported_waiting",
        "started", "started_tokens", "told", "unbegun_ctx", "unbegun_tokens",
    )  # fmt: skip

    def __init__(self, backend_id: str) -> None:
        self.id = backend_id
        # the engine's word
        self.told = False
        """Whether its report is recent and says what runs, what waits and how full its cache is."""
        self.read_at = self.asked_at = -inf
        self.reported_running: float | None = None
        self.reported_waiting: float | None = None
        self.reported_queue: float | None = None
        self.reported_kv_usage: float | None = None
        self.reported_kv_capacity: float | None = None
        # ours
        self.charges: dict[Charge, None] = {}
        self.begun_count = 0
        self.unbegun_tokens = 0
        self.unbegun_ctx = 0
        self.kv = 0
        # ours that the report cannot know, and of those it does know what happened since
        self.new = self.new_kv = self.new_unbegun = self.new_unbegun_tokens = 0
        self.ended = self.ended_kv = self.started = self.started_tokens = 0
        self.ends: deque[Charge] = deque(maxlen=ENDS_KEPT)
        self.last_begun_at = -inf
        self.alone = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        """What `merge` said last, without what others lend it."""
        self.peak_requests = self.peak_queue_tokens = self.peak_kv_tokens = 0.0

    def charge(self, charge: Charge) -> None:
        """A request is sent."""
        self.charges[charge] = None
        self.unbegun_tokens += charge.uncached_tokens
        self.unbegun_ctx += charge.uncached_ctx
        self.kv += charge.kv_tokens
        if charge.at > self.asked_at:
            self._note_new(charge)

    def begun(self, charge: Charge, now: float) -> None:
        """A request's first token came."""
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
        """A request is over."""
        charge.over, charge.ended_at = True, now
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
        """The engine's word replaces its last one; what of ours it lacks is counted anew."""
        self.reported_running, self.reported_waiting, self.reported_queue = running, waiting, queued_tokens
        self.reported_kv_usage = kv_usage
        if kv_capacity is not None:
            self.reported_kv_capacity = kv_capacity  # it is a property of the process, told once
        self.read_at, self.asked_at = read_at, min(asked_at, read_at)
        self.told = None not in (running, waiting, kv_usage, self.reported_kv_capacity)
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

    def merge(self, usual_prompt: float, usual_ctx: float) -> tuple[float, float, float, float, float, float, float]:
        """Both owners' numbers joined, in the order of `MERGED`; nothing is ever less than what this process alone has there.

        Args:
            usual_prompt: uncached tokens of a waiting request of others, where the engine counts requests only.
            usual_ctx: their mean context.
        """
        own = len(self.charges)
        own_unbegun = own - self.begun_count
        reported = self.reported_waiting or 0.0
        waiting = reported + self.new_unbegun - self.started
        requests = (self.reported_running or 0.0) + reported + self.new - self.ended
        # comparisons in the place of min and max: this runs three times in each request
        if requests < own:
            requests = float(own)
        if waiting < 0.0:
            waiting = 0.0
        if waiting > requests - self.begun_count:
            waiting = requests - self.begun_count
        queue = float(self.unbegun_tokens)
        if self.reported_queue is None:
            if waiting > own_unbegun:
                queue += (waiting - own_unbegun) * usual_prompt
        elif (told := self.reported_queue + self.new_unbegun_tokens - self.started_tokens) > queue:
            queue = told
        capacity = self.reported_kv_capacity or 0.0
        kv = (self.reported_kv_usage or 0.0) * capacity + self.new_kv - self.ended_kv
        if kv < self.kv:
            kv = float(self.kv)
        ctx = float(self.unbegun_ctx)
        if queue > self.unbegun_tokens:
            ctx += (queue - self.unbegun_tokens) * usual_ctx
        self.alone = (requests, requests - waiting, waiting, queue, kv, ctx, capacity)
        return self.alone
