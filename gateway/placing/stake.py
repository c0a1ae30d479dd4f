"""The load that one request reserves on one backend while it runs there; each part is taken back exactly once."""

from asyncio import TimerHandle
from typing import Final

from gateway.deps import Deps
from gateway.placing.placing import Placing
from routing.disaggregation import Shared, reserve
from routing.fleet import Backend
from routing.ports import UNMATCHED

LONG_PREFILL_TOKENS: Final = 512
"""Uncached tokens from which on it matters when a plain reply's prompt is computed, which nothing shows before the reply's end."""


class Stake:
    """One attempt: its charge on the Board, and the prediction that the backend will hold the prompt.

    Args:
        stream: whether its first token shows.
    """

    __slots__ = (
        "_before",
        "_board",
        "_chain",
        "_deps",
        "_guess",
        "_holders",
        "_prediction",
        "_shown",
        "_tenant",
        "_uncached",
        "at",
        "backend",
        "began",
        "charge",
        "ended",
        "limiter",
        "queued",
        "queued_ctx",
    )

    def __init__(self, placing: Placing, backend_id: str, deps: Deps, *, stream: bool) -> None:
        demand, board, now = placing.demand, placing.ground.board, deps.clock()
        row = board.row_of[backend_id]
        uncached: float = demand.prompt_tokens
        if placing.match is not UNMATCHED:
            uncached -= placing.held_tokens(backend_id) * board.trust[row]
        self.backend = backend_id
        self.at = now
        self.queued = board.queue_tokens[row]
        """Uncached tokens that were before it."""
        self.queued_ctx = board.queue_ctx[row]
        """The sum of the contexts they attend to."""
        self.began = (0.0, 0.0)
        """Sequences on the backend and tokens in their contexts when its first token came."""
        self.ended = False
        self._holders = placing.ground.holders
        self._tenant = demand.tenant
        self._holders.took(self._tenant)
        self._board = board
        self._chain = demand.chain
        self._deps = deps
        self._shown = False
        self.limiter = deps.grounds.limits.of(backend_id)
        """The backend's concurrency limiter; None where it has none."""
        self._before = board.unbegun(backend_id)
        self._uncached = uncached if placing.adapter is None else 0.0  # the time that loading one takes says nothing of the engine
        self._guess: TimerHandle | None = None
        if not stream and uncached >= LONG_PREFILL_TOKENS:
            self._guess = deps.loop.call_later(_ttft_s(placing, row, uncached), self._suppose)
        self._prediction = deps.grounds.index.predict(backend_id, demand.chain, now) if demand.chain else None
        placing.ground.recovery.sent(uncached)
        self.charge = board.charge(backend_id, uncached, uncached + demand.output_tokens, now, demand.prompt_tokens - uncached)
        if not stream and self._guess is None and self.limiter is not None:
            deps.grounds.limits.suppose(backend_id, now + _ttft_s(placing, row, uncached), self.charge)
        memory = placing.choosing.memory
        if memory is not None:
            memory.placed(demand, backend_id, uncached, now)
        if demand.session:
            placing.ground.sessions.held(demand.session, backend_id)

    def begun(self) -> None:
        """The attempt's first token came: its prompt is computed."""
        now = self._deps.clock()
        if self.limiter is not None and self._uncached and not self._shown:
            self.limiter.began(self._uncached, self._before, now - self.at)
        self._shown = True
        self._board.begun(self.charge)
        self.began = self.now()
        if self._prediction is not None:
            self._deps.grounds.index.confirm(self._prediction, now)
            self._deps.grounds.answered(self.charge.id, self._chain, now)

    def now(self) -> tuple[float, float]:
        """Sequences in the backend's batch, and tokens in their contexts."""
        board = self._board
        row = board.row_of[self.backend]
        return board.running[row], board.kv_tokens[row]

    def _suppose(self) -> None:
        self._board.begun(self.charge)

    def over(self) -> None:
        """The attempt ended, however; idempotent. Where no token came, the backend is not taken to hold anything of the prompt."""
        if self._holders.kept and not self.ended:
            self._holders.gave_back(self._tenant, self._deps.clock())
        self.ended = True
        if self._guess is not None:
            self._guess.cancel()
        if self._prediction is not None and not self._shown:
            self._deps.grounds.index.withdraw(self._prediction)
        self._board.release(self.charge)


class PairStake:
    """The stake of a split request that waited, on both backends, until the pair's own reservation takes its place."""

    __slots__ = ("over",)

    def __init__(self, shared: Shared, prefill: Backend, decode: Backend, now: float) -> None:
        self.over: Final = reserve(shared.board, prefill.id, decode.id, shared.split.uncached_tokens, shared.demand, now).release


def stake_for(placing: Placing, backend_id: str, deps: Deps, *, stream: bool) -> Stake:
    """The stake of an attempt on this backend: the one that the request was let through with, if it is for this backend, or a new one."""
    given = placing.staked
    if isinstance(given, Stake) and given.backend == backend_id and not given.ended:
        return given
    return Stake(placing, backend_id, deps, stream=stream)


def _ttft_s(placing: Placing, row: int, uncached: float) -> float:
    board = placing.ground.board
    ahead = board.queue_tokens[row] + uncached
    ctx = board.queue_ctx[row] + uncached * (placing.demand.prompt_tokens - uncached / 2)
    return board.prefill_s[row] + board.prefill_s_token[row] * ahead + board.prefill_s_token_ctx[row] * ctx
