"""The load that one request reserves on one backend while it runs there; each part is taken back exactly once.

What the router learns from finished attempts: how far to trust each backend's cache state, how fast engines are, how many tokens a
text makes, and how long answers get.
"""

from asyncio import TimerHandle
from typing import Final

from domain.ask import Ask
from gateway.deps import Deps
from gateway.placement.place import Placement, route_of
from gateway.story import Story
from routing.disaggregation import Shared, reserve
from routing.fleet import Backend
from routing.ports import UNMATCHED

LONG_PREFILL_TOKENS: Final = 512
"""Uncached tokens from which on it matters when a plain reply's prompt is computed, which nothing shows before the reply's end."""


class InFlight:
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

    def __init__(self, placing: Placement, backend_id: str, deps: Deps, *, stream: bool) -> None:
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


class InFlightPair:
    """The stake of a split request that waited, on both backends, until the pair's own reservation takes its place."""

    __slots__ = ("over",)

    def __init__(self, shared: Shared, prefill: Backend, decode: Backend, now: float) -> None:
        self.over: Final = reserve(shared.board, prefill.id, decode.id, shared.split.uncached_tokens, shared.demand, now).release


def stake_for(placing: Placement, backend_id: str, deps: Deps, *, stream: bool) -> InFlight:
    """The stake of an attempt on this backend: the one that the request was let through with, if it is for this backend, or a new one."""
    given = placing.staked
    if isinstance(given, InFlight) and given.backend == backend_id and not given.ended:
        return given
    return InFlight(placing, backend_id, deps, stream=stream)


def _ttft_s(placing: Placement, row: int, uncached: float) -> float:
    board = placing.ground.board
    ahead = board.queue_tokens[row] + uncached
    ctx = board.queue_ctx[row] + uncached * (placing.demand.prompt_tokens - uncached / 2)
    return board.prefill_s[row] + board.prefill_s_token[row] * ahead + board.prefill_s_token_ctx[row] * ctx


MIN_STEPS: Final = 8
"""Decode steps from which on their mean time counts: the first few tokens of an answer come together."""


def learn(ask: Ask, placing: Placement, stake: InFlight, story: Story, deps: Deps) -> None:
    """A whole answer came. Where nobody else was up there is nothing to learn for but the backend's limit."""
    attempt = story.attempt
    usage, first, last = attempt.usage, attempt.first_event_at, attempt.last_event_at
    steps = usage.completion_tokens / ask.sequences - 1 if usage is not None and ask.sequences else 0.0
    step_s: float | None = None
    if steps >= MIN_STEPS and first is not None and last is not None and last > first:
        step_s = (last - first) / steps
    if stake.limiter is not None and ask.stream and step_s is not None:
        stake.limiter.ended(step_s)
    if len(placing.pool.up) == 1:
        return
    prompt, demand = placing.prompt, placing.demand
    prompt_tokens = demand.prompt_tokens
    if usage is not None and usage.prompt_tokens:
        prompt_tokens = usage.prompt_tokens
        if prompt is not None:
            deps.prompts.learn(prompt, placing.pool.name, prompt_tokens)
            if attempt.cached is not None:
                predicted = placing.held_tokens(stake.backend)
                deps.grounds.compared(stake.backend, predicted, attempt.cached)
                placing.ground.board.reuse.found(prompt_tokens, attempt.cached)
                deps.count_prefix(placing.pool.name, stake.backend, predicted, attempt.cached)
        if ask.sequences:
            template = prompt.template if prompt is not None else 0
            each = -(-usage.completion_tokens // ask.sequences)
            deps.lengths.note(demand.tenant, route_of(ask, placing.pool), template, each, ask.max_output_tokens)
    if ask.stream and placing.adapter is None and first is not None:  # an adapter's load is no speed of its engine
        cached = attempt.cached if attempt.cached is not None else placing.held_tokens(stake.backend)
        _calibrate(stake, prompt_tokens, cached, first - stake.at, step_s, deps)


def _calibrate(stake: InFlight, prompt_tokens: int, cached: float, ttft_s: float, step_s: float | None, deps: Deps) -> None:
    """Give the backend's latency model one sample: its time to first token, and the mean time of a decode step."""
    calibration = deps.grounds.to_learn(stake.backend)
    if calibration is None:
        return
    calibration.first_token(max(1.0, prompt_tokens - cached), (prompt_tokens + cached) / 2, stake.queued, ttft_s, stake.queued_ctx)
    if step_s is not None:
        then, now = stake.began, stake.now()
        calibration.step((then[0] + now[0]) / 2, (then[1] + now[1]) / 2, step_s)
    deps.grounds.learned(stake.backend, calibration)
