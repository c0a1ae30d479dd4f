"""The circuit breaker of one backend and model: whether it failed too many requests lately to get more.

Pure: how attempts ended, the time and random numbers in; whether requests may be sent, and why not, out. `Breaker` is one circuit breaker,
`Breakers` are those of one worker: which backends a request should avoid. `Breakers.news` tells others of changes, and `Breakers.take`
takes the changes of others (`gateway.fleet.shared_breakers`): what opens in one worker of a host is open in all.

`backends.health` decides by what an engine *is*: present, frozen, of the right model; a backend that it ejects comes back with a token of a
probe. A breaker decides by what the engine *answers*: the share of failures in a window of seconds, for one model on one backend; a
caller's request is its probe. No evidence counts in both: a late first token is a failure here, and a sign of silence there.

What happens when every backend's breaker is open is decided in `routing.eligible`, which then ignores all breakers.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from domain.clock import Rng
from domain.faults import SOURCE, Kind, Source

WINDOW_S: Final = 10
"""Seconds that a failure counts for: Finagle's 30 s keep a backend out that failed for 3 s; below 10 s a quiet backend never collects
enough samples."""
SAMPLES: Final = 10
FAILED_SHARE: Final = 0.5
"""The breaker opens when this share of at least `SAMPLES` requests in the window failed. Below 50 %, retries on other backends cost less
than leaving the backend out; with ten samples a backend that fails one request in ten opens by bad luck once in 600 full windows."""
IN_A_ROW: Final = 5
"""A breaker also opens after this many consecutive failures, however long they took: a quiet backend never fills the window (Envoy's
`consecutive_5xx`)."""

OPEN_FIRST_S: Final = 5.0
OPEN_LONGEST_S: Final = 60.0
"""How long the breaker stays open the first time, and at most; the time doubles from one opening to the next. Long enough for the restart
of a front end, not of an engine: polls find that, and health takes out the whole backend."""
JITTER: Final = 0.2
"""Share by which the open time is randomly shortened or lengthened, so that gateways and backends do not come back in step (requirement
R51)."""
CALM_S: Final = 60.0
"""After this long closed, the next opening lasts `OPEN_FIRST_S` again."""

PROBE_S: Final = 30.0
"""Another request may probe a half-open backend once the probing one has brought nothing for this long: an answer that is not streamed may
take minutes."""

LONGEST_COOL_S: Final = 30.0
"""Longest `retry-after` of an engine that is honoured; half of the time to its next free slot is no reason to stay away for longer."""


class AttemptVerdict(Enum):
    """The meaning of an attempt's end for the breaker of its backend."""

    SUCCESS = "success"
    FAILURE = "failure"
    BUSY = "busy"
    """The engine works and has no free slot."""
    NEUTRAL = "neutral"
    """The attempt says nothing of the backend: the gateway or the caller ended it."""


_OURS: Final = frozenset(
    {
        Kind.CLIENT_GONE,
        Kind.SLOW_READER,
        Kind.KEY_REVOKED,
        Kind.NO_BACKEND,
        Kind.BACKEND_LOST,
        Kind.BACKEND_DRAINED,
        Kind.LORA_UNAVAILABLE,
        Kind.WRONG_MODEL,
    }
)
"""Attempts that the gateway or the caller ended, or for which `backends.health` takes the backend out at once."""


def _verdict(kind: Kind) -> AttemptVerdict:
    if kind is Kind.ENGINE_BUSY:
        return AttemptVerdict.BUSY
    if kind in _OURS or SOURCE[kind] is Source.GATEWAY:
        return AttemptVerdict.NEUTRAL
    return AttemptVerdict.SUCCESS if SOURCE[kind] is Source.CALLER else AttemptVerdict.FAILURE


VERDICTS: Final[Mapping[Kind | None, AttemptVerdict]] = MappingProxyType(
    {None: AttemptVerdict.SUCCESS, **{kind: _verdict(kind) for kind in Kind}}
)
"""The verdict on the backend by how the attempt ended; None is a complete answer. An engine that refuses a caller's mistake works
(routers no. 19)."""


class BreakerState(Enum):
    """State of the circuit breaker, by the requests that may be sent to the backend."""

    CLOSED = "closed"
    """All requests."""
    HALF_OPEN = "half_open"
    """One request, as a probe."""
    OPEN = "open"
    """No requests."""


