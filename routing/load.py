"""The load table: one row per backend of a pool, the engine's load report merged with the requests that this gateway has in flight there:
those of this process, and as sums those of its sibling processes that tell of them (`routing.siblings`).

Policies read the merged columns of `LoadTable`, plain lists: for 16 backends as fast as NumPy, for 1,000 well under the limit, and without
its 15 MB in every worker (docs/explanation/decisions/0004). A row (`routing.load_row`) is merged anew when its report or its requests
change, so a decision copies nothing.

Every number has one owner: a report says what the engine knew when it was asked, charges say what this process sent there, and
neither overwrites the other (routers no. 17). A charge made after the report was requested is added to the report, a charge released
after the report was read is subtracted, both until the next report.

Size: one table, whose reports, charges, limits and merged columns are the same rows; the rows themselves are `routing.load_row`.
"""

from collections.abc import Callable, Iterable, Sequence
from math import ceil, inf
from typing import Final
from zlib import crc32

import msgspec

from routing.fleet import Backend
from routing.load_row import (
    BORROWED,
    MEMORY,
    MERGED,
    NO_FACTS,
    NO_SIBLINGS,
    USUAL_PROMPT,
    BackendFacts,
    BackendLoad,
    Charge,
    Peak,
    SiblingLoad,
)
from routing.rates import UNKNOWN_RATES, Rates, Reuse

__all__ = ["MERGED", "NO_FACTS", "RATE_COLUMNS", "BackendFacts", "Charge", "LoadTable", "Peak", "SiblingLoad"]


RATE_COLUMNS: Final = Rates._fields
"""The columns of a backend's speed, the fields of `Rates`."""


