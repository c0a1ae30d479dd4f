"""One finished request (`Record`), as metrics, the access log, the ledger and every other observer read it.

`slo_results` says whether the request met the service levels (SLO) of its tenant's policy; `Fell` is one step along its chain of fallbacks.
"""

from typing import Final, NamedTuple

import msgspec

from domain.faults import Fault, Source
from domain.usage import NO_USAGE, Usage
from gateway.guards.facts import GuardRecord
from gateway.request.trace_notes import TraceNotes
from policies.compile import TenantPolicy
from policies.rollout.in_force import AssignedArm
from routing.ports import RoutingRequest

TTFT: Final = "ttft"
TPOT: Final = "tpot"
SERVICE_LEVELS: Final = (TTFT, TPOT)

SloResult = tuple[tuple[str, bool], ...]
"""Whether each service level was met, by its name; a level that is not set, or that this request says nothing about, is not in it."""


def slo_results(policy: TenantPolicy, ttft_s: float | None, decode_s: float | None, tokens: int, fault: Fault | None) -> SloResult:
    """The service levels (SLO) that a streamed request met.

    A request without any token, that was not at fault itself, has missed the time to the first token. The time per output token (TPOT) is
    the mean over a complete answer, so an answer that broke off is not judged by it.

    Args:
        ttft_s: seconds to the first event; None for none.
        decode_s: seconds from the first event to the last one.
        tokens: completion tokens of the whole answer.
    """
    results = []
    if policy.ttft_slo_s is not None:
        if ttft_s is not None:
            results.append((TTFT, ttft_s <= policy.ttft_slo_s))
        elif fault is not None and fault.source is not Source.CALLER:
            results.append((TTFT, False))
    if policy.tpot_slo_s is not None and fault is None and decode_s is not None and tokens > 1:
        results.append((TPOT, decode_s / (tokens - 1) <= policy.tpot_slo_s))
    return tuple(results)


OK: Final = "ok"
"""The one outcome that is no Fault kind: a complete answer was handed to the caller."""

GAP_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.2, 0.4, 0.8, 2.0, 8.0)
"""Upper bounds of the inter-token latency histogram, seconds. Dense from 5 to 80 ms, where engines decode; the last
bucket (above 8 s) is a stall. Counted in the Story because a gap is gone once the next event has passed."""


class Fell(msgspec.Struct, frozen=True, gc=False):
    """One step of a request along its model's chain of fallbacks."""

    model: str
    """The model that could not answer."""
    to: str
    """The model that was tried next; empty after the last one."""
    on: str
    """The condition that named it."""
    outcome: str
    """How `model` failed, a `domain.faults.Kind` value."""
    guards: GuardRecord | None = None
    """What the guard rules of `model` said; None without rules, and where they are those of the Record itself."""

    @property
    def words(self) -> str:
        """The model, and how it failed."""
        return f"{self.model}: {self.outcome}"