class BreakerNews(NamedTuple):
    """The state of one breaker as one worker tells it to others. Seconds, not moments: their clocks need not agree."""

    backend: str
    served: str
    """The adapter, by the engine's name; empty for the model itself."""
    tripped: bool
    """Whether it is open or half open."""
    left_s: float
    """Until it becomes half open; 0 where it is."""
    open_s: float
    """For how long it was opened, before chance: the next opening is twice as long."""
    probing: bool
    """Whether a request of the worker that tells it tries the backend now."""
    why: str


class Breaker:
    """The circuit breaker of one backend and model. Times are monotonic seconds."""

    __slots__ = (
        "_failed",
        "_good",
        "_in_a_row",
        "_open_s",
        "_probing",
        "_probing_since",
        "_second",
        "closed_at",
        "cool_until",
        "open_until",
        "why",
    )

    def __init__(self) -> None:
        self._good = [0] * WINDOW_S
        self._failed = [0] * WINDOW_S
        self._second = 0
        self._in_a_row = 0
        self._open_s = 0.0
        self._probing: object = None
        self._probing_since = 0.0
        self.open_until: float | None = None
        """When the breaker becomes half open; None while it is closed."""
        self.closed_at: float | None = None
        """When the breaker closed last; None when it was never open."""
        self.cool_until = float("-inf")
        """Until when the engine itself asked for no requests."""
        self.why = ""
        """Why the breaker opened last, in words for operators."""

    def state(self, now: float) -> BreakerState:
        """The breaker's state at this time."""
        if self.open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self.open_until else BreakerState.HALF_OPEN

    def shut(self, now: float) -> str:
        """Why no request may be sent to the backend now, in words; empty when one may."""
        until = self.open_until
        if until is not None:
            if now < until:
                return f"breaker open for {until - now:.1f} s more: {self.why}"
            if self._probing is not None and now - self._probing_since < PROBE_S:
                return f"breaker half open, one request tries it: {self.why}"
        if now < self.cool_until:
            return f"asked to be left alone for {self.cool_until - now:.1f} s more"
        return ""

    def enter(self, request_id: object, now: float) -> bool:
        """Record that a request is placed on or sent to the backend; returns whether it is the probe of a half-open backend. The end of
        each such request must be reported to `ended`."""
        if self.open_until is None or now < self.open_until:
            return False
        if self._probing is not None and now - self._probing_since < PROBE_S:
            return bool(self._probing == request_id)  # when no other backend is left, more requests than the probe are sent
        self._probing = request_id
        self._probing_since = now
        return True

    def begun(self, request_id: object, now: float) -> bool:
        """Record the first token of a request; returns whether it was the probe, so that the breaker is closed now."""
        if self._probing is None or self._probing != request_id:
            return False
        self._close(now)
        return True

    def ended(self, verdict: AttemptVerdict, request_id: object, now: float, rng: Rng, why: str = "") -> bool:
        """Record the end of an attempt; returns whether the breaker opened or closed by it. While the breaker is not closed, only the
        probe's end counts: requests sent before it opened tell nothing new.

        Args:
            why: how the attempt failed, for operators.
        """
        if self.open_until is not None:
            if self._probing is None or self._probing != request_id:
                return False
            self._probing = None
            if verdict is AttemptVerdict.SUCCESS:
                self._close(now)
            elif verdict is AttemptVerdict.FAILURE:
                self._open(f"the request that tried it failed: {why}", now, rng)
            return verdict in (AttemptVerdict.SUCCESS, AttemptVerdict.FAILURE)
        second = int(now)
        if verdict is AttemptVerdict.SUCCESS:
            self.answered(second)
        elif verdict is AttemptVerdict.FAILURE:
            if second != self._second:
                self._roll(second)
            self._in_a_row += 1
            self._failed[second % WINDOW_S] += 1
            return self._judge(why, now, rng)
        return False

    def answered(self, second: int) -> None:
        """Record a complete answer in this second; only while the breaker is closed."""
        if second != self._second:
            self._roll(second)
        self._in_a_row = 0
        self._good[second % WINDOW_S] += 1

    def cool(self, wait_s: float, now: float) -> None:
        """Send no requests for `wait_s` seconds, at most `LONGEST_COOL_S`: the engine said that it has no free slot, and when to come
        back."""
        self.cool_until = max(self.cool_until, now + min(wait_s, LONGEST_COOL_S))

    @property
    def probing(self) -> object:
        """What tries the half-open backend: the id of a request of this worker, another worker, or None."""
        return self._probing

    def told(self, backend: str, served: str, now: float) -> BreakerNews:
        """The state, for other workers. What another worker tries is that worker's to tell."""
        until = self.open_until
        if until is None:
            return BreakerNews(backend, served, False, 0.0, 0.0, False, "")
        own_probe = isinstance(self._probing, str)
        return BreakerNews(backend, served, True, max(0.0, until - now), self._open_s, own_probe, self.why)

    def take(self, news: BreakerNews, sender: object, apart_s: float, now: float) -> bool:
        """Take the state that another worker tells; returns whether the breaker opened or closed by it.

        Args:
            sender: that worker; not a text.
            apart_s: added to the time for which the breaker stays open, so that workers do not try a backend at the same moment.
        """
        if not news.tripped:
            moved = self.open_until is not None
            if moved:
                self._close(now)
            return moved
        if news.probing:
            self._probing = sender
            self._probing_since = now
        elif self._probing == sender:
            self._probing = None
        moved = self.open_until is None
        if self.open_until is None or (news.left_s > 0.0 and (now >= self.open_until or news.open_s > self._open_s)):
            self.open_until = now + news.left_s + apart_s
            self._open_s = news.open_s
            self.why = news.why
        return moved

    def forget_probe(self, sender: object) -> None:
        """Let others try the backend: the worker whose request tried it has ended."""
        if self._probing == sender:
            self._probing = None

    def idle(self, now: float) -> bool:
        """Whether the breaker may be dropped: it is closed, has been for `CALM_S`, and saw no attempt within that time."""
        calm = self.closed_at is None or now - self.closed_at > CALM_S
        return calm and self.open_until is None and now - self._second > CALM_S

    def _judge(self, why: str, now: float, rng: Rng) -> bool:
        failed = sum(self._failed)
        total = failed + sum(self._good)
        if self._in_a_row >= IN_A_ROW:
            self._open(f"{self._in_a_row} requests in a row failed, the last one: {why}", now, rng)
        elif total >= SAMPLES and failed >= FAILED_SHARE * total:
            self._open(f"{failed} of {total} requests within {WINDOW_S} s failed, the last one: {why}", now, rng)
        return self.open_until is not None

    def _open(self, why: str, now: float, rng: Rng) -> None:
        calm = self.open_until is None and (self.closed_at is None or now - self.closed_at >= CALM_S)
        self._open_s = OPEN_FIRST_S if calm else min(2 * self._open_s, OPEN_LONGEST_S)
        self.open_until = now + self._open_s * (1 - JITTER + 2 * JITTER * rng.random())
        self.why = why

    def _close(self, now: float) -> None:
        self.open_until = self._probing = None
        self.closed_at = now
        self._in_a_row = 0
        self._good = [0] * WINDOW_S
        self._failed = [0] * WINDOW_S

    def _roll(self, second: int) -> None:
        """Empty the window's cells of the seconds since the last attempt."""
        for at in range(max(self._second + 1, second - WINDOW_S + 1), second + 1):
            self._good[at % WINDOW_S] = self._failed[at % WINDOW_S] = 0
        self._second = second


