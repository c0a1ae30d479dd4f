"""The notebook of one request, in five slices, closed into a Record.

Each slice has one writer, and whoever reads it knows from its name which step has filled it by then:

| slice | written by | read while the request is under way by |
|---|---|---|
| `asked` | `authenticate`, `interpret` and the ladder in `look_ahead` | every later step |
| `placed` | `choose` and its wait; `pulled_back` by preemption | `forward`, reply headers, preemption |
| `tried` | `forward`, around its attempts | holds, reply headers, preemption |
| `attempt` | one attempt, its relay and its judging tap; new for each attempt | the relay, the counters' beats, `forward` |
| `settled` | `admit`, `refuse`, `settle`, `record` | reply headers, fallback |

The closed Record is the only thing that metrics, the access log, the ledger and rollouts read, so no step knows who observes it.
"""

from bisect import bisect_left
from collections.abc import Callable
from math import inf

import msgspec

from domain.faults import Fault
from domain.identity import Caller
from domain.priority import WORDS, Class
from domain.usage import NO_USAGE, Usage
from gateway.placement.decisions import Decision
from gateway.prompt.reader import Prompt
from gateway.record import GAP_BOUNDS_S, OK, Fell, Record, SloResult, slo_results
from gateway.request.fallback_chain import FallbackChain
from gateway.request.rate_limit_replies import limit_words
from policies.compile import TenantPolicy
from policies.prompts.prompt import RegisteredPrompt as Template
from policies.rollout.in_force import AssignedArm
from routing.disaggregation import Shared
from routing.load import Charge
from routing.schedule import Route
from tenancy.fair_tier import QueuedRequest
from tenancy.hold import LimitStatus


class AskedFacts(msgspec.Struct):
    """The request: its caller, what it asks for, and how its tenant's policy treats it.

    Written by `authenticate`, `interpret` (with `apply_policy` and the rollouts' assignment), and `look_ahead` where a degradation ladder
    changes the model.
    """

    caller: Caller | None = None
    endpoint: str = ""
    model: str = ""
    """The public name of the model that serves it."""
    stream: bool = False
    priority_class: Class | None = None
    """How soon it is served when not all can be; None until caller and policy are known."""
    retry: bool = False
    """Whether its client says that it has asked for this before."""
    asked_model: str = ""
    """The model it asked for, where `model` serves it instead."""
    steps: tuple[str, ...] = ()
    """The steps of its tenant's degradation ladder that it went down; its reply names them."""
    passed_over: tuple[str, ...] = ()
    """The steps that were due and not taken, and why."""
    rule: str = ""
    """The rule of its tenant's policy that it came under; empty for none."""
    dealt: AssignedArm | None = None
    """The arm that a rollout dealt it to; None where no rollout is about it."""
    dealt_prompt: AssignedArm | None = None
    """The version that a rollout of its prompt dealt it; None where no rollout is about that."""
    shadow: bool = False
    """Whether it is a copy of another request, sent to a canary: nobody gets its answer, and nobody pays for it."""
    template: Template | None = None
    """The prompt of the registry whose messages stand in front of its own; None for none."""
    prompt: Prompt | None = None
    """Its prompt, where it was read to be counted, before it is placed."""
    expose: bool = False
    """Whether its reply's headers show the routing."""
    output_cap: int = 0
    """Output tokens per sequence that the policy allows."""
    statistical: bool = False
    """Whether its output is reserved by what answers usually take."""
    policy_digest: str = ""
    tenant_policy: TenantPolicy | None = None
    asked_wait_s: float = inf
    """How long its caller would have it wait for its turn at most."""
    end_at: float = inf
    """When its answer has to be complete."""
    chain: FallbackChain | None = None
    """The models that may answer instead; None where its policy names none."""
    user: str = ""
    """The end-user label; it is in the ledger and in no log."""
    organisation: str = ""
    request_bytes: int = 0


class PlacedFacts(msgspec.Struct):
    """Where the request goes, and its wait for its turn. Written by `choose`, `choose_again` and preemption."""

    pool: str = ""
    revision: str = ""
    lora: str = ""
    route: Route | None = None
    shared: Shared | None = None
    """The decision about splitting it between two backends; None in pools that split nothing."""
    decision: Decision | None = None
    queued: str = ""
    """How its wait for its turn ended, a word of `gateway.queue.refusals`; empty when it did not wait."""
    queued_ahead: int = 0
    """Tokens that were to be served before it when its wait began."""
    queue_place: QueuedRequest | None = None
    """Its place in the queue at its last turn, where it waited."""
    on_used: Callable[[Usage], None] | None = None
    """Called at its end with its usage, where it waited: its tenant's turn was charged by an estimate."""
    pulled_back: bool = False
    """Whether it gave its place on a backend to a more urgent request before anything came of it."""


