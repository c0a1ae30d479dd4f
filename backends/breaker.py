"""Whether a backend has failed too many requests lately to get more of them: a breaker for each backend and model. Pure: how attempts
ended, the time and the dice in; who is left out, and why, out.

`backends.health` owns what an engine *is*: there, frozen, of the right model; what it puts out comes back with a token of a probe.
A breaker owns what engines *answer*: shares of failures, in a window of seconds, for one model on one backend; it lets a request of a
caller try again by itself. Nothing counts in both: a first token that is late is a failure here, and there a sign of silence.

A breaker says nothing of what to do when nobody else is left: see `routing.eligible`, which then heeds none.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from domain.clock import Rng
from domain.faults import SOURCE, Kind, Source

WINDOW_S: Final = 10
"""Seconds that a failure counts for: Finagle's 30 s keep a backend out that failed for 3 s; below 10 s the samples of a quiet one never
come together."""
SAMPLES: Final = 10
FAILED_SHARE: Final = 0.5
"""Of at least so many requests in the window, half failed. Under 50 % another try elsewhere helps more than leaving the backend out costs;
with ten samples a backend that fails one request in ten opens by bad luck once in 600 full windows."""
IN_A_ROW: Final = 5
"""Or so many failed one after the other, however long that took: a quiet backend never fills the window (Envoy's `consecutive_5xx`)."""

OPEN_FIRST_S: Final = 5.0
OPEN_LONGEST_S: Final = 60.0
"""How long it is left out; doubles from one time to the next. Long enough for a restart of a front end, not of an engine: that is found by
polls, and the whole backend is taken out."""
JITTER: Final = 0.2
"""Share by which that time is drawn shorter or longer, so that gateways and backends do not come back in step (requirement R51)."""
CALM_S: Final = 60.0
"""Closed for so long, the next time is the first one again."""

PROBE_S: Final = 30.0
"""A request that tries a half-open backend and has brought nothing for so long makes room for another one: a plain answer may take
minutes."""

LONGEST_COOL_S: Final = 30.0
"""Of what an engine asks for by `retry-after`; half of the time to its next free place is no reason to stay away for longer."""


class Verdict(Enum):
    """What the end of an attempt says of its backend."""

    SUCCESS = "success"
    FAILURE = "failure"
    BUSY = "busy"
    """It works, and has no room."""
    NEUTRAL = "neutral"
    """Nothing: we, or the caller, ended it."""


_OURS: Final = frozenset(
    {
        Kind.CLIENT_GONE,
        Kind.SLOW_READER,
        Kind.NO_BACKEND,
        Kind.BACKEND_LOST,
        Kind.BACKEND_DRAINED,
        Kind.LORA_UNAVAILABLE,
        Kind.WRONG_MODEL,
    }
)
"""Ended by us or the caller; or `backends.health` takes the backend out for it at once."""


def _verdict(kind: Kind) -> Verdict:
    if kind is Kind.ENGINE_BUSY:
        return Verdict.BUSY
    if kind in _OURS or SOURCE[kind] is Source.GATEWAY:
        return Verdict.NEUTRAL
    return Verdict.SUCCESS if SOURCE[kind] is Source.CALLER else Verdict.FAILURE


VERDICTS: Final[Mapping[Kind | None, Verdict]] = MappingProxyType({None: Verdict.SUCCESS, **{kind: _verdict(kind) for kind in Kind}})
"""By how the attempt ended; None for a whole answer. An engine that refuses a caller's mistake works (routers no. 19)."""


class State(Enum):
    """What may be sent to it."""

    CLOSED = "closed"
    HALF_OPEN = "half_open"
    """One request, to see."""
    OPEN = "open"
    """Nothing."""


class Breaker:
    """One backend's answers for one model. Times are monotonic seconds."""

    __slots__ = (
        "_failed", "_good", "_in_a_row", "_open_s", "_probing", "_probing_since", "_second", "closed_at", "cool_until", "open_until",
        "why",
    )  # fmt: skip

    def __init__(self) -> None:
        self._good = [0] * WINDOW_S
        self._failed = [0] * WINDOW_S
        self._second = 0
        self._in_a_row = 0
        self._open_s = 0.0
        self._probing: object = None
        self._probing_since = 0.0
        self.open_until: float | None = None
        """None while it is closed."""
        self.closed_at: float | None = None
        """When it closed last; None when it never was open."""
        self.cool_until = float("-inf")
        """Until when the engine itself asked to be left alone."""
        self.why = ""
        """Why it did so last."""

    def state(self, now: float) -> State:
        """See `State`."""
        if self.open_until is None:
            return State.CLOSED
        return State.OPEN if now < self.open_until else State.HALF_OPEN

    def shut(self, now: float) -> str:
        """Why no request may go there now, in words; empty when one may."""
        until = self.open_until
        if until is not None:
            if now < until:
                return f"breaker open for {until - now:.1f} s more: {self.why}"
            if self._probing is not None and now - self._probing_since < PROBE_S:
                return f"breaker half open, one request tries it: {self.why}"
        if now < self.cool_until:
            return f"asked to be left alone for {self.cool_until - now:.1f} s more"
        return ""

    def enter(self, who: object, now: float) -> bool:
        """A request is placed or sent there: whether it is the one that tries a half-open backend. `ended` has to be told of it."""
        if self.open_until is None or now < self.open_until:
            return False
        if self._probing is not None and now - self._probing_since < PROBE_S:
            return bool(self._probing == who)  # where nobody else is left, others are sent as well
        self._probing, self._probing_since = who, now
        return True

    def begun(self, who: object, now: float) -> bool:
        """The first token of a request came: whether it was the one that tries, so that the breaker is closed now."""
        if self._probing is None or self._probing != who:
            return False
        self._close(now)
        return True

    def ended(self, verdict: Verdict, who: object, now: float, rng: Rng, why: str = "") -> bool:
        """An attempt ended: whether the breaker opened or closed by it. While it is not closed, the request that tries decides alone:
        what was sent before says nothing new.

        Args:
            why: how it failed, for operators.
        """
        if self.open_until is not None:
            if self._probing is None or self._probing != who:
                return False
            self._probing = None
            if verdict is Verdict.SUCCESS:
                self._close(now)
            elif verdict is Verdict.FAILURE:
                self._open(f"the request that tried it failed: {why}", now, rng)
            return verdict in (Verdict.SUCCESS, Verdict.FAILURE)
        second = int(now)
        if verdict is Verdict.SUCCESS:
            self.answered(second)
        elif verdict is Verdict.FAILURE:
            if second != self._second:
                self._roll(second)
            self._in_a_row += 1
            self._failed[second % WINDOW_S] += 1
            return self._judge(why, now, rng)
        return False

    def answered(self, second: int) -> None:
        """A whole answer came in this second, while it is closed."""
        if second != self._second:
            self._roll(second)
        self._in_a_row = 0
        self._good[second % WINDOW_S] += 1

    def cool(self, wait_s: float, now: float) -> None:
        """It said that it has no room, and for how long it wants to be left alone."""
        self.cool_until = max(self.cool_until, now + min(wait_s, LONGEST_COOL_S))

    def idle(self, now: float) -> bool:
        """Whether nothing would be lost with it."""
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
        self._good, self._failed = [0] * WINDOW_S, [0] * WINDOW_S

    def _roll(self, second: int) -> None:
        """Empty the places of the seconds that went by."""
        for at in range(max(self._second + 1, second - WINDOW_S + 1), second + 1):
            self._good[at % WINDOW_S] = self._failed[at % WINDOW_S] = 0
        self._second = second