ALL_CLOSED: Final[Mapping[str, str]] = MappingProxyType({})


class Breakers:
    """The breakers of one worker, by backend and by the engine's name of the adapter (empty: the model itself). Bounded: a backend's
    breakers are dropped when it leaves, and an adapter's when it has been closed and unused for a while."""

    __slots__ = ("_breakers", "changed", "opens", "troubled")

    def __init__(self) -> None:
        self.changed: Callable[[str, str], None] = lambda _backend, _served: None
        """Called with backend and adapter when a request of this worker opened or closed a breaker, begins to try a backend, or ends
        without an answer to that; set where there are others to tell."""
        self._breakers: dict[str, dict[str, Breaker]] = {}
        self.troubled: set[tuple[str, str]] = set()
        """The backends and adapters whose breaker is not closed, or that asked for a pause; while it is empty, `shut` finds nobody and
        `Breaker.enter` no probe."""
        self.opens: dict[str, int] = {}
        """How often the breakers of each backend opened."""

    def of(self, backend: str, served: str = "") -> Breaker:
        """The breaker of this backend and adapter, made on first use."""
        by_adapter = self._breakers.get(backend)
        if by_adapter is None:
            by_adapter = self._breakers[backend] = {}
        breaker = by_adapter.get(served)
        if breaker is None:
            breaker = by_adapter[served] = Breaker()
        return breaker

    def answered(self, backend: str, served: str, request_id: object, now: float, rng: Rng) -> bool:
        """`ended` with a complete answer, the usual case; returns whether the breaker closed by it."""
        breaker = self.of(backend, served)
        if breaker.open_until is None:
            breaker.answered(int(now))
            return False
        return self.ended(backend, served, AttemptVerdict.SUCCESS, request_id, now, rng)

    def ended(self, backend: str, served: str, verdict: AttemptVerdict, request_id: object, now: float, rng: Rng, why: str = "") -> bool:
        """Pass the end of an attempt on to `Breaker.ended`, and count openings; returns whether the breaker opened or closed."""
        breaker = self.of(backend, served)
        probing = breaker.probing
        changed = breaker.ended(verdict, request_id, now, rng, why)
        if changed and breaker.open_until is not None:
            self.troubled.add((backend, served))
            self.opens[backend] = self.opens.get(backend, 0) + 1
        if changed or breaker.probing is not probing:
            self.changed(backend, served)
        return changed

    def enter(self, backend: str, served: str, request_id: object, now: float) -> bool:
        """Pass a request that is placed on or sent to the backend on to `Breaker.enter`; returns whether it tries a half-open backend."""
        breaker = self.of(backend, served)
        probing = breaker.probing
        is_probe = breaker.enter(request_id, now)
        if breaker.probing is not probing:
            self.changed(backend, served)
        return is_probe

    def begun(self, backend: str, served: str, request_id: object, now: float) -> bool:
        """Pass a first token on to `Breaker.begun`; returns whether the breaker closed by it."""
        closed = self.of(backend, served).begun(request_id, now)
        if closed:
            self.changed(backend, served)
        return closed

    def news(self, backend: str, served: str, now: float) -> BreakerNews:
        """The state of a breaker, for other workers."""
        return self.of(backend, served).told(backend, served, now)

    def take(self, news: BreakerNews, sender: object, apart_s: float, now: float) -> bool:
        """Pass the news of another worker on to `Breaker.take`; returns whether the breaker opened or closed by it. The opening counts at
        the worker that saw the failures."""
        moved = self.of(news.backend, news.served).take(news, sender, apart_s, now)
        if news.tripped:
            self.troubled.add((news.backend, news.served))
        return moved

    def forget_probes(self, sender: object) -> None:
        """Let others try the backends that an ended worker was trying."""
        for backend, served in self.troubled:
            self._breakers[backend][served].forget_probe(sender)

    def cool(self, backend: str, served: str, wait_s: float, now: float) -> None:
        """Pass an engine's wish for a pause on to `Breaker.cool`."""
        self.of(backend, served).cool(wait_s, now)
        self.troubled.add((backend, served))

    def shut(self, served: str, now: float) -> Mapping[str, str]:
        """Backends that a request for this adapter (empty: for the model itself) should avoid, each with the reason. The breaker of the
        model itself holds for its adapters too."""
        if not self.troubled:
            return ALL_CLOSED
        reasons = {}
        for backend, name in list(self.troubled):
            breaker = self._breakers[backend][name]
            if breaker.open_until is None and now >= breaker.cool_until:
                self.troubled.discard((backend, name))
            elif name in ("", served) and (why := breaker.shut(now)):
                reasons[backend] = why
        return reasons

    def of_backend(self, backend: str) -> Iterator[tuple[str, Breaker]]:
        """The breakers of a backend, each with its adapter."""
        yield from self._breakers.get(backend, {}).items()

    def reset(self, backend: str) -> None:
        """Drop a backend's breakers: it was away and has generated a token since, or its process is another one, so its earlier failures
        tell nothing."""
        for served in self._breakers.pop(backend, {}):
            self.troubled.discard((backend, served))

    def forget(self, backend: str) -> None:
        """Drop everything of a backend that left."""
        self.reset(backend)
        self.opens.pop(backend, None)

    def tidy(self, now: float) -> None:
        """Drop the breakers of adapters that had no requests for a while."""
        for backend, by_adapter in self._breakers.items():
            idle = [name for name, breaker in by_adapter.items() if name and breaker.idle(now) and (backend, name) not in self.troubled]
            for served in idle:
                del by_adapter[served]