class TriedFacts(msgspec.Struct):
    """The attempts so far. Written by `forward` and the wrappers of its attempts."""

    backend: str = ""
    """The backend that was called last, or that answered."""
    attempts: int = 0
    failed: tuple[str, ...] = ()
    """Backends whose attempt failed and was followed by another one."""
    hedged: tuple[str, ...] = ()
    """The two backends that were called at a time, the first one first; empty where it was not hedged."""
    prefill: str = ""
    """The backend that was called last to compute its prompt for another."""
    deadly: bool = False
    """Whether engines have died of it, so that no other may be tried."""
    charge: Charge | None = None
    """Its load on the backend that it was sent to last."""


class AttemptFacts(msgspec.Struct):
    """One attempt on a backend: the events of its answer, and what the engine reported. Made new for each attempt.

    Written by the attempt, its relay and its judging tap; read while it is under way by the relay, the counters' beats and preemption.
    """

    on_begun: Callable[[], None] | None = None
    """Called at the first event of the answer."""
    answer_at: float | None = None
    """When the engine's bytes came that the reply begins with: a first event, or the end of a plain reply."""
    handed_on_at: float | None = None
    """When the first of them was handed to the caller."""
    first_event_at: float | None = None
    last_event_at: float | None = None
    events: int = 0
    gaps: list[int] | None = None
    """Inter-token gaps, counted by `GAP_BOUNDS_S`."""
    choices_over: int = 0
    """Choices of a stream whose finish reason has come."""
    declined: bool = False
    """Whether the answer ended with the model's or a filter's refusal."""
    usage: Usage | None = None
    """What the engine reported; None where it reported nothing."""
    cached: int | None = None
    """Prompt tokens that the engine says it had cached; None where it does not say, which is not zero."""

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


class SettledFacts(msgspec.Struct):
    """How its limits stood, and how it ended. Written by `admit`, `refuse`, `settle` and `record`, and by whatever ends it instead."""

    limit_statuses: tuple[LimitStatus, ...] = ()
    """How the caller's limits stood right after the decision about it."""
    degraded: bool = False
    """Whether its limits were decided on without the shared counters."""
    choices: int = 0
    """Finish reasons that a whole answer has; 0 where nothing limits it."""
    fault: Fault | None = None
    status: int = 0
    reply_bytes: int = 0
    closing: str = ""
    """How its hold ended: `settle`, `estimate`, `release`, or empty when none was taken."""
    usage: Usage | None = None
    """The usage that it is charged for; None before its hold is closed."""
    units: int = 0
    cost_nanousd: int = 0
    price_id: str = ""


