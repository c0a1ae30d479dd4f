"""The state of one request while it is under way, in seven slices; closed into a Record.

Each slice has its own writers, and its name tells a reader which step has filled it:

| slice | written by | read while the request is under way by |
|---|---|---|
| `asked` | `authenticate`, `interpret` and the ladder in `look_ahead` | every later step |
| `placed` | `choose` and its wait; `pulled_back` by preemption, `returned` by `forward` | `forward`, reply headers, preemption |
| `guarded` | `guard_input`, the guards' tap of the reply | `look_up`, `forward`, taps of the reply |
| `looked_up` | `look_up` | holds, reply headers, taps of the reply |
| `tried` | `forward`, around its attempts | holds, reply headers, preemption |
| `attempt` | one attempt, its relay and its judging tap; new for each attempt | the relay, the counters' beats, `forward` |
| `settled` | `admit`, `refuse`, `settle`, `record` | reply headers, fallback |

The closed Record is the only thing that metrics, the access log, the ledger and rollouts read, so no step knows who observes it.

Size: the slices are one table, whose fields steps find here by name.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING, Final

import msgspec

from backends.poison import Suspicion
from cache.key import Scope, Target
from domain.faults import Fault
from domain.identity import Caller
from domain.priority import WORDS, Class
from domain.usage import NO_USAGE, Usage
from gateway.guards.facts import GuardFacts, GuardRecord
from gateway.placement.decisions import Decision
from gateway.prompt.reader import Prompt
from gateway.record import GAP_BOUNDS_S, OK, Fell, Record, RoutedPrompt, SloResult, slo_results
from gateway.request.fallback_chain import FallbackChain
from gateway.request.rate_limit_replies import limit_words
from gateway.request.trace_notes import TraceNotes
from guardrails.guard_set import GuardSet
from policies.compile import TenantPolicy
from policies.prompts.prompt import RegisteredPrompt as Template
from policies.rollout.in_force import AssignedArm
from routing.disaggregation import Shared
from routing.fair_tier import QueuedRequest
from routing.load import Charge
from routing.schedule import Route
from tenancy.estimate import BYTES_PER_TOKEN
from tenancy.hold import LimitStatus

if TYPE_CHECKING:
    from gateway.answers.embeddings import KnownInputs
    from gateway.answers.flights import SharedFlight
    from gateway.answers.semantic import Resembling
    from gateway.request_log.capture import CapturedReply

MAX_AGENT_CHARS: Final = 256
"""Characters kept of a `user-agent`; those of SDKs have under 100."""


class AskedFacts(msgspec.Struct):
    """The request: its caller, what it asks for, and how its tenant's policy treats it.

    Written by `authenticate`, `interpret` (with `apply_policy` and the rollouts' assignment), and `look_ahead` where a degradation ladder
    changes the model.
    """

    caller: Caller | None = None
    endpoint: str = ""
    model: str = ""
    """The public name of the model that serves the request."""
    stream: bool = False
    priority_class: Class | None = None
    """The priority in an overload; None until caller and policy are known."""
    retry: bool = False
    """Whether the client library marks the request as a retry."""
    asked_model: str = ""
    """The model that was asked for, where `model` serves the request instead."""
    steps: tuple[str, ...] = ()
    """The steps of the tenant's degradation ladder that were applied; the reply's headers name them."""
    passed_over: tuple[str, ...] = ()
    """The steps that were due and not applied, each with the reason."""
    rule: str = ""
    """The rule of the tenant's policy that matched the request; empty for none."""
    dealt: AssignedArm | None = None
    """The variant (arm) that a rollout of the pool assigned; None without a rollout."""
    dealt_prompt: AssignedArm | None = None
    """The variant (arm) that a rollout of the registered prompt assigned; None without a rollout."""
    shadow: bool = False
    """Whether the request is a shadow copy for a canary: its answer is discarded and not billed."""
    template: Template | None = None
    """The registered prompt whose messages were put in front of the request's own; None for none."""
    variables: Mapping[str, object] | None = None
    """The values for the registered prompt; None for a request without one."""
    prompt: Prompt | None = None
    """The prompt, where it was read to be counted before routing."""
    expose: bool = False
    """Whether the reply's headers show the routing."""
    output_cap: int = 0
    """Output tokens per sequence that the policy allows."""
    statistical: bool = False
    """Whether the reserved output is the usual length of answers instead of the longest possible one."""
    policy_digest: str = ""
    tenant_policy: TenantPolicy | None = None
    guards: GuardSet | None = None
    """The guard rules for the request and its answer, of the model that serves it; None for no rules."""
    asked_wait_s: float = inf
    """The longest wait in the queue that the caller accepts, in seconds."""
    counted: int | None = None
    """Tokens of the prompt, where they were counted with the served model's own tokenizer for the reservation."""
    read_s: float = 0.0
    """Seconds that the request has waited for its prompt to be counted or read, of `gateway.prompt.count.BUDGET_S`."""
    end_at: float = inf
    """The time at which the answer has to be complete."""
    chain: FallbackChain | None = None
    """The models that may answer instead; None where the policy names none."""
    user: str = ""
    """The end-user label; written to the ledger, and to a log only where `log.end_user` says so."""
    organisation: str = ""
    request_bytes: int = 0
    price_percent: int = 100
    """What the request costs, in percent of its model's price."""
    image_bytes: int = 0
    """The bytes by which images that were fetched for the request have made it larger than its body."""


class PlacedFacts(msgspec.Struct):
    """The routing of the request, and its wait in the queue. Written by `choose`, `choose_again` and preemption."""

    pool: str = ""
    revision: str = ""
    lora: str = ""
    route: Route | None = None
    routed: RoutedPrompt | None = None
    shared: Shared | None = None
    """The decision about disaggregated prefill and decode; None in pools without disaggregation."""
    decision: Decision | None = None
    queued: str = ""
    """How the wait in the queue ended, a word of `gateway.queue.refusals`; empty when the request did not wait."""
    queued_ahead: int = 0
    """Tokens queued ahead of the request when its wait began."""
    queue_place: QueuedRequest | None = None
    """The queue entry of its last wait; None when it did not wait."""
    on_used: Callable[[Usage], None] | None = None
    """Called with the final usage of a request that waited: the queue has charged its tenant an estimate."""
    pulled_back: bool = False
    """Whether the request was preempted, before any part of an answer, for a more urgent one."""
    put_off: Fault | None = None
    """The refusal for want of capacity that counts unless the cache has the answer."""
    held_s: float = 0.0
    """For how long requests are held while the pool has no engine yet; 0 for any other request."""
    returned: int = 0
    """The attempts before the request returned to the queue because no engine could be reached, or none had a slot for its adapter; 0 when
    it did not, or before the first call."""


class CacheFacts(msgspec.Struct):
    """The request's look-up in the answer cache. Written by `look_up`."""

    status: str = ""
    """`hit-exact`, `hit-partial`, `hit-semantic`, `miss`, or `bypass:` with the reason; empty where the policy has no cache."""
    age_s: float = 0.0
    """Seconds since the answer was made."""
    not_kept: str = ""
    """Why the answer to a miss was not kept, one of `cache.eligible.NOT_KEPT`; empty where it was, and for a request that failed."""
    similarity: float | None = None
    """The similarity of the prompts, of a semantic hit."""
    key: bytes = b""
    """The key of the request; empty where its answer is not kept."""
    owner: str = ""
    """The tenant or sharing group that the answer belongs to."""
    namespace: str = ""
    scope: Scope | None = None
    """The callers that share the answer; None where the cache was not asked."""
    target: Target | None = None
    """What the answer depends on beside the request."""
    ttl_s: float = 0.0
    """How long the answer is kept, in seconds."""
    flight: "SharedFlight | None" = None
    """The flight that this request leads; None where it leads none."""
    inputs: "KnownInputs | None" = None
    """Of embeddings, the inputs and what the cache has of them."""
    merge: "KnownInputs | None" = None
    """The same, where the engine is asked for a part of the inputs."""
    hit: Usage | None = None
    """The usage that a hit is charged for; None for everything else."""
    part: Usage | None = None
    """The usage that the known inputs of a request for embeddings are charged for, beside that of its engine."""
    saved: Usage | None = None
    """The usage of the answer when it was made, of a hit."""
    put_off: Fault | None = None
    """The refusal that was put off until the cache had been asked, and has come after all."""
    purges: int = 0
    """The purges of the owner that had been heard of when the answer was looked up."""
    saved_nanousd: int = 0
    """What a hit would have cost more at an engine."""
    rounds: int = 0
    """Flights that ended without an answer for this request."""
    resembled: str = ""
    """Why no similar question's answer was given; empty for a request that was not looked up among them, and for a hit."""
    resembling: "Resembling | None" = None
    """The look-up among similar questions."""


class TriedFacts(msgspec.Struct):
    """The attempts so far. Written by `forward` and the wrappers of its attempts."""

    backend: str = ""
    """The backend that was called last, or that answered."""
    attempts: int = 0
    failed: tuple[str, ...] = ()
    """Backends whose attempt failed and was followed by another one."""
    hedged: tuple[str, ...] = ()
    """The two backends that were called at the same time, in the order of the calls; empty without a hedge."""
    prefill: str = ""
    """The prefill backend that was called last; empty where the attempt serves the request whole."""
    continued: int = 0
    """How often another engine went on with the answer."""
    suspicion: Suspicion = Suspicion.NONE
    """Whether engines die of the request. At `MAYBE` no other backend of the pool is tried, at `CONFIRMED` no other model either."""
    charge: Charge | None = None
    """The request's load on the backend that was called last."""
    lacked_slot: bool = False
    """Whether one of the attempts since the last wait failed because requests used every adapter slot of its backend."""
    loading_s: float = 0.0
    """Seconds of waiting for adapters to be loaded since the last wait in the queue."""


class AttemptFacts(msgspec.Struct):
    """One attempt on a backend: the events of its answer, and what the engine reported. Made new for each attempt."""

    on_begun: Callable[[], None] | None = None
    """Called at the first event of the answer."""
    answer_at: float | None = None
    """The arrival time of the engine's bytes that begin the reply: a first event, or the end of a plain reply."""
    handed_on_at: float | None = None
    """The time at which the first of these bytes were written to the caller."""
    first_event_at: float | None = None
    """The arrival of the first event from the engine; `released_at` is that of the caller, where guard rules held it."""
    last_event_at: float | None = None
    events: int = 0
    held: bool = False
    """Whether guard rules hold back everything of the answer that has come, so that the caller has nothing of it yet."""
    released_at: float | None = None
    """The time of the event with which guard rules let the beginning of the answer go on; None while they hold it, and without them."""
    cut: Usage | None = None
    """The usage that the caller was told of an answer that guard rules ended before its engine did; None for any other."""
    gaps: list[int] | None = None
    """Inter-token gaps, counted by `GAP_BOUNDS_S`."""
    choices_over: int = 0
    """Choices of the stream that have finished."""
    finish_reasons: dict[int, str] | None = None
    """How each choice ended, by its index; None before one has."""
    said_bytes: int = 0
    """Bytes of the text of a plain answer whose engine reported no usage."""
    declined: bool = False
    """Whether the answer ended with a refusal by the model or by a filter."""
    usage: Usage | None = None
    """The usage that the engine reported, as far as it is plausible; None where it reported none."""
    reported: str = ""
    """The engine's own counts in words, where they are implausible; else empty."""
    cached: int | None = None
    """Cached prompt tokens that the engine reported; None where it did not report them, which is not zero."""
    content_type: bytes = b""
    """The type of a plain reply that is not JSON; empty for all others."""
    captured: "CapturedReply | None" = None
    """What is remembered of the answer, and of the request, for the request log; None where the policy keeps no texts."""
    speech: tuple[int, int] = (0, 0)
    """Seconds and bytes of the speech that has passed; 0 seconds where its form does not tell them."""

    @property
    def begun(self) -> bool:
        """Whether the answer has begun for its caller; until then another backend or model may give it."""
        return self.events > 0 and not self.held

    @property
    def delivered(self) -> int:
        """Delivered output tokens, where the engine reported none: one for each event, or what a plain answer's text usually makes."""
        return max(self.events, -(-self.said_bytes // BYTES_PER_TOKEN))

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
    """The state of the limits, and the end of the request. Written by `admit`, `refuse`, `settle`, `record` and `fall_back`."""

    limit_statuses: tuple[LimitStatus, ...] = ()
    """The state of the caller's limits right after admission."""
    degraded: bool = False
    """Whether admission was decided without the shared counters."""
    choices: int = 0
    """Finish reasons in a complete answer; 0 for a request without limits."""
    fault: Fault | None = None
    status: int = 0
    reply_bytes: int = 0
    closing: str = ""
    """How the hold ended: `settle`, `estimate`, `release`, or empty without a hold."""
    usage: Usage | None = None
    """The usage that is charged; None before the hold is closed."""
    units: int = 0
    cost_nanousd: int = 0
    price_id: str = ""


class Story(msgspec.Struct):
    """One request for one model. A request that falls back to another model continues with a new Story (`instead`).

    Msgspec structs, because their defaults cost nothing per request; times are monotonic seconds.
    """

    request_id: str
    """The id in replies and logs: the caller's own where it sent a valid one."""
    started_at: float
    at_unix: float
    body_at: float
    """The time of the request's last byte; equals `started_at` until then."""
    own_id: str = ""
    """The gateway's own unique id, for holds and engines. Engines abort by id, so no caller may choose it."""
    client: str = ""
    """The caller's address."""
    user_agent: bytes = b""
    traceparent: bytes | None = None
    """The caller's `traceparent`, where it is well formed."""
    trace: TraceNotes | None = None
    """The course of the request, for its trace; None where nothing is traced."""
    asked: AskedFacts = msgspec.field(default_factory=AskedFacts)
    placed: PlacedFacts = msgspec.field(default_factory=PlacedFacts)
    guarded: GuardFacts = msgspec.field(default_factory=GuardFacts)
    looked_up: CacheFacts = msgspec.field(default_factory=CacheFacts)
    tried: TriedFacts = msgspec.field(default_factory=TriedFacts)
    attempt: AttemptFacts = msgspec.field(default_factory=AttemptFacts)
    settled: SettledFacts = msgspec.field(default_factory=SettledFacts)
    queue_s: float = 0.0
    """Seconds in the queues of all models so far."""
    lost_s: float = 0.0
    """Seconds that failed attempts with earlier models of the fallback chain took."""
    lora_wait_s: float = 0.0
    """Seconds of waiting for adapters to be loaded."""
    dispatched_at: float | None = None
    """The first dispatch to a backend since the last wait in the queue."""
    first: "Story | None" = None
    """The Story of the model that was asked for, where another model answers instead."""
    fell_back: tuple[Fell, ...] = ()
    """The models that could not answer, and how each failed."""
    unknown: tuple[str, str] = ("", "")
    """Method and path of a request for which there is no route."""

    @property
    def gateway_id(self) -> str:
        """The gateway's own id of the whole request, in logs, explanations and headers; after a fallback, `own_id` is of one model."""
        return (self.first or self).own_id

    @property
    def class_word(self) -> str:
        """The priority class as a word; empty before it is known."""
        priority_class = self.asked.priority_class
        return WORDS[priority_class] if priority_class is not None else ""

    @property
    def first_model(self) -> str:
        """The model that the request was for before any fallback."""
        return (self.first or self).asked.model

    def instead(self, own_id: str, now: float) -> "Story":
        """The Story of the same request for another model. It keeps the request's facts and times, and drops those about attempts."""
        # degradation steps and rollouts belong to one model; `apply_policy` writes the other facts again for the next model
        asked = msgspec.structs.replace(self.asked, steps=(), passed_over=(), dealt=None, prompt=None, counted=None, read_s=0.0)
        lost_s = self.lost_s + (now - self.dispatched_at if self.dispatched_at is not None else 0.0)
        return Story(
            self.request_id,
            self.started_at,
            self.at_unix,
            self.body_at,
            own_id,
            self.client,
            self.user_agent,
            self.traceparent,
            self.trace,
            asked,
            queue_s=self.queue_s,
            lost_s=lost_s,
            first=self.first or self,
            fell_back=self.fell_back,
        )

    def as_first(self, last: Fell) -> None:
        """Make this the Story of the model that was asked for again: no model of the fallback chain could answer.

        Args:
            last: the failure of the last model.
        """
        first, last_placed = self.first, self.placed
        assert first is not None
        # what the guard rules of the model that was asked for said stands in the Record itself
        self.fell_back = (msgspec.structs.replace(self.fell_back[0], guards=None), *self.fell_back[1:], last)
        self.guarded = first.guarded
        self.asked = msgspec.structs.replace(first.asked, tenant_policy=self.asked.tenant_policy, retry=self.asked.retry)
        self.tried = first.tried
        # the last model's queue entry is still to be settled
        self.placed = msgspec.structs.replace(
            first.placed, queue_place=last_placed.queue_place, on_used=last_placed.on_used, pulled_back=last_placed.pulled_back
        )

    @property
    def guards_record(self) -> GuardRecord | None:
        """What guard rules have said so far; None for no rules."""
        return None if self.asked.guards is None else self.guarded.record(self.asked.guards.version)

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
            attempt.reported,
            *self.unknown,
            self.client,
            self.user_agent[:MAX_AGENT_CHARS].decode("latin-1"),
            self.trace.trace_id if self.trace else "" if self.traceparent is None else self.traceparent[3:35].decode("ascii"),
            (self.first or self).own_id,
            self.looked_up.status,
            self.looked_up.saved or NO_USAGE,
            self.looked_up.saved_nanousd,
            self.looked_up.age_s,
            self.looked_up.not_kept,
            self.looked_up.resembled,
            self.guards_record,
            None if attempt.released_at is None or attempt.released_at == first else attempt.released_at - self.body_at,
            placed.routed,
            self.body_at - self.started_at,
            self.lost_s,
            self.trace,
            tried.continued,
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
