"""What is known of one pool's backends, one row each: what engines report, merged with what this process has on them since.

Policies read the merged columns, plain lists: for 16 backends as fast as NumPy, for 1,000 well under the limit, and without its
15 MB in every worker (docs/decisions/0004). A row is worked out anew when something happens to it, so a decision copies nothing.

Every number has one owner: a report says what the engine knew when it was asked, charges say what this process sent there, and
neither overwrites the other (routers no. 17). A charge taken after the report was asked for is added to it, one that ended after
it was read is taken off, both for as long as that report stands.
"""

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Final

from routing.board_row import BORROWED, MEMORY, MERGED, USUAL_PROMPT, Charge, Row
from routing.facts import NO_FACTS, Facts, Peak
from routing.fleet import Backend
from routing.rates import UNKNOWN, Rates
from routing.reuse import Reuse

__all__ = ["MERGED", "NO_FACTS", "RATES", "Board", "Charge", "Facts", "Peak"]

RATES: Final = Rates._fields
"""Its speed, see `Rates`."""


class Board:
    """Rows in the order of `ids`. Bounded by the pool, and each row by what is in flight on it."""

    __slots__ = (
        "_asked", "_at", "_ctx", "_lent", "_prompt", "_rows", "_silent", "_stirred",
        "facts", "freed", "ids", "limit", "limit_tokens", "limited", "residual_s", "reuse", "row_of", "trust", *MERGED, *RATES,
    )  # fmt: skip

    ids: list[str]
    row_of: dict[str, int]
    requests: list[float]
    running: list[float]
    waiting: list[float]
    queue_tokens: list[float]
    queue_ctx: list[float]
    kv_tokens: list[float]
    kv_capacity: list[float]
    prefill_s: list[float]
    prefill_s_token: list[float]
    prefill_s_token_ctx: list[float]
    step_s: list[float]
    step_s_seq: list[float]
    step_s_token: list[float]
    residual_s: list[float]
    """How far its predicted seconds to the first token usually are from what they were."""
    trust: list[float]
    """Of the tokens its index says it holds, the share that it turned out to hold (`routing.trust`)."""
    facts: list[Facts]
    limit: list[float]
    """Requests that this process may have there; infinite while nobody knows."""
    limit_tokens: list[float]
    """Uncached prompt tokens that this process may have there whose first token has not come; likewise."""
    limited: bool
    """Whether any backend has one of these or a configured cap, so that nobody looks where none has (`routing.room`)."""
    freed: Callable[[], None] | None
    """Told when there may be more room than before, for whoever waits for it."""
    reuse: Reuse
    """How much of what is cached is used again."""

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self.ids, self.row_of = [], {}
        self._rows: list[Row] = []
        self._asked: tuple[Sequence[Backend], list[int]] = ((), [])
        self._at = 0.0
        self._prompt, self._ctx = USUAL_PROMPT, 0.5 * USUAL_PROMPT
        self.reuse = Reuse()
        self._silent: dict[str, None] = {}
        self._stirred = self._lent = self.limited = False
        self.freed = None
        for name in (*MERGED, *RATES, "residual_s", "trust", "facts", "limit", "limit_tokens"):
            setattr(self, name, [])
        for one in ids:
            self.add(one)

    def add(self, backend_id: str, rates: Rates = UNKNOWN, facts: Facts = NO_FACTS) -> None:
        """One row more; what is not known yet stands at its prior. Nothing happens to one that is there.

        Args:
            rates: what to believe of its speed until it is measured.
        """
        if backend_id in self.row_of:
            return
        self.row_of[backend_id] = len(self.ids)
        self.ids.append(backend_id)
        self._rows.append(Row(backend_id))
        self._silent[backend_id] = None
        for name in MERGED:
            getattr(self, name).append(0.0)
        for name, value in zip(RATES, rates, strict=True):
            getattr(self, name).append(value)
        self.residual_s.append(0.0)
        self.trust.append(1.0)
        self.facts.append(facts)
        self.limit.append(inf)
        self.limit_tokens.append(inf)
        self._look_at_limits()
        self._asked = ((), [])
        self._stirred = True

    def drop(self, backend_id: str) -> None:
        """A backend has left; the last row takes its place.

        Raises:
            ValueError: something is in flight on it: its release would have nowhere to go.
        """
        at = self.row_of.get(backend_id)
        if at is None:
            return
        if self._rows[at].charges:
            raise ValueError(f"{len(self._rows[at].charges)} requests are in flight on {backend_id!r}")
        own = (self.ids, self._rows, self.residual_s, self.trust, self.facts, self.limit, self.limit_tokens)
        for column in (*own, *(getattr(self, name) for name in (*MERGED, *RATES))):
            column[at] = column[-1]
            column.pop()
        del self.row_of[backend_id]
        self._silent.pop(backend_id, None)
        if at < len(self.ids):
            self.row_of[self.ids[at]] = at
        self._look_at_limits()
        self._asked = ((), [])
        self._stirred = True

    def rows(self, backends: Sequence[Backend]) -> list[int]:
        """Their rows; worked out once for one and the same sequence. Raises KeyError for a backend without a row."""
        asked, rows = self._asked
        if asked is not backends:
            rows = [self.row_of[one.id] for one in backends]
            self._asked = (backends, rows)
        return rows

    def in_flight(self, backend_id: str) -> int:
        """Requests of this process on it."""
        return len(self._rows[self.row_of[backend_id]].charges)

    def unbegun(self, backend_id: str) -> int:
        """Uncached prompt tokens of this process's requests on it whose first token has not come."""
        return self._rows[self.row_of[backend_id]].unbegun_tokens

    def begun_on(self, backend_id: str) -> int:
        """Requests of this process on it whose first token has come."""
        return self._rows[self.row_of[backend_id]].begun_count

    def since(self, backend_id: str) -> tuple[int, int]:
        """Requests of this process that its last report cannot know of and that are still there, and those it counts that have ended."""
        row = self._rows[self.row_of[backend_id]]
        return row.new, row.ended

    def total(self) -> int:
        """Requests of this process on all of them."""
        return sum(len(row.charges) for row in self._rows)

    def charge(self, backend_id: str, uncached_tokens: float, kv_tokens: float, now: float, cached_tokens: float = 0.0) -> Charge:
        """Count one request on the backend; pair it with `release` in a `finally`. Raises KeyError for a backend without a row.

        Args:
            kv_tokens: what it takes of the KV cache beyond what is cached there, which others may use too: engines count that once.
            cached_tokens: of its prompt.
        """
        at = self.row_of[backend_id]
        self._at = now
        ctx = cached_tokens + 0.5 * uncached_tokens
        charge = Charge(backend_id, int(uncached_tokens), int(kv_tokens), now, uncached_ctx=int(uncached_tokens * ctx))
        self._ctx += MEMORY * (ctx - self._ctx)
        self._prompt += MEMORY * (charge.uncached_tokens - self._prompt)
        self._rows[at].charge(charge)
        self._work_out(at)
        return charge

    def begun(self, charge: Charge) -> None:
        """Its first token came, so its prompt is computed and waits no more."""
        if charge.begun_at is None and not charge.over:
            at = self.row_of[charge.id]
            self._rows[at].begun(charge, self._at)
            self._work_out(at)
            if self.freed is not None:
                self.freed()

    def release(self, charge: Charge) -> None:
        """The request is over, however it ended. What was released already stays so."""
        if not charge.over:
            at = self.row_of[charge.id]
            self._rows[at].release(charge, self._at)
            self._work_out(at)
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
        """An engine's word on its whole load; None is what it does not tell, which is not zero. One older than the last is dropped.

        Args:
            read_at: when it was so. Requests of ours that ended later are taken off.
            asked_at: not later than that; requests of ours sent later may be missing in it, and are added.
        """
        at = self.row_of[backend_id]
        row = self._rows[at]
        if read_at < row.read_at:
            return
        self._at = max(self._at, read_at)
        row.report(running, waiting, queued_tokens, kv_usage, kv_capacity, read_at, asked_at)
        if row.told:
            self._silent.pop(backend_id, None)
        else:
            self._silent[backend_id] = None
        self._work_out(at)

    def stale(self, now: float, after_s: float) -> list[str]:
        """Look for reports older than `after_s` seconds, which are then not believed alone; the ids of all rows like that."""
        self._at = max(self._at, now)
        for row in self._rows:
            if row.told and now - row.read_at > after_s:
                row.told = False
                self._silent[row.id] = None
                self._stirred = True
        return [one for one in self.ids if one in self._silent]

    def told(self, row: int) -> bool:
        """Whether the backend in this row has reported lately, and all that matters."""
        return self._rows[row].told

    def set_rates(self, backend_id: str, rates: Rates, residual_s: float = 0.0) -> None:
        """What calibration has learned of its speed."""
        at = self.row_of[backend_id]
        for name, value in zip(RATES, rates, strict=True):
            getattr(self, name)[at] = value
        self.residual_s[at] = residual_s

    def set_trust(self, backend_id: str, share: float) -> None:
        """What of its index can be believed, 0 to 1."""
        self.trust[self.row_of[backend_id]] = share

    def set_facts(self, backend_id: str, facts: Facts) -> None:
        """What is configured of it now."""
        self.facts[self.row_of[backend_id]] = facts
        self._look_at_limits()

    def set_limit(self, backend_id: str, requests: float = inf, tokens: float = inf) -> None:
        """How much this process may have there: requests, and uncached prompt tokens that are not computed yet."""
        at = self.row_of[backend_id]
        self.limit[at], self.limit_tokens[at] = requests, tokens
        self._look_at_limits()

    def _look_at_limits(self) -> None:
        self.limited = (
            min(self.limit, default=inf) < inf or min(self.limit_tokens, default=inf) < inf or any(f.in_flight_cap for f in self.facts)
        )
        if self.freed is not None:
            self.freed()

    def peak(self, backend_id: str) -> Peak:
        """The most there was since the last call; at least what there is now."""
        at = self.row_of[backend_id]
        row, capacity = self._rows[at], self.kv_capacity[at]
        found = Peak(row.peak_requests, row.peak_queue_tokens, row.peak_kv_tokens / capacity if capacity else 0.0)
        row.peak_requests, row.peak_queue_tokens, row.peak_kv_tokens = self.requests[at], self.queue_tokens[at], self.kv_tokens[at]
        return found

    def settle(self) -> None:
        """Bring the rows of silent backends up to the mean of those that report; to be called before a decision."""
        if not self._stirred:
            return
        self._stirred = False
        silent = [(self.row_of[one], self._rows[self.row_of[one]].alone) for one in self._silent]
        told = len(self.ids) - len(silent)
        if not told and not self._lent:
            return
        self._lent = told > 0
        for place, name in enumerate(BORROWED):
            column = getattr(self, name)
            mean = (sum(column) - sum([column[at] for at, _ in silent])) / told if told else 0.0
            for at, alone in silent:
                column[at] = max(alone[place], mean)

    def _work_out(self, at: int) -> None:
        row = self._rows[at]
        requests, self.running[at], self.waiting[at], queue, kv, ctx, self.kv_capacity[at] = row.merge(self._prompt, self._ctx)
        self.requests[at], self.queue_tokens[at], self.kv_tokens[at], self.queue_ctx[at] = requests, queue, kv, ctx
        self._stirred = bool(self._silent)
        if requests > row.peak_requests:
            row.peak_requests = requests
        if queue > row.peak_queue_tokens:
            row.peak_queue_tokens = queue
        if kv > row.peak_kv_tokens:
            row.peak_kv_tokens = kv