class Story(msgspec.Struct):
    """One request for one model. A request that falls back to another model goes on with a Story of its own (`instead`).

    Msgspec structs, because their defaults cost nothing per request; times are monotonic seconds.
    """

    request_id: str
    """The caller's own, when it sent a sane one: what replies and logs carry."""
    started_at: float
    at_unix: float
    body_at: float
    """When the request's last byte was there; equals `started_at` until then."""
    own_id: str = ""
    """The gateway's, unique: what holds and engines know the request by. Engines abort by id, so no caller may choose one."""
    asked: AskedFacts = msgspec.field(default_factory=AskedFacts)
    placed: PlacedFacts = msgspec.field(default_factory=PlacedFacts)
    tried: TriedFacts = msgspec.field(default_factory=TriedFacts)
    attempt: AttemptFacts = msgspec.field(default_factory=AttemptFacts)
    settled: SettledFacts = msgspec.field(default_factory=SettledFacts)
    queue_s: float = 0.0
    """Seconds that it has waited for a turn, for whichever model."""
    lost_s: float = 0.0
    """Seconds that engines of models before this one took in vain."""
    lora_wait_s: float = 0.0
    """Seconds that it has waited for adapters to be loaded."""
    dispatched_at: float | None = None
    """When it was sent to a backend for the first time since its last turn."""
    first: "Story | None" = None
    """The Story of the model that was asked for, where another model answers instead."""
    fell_back: tuple[Fell, ...] = ()
    """The models that could not answer, and how each failed."""

    @property
    def class_word(self) -> str:
        """Its class in words; empty before it has one."""
        priority_class = self.asked.priority_class
        return WORDS[priority_class] if priority_class is not None else ""

    @property
    def first_model(self) -> str:
        """The model that it was for in the beginning."""
        return (self.first or self).asked.model

    def instead(self, own_id: str, now: float) -> "Story":
        """The Story of the same request for another model: what was asked and the time so far go on, and nothing of what was tried."""
        # a ladder and a rollout are about one model; the policy's other words are written anew for the next one
        asked = msgspec.structs.replace(self.asked, steps=(), passed_over=(), dealt=None, prompt=None)
        lost_s = self.lost_s + (now - self.dispatched_at if self.dispatched_at is not None else 0.0)
        return Story(
            self.request_id,
            self.started_at,
            self.at_unix,
            self.body_at,
            own_id,
            asked,
            queue_s=self.queue_s,
            lost_s=lost_s,
            first=self.first or self,
            fell_back=self.fell_back,
        )

    def as_first(self, last: Fell) -> None:
        """No model of the chain could answer: from here on the Story tells what became of the model that was asked for.

        Args:
            last: how the last model failed.
        """
        first, waited = self.first, self.placed
        assert first is not None
        self.fell_back += (last,)
        self.asked = msgspec.structs.replace(first.asked, tenant_policy=self.asked.tenant_policy, retry=self.asked.retry)
        self.tried = first.tried
        # the last model's own place in its queue is still to be settled
        self.placed = msgspec.structs.replace(
            first.placed, queue_place=waited.queue_place, on_used=waited.on_used, pulled_back=waited.pulled_back
        )

    def overhead_s(self, now: float) -> float:
        """Seconds the gateway itself has taken so far, engines and queue excluded."""
        elsewhere_s = self.queue_s + self.lost_s
        if self.dispatched_at is None:
            return now - self.body_at - elsewhere_s
        before = self.dispatched_at - self.body_at - elsewhere_s
        attempt = self.attempt
        if attempt.answer_at is None or attempt.handed_on_at is None:
            return before
        return before + (attempt.handed_on_at - attempt.answer_at)

    def close(self, now: float) -> Record:
        """The finished Record; call once, when nothing more can happen to the request."""
        asked, placed, tried, attempt, settled = self.asked, self.placed, self.tried, self.attempt, self.settled
        caller, fault, first, last = asked.caller, settled.fault, attempt.first_event_at, attempt.last_event_at
        usage = settled.usage or attempt.usage or NO_USAGE
        return Record(
            self.request_id,
            self.at_unix,
            OK if fault is None else fault.kind.value,
            settled.status,
            now - self.started_at,
            self.overhead_s(now),
            caller.tenant if caller else "",
            caller.project if caller else "",
            caller.key_id if caller else "",
            asked.endpoint,
            asked.model,
            placed.pool,
            placed.revision,
            tried.backend,
            tried.attempts,
            tried.failed,
            asked.stream,
            usage,
            settled.closing,
            None if first is None else first - self.body_at,
            last - first if first is not None and last is not None and attempt.events > 1 else None,
            attempt.events,
            tuple(attempt.gaps) if attempt.gaps else (),
            self.queue_s,
            asked.request_bytes,
            settled.reply_bytes,
            asked.policy_digest,
            self.own_id if self.own_id != self.request_id else "",
            (fault.detail or "") if fault else "",
            placed.lora,
            self.lora_wait_s,
            asked.user,
            asked.organisation,
            settled.units,
            settled.cost_nanousd,
            settled.price_id,
            tuple([limit_words(status.line.limit, status.line.soft) for status in settled.limit_statuses if status.soft_crossed])
            if settled.limit_statuses
            else (),
            settled.degraded,
            tried.prefill,
            tried.hedged,
            placed.queued,
            placed.queued_ahead,
            self.class_word,
            asked.retry,
            asked.asked_model,
            asked.steps,
            asked.passed_over,
            asked.rule,
            placed.pulled_back,
            asked.dealt,
            asked.dealt_prompt,
            attempt.declined,
            asked.shadow,
            asked.template.name if asked.template is not None else "",
            self.fell_back,
            self._promises(usage),
        )

    def _promises(self, usage: Usage) -> SloResult:
        asked, attempt = self.asked, self.attempt
        policy = asked.tenant_policy
        if policy is None or not asked.stream or (policy.ttft_slo_s is None and policy.tpot_slo_s is None):
            return ()
        first, last = attempt.first_event_at, attempt.last_event_at
        ttft_s = None if first is None else first - self.body_at
        decode_s = None if first is None or last is None else last - first
        return slo_results(policy, ttft_s, decode_s, usage.completion_tokens, self.settled.fault)
