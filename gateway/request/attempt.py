"""One attempt of the forwarding step: one call to one backend, and its reply on its way to the caller.

`forward` makes an Attempt for each candidate. `hedged`, `with_prefill` and `with_adapter` each take one and do what has to happen around
it: a second attempt beside it, the prompt computed elsewhere first, an adapter loaded first.
"""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec

from backends.ports import Call, OpensSessions
from domain.ask import Ask
from domain.faults import Fault
from gateway.deps import Deps
from gateway.fleet.health import breaker_moved, note_outcome
from gateway.guards.reply_detectors import ReplyDetectors
from gateway.http.edge.answer_so_far import AnswerSoFar
from gateway.http.edge.attempt_faults import backend_drained, caller_gone
from gateway.http.edge.audio_taps import TAKEN, SpeechTap, TranscriptTap
from gateway.http.edge.exchange import Exchange, Listener
from gateway.http.edge.relay import ReplyRelay, ReplySource
from gateway.http.edge.reply_chain import ReplyChain
from gateway.http.edge.taps import PlainTap, StreamTap, taps_for
from gateway.http.edge.timeouts import NO_TIMEOUT, AttemptTimeouts
from gateway.placement.in_flight import InFlight, in_flight_on, learn
from gateway.placement.place import Placement
from gateway.request.reply_headers import reply_headers
from gateway.request.trace_notes import AttemptNote
from gateway.request.usage_check import check_usage
from gateway.story import AttemptFacts, Story
from guardrails.guard_set import REPLY, GuardSet
from routing.fleet import Backend
from routing.schedule import ALONE


