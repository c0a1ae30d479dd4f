"""The load that one request reserves on one backend while it runs there; each part is released exactly once.

`InFlight` is that load, `InFlightPair` the load of a split request on both of its backends. `learn` is what the router learns from finished
attempts: how far to trust each backend's cache state, how fast engines are, how many tokens a text makes, and how long answers get.
"""

from asyncio import TimerHandle
from math import inf
from typing import Final

from domain.ask import Ask
from gateway.deps import Deps
from gateway.placement.place import Placement
from gateway.story import Story
from routing.calibration import NO_BATCH, DecodeBatch, batch_on, decode_sample
from routing.disaggregation import Shared, reserve
from routing.fleet import Backend
from routing.ports import UNMATCHED

LONG_PREFILL_TOKENS: Final = 512
"""Uncached tokens from which on the end of the prefill is estimated for plain replies, which show nothing before their end."""


class InFlight:
    """The load of one attempt: its charge on the load table, its need of an adapter, and the prediction that the backend will hold the
    prompt.

    Args:
        stream: whether the reply is streamed, so that its first token shows.
    """

    __slots__ = (
        "_adapter",
        "_adapters",
        "_before",
        "_begin_timer",
        "_by_tokens",
        "_chain",
        "_deps",
        "_first_token_seen",
        "_load_table",
        "_prediction",
        "_shared",
        "_stream",
        "_tenant",
        "_tenant_shares",
        "_told",
        "_uncached",
        "at",
        "backend",
        "batch_at_begin",
        "charge",
        "ended",
        "held_tokens",
        "interference_s",
        "limiter",
        "predicted_s",
        "queued",
        "queued_ctx",
    )

    def __init__(self, placement: Placement, backend_id: str, deps: Deps, *, stream: bool) -> None:
        request, load_table, now = placement.request, placement.pool_state.load_table, deps.clock()
        row = load_table.row_of[backend_id]
        self.held_tokens = 0.0 if placement.circumstances.match is UNMATCHED else placement.held_tokens(backend_id)
        """Prompt tokens that the index said the backend holds, trusted or not."""
        uncached = request.prompt_tokens - self.held_tokens * load_table.trust[row]
        self.backend = backend_id
        self.at = now
        self.queued = load_table.queue_tokens[row]
        """Uncached tokens that were queued on the backend before this attempt."""
        self.queued_ctx = load_table.queue_ctx[row]
        """The sum of the contexts that those tokens attend to."""
        self.interference_s = load_table.interference_s(row, uncached)
        """Seconds that decode steps there were expected to add to the time to its first token."""
        ctx = self.queued_ctx + uncached * (request.prompt_tokens - uncached / 2)
        prefill_s = (
            load_table.prefill_s[row]
            + load_table.prefill_s_token[row] * (self.queued + uncached)
            + load_table.prefill_s_token_ctx[row] * ctx
        )
        self.predicted_s = prefill_s + self.interference_s
        """Predicted seconds from the dispatch to the first token."""
        self.batch_at_begin = NO_BATCH
        """`batch()` at the first token of a streamed reply; the others show no decode steps."""
        self._stream = stream
        self.ended = False
        self._tenant_shares = placement.pool_state.tenant_shares
        self._tenant = request.tenant
        if self._tenant_shares.reserved_share:
            self._tenant_shares.request_sent(self._tenant)
        self._load_table = load_table
        self._chain = request.chain
        self._by_tokens = request.by_tokens
        self._deps = deps
        self._first_token_seen = False
        self.limiter = deps.pool_states.limits.limiters.get(backend_id)
        """The backend's concurrency limiter; None where it has none."""
        self._before = load_table.loads[row].unbegun_tokens
        self._uncached = uncached if placement.adapter is None else 0.0  # the load time of an adapter says nothing about the engine
        self._begin_timer: TimerHandle | None = None
        if not stream and (uncached >= LONG_PREFILL_TOKENS or (self.limiter is None and load_table.hold_s < inf)):
            self._begin_timer = deps.loop.call_later(prefill_s, self._assume_begun)
        self._prediction = deps.pool_states.index.predict(backend_id, request.chain, now) if request.chain else None
        self._shared = deps.shared_dispatches if request.chain else None
        self._told = self._shared.sent(backend_id, request) if self._shared is not None else 0
        placement.pool_state.recovery.sent_tokens += uncached
        self.charge = load_table.charge(backend_id, uncached, uncached + request.output_tokens, now, request.prompt_tokens - uncached)
        if not stream and self._begin_timer is None and self.limiter is not None:
            deps.pool_states.limits.suppose(backend_id, now + prefill_s, self.charge)
        self._adapter = placement.adapter
        self._adapters = deps.loras.charge(placement.pool.name, backend_id, placement.adapter) if placement.adapter is not None else None
        memory = placement.policy_instance.memory
        if memory is not None:
            memory.placed(request, backend_id, uncached, now)
        if request.session:
            placement.pool_state.sessions.held(request.session, backend_id)

    def begun(self) -> None:
        """Note the attempt's first token: its prompt is computed."""
        now = self._deps.clock()
        if self.limiter is not None and self._uncached and not self._first_token_seen:
            self.limiter.began(self._uncached, self._before, now - self.at)
        if self._told and self._shared is not None and not self._first_token_seen:
            self._shared.begun(self._told)
        self._first_token_seen = True
        self._load_table.begun(self.charge)
        if self._stream:
            self.batch_at_begin = self.batch()
        if self._prediction is not None:
            self._deps.pool_states.index.confirm(self._prediction, now, told=self._by_tokens)
            if self._by_tokens:
                self._deps.pool_states.prompt_answered(self.charge.id, self._chain, now)

    def batch(self) -> DecodeBatch:
        """The backend's batch now."""
        return batch_on(self._load_table, self._load_table.row_of[self.backend])

    def decode_sample(self, steps: float, seconds: float) -> tuple[float, float, float, float]:
        """What the answer says of a decode step, when it ends."""
        return decode_sample(self._load_table, self._load_table.row_of[self.backend], self.batch_at_begin, steps, seconds)

    def _assume_begun(self) -> None:
        self._load_table.begun(self.charge)

    def over(self) -> None:
        """Release the load at the end of the attempt; idempotent. Without a first token, the predicted cache contents are withdrawn."""
        if self._tenant_shares.reserved_share and not self.ended:
            self._tenant_shares.request_over(self._tenant, self._deps.clock())
        if self._told and self._shared is not None and not self._first_token_seen and not self.ended:
            self._shared.failed(self._told)
        if self._adapters is not None and self._adapter is not None and not self.ended:
            self._adapters.release(self._adapter.served, self._deps.clock())
        self.ended = True
        if self._begin_timer is not None:
            self._begin_timer.cancel()
        if self._prediction is not None and not self._first_token_seen:
            self._deps.pool_states.index.withdraw(self._prediction)
        self._load_table.release(self.charge)


