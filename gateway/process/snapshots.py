"""The state that the processes of one gateway exchange, as values. `worker_link` transports them."""

from typing import Literal

import msgspec

from cache.ports import StoreFigures
from domain.membership import SourceState
from gateway.answers.cache import SimilarState
from gateway.ledger.reconcile import LimitsState
from gateway.ledger.writer import UsageLogState
from gateway.placement.backend_state import BackendState
from gateway.queue.waiter import QueueState
from gateway.telemetry.snapshot import MetricsSnapshot

State = Literal["starting", "ready", "draining"]


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


class CertificateState(msgspec.Struct, frozen=True):
    """A certificate that one worker shows to others."""

    use: Literal["callers", "proxies", "engines"]
    """To whom: of the data port, of the endpoint picker, or the client certificate towards a pool's engines."""
    pool: str
    """Empty but for engines."""
    ends_unix: float
    """When it expires, seconds since the epoch."""


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
    certificates: tuple[CertificateState, ...] = ()
    """The certificates in use; a file that was replaced and not taken up yet does not count."""
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
    slice_s: float = 0.0
    """The longest time for which a slice of an answer to a scrape has held its event loop."""


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
