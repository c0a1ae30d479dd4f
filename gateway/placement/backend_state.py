"""One backend as one worker sees it: what workers report, and what clients of the admin port are shown."""

from typing import Literal

import msgspec

from backends.kv.blocks import KvState
from backends.load_reports import PushState
from backends.signals import Signals, standing
from domain.membership import Owner, Role


class LimitView(msgspec.Struct, frozen=True):
    """The concurrency limit of one backend, for display."""

    requests: float
    """Requests that the whole engine is assumed to bear."""
    tokens: float | None
    """Uncached prompt tokens that the whole engine is assumed to bear; None while unknown."""
    own: float
    """Requests that this worker may have in flight there; the sum where several workers are joined."""


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

    usd_per_hour: float = 0.0
    """What an hour of its engine costs, where it has a price of its own; 0: that of its pool."""
    revision: str = ""
    """The revision of the model that its pool says it serves."""
    role: Role = "both"
    """Its part in disaggregation: it serves requests whole, computes prompts, or generates."""

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