class InFlightPair:
    """The in-flight load of a split request that waited, on both backends, until the pair's own reservation takes its place."""

    __slots__ = ("over",)

    def __init__(self, shared: Shared, prefill: Backend, decode: Backend, now: float) -> None:
        self.over: Final = reserve(shared.load_table, prefill.id, decode.id, shared.split.uncached_tokens, shared.request, now).release


def in_flight_on(placement: Placement, backend_id: str, deps: Deps, *, stream: bool) -> InFlight:
    """The in-flight load of an attempt on this backend: the load that the queue reserved for the request there, or a new one."""
    reserved = placement.reserved
    if isinstance(reserved, InFlight) and reserved.backend == backend_id and not reserved.ended:
        return reserved
    return InFlight(placement, backend_id, deps, stream=stream)


MIN_STEPS: Final = 8
"""Decode steps from which on their mean time counts: the first few tokens of an answer come together."""


def learn(ask: Ask, placement: Placement, in_flight: InFlight, story: Story, deps: Deps) -> None:
    """Learn from a complete answer. In a pool with one backend up, only the backend's concurrency limit learns."""
    attempt = story.attempt
    usage, first, last = attempt.usage, attempt.first_event_at, attempt.last_event_at
    steps = usage.completion_tokens / ask.sequences - 1 if usage is not None and ask.sequences else 0.0
    decode_s = last - first if steps >= MIN_STEPS and first is not None and last is not None and last > first else 0.0
    if in_flight.limiter is not None and ask.stream and decode_s:
        in_flight.limiter.ended(decode_s / steps)
    if len(placement.pool.up) == 1:
        return
    prompt, request = placement.prompt, placement.request
    prompt_tokens = request.prompt_tokens
    if usage is not None and usage.prompt_tokens:
        prompt_tokens = usage.prompt_tokens
        if prompt is not None:
            deps.prompts.learn(prompt, placement.pool.name, prompt_tokens)
            if attempt.cached is not None:
                predicted = in_flight.held_tokens
                deps.pool_states.note_cached(in_flight.backend, predicted, attempt.cached)
                placement.pool_state.load_table.reuse.note(prompt_tokens, attempt.cached)
                deps.count_prefix(placement.pool.name, in_flight.backend, predicted, attempt.cached)
        if ask.sequences:
            template = prompt.template if prompt is not None else 0
            per_sequence = max(0, -(-usage.completion_tokens // ask.sequences))  # the picker hears what engines report unchecked
            deps.lengths.note(request.tenant, placement.answers_like, template, per_sequence, ask.max_output_tokens)
    if ask.stream and ask.endpoint.generates and placement.adapter is None and first is not None:
        # with an adapter, the time may include its load; of a recording the tokens are not known
        cached = attempt.cached if attempt.cached is not None else in_flight.held_tokens
        deps.count_first_token(placement.pool.name, in_flight.backend, in_flight.predicted_s, first - in_flight.at)
        _calibrate(in_flight, prompt_tokens, cached, first - in_flight.at, (steps, decode_s), deps)


def _calibrate(in_flight: InFlight, prompt_tokens: int, cached: float, ttft_s: float, decoded: tuple[float, float], deps: Deps) -> None:
    """Give the backend's latency model one sample: its time to first token, and the decode steps and seconds of its answer (0: unknown)."""
    calibration = deps.pool_states.calibration_to_train(in_flight.backend)
    if calibration is None:
        return
    uncached, ctx = max(1.0, prompt_tokens - cached), (prompt_tokens + cached) / 2
    calibration.first_token(uncached, ctx, in_flight.queued, ttft_s, in_flight.queued_ctx, in_flight.interference_s)
    steps, decode_s = decoded
    if decode_s:
        calibration.step(*in_flight.decode_sample(steps, decode_s))
    deps.pool_states.learned(in_flight.backend, calibration)