class LoadTable:
    """Loads, speeds and limits of one pool's backends, in columns; row i belongs to `ids[i]`. Bounded by the pool's backends and by their
    requests in flight."""

    __slots__ = (
        "_mean_ctx",
        "_mean_prompt",
        "_mean_sequence",
        "_now",
        "_raised",
        "_rows_of_last",
        "_silent",
        "_slots_of_last",
        "bound",
        "changed",
        "facts",
        "freed",
        "hold_s",
        "hold_tokens",
        "ids",
        "limit",
        "limit_tokens",
        "limited",
        "loads",
        "moved",
        "order",
        "names",
        "residual_s",
        "reuse",
        "row_of",
        "slots",
        "trust",
        "unsettled",
        *MERGED,
        *RATE_COLUMNS,
    )

    ids: list[str]
    row_of: dict[str, int]
    names: list[int]
    """A number for each id that is the same in every process."""
    requests: list[float]
    running: list[float]
    waiting: list[float]
    queue_tokens: list[float]
    queue_ctx: list[float]
    decoding: list[float]
    decoding_ctx: list[float]
    kv_tokens: list[float]
    kv_capacity: list[float]
    prefill_s: list[float]
    prefill_s_token: list[float]
    prefill_s_token_ctx: list[float]
    step_s: list[float]
    step_s_seq: list[float]
    step_s_token: list[float]
    residual_s: list[float]
    """Standard deviation of the error of predicted times to the first token, seconds."""
    trust: list[float]
    """Factor for the backend's prefix matches: the share of predicted tokens that engines reported as cached (`routing.prefix.trust`)."""
    facts: list[BackendFacts]
    limit: list[float]
    """Concurrency limit: requests that this process may have in flight there; infinite while it is not known."""
    slots: list[float]
    """The part of `limit` that the engine runs at once, as far as that is known; what is above it stands in the engine's queue."""
    limit_tokens: list[float]
    """Uncached prompt tokens that this process may have in prefill there; infinite while it is not known."""
    hold_s: float
    """Seconds of its unbegun prompts at which this process sends a backend no more; infinite for no such hold. See `set_hold`."""
    hold_tokens: list[float]
    """The hold as uncached tokens of each backend, by its speed."""
    bound: list[float]
    """The smaller of `limit` and the configured cap, so that most checks for room are one comparison."""
    loads: list[BackendLoad]
    """The reports and own in-flight load that each row is merged from."""
    unsettled: bool
    """Whether `settle` has anything to do before the next decision."""
    limited: bool
    """Whether any backend has a limit, a configured cap or a hold; without one, the check for room is skipped (`routing.room`)."""
    changed: Callable[[], None] | None
    """Called when this process's own requests change, for its siblings."""
    freed: Callable[[], None] | None
    """Called when a backend may have more room than before, for the queue."""
    reuse: Reuse
    """How much of what engines cache is used again."""
    moved: set[int]
    """Rows whose load or speed has changed since `order` was brought up to date."""
    order: object
    """The backends in the order of their load (`routing.load_order`), or None; dropped when rows come, go or change their numbers."""

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self.ids = []
        self.names = []
        self.row_of = {}
        self.loads = []
        self._rows_of_last: tuple[Sequence[Backend], list[int]] = ((), [])
        self._slots_of_last: tuple[Sequence[Backend], float] = ((), 0.0)
        self._now = 0.0
        self._mean_prompt = USUAL_PROMPT
        self._mean_ctx = 0.5 * USUAL_PROMPT
        self._mean_sequence = USUAL_PROMPT
        self.reuse = Reuse()
        self.moved = set()
        self.order = None
        self._silent: dict[str, None] = {}
        self.unsettled = self._raised = self.limited = False
        self.changed = self.freed = None
        self.hold_s = inf
        for name in (*MERGED, *RATE_COLUMNS, "residual_s", "trust", "facts", "limit", "slots", "limit_tokens", "hold_tokens", "bound"):
            setattr(self, name, [])
        for backend_id in ids:
            self.add(backend_id)

    def add(self, backend_id: str, rates: Rates = UNKNOWN_RATES, facts: BackendFacts = NO_FACTS) -> None:
        """Add a row for a backend, with priors for what is not known yet. Does nothing when the backend has a row.

        Args:
            rates: the prior of its speed, until it is measured.
        """
        if backend_id in self.row_of:
            return
        self.row_of[backend_id] = len(self.ids)
        self.ids.append(backend_id)
        self.names.append(crc32(backend_id.encode()))
        self.loads.append(BackendLoad(backend_id))
        self._silent[backend_id] = None
        for name in MERGED:
            getattr(self, name).append(0.0)
        for name, value in zip(RATE_COLUMNS, rates, strict=True):
            getattr(self, name).append(value)
        self.residual_s.append(0.0)
        self.trust.append(1.0)
        self.facts.append(facts)
        self.limit.append(inf)
        self.slots.append(inf)
        self.limit_tokens.append(inf)
        self.hold_tokens.append(self._held_tokens(rates.prefill_s_token))
        self._limits_changed()
        self._rows_of_last = ((), [])
        self.order = None
        self.unsettled = True

    def drop(self, backend_id: str) -> None:
        """Remove the row of a backend that has left; the last row takes its place.

        Raises:
            ValueError: requests are in flight on it, and their release would find no row.
        """
        at = self.row_of.get(backend_id)
        if at is None:
            return
        if self.loads[at].charges:
            raise ValueError(f"{len(self.loads[at].charges)} requests are in flight on {backend_id!r}")
        own = (
            self.ids,
            self.names,
            self.loads,
            self.residual_s,
            self.trust,
            self.facts,
            self.limit,
            self.slots,
            self.limit_tokens,
            self.hold_tokens,
        )
        for column in (*own, *(getattr(self, name) for name in (*MERGED, *RATE_COLUMNS))):
            column[at] = column[-1]
            column.pop()
        del self.row_of[backend_id]
        self._silent.pop(backend_id, None)
        if at < len(self.ids):
            self.row_of[self.ids[at]] = at
        self._limits_changed()
        self._rows_of_last = ((), [])
        self.order = None
        self.unsettled = True

    def rows(self, backends: Sequence[Backend]) -> list[int]:
        """The row numbers of these backends; cached for the last sequence asked for. Raises KeyError for a backend without a row."""
        last_backends, rows = self._rows_of_last
        if last_backends is not backends:
            rows = [self.row_of[backend.id] for backend in backends]
            self._rows_of_last = (backends, rows)
        return rows

    def slots_of(self, backends: Sequence[Backend]) -> float:
        """Requests that these backends run at once for this process, as far as that is known; infinite where one has no bound. Cached for
        the last sequence asked for, until a limit changes."""
        last_backends, slots = self._slots_of_last
        if last_backends is not backends:
            slots = sum([min(self.slots[row], self.facts[row].in_flight_cap or inf) for row in self.rows(backends)])
            self._slots_of_last = (backends, slots)
        return slots

    def in_flight(self, backend_id: str) -> int:
        """Requests that this process has in flight there."""
        return len(self.loads[self.row_of[backend_id]].charges)

    def unbegun(self, backend_id: str) -> int:
        """Uncached prompt tokens of this process's requests in prefill there (sent, first token not received)."""
        return self.loads[self.row_of[backend_id]].unbegun_tokens

    def begun_on(self, backend_id: str) -> int:
        """Requests of this process there whose first token has come."""
        return self.loads[self.row_of[backend_id]].begun_count

    def since(self, backend_id: str) -> tuple[int, int]:
        """Requests of this process sent since the backend's last report and still in flight; and requests counted in the report that have
        ended since."""
        row = self.loads[self.row_of[backend_id]]
        return row.new, row.ended

    def total(self) -> int:
        """Requests that this process has in flight on all backends of the pool."""
        return sum(len(row.charges) for row in self.loads)

    def charge(self, backend_id: str, uncached_tokens: float, kv_tokens: float, now: float, cached_tokens: float = 0.0) -> Charge:
        """Count one request on the backend; pair it with `release` in a `finally`. Raises KeyError for a backend without a row.

        Args:
            kv_tokens: tokens of the KV cache that the request needs beyond the cached ones, which requests share and engines count once.
            cached_tokens: tokens of the prompt that are cached there.
        """
        at = self.row_of[backend_id]
        self._now = now
        ctx = cached_tokens + 0.5 * uncached_tokens
        sequence = cached_tokens + 0.5 * (uncached_tokens + kv_tokens)
        charge = Charge(backend_id, int(uncached_tokens), int(kv_tokens), now, None, int(uncached_tokens * ctx), int(sequence))
        self._mean_sequence += MEMORY * (sequence - self._mean_sequence)
        self._mean_ctx += MEMORY * (ctx - self._mean_ctx)
        self._mean_prompt += MEMORY * (charge.uncached_tokens - self._mean_prompt)
        row = self.loads[at]
        row.charges[charge] = None
        row.unbegun_tokens += charge.uncached_tokens
        row.unbegun_ctx += charge.uncached_ctx
        row.kv += charge.kv_tokens
        if now > row.asked_at:  # the engine's last report cannot include it
            row.new += 1
            row.new_kv += charge.kv_tokens
            row.new_unbegun += 1
            row.new_unbegun_tokens += charge.uncached_tokens
        self._merge(at)
        if self.changed is not None:
            self.changed()
        return charge

    def begun(self, charge: Charge) -> None:
        """Record that the request's first token came: its prompt is computed and no longer queued. Does nothing the second time."""
        if charge.begun_at is None and not charge.over:
            at = self.row_of[charge.id]
            self.loads[at].begun(charge, self._now)
            self._merge(at)
            if self.changed is not None:
                self.changed()
            if self.freed is not None:
                self.freed()

    def release(self, charge: Charge) -> None:
        """Take the request off its backend, however it ended. Idempotent."""
        if not charge.over:
            at = self.row_of[charge.id]
            self.loads[at].release(charge, self._now)
            self._merge(at)
            if self.changed is not None:
                self.changed()
            if self.freed is not None:
                self.freed()

    def report(
        self,
        backend_id: str,
        *,
        running: float | None = None,
        waiting: float | None = None,
        queued_tokens: float | None = None,
        kv_usage: float | None = None,
        kv_capacity: float | None = None,
        read_at: float,
        asked_at: float,
    ) -> None:
        """Take an engine's report of its whole load. None: the engine does not report it, which is not zero. A report older than the last
        one is dropped.

        Args:
            read_at: when the engine had this load, monotonic seconds. Requests of this process that ended later are subtracted.
            asked_at: when the report was requested, at most `read_at`. Requests of this process sent later may be missing in it, and are
                added.
        """
        at = self.row_of[backend_id]
        row = self.loads[at]
        if read_at < row.read_at:
            return
        self._now = max(self._now, read_at)
        row.report(running, waiting, queued_tokens, kv_usage, kv_capacity, read_at, asked_at)
        if row.reporting:
            self._silent.pop(backend_id, None)
        else:
            self._silent[backend_id] = None
        self._merge(at)

    def siblings(self, backend_id: str, load: SiblingLoad) -> None:
        """Set what sibling processes have in flight there, together. What has changed of it since the engine's report is added to the
        report, and the merged load is never less than it. Raises KeyError for a backend without a row."""
        at = self.row_of[backend_id]
        row = self.loads[at]
        if load != row.siblings:
            less = load.unbegun_tokens < row.siblings.unbegun_tokens
            row.told(load)
            self._merge(at)
            if less and self.freed is not None:
                self.freed()

    def waits_there(self, row: int) -> int:
        """Uncached prompt tokens without a first token that this gateway has on the backend in this row, its siblings' included."""
        load = self.loads[row]
        return load.unbegun_tokens + load.siblings.unbegun_tokens

    def stale(self, now: float, after_s: float) -> list[str]:
        """Mark the backends whose report is older than `after_s` seconds as not reporting; returns the ids of all such backends."""
        self._now = max(self._now, now)
        for row in self.loads:
            if row.reporting and now - row.read_at > after_s:
                row.reporting = False
                self._silent[row.id] = None
                self.unsettled = True
        return [backend_id for backend_id in self.ids if backend_id in self._silent]

    def reporting(self, row: int) -> bool:
        """Whether the backend in this row has a recent and complete report."""
        return self.loads[row].reporting

    def set_rates(self, backend_id: str, rates: Rates, residual_s: float = 0.0) -> None:
        """Set the speed that calibration has learned, and the standard deviation of its error in seconds."""
        at = self.row_of[backend_id]
        for name, value in zip(RATE_COLUMNS, rates, strict=True):
            getattr(self, name)[at] = value
        self.residual_s[at] = residual_s
        self.moved.add(at)
        self.hold_tokens[at] = self._held_tokens(rates.prefill_s_token)

    def set_hold(self, seconds: float) -> None:
        """Hold requests back in the gateway's queue from backends where this process and the siblings that tell of their load have at least
        so many seconds of uncached prompt tokens whose first token has not come; infinite for never. A backend with none takes a prompt of
        any length."""
        self.hold_s = seconds
        self.hold_tokens = [self._held_tokens(token_s) for token_s in self.prefill_s_token]
        self._limits_changed()

    def set_trust(self, backend_id: str, share: float) -> None:
        """Set the factor for the backend's prefix matches, 0 to 1."""
        self.trust[self.row_of[backend_id]] = share

    def set_facts(self, backend_id: str, facts: BackendFacts) -> None:
        """Replace the backend's configured facts."""
        at = self.row_of[backend_id]
        self.facts[at] = facts
        self.moved.add(at)
        self._limits_changed()

    def set_limit(self, backend_id: str, requests: float = inf, tokens: float = inf, slots: float | None = None) -> None:
        """Set the concurrency limits of this process there: requests in flight, uncached prompt tokens in prefill, and the part of the
        first that the engine runs at once (all of them where it is None)."""
        at = self.row_of[backend_id]
        self.limit[at] = requests
        self.slots[at] = requests if slots is None else slots
        self.limit_tokens[at] = tokens
        self._limits_changed()

    def _held_tokens(self, token_s: float) -> float:
        return self.hold_s / token_s if token_s else inf

    def _limits_changed(self) -> None:
        self._slots_of_last = ((), 0.0)
        self.bound = [min(limit, facts.in_flight_cap or inf) for limit, facts in zip(self.limit, self.facts, strict=True)]
        self.limited = min(self.bound, default=inf) < inf or min(self.limit_tokens, default=inf) < inf or self.hold_s < inf
        if self.freed is not None:
            self.freed()

    def interference_s(self, row: int, uncached: float) -> float:
        """Seconds by which decode steps there delay the first token of a prompt with so many uncached tokens, beyond the time to compute
        the queued prompts and its own: the steps that it waits for, and what generating sequences add to the step that ends its prefill.

        Each step computes as many prompt tokens as generating sequences leave it; an engine that is at work is in the middle of a step.
        """
        decoding = self.decoding[row]
        step = self.step_s[row] + self.step_s_seq[row] * decoding + self.step_s_token[row] * self.decoding_ctx[row]
        budget = self.facts[row].step_tokens
        chunk = budget - decoding if decoding < 0.875 * budget else 0.125 * budget
        steps = ceil((self.queue_tokens[row] + uncached) / chunk) - 1.0
        if self.requests[row]:
            steps += 0.5
        return (steps * step if steps > 0.0 else 0.0) + step - self.step_s[row]

    def peak(self, backend_id: str) -> Peak:
        """The highest load since the last call, the current load included."""
        at = self.row_of[backend_id]
        row = self.loads[at]
        capacity = self.kv_capacity[at]
        peak = Peak(row.peak_requests, row.peak_queue_tokens, row.peak_kv_tokens / capacity if capacity else 0.0)
        row.peak_requests = self.requests[at]
        row.peak_queue_tokens = self.queue_tokens[at]
        row.peak_kv_tokens = self.kv_tokens[at]
        return peak

    def settle(self) -> None:
        """Raise the loads of backends that do not report to the mean of those that do; to be called before a decision while `unsettled`."""
        if not self.unsettled:
            return
        self.unsettled = False
        silent = [(self.row_of[backend_id], self.loads[self.row_of[backend_id]].alone) for backend_id in self._silent]
        reporting = len(self.ids) - len(silent)
        if not reporting and not self._raised:
            return
        self._raised = reporting > 0
        self.moved.update([at for at, _ in silent])
        for place, name in enumerate(BORROWED):
            column = getattr(self, name)
            mean = (sum(column) - sum([column[at] for at, _ in silent])) / reporting if reporting else 0.0
            for at, alone in silent:
                column[at] = max(alone[place], mean)

    def _merge(self, at: int) -> None:
        """Merge the report of the backend in this row with this gateway's requests there; never less than what this process and its
        siblings have there. Another gateway's waiting request counts for the mean prompt of this process, where the engine reports no
        tokens.

        One function with comparisons instead of `min` and `max`, because it runs three times in each request.
        """
        row = self.loads[at]
        # integers are summed before floats come in: an operation with one of each takes six times as long
        own, begun = float(len(row.charges)), float(row.begun_count)
        unbegun_tokens, unbegun_ctx, begun_ctx, own_kv = float(row.unbegun_tokens), row.unbegun_ctx, row.begun_ctx, row.kv
        reported = row.reported_waiting or 0.0
        waiting = reported + (row.new_unbegun - row.started)
        requests = (row.reported_running or 0.0) + reported + (row.new - row.ended)
        since_tokens, since_kv = row.new_unbegun_tokens - row.started_tokens, row.new_kv - row.ended_kv
        siblings = row.siblings
        if siblings is not row.siblings_then:
            more = row.siblings_since()
            requests, waiting = requests + more.requests, waiting + more.unbegun
            since_tokens, since_kv = since_tokens + more.unbegun_tokens, since_kv + more.kv_tokens
        if siblings is not NO_SIBLINGS:
            own, unbegun, unbegun_tokens, unbegun_ctx, begun_ctx, own_kv = msgspec.structs.astuple(row.own() + siblings)
            own, begun, unbegun_tokens = float(own), float(own - unbegun), float(unbegun_tokens)
        own_unbegun = own - begun
        if requests < own:
            waiting += min(own - requests, siblings.unbegun)  # sent since the report, by siblings: they are not in it
            requests = own
        if waiting < 0.0:
            waiting = 0.0
        if waiting > requests - begun:
            waiting = requests - begun
        queue = unbegun_tokens
        if row.reported_queue is None:
            if waiting > own_unbegun:
                queue += (waiting - own_unbegun) * self._mean_prompt
        elif (queue_now := row.reported_queue + since_tokens) > queue:
            queue = queue_now
        capacity = row.reported_kv_capacity or 0.0
        kv = (row.reported_kv_usage or 0.0) * capacity + since_kv
        if kv < own_kv:
            kv = float(own_kv)
        ctx = float(unbegun_ctx)
        if queue > unbegun_tokens:
            ctx += (queue - unbegun_tokens) * self._mean_ctx
        running = requests - waiting
        decoding, decoding_ctx = begun, float(begun_ctx)
        if (others := running - own) > 0.0:
            decoding += others
            decoding_ctx += others * self._mean_sequence
        alone = (requests, running, waiting, queue, kv, ctx, decoding, decoding_ctx, capacity)
        if alone != row.alone:
            row.alone = alone
            self.moved.add(at)
        self.requests[at], self.running[at], self.waiting[at] = requests, running, waiting
        self.queue_tokens[at] = queue
        self.kv_tokens[at] = kv
        self.queue_ctx[at] = ctx
        self.decoding[at] = decoding
        self.decoding_ctx[at] = decoding_ctx
        self.kv_capacity[at] = capacity
        self.unsettled = bool(self._silent)
        if requests > row.peak_requests:
            row.peak_requests = requests
        if queue > row.peak_queue_tokens:
            row.peak_queue_tokens = queue
        if kv > row.peak_kv_tokens:
            row.peak_kv_tokens = kv
