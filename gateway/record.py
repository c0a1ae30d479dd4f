"""One finished request, as metrics, the access log, the ledger and every other observer read it."""

from typing import Final

import msgspec

from domain.usage import NO_USAGE, Usage
from gateway.promises import Kept
from policies.rollout.in_force import Dealt

OK: Final = "ok"
"""The one outcome that is no Fault kind: a whole answer was handed to the caller."""

GAP_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.2, 0.4, 0.8, 2.0, 8.0)
"""Upper bounds of the inter-token latency histogram, seconds. Dense from 5 to 80 ms, where engines decode; the last
bucket (above 8 s) is a stall. Counted in the Story because a gap is gone once the next event has passed."""


class Fell(msgspec.Struct, frozen=True, gc=False):
    """One step of a request along its model's chain of fallbacks."""

    model: str
    """The model that could not answer."""
    to: str
    """The one that was tried next; empty behind the last."""
    on: str
    """The condition that named it."""
    outcome: str
    """How the first of the two failed, a `domain.faults.Kind` value."""

    @property
    def words(self) -> str:
        """The model, and how it failed."""
        return f"{self.model}: {self.outcome}"


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finished request, as everything that observes requests sees it. Times are seconds, tokens and bytes integers."""

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
    """Public model name, only when the configuration knows it; callers' own strings never get here."""
    pool: str = ""
    revision: str = ""
    backend: str = ""
    attempts: int = 0
    failed: tuple[str, ...] = ()
    """Backends whose attempt failed and was made good by another one."""
    stream: bool = False
    usage: Usage = NO_USAGE
    closing: str = ""
    """How the Hold ended: `settle`, `estimate`, `release`, or empty when none was taken."""
    ttft_s: float | None = None
    """From the request's last byte to the first event of the answer."""
    decode_s: float | None = None
    """From the first event to the last one; what time per output token is computed from. None below two events."""
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
    """Waiting for it to be loaded; in `ttft_s`, not in `overhead_s`."""
    user: str = ""
    """The end-user label, as a token or else the caller says it."""
    organisation: str = ""
    units: int = 0
    """Weighted tokens."""
    cost_nanousd: int = 0
    price_id: str = ""
    """The version of the price that `cost_nanousd` was computed with."""
    soft_limits: tuple[str, ...] = ()
    """Limits whose soft threshold this request crossed, in words."""
    degraded: bool = False
    """Whether its limits were decided on without the shared counters."""
    prefill: str = ""
    """The backend that was asked to compute the prompt, where the request was shared between two."""
    hedged: tuple[str, ...] = ()
    """The two backends that it was sent to at a time, the first one first; empty where it was not."""
    queued: str = ""
    """How its wait for its turn ended; empty when it did not wait."""
    queued_ahead: int = 0
    """Tokens that were to be served before it when its wait began."""
    priority_class: str = ""
    """Its class in words; empty for a request that was refused before it had one."""
    retry: bool = False
    """Whether its client said that it had asked for this before."""
    asked_model: str = ""
    """What it asked for, where `model` answered instead, as an alias or a ladder says."""
    steps: tuple[str, ...] = ()
    """Of its tenant's degradation ladder, those that it went down."""
    passed_over: tuple[str, ...] = ()
    """Those that were due and not taken, and why."""
    rule: str = ""
    """The rule of its tenant's policy that it came under; empty for none."""
    pulled_back: bool = False
    """Whether it gave its place on a backend to a more urgent one before anything came of it."""
    dealt: Dealt | None = None
    """What a rollout made of it; None where none is about it."""
    dealt_prompt: Dealt | None = None
    """What a rollout of its prompt made of it; None where none is about that."""
    declined: bool = False
    """Whether the answer ended with the model's or a filter's refusal."""
    shadow: bool = False
    """Only its rollout hears of it: a copy of another one, sent to a canary, or what became of one for a model in whose place another
    one answered."""
    prompt: str = ""
    """The prompt of the registry whose messages it began with, as `id@version`; empty for none."""
    fell_back: tuple[Fell, ...] = ()
    """The models that could not answer. Attempts, backends and waits above are those of `model`."""
    promises: Kept = ()
    """What its tenant was promised, and whether it was so."""

    @property
    def own_id(self) -> str:
        """The gateway's own id, which holds, engines and the ledger know the request by."""
        return self.engine_request_id or self.request_id
