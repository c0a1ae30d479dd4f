"""What the processes of one Tidegate tell each other of themselves. Values only; how they travel is `worker_link`."""

from typing import Literal

import msgspec

from backends.kv_blocks import KvState
from backends.load_reports import PushState
from backends.readings import standing
from backends.signals import Signals
from domain.membership import Owner, SourceState
from gateway.limits_state import LimitsState
from gateway.placing.limits import Shown
from gateway.queueing.waiter import LineState
from gateway.telemetry.metrics import MetricsSnapshot
from gateway.usage_log import UsageLogState

State = Literal["starting", "ready", "draining"]


class BackendState(msgspec.Struct, frozen=True):
    """One backend as one worker sees it. `why` says what keeps it from being used, empty when `up`; `loras` are its adapters."""

    pool: str
    backend: str
    up: bool
    why: str = ""
    in_flight: int = 0
    """Requests of this worker on it."""
    signals: Signals | None = None
    """What it last said of itself; `read_at` is on the worker's clock and means nothing elsewhere."""
    signals_age_s: float | None = None
    sent_since: int = 0
    """Requests this worker sent to it after that reading, and that are still there."""
    ended_since: int = 0
    """Requests of this worker that the reading counts and that ended after it."""
    running_now: int | None = None
    """What it probably has in its batch by now: the reading, and what was sent and ended since."""
    waiting_now: int | None = None
    """The same of its queue."""
    prefill_tokens_per_s: float | None = None
    """How fast it prefills, measured between readings."""
    loras: tuple[str, ...] = ()
    kv: KvState | None = None
    """What its prefix cache holds, where it publishes that."""
    state: str = ""
    """`up`, `down`, `draining`, …: a value of `routing.fleet.State`."""
    source: Owner | Literal[""] = ""
    """Who names it."""
    url: str = ""
    load_age_s: float | None = None
    """Age of what runs and waits: of the last report where the engine pushes them, else of the reading."""
    push: PushState | None = None
    """How its load push stands, where it has one."""
    trust: float = 1.0
    """Share of what the index says it holds that is believed."""
    index_off: bool = False
    """Whether the engine says something else than the index, mostly."""
    residual_s: float = 0.0
    """Seconds by which 9 of 10 predicted times to the first token were wrong at most; 0 while none was measured."""
    breaker: Literal["", "half_open", "open"] = ""
    """The worst of its breakers, the model's own and those of adapters; empty when all are closed. `why` says the reason."""
    breaker_opens: int = 0
    """How often they opened, in workers that run."""

    limit: Shown | None = None
    """How much is given to it, where that is limited."""
    processes: int | None = None
    """Workers of the deployment that share that; 0 while nobody knows, None where nothing is limited."""

    @property
    def told_age_s(self) -> float | None:
        """Age of what runs and waits, however it was told."""
        return self.signals_age_s if self.load_age_s is None else self.load_age_s

    def estimated(self) -> "BackendState":
        """With `running_now` and `waiting_now` worked out from the rest."""
        if self.signals is None:
            return self
        now = standing(self.signals, self.sent_since, self.ended_since, self.in_flight)
        return msgspec.structs.replace(self, running_now=now.running, waiting_now=now.waiting)


class IndexState(msgspec.Struct, frozen=True):
    """How full one worker's index of prefixes is."""

    blocks: int
    bound: int


class IssuerState(msgspec.Struct, frozen=True):
    """The keys of one issuer of tokens, as one worker has them."""

    issuer: str
    keys: int
    age_s: float | None
    """Since its document was read last; None when that never worked."""
    trouble: str = ""
    """Why it could not be read; empty when it could."""


class PolicyState(msgspec.Struct, frozen=True):
    """The policies of one worker."""

    digest: str
    """Of those in force; empty before there are any."""
    loaded_unix: float
    problems: tuple[str, ...] = ()
    """Why the files as they are now are refused; empty where they are in force."""
    problem_count: int = 0


class WorkerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One worker at one moment. `reasons` says in words what a worker that is not ready waits for."""

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
    """The same, and None where usage is not written down."""
    limits: LimitsState | None = None
    """None when only the state was asked for."""
    prefixes: IndexState | None = None
    """Its index of them."""
    lines: tuple[LineState, ...] = ()
    """Who waits for room, by pool."""
    tasks: int = 0
    """Coroutines that its event loop has begun and not finished."""


class SlotState(msgspec.Struct, frozen=True):
    """One place in the supervisor: a worker (`worker-0`, …) or `admin`."""

    name: str
    pid: int | None
    restarts: int
    """Unexpected ends since the supervisor started."""
    streak: int
    """Unexpected ends within the restart policy's window; a high one is a crash loop."""
    last_end: str = ""


class Supervision(msgspec.Struct, frozen=True):
    """What the supervisor knows, as it writes it to `supervisor.json` at every change."""

    pid: int
    data_port: int
    admin_port: int
    slots: tuple[SlotState, ...]
