"""The notebook of one request, closed into a Record.

Steps write into the Story; nothing reads it until it is closed. Metrics, the access log and (later) spans, ledger and
audit each read the closed Record once, so no step knows who observes it.
"""

from bisect import bisect_left
from collections.abc import Callable
from math import inf
from typing import Final

import msgspec

from domain.faults import Fault
from domain.identity import Caller
from domain.priority import WORDS, Class
from domain.usage import NO_USAGE, Usage
from gateway.falling_back import Chain
from gateway.limit_words import limit_words
from gateway.placing.decisions import Decision
from gateway.promises import Kept, kept
from gateway.prompt_chain import Prompt
from gateway.record import GAP_BOUNDS_S, OK, Fell, Record
from policies.compile import TenantPolicy
from policies.prompts.prompt import Prompt as Template
from policies.rollout.in_force import Dealt
from routing.board import Charge
from routing.disaggregation import Shared
from routing.schedule import Route
from tenancy.fair_row import Waiting
from tenancy.hold import Standing


class Story(msgspec.Struct):
    """What is known of a request so far. One writer (the request's coroutine and its taps), no reader until `close`.

    A msgspec struct only because its defaults cost nothing per request; times are monotonic seconds.
    """

    request_id: str
    """The caller's own, when it sent a sane one: what replies and logs carry."""
    started_at: float
    at_unix: float
    body_at: float
    """When the request's last byte was there; equals `started_at` until then."""
    own_id: str = ""
    """The gateway's, unique: what holds and engines know the request by. Engines abort by id, so no caller may choose one."""
    caller: Caller | None = None
    ask_endpoint: str = ""
    model: str = ""
    stream: bool = False
    priority_class: Class | None = None
    """How soon it is served when not all can be; None until it is known who asks for what."""
    retry: bool = False
    asked_model: str = ""
    steps: tuple[str, ...] = ()
    """Of its tenant's degradation ladder, those that it went down; its reply names them."""
    passed_over: tuple[str, ...] = ()
    rule: str = ""
    """The rule of its tenant's policy that it came under; empty for none."""
    dealt: Dealt | None = None
    """What a rollout made of it; None where none is about it."""
    dealt_prompt: Dealt | None = None
    """What a rollout of its prompt made of it; None where none is about that."""
    shadow: bool = False
    """A copy of another one, sent to a canary; nobody gets its answer, and nobody pays for it."""
    declined: bool = False
    """Whether the answer ended with the model's or a filter's refusal."""
    template: Template | None = None
    """The prompt of the registry whose messages stand in front of its own; None for none."""
    expose: bool = False
    output_cap: int = 0
    statistical: bool = False
    """Whether its output is reserved by what answers usually take."""
    policy: str = ""
    pool: str = ""
    revision: str = ""
    route: Route | None = None
    shared: Shared | None = None
    """What was thought of sharing it between two backends; None in pools that share nothing."""
    prefill: str = ""
    """The backend that was asked last to compute its prompt for another."""
    hedged: tuple[str, ...] = ()
    decision: Decision | None = None
    placed_by: TenantPolicy | None = None
    prompt: Prompt | None = None
    """Where it was read before it was placed."""
    on_begun: Callable[[], None] | None = None
    """Told of the first event of an attempt's answer."""
    backend: str = ""
    attempts: int = 0
    failed: tuple[str, ...] = ()
    asked_wait_s: float = inf
    """How long its caller would have it wait for its turn at most."""
    end_at: float = inf
    """When its answer has to be complete."""
    queue_s: float = 0.0
    queued: str = ""
    """How its wait for its turn ended, a word of `gateway.queueing.refusals`; empty when it did not wait."""
    queued_ahead: int = 0
    """Tokens that were to be served before it when its wait began."""
    place: Waiting | None = None
    """That of its last turn, where it waited."""
    on_used: Callable[[Usage], None] | None = None
    """Told at its end what it took, where it waited: its tenant's turn was charged by an estimate."""
    charge: Charge | None = None
    """What the last backend it was sent to counts it as."""
    pulled_back: bool = False
    chain: Chain | None = None
    """What may answer instead; None where its policy names nothing."""
    first: "Story | None" = None
    """Of the model that was asked for, where this one is of another that answers instead."""
    fell_back: tuple[Fell, ...] = ()
    lost_s: float = 0.0
    """What engines of models before this one took in vain."""
    deadly: bool = False
    """Whether engines have died of it, so that no other may be tried."""
    lora: str = ""
    lora_wait_s: float = 0.0
    dispatched_at: float | None = None
    answer_at: float | None = None
    """When the engine's bytes came that the reply begins with: a first event, or the end of a plain reply."""
    first_event_at: float | None = None
    last_event_at: float | None = None
    handed_on_at: float | None = None
    events: int = 0
    choices: int = 0
    """Finish reasons that a whole answer has."""
    choices_over: int = 0
    """Of them, those that came; for streams."""
    gaps: list[int] | None = None
    usage: Usage = NO_USAGE
    usage_reported: bool = False
    cached: int | None = None
    """Prompt tokens that the engine says it had cached; None where it does not say, which is not zero."""
    closing: str = ""
    user: str = ""
    """The end-user label; it is in the ledger and in no log."""
    organisation: str = ""
    units: int = 0
    cost_nanousd: int = 0
    price_id: str = ""
    standings: tuple[Standing, ...] = ()
    """How the caller's limits stood right after the decision about it."""
    degraded: bool = False
    fault: Fault | None = None
    status: int = 0
    request_bytes: int = 0
    reply_bytes: int = 0

    @property
    def class_word(self) -> str:
        """Its class in words; empty before it has one."""
        return WORDS[self.priority_class] if self.priority_class is not None else ""

    def _promises(self) -> Kept:
        policy = self.placed_by
        if policy is None or not self.stream or (policy.ttft_slo_s is None and policy.tpot_slo_s is None):
            return ()
        first, last = self.first_event_at, self.last_event_at
        ttft_s = None if first is None else first - self.body_at
        decode_s = None if first is None or last is None else last - first
        return kept(policy, ttft_s, decode_s, self.usage.completion_tokens, self.fault)

    @property
    def first_model(self) -> str:
        """The model that it was for in the beginning."""
        return self.model if self.first is None else self.first.model

    def instead(self, own_id: str, now: float) -> "Story":
        """The Story of the same request for another model: what is the request's is kept, and nothing of what was tried."""
        made = Story(self.request_id, self.started_at, self.at_unix, self.body_at, own_id, self.caller, self.ask_endpoint)
        for name in _OF_THE_REQUEST:
            setattr(made, name, getattr(self, name))
        made.first = self.first or self
        made.lost_s = self.lost_s + (now - self.dispatched_at if self.dispatched_at is not None else 0.0)
        return made

    def as_first(self, last: Fell) -> None:
        """None of the chain could answer: it is told as what became of the model that was asked for.

        Args:
            last: how the last one failed.
        """
        assert self.first is not None
        self.fell_back += (last,)
        for name in _OF_THE_MODEL:
            setattr(self, name, getattr(self.first, name))

    def note_event(self, now: float) -> None:
        """One event of the answer passed at `now`; the first sets the time to first token, later ones a gap each."""
        last = self.last_event_at
        self.last_event_at = now
        self.events += 1
        if last is None:
            self.first_event_at = now
            if self.on_begun is not None:
                self.on_begun()
            return
        gaps = self.gaps
        if gaps is None:
            gaps = self.gaps = [0] * (len(GAP_BOUNDS_S) + 1)
        gaps[bisect_left(GAP_BOUNDS_S, now - last)] += 1

    def overhead_s(self, now: float) -> float:
        """Seconds the gateway itself has taken so far, engines and queue excluded."""
        elsewhere_s = self.queue_s + self.lost_s
        if self.dispatched_at is None:
            return now - self.body_at - elsewhere_s
        before = self.dispatched_at - self.body_at - elsewhere_s
        if self.answer_at is None or self.handed_on_at is None:
            return before
        return before + (self.handed_on_at - self.answer_at)

    def close(self, now: float) -> Record:
        """The finished Record; call once, when nothing more can happen to the request."""
        caller, fault, first, last = self.caller, self.fault, self.first_event_at, self.last_event_at
        return Record(
            self.request_id,
            self.at_unix,
            OK if fault is None else fault.kind.value,
            self.status,
            now - self.started_at,
            self.overhead_s(now),
            caller.tenant if caller else "",
            caller.project if caller else "",
            caller.key_id if caller else "",
            self.ask_endpoint,
            self.model,
            self.pool,
            self.revision,
            self.backend,
            self.attempts,
            self.failed,
            self.stream,
            self.usage,
            self.closing,
            None if first is None else first - self.body_at,
            last - first if first is not None and last is not None and self.events > 1 else None,
            self.events,
            tuple(self.gaps) if self.gaps else (),
            self.queue_s,
            self.request_bytes,
            self.reply_bytes,
            self.policy,
            self.own_id if self.own_id != self.request_id else "",
            (fault.detail or "") if fault else "",
            self.lora,
            self.lora_wait_s,
            self.user,
            self.organisation,
            self.units,
            self.cost_nanousd,
            self.price_id,
            tuple([limit_words(one.line.limit, one.line.soft) for one in self.standings if one.soft_crossed]) if self.standings else (),
            self.degraded,
            self.prefill,
            self.hedged,
            self.queued,
            self.queued_ahead,
            self.class_word,
            self.retry,
            self.asked_model,
            self.steps,
            self.passed_over,
            self.rule,
            self.pulled_back,
            self.dealt,
            self.dealt_prompt,
            self.declined,
            self.shadow,
            self.template.name if self.template is not None else "",
            self.fell_back,
            self._promises(),
        )


_OF_THE_REQUEST: Final = (
    "stream", "policy", "end_at", "queue_s", "user", "organisation", "request_bytes", "template", "dealt_prompt", "chain", "fell_back",
)  # fmt: skip
_OF_THE_MODEL: Final = (
    "model", "asked_model", "steps", "passed_over", "pool", "revision", "lora", "backend", "attempts", "failed", "hedged", "prefill",
    "queued", "queued_ahead", "priority_class",
)  # fmt: skip