class Attempt(msgspec.Struct, eq=False):
    """A request on one backend."""

    ask: Ask
    call: Call
    engine_model: str
    """The model that the engine is asked for: the pool's, or an adapter."""
    placement: Placement
    exchange: Exchange
    story: Story
    deps: Deps
    backend: Backend
    timeouts: AttemptTimeouts = NO_TIMEOUT
    """How long the backend may take to answer; computed for the backend unless given."""
    listener: Listener | None = None
    """Hears of the caller's connection instead of the attempt's own relay."""
    on_first_event: Callable[[], None] | None = None
    """Called at the first event instead of `on_begun`."""
    on_begun: Callable[[], None] | None = None
    """Notes on the backend that the answer has begun."""
    relay: ReplyRelay | None = None
    """The relay of the reply; None before the call is sent."""
    facts: AttemptFacts | None = None
    """The part of the Story that is written while the call is under way."""
    so_far: AnswerSoFar | None = None
    """Keeps the text of an answer that another engine may go on with; None where none may."""
    chain: ReplyChain | None = None
    """The reply chain of an answer that this attempt goes on with; None for an answer of its own."""
    first_call: Call | None = None
    """The call of the attempt that began the answer, where this one goes on with it."""

    def __post_init__(self) -> None:
        if self.timeouts is NO_TIMEOUT:
            deps, ask = self.deps, self.ask
            measured = deps.live.prefill.get(self.backend.id)
            self.timeouts = deps.timeouts.of_attempt(ask.prompt_bytes, measured, stream=ask.stream)

    def on(self, backend: Backend) -> "Attempt":
        """The same request on another backend."""
        return msgspec.structs.replace(
            self, backend=backend, timeouts=NO_TIMEOUT, on_begun=None, relay=None, facts=None, so_far=None, chain=None
        )

    @property
    def prefills(self) -> tuple[Backend, ...]:
        """The backends that can compute the prompt for this one, best first; empty where this one serves the request whole."""
        shared = self.story.placed.shared
        return shared.split.prefills_for(self.backend) if shared is not None else ()

    def refusal(self) -> Fault | None:
        """Why nothing is to be sent any more: the caller or the backend has left."""
        if self.exchange.gone:
            return caller_gone()
        if self.backend.id not in self.deps.upstreams:
            return backend_drained(f"{self.backend.id} has left the fleet")
        return None

    def run(self) -> Coroutine[Any, Any, Fault | None]:
        """Call the backend and relay the reply, counted on the backend meanwhile. None when the whole answer was handed on."""
        return self.counted(self.dispatch())

    async def counted(self, work: Coroutine[Any, Any, Fault | None]) -> Fault | None:
        """Await `work` with the request's load reserved on the backend: the one place that reserves it and gives it back.

        Args:
            work: the call, with what has to happen on this backend before it.
        """
        deps, placement, story = self.deps, self.placement, self.story
        if self.exchange.gone or self.backend.id not in deps.upstreams:
            work.close()
            placement.give_back()
            return self.refusal()
        if placement.reserved is None:
            in_flight = InFlight(placement, self.backend.id, deps, stream=self.ask.stream)
        else:
            in_flight = in_flight_on(placement, self.backend.id, deps, stream=self.ask.stream)
        if placement.route.why != ALONE or in_flight.limiter is not None:
            self.on_begun = in_flight.begun  # where nobody else is up and nothing is limited, nobody looks how far it is
        breakers, tries = deps.live.breakers, self.ask.endpoint.computes
        if breakers.troubled and tries and breakers.enter(self.backend.id, placement.served, story.own_id, in_flight.at):
            self.on_begun = partial(self._probe_begun, in_flight)
        if story.placed.decision is not None:
            story.placed.decision.served_by = self.backend.id
        story.tried.charge = in_flight.charge
        try:
            fault = await work
            # a session lasts as long as its caller likes, and of an answer that went on no engine gave the whole
            if fault is None and not self.ask.endpoint.duplex and not story.tried.continued:
                learn(self.ask, placement, in_flight, story, deps)
            return fault
        finally:
            self.on_begun = None
            if self.facts is not None:
                self.facts.on_begun = None
            in_flight.over()

    async def dispatch(self) -> Fault | None:
        """Send the call, and return when the reply is over. The caller of this has reserved the load."""
        story, deps, backend, exchange = self.story, self.deps, self.backend, self.exchange
        if exchange.gone or backend.id not in deps.upstreams:
            return self.refusal()  # while an adapter was loaded, or the prompt was computed
        story.tried.attempts += 1
        story.tried.backend = backend.id
        if self.chain is None:
            facts = self.facts = story.attempt = AttemptFacts(self.on_first_event or self.on_begun)
            if self.ask.endpoint.duplex:
                return await self._converse()
            chain = self._new_chain(facts)
        else:
            facts = self.facts = story.attempt
            chain = self._chain_on(self.chain)
        note = None if story.trace is None else self.noted(backend, facts)
        dialect = deps.dialects[self.placement.pool.name]
        relay = self.relay = ReplyRelay(
            exchange,
            story,
            chain,
            ReplySource(
                backend.id,
                self.ask.endpoint,
                (self.placement.pool.model, story.placed.lora),
                self.timeouts,
                dialect.mistakes,
                deps.names_inside,
                self.ask.prompt_field if self.ask.endpoint.alternatives else "",
                TAKEN[self.ask.endpoint.sound],
            ),
            headers=lambda: reply_headers(exchange, story, chain.usage, deps, stream=story.asked.stream),
            timeouts=deps.timeouts,
            clock=deps.clock,
        )
        exchange.listener = self.listener or relay
        deps.watch.watched[relay] = None
        try:
            relay.flight = deps.upstreams[backend.id].dispatch(self.call if note is None else note.traced(self.call), relay)
            fault = await relay.outcome
        finally:
            relay.outcome.cancel()  # of no effect once it is decided
            if relay.outcome.cancelled() and relay.flight is not None:
                relay.flight.abort()
                relay.flight = None
            deps.watch.forget(relay)
            if note is not None:
                note.over(deps.clock(), relay.outcome)
            if isinstance(chain, ReplyChain):
                chain.close()
        facts.cached = chain.cached
        if self.so_far is not None and isinstance(chain, ReplyChain):
            self.chain = chain
        if chain.usage is not None:
            seen = exchange.written
            await check_usage(chain.usage, facts, self.ask, story, deps, backend=backend, seen_bytes=seen)
        if not self.ask.endpoint.computes:
            # a tokenizer answers where the engine behind it has died, and a caller can make it fail with ids that no model has
            if fault is None:
                deps.live.contacts.answered(backend.id)
            return fault
        note_outcome(deps.live, backend, self.placement.served, fault, story.own_id, deps.clock(), deps.rng)
        return fault

    def _new_chain(self, facts: AttemptFacts) -> StreamTap | PlainTap | TranscriptTap | SpeechTap | ReplyChain:
        """The chain of an answer that begins with this attempt."""
        story, deps, ask = self.story, self.deps, self.ask
        samples = deps.answer_samples
        if deps.captures is not None and ask.endpoint.generates:
            facts.captured = deps.captures.begin(ask.fields, story)
        detectors = None if story.asked.guards is None else self._detectors(story.asked.guards)
        if detectors is not None:
            self.so_far = None  # they are asked no more once an attempt is over
        return taps_for(
            ask,
            story,
            deps.clock,
            self.engine_model,
            self.names(),
            engine=deps.dialects[self.placement.pool.name],
            detectors=detectors,
            sample=samples.tap(ask, story) if samples is not None and (ask.logprobs or samples.share) else None,
            so_far=self.so_far,
        )

    def _chain_on(self, chain: ReplyChain) -> ReplyChain:
        """The chain of the answer that this attempt goes on with."""
        assert self.so_far is not None
        chain.go_on()
        self.so_far.go_on(self.on_begun)
        return chain

    async def _converse(self) -> Fault | None:
        """Open a session with the engine, and return when it is over."""
        # imported only here: `websockets` is for the few gateways that serve realtime sessions
        from gateway.http.edge.session import RealtimeSession, SessionSource
        from gateway.http.openai.realtime import RealtimeEvents

        story, deps, backend, exchange, ask = self.story, self.deps, self.backend, self.exchange, self.ask
        upstream = deps.upstreams[backend.id]
        assert isinstance(upstream, OpensSessions)  # both adapters do
        session = RealtimeSession(
            exchange,
            story,
            RealtimeEvents(ask.model, self.engine_model, deps.names_inside),
            SessionSource(backend.id, (self.placement.pool.model, story.placed.lora), self.timeouts, ask.max_output_tokens),
            bounds=deps.realtime,
            head=lambda: reply_headers(exchange, story, None, deps, stream=False).partition(b"\r\n")[2],
            clock=deps.clock,
        )
        exchange.listener = session
        deps.watch.watched[session] = None
        note = None if story.trace is None else self.noted(backend, story.attempt)
        try:
            session.flight = upstream.open_session(
                self.call if note is None else note.traced(self.call), session, deps.realtime.max_message_bytes
            )
            fault = await session.outcome
        finally:
            session.outcome.cancel()  # of no effect once it is decided
            if session.outcome.cancelled() and session.flight is not None:
                session.flight.abort()
            deps.watch.watched.pop(session, None)
            if note is not None:
                note.over(deps.clock(), session.outcome)
        note_outcome(deps.live, backend, self.placement.served, fault, story.own_id, deps.clock(), deps.rng)
        return fault

    def noted(self, backend: Backend, facts: AttemptFacts | None) -> AttemptNote:
        """The note of a call for the request's trace. Called where requests are traced.

        Args:
            facts: None for a call that computes a prompt only.
        """
        deps, pool = self.deps, self.placement.pool
        assert deps.tracing is not None
        server = deps.upstreams[backend.id].server
        note = deps.tracing.attempt(self.story, backend.id, server, pool.dialect, deps.clock())
        note.engine_model, note.facts = self.engine_model, facts
        return note

    def names(self) -> frozenset[str] | None:
        """The models that the reply may name; None where the dialect's engines answer with any name."""
        pool = self.placement.pool
        if not self.deps.dialects[pool.name].answers_as_listed:
            return None
        return self.deps.live.names.get(self.backend.id) if self.engine_model == pool.model else frozenset((self.engine_model,))

    def _detectors(self, guards: GuardSet) -> ReplyDetectors | None:
        """What guard rules that ask detectors about answers ask; None where none does."""
        deps = self.deps
        if not any(guards.detectors(direction) for direction in REPLY):
            return None
        caller = self.story.asked.caller
        return ReplyDetectors(deps.detectors, deps.loop, deps.clock, partial(deps.late_findings, "" if caller is None else caller.tenant))

    def _probe_begun(self, in_flight: InFlight) -> None:
        """The first token of the request that probes a backend whose breaker is half open: others may follow."""
        deps, now = self.deps, self.deps.clock()
        if deps.live.breakers.begun(self.backend.id, self.placement.served, self.story.own_id, now):
            breaker_moved(deps.live, self.backend, now)
        in_flight.begun()
