"""The state that the processes of one gateway exchange, as values. `worker_link` transports them."""

from typing import Literal

import msgspec

from backends.kv.blocks import KvState
from backends.load_reports import PushState
from backends.signals import Signals, standing
from cache.ports import StoreFigures
from domain.membership import Owner, SourceState
from gateway.answers.cache import SimilarState
from gateway.ledger.reconcile import LimitsState
from gateway.ledger.writer import UsageLogState
from gateway.placement.concurrency import LimitView
from gateway.queue.waiter import QueueState
from gateway.telemetry.metrics import MetricsSnapshot

State = Literal["starting", "ready", "draining"]


class BackendState(msgspec.Struct, frozen=True):
    """One backend as one worker sees it. `why` is the reason why it cannot be used, empty when `up`; `loras` are its adapters."""

    pool: str
    backend: str
    up: bool
    why: str = ""
    in_flight: int = 0
    """Requests of this worker in flight on the backend."""
    signals: Signals | None = None
    """The backend's last polled signals; `read_at` is on the worker's clock and means nothing elsewhere."""
    signals_age_s: float | None = None
    sent_since: int = 0
    """Requests that this worker sent after that reading and that are still in flight."""
    ended_since: int = 0
    """Requests of this worker that the reading includes and that ended after it."""
    running_now: int | None = None
    """Estimate of the requests in its batch now: the reading, corrected by requests sent and ended since."""
    waiting_now: int | None = None
    """Estimate of the requests in its queue now."""
    prefill_tokens_per_s: float | None = None
    """Prefill rate, measured between readings."""
    loras: tuple[str, ...] = ()
    kv: KvState | None = None
    """The content of its prefix cache, where the engine publishes KV events."""
    state: str = ""
    """`up`, `down`, `draining`, …: a value of `routing.fleet.Availability`."""
    source: Owner | Literal[""] = ""
    """The source that lists it."""
    url: str = ""
    load_age_s: float | None = None
    """Age of the running and waiting numbers: of the last report where the engine pushes its load, else of the reading."""
    push: PushState | None = None
    """The state of its load push, where it has one."""
    trust: float = 1.0
    """Share of the index's prefix hits for it that routing trusts."""
    index_off: bool = False
    """Whether the engine's answers mostly contradict the index."""
    residual_s: float = 0.0
    """90th percentile of the absolute error of predicted times to first token, in seconds; 0 while none was measured."""
    breaker: Literal["", "half_open", "open"] = ""
    """The worst state of the backend's circuit breakers, of the model and of adapters; empty when all are closed. `why` gives the
    reason."""
    breaker_opens: int = 0
    """How often the backend's breakers opened, in running workers."""

    limit: LimitView | None = None
    """The backend's adaptive concurrency limit, where one is configured."""
    processes: int | None = None
    """Workers of the deployment that share the limit; 0 while the number is unknown, None where nothing is limited."""

    @property
    def reported_age_s(self) -> float | None:
        """Age of the running and waiting numbers, pushed or polled."""
        return self.signals_age_s if self.load_age_s is None else self.load_age_s

    def estimated(self) -> "BackendState":
        """A copy of the state with `running_now` and `waiting_now` computed."""
        if self.signals is None:
            return self
        now = standing(self.signals, self.sent_since, self.ended_since, self.in_flight)
        return msgspec.structs.replace(self, running_now=now.running, waiting_now=now.waiting)


class IndexState(msgspec.Struct, frozen=True):
    """The size of one worker's prefix index."""

    blocks: int
    bound: int


class IssuerState(msgspec.Struct, frozen=True):
    """The keys of one issuer of JWTs, as one worker has them."""

    issuer: str
    keys: int
    age_s: float | None
    """Seconds since its document was last read; None when it never was."""
    trouble: str = ""
    """Why its document could not be read; empty when it could."""


class PolicyState(msgspec.Struct, frozen=True):
    """The policies of one worker."""

    digest: str
    """Digest of the active policies; empty before there are any."""
    loaded_unix: float
    problems: tuple[str, ...] = ()
    """Why the current files are refused; empty when they are active."""
    problem_count: int = 0
    warnings: tuple[str, ...] = ()
    """What is active and hardly meant, with file and line."""


class WorkerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One worker at one moment. `reasons` says in words what an unready worker waits for."""

    index: int
    pid: int
    state: State
    started_at: float
    """Seconds since the epoch."""
    reasons: tuple[str, ...] = ()
    fleet: tuple[BackendState, ...] = ()
    sources: tuple[SourceState, ...] = ()
    clashes: tuple[str, ...] = ()
    """Sources that name one backend twice, in words."""
    policies: PolicyState = PolicyState("", 0.0)
    issuers: tuple[IssuerState, ...] = ()
    metrics: MetricsSnapshot | None = None
    """None when only the state was asked for."""
    ledger: UsageLogState | None = None
    """None when only the state was asked for, and where the ledger is off."""
    limits: LimitsState | None = None
    """None when only the state was asked for."""
    prefixes: IndexState | None = None
    """The size of its prefix index."""
    queues: tuple[QueueState, ...] = ()
    """The queues of its pools."""
    answers: StoreFigures | None = None
    """Its answer cache."""
    similar: SimilarState | None = None
    """Its similar questions."""
    tasks: int = 0
    """Unfinished tasks of its event loop."""


class SlotState(msgspec.Struct, frozen=True):
    """One slot of the supervisor: a worker (`worker-0`, …), `admin` or `store`."""

    name: str
    pid: int | None
    restarts: int
    """Unexpected ends since the supervisor started."""
    streak: int
    """Unexpected ends within the restart policy's window; a high number is a crash loop."""
    last_end: str = ""
    refused_replacements: int = 0
    """Replacements that did not start in a rolling restart, so that the old process stayed."""
    last_refusal: str = ""
    """Why the last one of them did not start."""


class SupervisedPlan(msgspec.Struct, frozen=True):
    """The settings that only the supervisor applies, as it applies them now."""

    data_bind: str
    admin_bind: str
    workers: int
    accept_s: float
    grace_s: float


class Supervision(msgspec.Struct, frozen=True):
    """The supervisor's state, which it writes to `supervisor.json` at every change."""

    pid: int
    data_port: int
    admin_port: int
    slots: tuple[SlotState, ...]
    plan: SupervisedPlan | None = None
    """The settings that the supervisor itself follows; None from a supervisor of an older version."""