class RoutedPrompt(NamedTuple):
    """What a replay of the access log needs to know of a prompt."""

    request: RoutingRequest
    """The request as it was routed."""
    known_blocks: int
    """Leading blocks of its prompt that some backend held then."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finished request, as all observers see it. Times are seconds, tokens and bytes integers."""

    request_id: str
    at_unix: float
    """When the request head was complete, seconds since the epoch."""
    outcome: str
    """`ok` or a `domain.faults.Kind` value."""
    status: int
    """HTTP status sent; 499 when the caller left before one was sent."""
    duration_s: float
    overhead_s: float
    """Time spent by the gateway itself: from the request's last byte to the dispatch, and from the engine's first byte to
    handing it on. Waiting for engines, queues and callers is not in it."""
    tenant: str = ""
    project: str = ""
    key_id: str = ""
    endpoint: str = ""
    model: str = ""
    """Public model name, only when the configuration knows it; a string made up by a caller never gets here."""
    pool: str = ""
    revision: str = ""
    backend: str = ""
    attempts: int = 0
    failed: tuple[str, ...] = ()
    """Backends whose attempt failed before another backend was tried."""
    stream: bool = False
    usage: Usage = NO_USAGE
    closing: str = ""
    """How the Hold ended: `settle`, `estimate`, `release`, or empty when none was taken."""
    ttft_s: float | None = None
    """From the request's last byte to the first event of the answer."""
    decode_s: float | None = None
    """From the first event to the last one; time per output token is computed from it. None below two events."""
    events: int = 0
    gaps: tuple[int, ...] = ()
    """Inter-token gaps counted by `GAP_BOUNDS_S`, one more bucket than bounds."""
    queue_s: float = 0.0
    request_bytes: int = 0
    reply_bytes: int = 0
    policy: str = ""
    """Digest of the PolicySet that governed the request."""
    engine_request_id: str = ""
    """The id engines saw; empty when it is `request_id`."""
    detail: str = ""
    """For operators: the cause behind a fault, cleaned of prompts, secrets and control characters."""
    lora: str = ""
    """The adapter that was asked for, by its engine-side name."""
    lora_wait_s: float = 0.0
    """Seconds of waiting until the adapter was loaded; part of `ttft_s`, not of `overhead_s`."""
    user: str = ""
    """The end-user label, from the JWT or else from the request."""
    organisation: str = ""
    units: int = 0
    """Weighted tokens."""
    cost_nanousd: int = 0
    price_id: str = ""
    """The version of the price that `cost_nanousd` was computed with."""
    soft_limits: tuple[str, ...] = ()
    """Limits whose soft threshold this request crossed, in words."""
    degraded: bool = False
    """Whether its limits were decided without the shared counters."""
    prefill: str = ""
    """The backend that computed the prompt, where prefill and decode were disaggregated; else empty."""
    hedged: tuple[str, ...] = ()
    """The two backends of a hedged request, the first one first; empty for a request that was not hedged."""
    queued: str = ""
    """How its wait in the queue ended; empty when it did not wait."""
    queued_ahead: int = 0
    """Tokens queued ahead of it when its wait began."""
    priority_class: str = ""
    """The request's priority class in words; empty for a request that was refused before it had one."""
    retry: bool = False
    """Whether the client marked it as a retry."""
    asked_model: str = ""
    """The model that was asked for, where an alias or the degradation ladder let `model` answer instead."""
    steps: tuple[str, ...] = ()
    """The steps of the tenant's degradation ladder that were applied to it."""
    passed_over: tuple[str, ...] = ()
    """The steps that were due and not applied, each with the reason."""
    rule: str = ""
    """The rule of the tenant's policy that matched it; empty for none."""
    pulled_back: bool = False
    """Whether it was preempted on a backend by a more urgent request before its first token."""
    dealt: AssignedArm | None = None
    """The request's assignment by the rollout of its pool; None without such a rollout."""
    dealt_prompt: AssignedArm | None = None
    """The request's assignment by the rollout of its prompt; None without such a rollout."""
    declined: bool = False
    """Whether the answer ended with the model's or a filter's refusal."""
    shadow: bool = False
    """Whether only its rollout observes it: a copy of a request for a canary, or the failure of a model in whose place another model
    answered."""
    prompt: str = ""
    """The registry's prompt that its messages begin with, as `id@version`; empty for none."""
    fell_back: tuple[Fell, ...] = ()
    """The models that could not answer. Attempts, backends and waits of this record are of `model` alone."""
    promises: SloResult = ()
    """The service levels of its tenant's policy, and whether each was met."""
    reported: str = ""
    """The engine's own counts of tokens in words, where they are implausible and `usage` is their bound; else empty."""
    method: str = ""
    """Only of a request for which there is no route, as `path`: those of any other request follow from `endpoint`."""
    path: str = ""
    client: str = ""
    """The caller's address, as the trusted proxies tell it."""
    user_agent: str = ""
    trace_id: str = ""
    """The trace of the caller's `traceparent`, or the one that the request began where requests are traced."""
    gateway_id: str = ""
    """The gateway's own id of the whole request; empty where it is `request_id`."""
    cache: str = ""
    """What the answer cache did: `hit-exact`, `hit-partial`, `hit-semantic`, `miss`, or `bypass:` with the reason; empty without one."""
    saved: Usage = NO_USAGE
    """The usage of a hit's answer when it was made; `usage` is what the hit is charged for."""
    saved_nanousd: int = 0
    """What a hit would have cost more at an engine, at the price of now."""
    cache_age_s: float = 0.0
    """Of a hit, seconds since the answer was made."""
    not_kept: str = ""
    """Why the answer to a miss was not kept, in one word; empty where it was."""
    resembled: str = ""
    """Why no similar question's answer was given; empty for a hit, and where similar questions were not looked up."""
    guards: GuardRecord | None = None
    """What guard rules said; None where no rule looks at the request or its answer."""
    caller_ttft_s: float | None = None
    """From the request's last byte to the first event that guard rules let go on, where they held earlier ones; else None. `ttft_s` is the
    engine's."""
    routed: RoutedPrompt | None = None
    """Its chain and conversation; None where it never got as far as routing."""
    body_s: float = 0.0
    """From the end of the request's head to its last byte; part of `duration_s` alone."""
    lost_s: float = 0.0
    """Seconds that failed attempts with earlier models of the fallback chain took; part of `ttft_s`, not of `overhead_s`."""
    trace: TraceNotes | None = None
    """The course of the request, for its trace; None where nothing is traced."""
    continued: int = 0
    """How often another engine went on with the streamed answer, because the one before was lost."""

    @property
    def own_id(self) -> str:
        """The gateway's own id of the request, which holds, engines and the ledger use."""
        return self.engine_request_id or self.request_id
