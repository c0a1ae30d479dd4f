"""The backends of a pool that are up, in the order of what waits on them, kept current from decision to decision.

    key(b) = what a request of one token that is cached nowhere would wait for its first token there
           = a + Q * b + Qc * c + steps * step + (step - d)       the names of `routing.policies.predicted_latency`

A decision looks at a few backends from the front of the order, and for all others it has a lower bound (`Policy.beyond`): their key, and
what the request itself costs at least, from the fleet's least rates. These extremes only widen while backends' loads move, so that the
bound stays one; they are taken anew once as many loads have moved as there are backends.

A move costs a bisection and one copy of the list's end, a decision costs the moves since the last one. Pure; bounded by the pool.
"""

from bisect import bisect_left, insort
from math import ceil, inf

from routing.fleet import Backend
from routing.load import LoadTable

LEAST_MOVES = 64
"""Moves after which the extremes are taken anew, in a small pool."""


class LoadOrder:
    """The order of one pool's backends; valid until the pool or the rows of the load table change (`order_of`)."""

    __slots__ = (
        *(
            "_busy",
            "_fills",
            "_keys",
            "_load_table",
            "_moves_left",
            "_sum_of_fills",
            "backend_of",
            "entries",
            "least_ctx_s",
            "least_decode_s",
        ),
        *("least_fill", "least_kv_s", "least_step_s", "least_token_s", "largest_kv", "most_step_tokens", "up"),
    )

    entries: list[tuple[float, int]]
    """(key in seconds, row), ascending."""
    backend_of: dict[int, Backend]
    """The backends by their rows."""
    least_token_s: float
    """No backend computes a prompt token in less."""
    least_ctx_s: float
    """No backend computes a token for each token of its context in less."""
    least_step_s: float
    """No backend makes a decode step in less now."""
    least_decode_s: float
    """No backend makes a decode step with one more sequence in less."""
    least_kv_s: float
    """Seconds that a token of context adds to a step, on the backend where that is least."""
    most_step_tokens: int
    """Most tokens of one step on any backend."""
    least_fill: float
    """No KV cache that is known is less full, as a share."""
    largest_kv: float
    """Tokens of the largest KV cache."""

    def __init__(self, load_table: LoadTable, up: tuple[Backend, ...]) -> None:
        self.up = up
        self._load_table = load_table
        self.backend_of = dict(zip(load_table.rows(up), up, strict=True))
        self._build()

    def _build(self) -> None:
        self.least_token_s = self.least_ctx_s = self.least_step_s = self.least_decode_s = self.least_kv_s = self.least_fill = inf
        self.most_step_tokens = 0
        self.largest_kv = self._sum_of_fills = 0.0
        self._fills: dict[int, float] = {}
        self._busy: set[int] = set()
        self._keys = {row: self._key(row) for row in self.backend_of}
        self.entries = sorted([(key, row) for row, key in self._keys.items()])
        self._moves_left = max(LEAST_MOVES, len(self.entries))
        self._load_table.moved.clear()

    def refresh(self) -> None:
        """Move the backends whose load or speed has changed since the last call."""
        moved = self._load_table.moved
        if not moved:
            return
        self._moves_left -= len(moved)
        if self._moves_left < 0:
            self._build()
            return
        keys, entries = self._keys, self.entries
        for row in moved:
            old = keys.get(row)
            if old is None:
                continue  # not up
            key = keys[row] = self._key(row)
            if key != old:
                del entries[bisect_left(entries, (old, row))]
                insort(entries, (key, row))
        moved.clear()

    @property
    def mean_fill(self) -> float | None:
        """The mean share of the known KV caches that is in use or promised; None where some are known and others are not."""
        known = len(self._fills)
        return self._sum_of_fills / known if known == len(self._keys) else None if known else 0.0

    @property
    def busy_share(self) -> float:
        """The share of these backends that have prompts to compute."""
        return len(self._busy) / len(self._keys)

    def _key(self, row: int) -> float:
        load_table = self._load_table
        decoding, queued, base_s = load_table.decoding[row], load_table.queue_tokens[row], load_table.step_s[row]
        seq_s, kv_s = load_table.step_s_seq[row], load_table.step_s_token[row]
        token_s, ctx_s = load_table.prefill_s_token[row], load_table.prefill_s_token_ctx[row]
        step = base_s + seq_s * decoding + kv_s * load_table.decoding_ctx[row]
        budget = load_table.facts[row].step_tokens
        chunk = budget - decoding if decoding < 0.875 * budget else 0.125 * budget
        waits = ceil((queued + 1.0) / chunk) - 1.0
        if load_table.requests[row]:
            waits += 0.5
        if token_s < self.least_token_s:
            self.least_token_s = token_s
        if ctx_s < self.least_ctx_s:
            self.least_ctx_s = ctx_s
        if step < self.least_step_s:
            self.least_step_s = step
        if step + seq_s < self.least_decode_s:
            self.least_decode_s = step + seq_s
        if kv_s < self.least_kv_s:
            self.least_kv_s = kv_s
        if budget > self.most_step_tokens:
            self.most_step_tokens = budget
        self._note_fill(row)
        (self._busy.add if queued > 0.0 else self._busy.discard)(row)
        return load_table.prefill_s[row] + queued * token_s + load_table.queue_ctx[row] * ctx_s + waits * step + step - base_s

    def _note_fill(self, row: int) -> None:
        self._sum_of_fills -= self._fills.pop(row, 0.0)
        size = self._load_table.kv_capacity[row]
        if size:
            fill = self._fills[row] = min(1.0, self._load_table.kv_tokens[row] / size)
            self._sum_of_fills += fill
            if fill < self.least_fill:
                self.least_fill = fill
            if size > self.largest_kv:
                self.largest_kv = size


def order_of(load_table: LoadTable, up: tuple[Backend, ...]) -> LoadOrder:
    """The current order of these backends. It is kept with the load table, and made anew when the pool has changed.

    Args:
        up: the backends of a pool that are up, the same object as long as they are the same.
    """
    order = load_table.order
    if isinstance(order, LoadOrder) and order.up is up:
        order.refresh()
    else:
        order = load_table.order = LoadOrder(load_table, up)
    return order
