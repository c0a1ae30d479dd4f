"""The load of one backend: the engine's last report, and this process's own requests (`routing.load` merges the two).

`BackendFacts` and `Peak` are its configured facts and its peak load.
"""

from collections import deque
from math import inf
from operator import sub
from typing import Final, NamedTuple

import msgspec

MERGED: Final = ("requests", "running", "waiting", "queue_tokens", "kv_tokens", "queue_ctx", "decoding", "decoding_ctx", "kv_capacity")
"""Names of the merged columns: requests on the backend, requests in its batch, requests waiting for it; uncached prompt tokens not yet
computed; tokens in its KV cache that are in use or promised; the sum over the queued tokens of the context each attends to; sequences that
are generating, and the sum of their contexts, in which a prefix that several share counts for each of them; the KV cache's size in tokens
(0: not known). Never less than what this process alone has there; where a report is missing or stale, never less
than the mean of the other backends, so that a silent backend does not look idle (routers no. 5, 6)."""
BORROWED: Final = MERGED[:8]
"""The columns in which a backend without a recent report gets at least the mean of the others."""

USUAL_PROMPT: Final = 1024.0
"""Assumed uncached tokens of a request of unknown length, until this process has sent requests itself (SMG's default)."""
MEMORY: Final = 0.02
"""Weight of one more request in the running mean of those tokens."""
ENDS_KEPT: Final = 1024
"""Ended requests remembered until a younger report comes. A forgotten one is counted until then, so that the backend looks fuller than
it is, never emptier."""


class BackendFacts(msgspec.Struct, frozen=True, gc=False):
    """Configured facts about a backend, from the operator or the engine; they change only with its configuration."""

    in_flight_cap: int = 0
    """Requests that this process may have in flight there; 0: no cap."""
    context_tokens: int = 0
    """The longest prompt and answer together that it serves; 0: not known."""
    price: float = 0.0
    """Price of a token, relative to the other backends of the pool."""
    region: str = ""
    """The backend's region, by the operator's name for it."""
    step_tokens: int = 2048
    """Most tokens of one step, decoding sequences and prompt chunks together: vLLM's `--max-num-batched-tokens`, SGLang's
    `--chunked-prefill-size`."""


NO_FACTS: Final = BackendFacts()


class Peak(NamedTuple):
    """The highest load of a backend since the last reading, so that short peaks between two readings are seen (routers no. 18)."""

    requests: float
    queue_tokens: float
    kv_share: float
    """Share of its KV cache; 0 while its size is not known."""


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
    ctx: int = 0
    """Tokens of its context while it generates: its prompt, and half of its expected answer."""
    over: bool = False
    ended_at: float = 0.0

    @property
    def begun(self) -> bool:
        """Whether its first token has come."""
        return self.begun_at is not None


class SiblingLoad(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What other processes of this gateway have in flight on one backend: the same sums that `BackendLoad` keeps of its own requests."""

    requests: int = 0
    unbegun: int = 0
    """Requests whose first token has not come."""
    unbegun_tokens: int = 0
    unbegun_ctx: int = 0
    begun_ctx: int = 0
    kv_tokens: int = 0

    def __add__(self, other: "SiblingLoad") -> "SiblingLoad":
        return SiblingLoad(
            self.requests + other.requests,
            self.unbegun + other.unbegun,
            self.unbegun_tokens + other.unbegun_tokens,
            self.unbegun_ctx + other.unbegun_ctx,
            self.begun_ctx + other.begun_ctx,
            self.kv_tokens + other.kv_tokens,
        )

    def at_least(self, other: "SiblingLoad") -> "SiblingLoad":
        """The greater of both in each sum."""
        return SiblingLoad(*map(max, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


NO_SIBLINGS: Final = SiblingLoad()


class BackendLoad:
    """The load of one backend: its last report, this process's requests there, and those of its siblings."""

    __slots__ = (
        "alone",
        "asked_at",
        "begun_count",
        "begun_ctx",
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
        "prefilled_ctx",
        "prefilled_tokens",
        "read_at",
        "reported_kv_capacity",
        "reported_kv_usage",
        "reported_queue",
        "reported_running",
        "reported_waiting",
        "reporting",
        "siblings",
        "siblings_then",
        "siblings_told",
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
        self.begun_ctx = 0
        self.prefilled_tokens = self.prefilled_ctx = 0
        """Uncached tokens, and the sum of their contexts, of all requests of this process whose first token has come there, ever."""
        self.unbegun_tokens = 0
        self.unbegun_ctx = 0
        self.kv = 0
        self.siblings = NO_SIBLINGS
        """What other processes of this gateway that tell of their load have there, together."""
        self.siblings_then = NO_SIBLINGS
        """What they had there when the engine's report was read: the greater of what was last told before it and first told after it. What
        was on its way between the processes at that moment is so counted once at most, never twice."""
        self.siblings_told = False
        """Whether siblings have told anything since the report."""
        # new: sent since the report was requested; started, ended: counted in the report, with a first token or an end since it was read
        self.new = self.new_kv = self.new_unbegun = self.new_unbegun_tokens = 0
        self.ended = self.ended_kv = self.started = self.started_tokens = 0
        self.ends: deque[Charge] = deque(maxlen=ENDS_KEPT)
        self.last_begun_at = -inf
        self.alone = (0.0,) * len(MERGED)
        """The last result of `LoadTable._merge`, before `LoadTable.settle` raises it to the mean of other backends."""
        self.peak_requests = self.peak_queue_tokens = self.peak_kv_tokens = 0.0

    def own(self) -> SiblingLoad:
        """What this process has there, as its siblings are told."""
        requests = len(self.charges)
        return SiblingLoad(requests, requests - self.begun_count, self.unbegun_tokens, self.unbegun_ctx, self.begun_ctx, self.kv)

    def siblings_since(self) -> SiblingLoad:
        """What the siblings have more there than when the engine's report was read; less is negative."""
        now, then = self.siblings, self.siblings_then
        return SiblingLoad(*map(sub, msgspec.structs.astuple(now), msgspec.structs.astuple(then)))

    def told(self, siblings: SiblingLoad) -> None:
        """Replace what the siblings have there."""
        self.siblings = siblings if siblings.requests else NO_SIBLINGS
        if not self.siblings_told:
            self.siblings_told = True
            self.siblings_then = self.siblings_then.at_least(siblings)

    def begun(self, charge: Charge, now: float) -> None:
        """Record a request's first token."""
        charge.begun_at = self.last_begun_at = now
        self.begun_count += 1
        self.begun_ctx += charge.ctx
        self.prefilled_tokens += charge.uncached_tokens
        self.prefilled_ctx += charge.uncached_ctx
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
            self.begun_ctx -= charge.ctx
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
        self.siblings_then = self.siblings
        self.siblings_told = False
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
