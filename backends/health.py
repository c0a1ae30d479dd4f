"""The health of one backend as one worker sees it. Pure: evidence and the time in, a standing with its reason out.

Health endpoints lie: an engine whose core hangs still says 200. So progress decides. A sign of progress is an event of an
answer, a whole answer, a generated token of a probe, or an engine's own token counters moving; while such signs come, a
failed poll or a late first token only says "busy" (sglang#9198). Without them, late first tokens, or a probe that brings no
token, make the backend suspect; whether it may go is the pool's matter (`may_eject`). What went away comes back only with a
generated token.

How many requests fail there is not its matter but the breaker's (`backends.breaker`). It knows no loop, no fleet and no request;
`gateway/fleet/health.py` brings the evidence and acts.
"""

from collections import deque
from enum import Enum
from typing import Final

import msgspec

from backends.ports import PollResult
from domain.faults import Kind

FAILURES_TO_GO_DOWN: Final = 3
"""A backend that was up stays in rotation until this many polls in a row failed. Failed requests fail over meanwhile. Only one
that lists other models than its pool's is out at once."""

FLOWING_S: Final = 5.0
"""Polls that time out count for nothing while there was a sign of progress this recently: a long prefill blocks health
answers for seconds."""

TIMEOUTS_TO_EJECT: Final = 3
TIMEOUTS_WITHIN_S: Final = 30.0
"""A backend is suspect after this many requests without a first token within this time, and no sign of progress between or after them."""

MISREPORTS_TO_EJECT: Final = 3
MISREPORTS_WITHIN_S: Final = 600.0
"""A backend is distrusted after this many replies within this time whose usage is above everything the request can have used. Honest
engines send none, so few are enough; the time is long, because a quiet backend is asked seldom."""
DISTRUST_S: Final = 60.0
"""Wait before the first probe of a backend that was ejected for its usage: a token tells nothing of how it counts, only requests do."""

EJECTED_SHARE: Final = 0.5
"""Largest share of a pool that may be ejected at once (routers, failure no. 20); one of two, never the only one."""

PROBE_FIRST_S: Final = 1.0
PROBE_LONGEST_S: Final = 30.0
"""Wait before the first probe of an ejected backend, and the longest between two; it doubles from one to the next."""

PROBES_WITHOUT_COUNTERS: Final = 3
"""Failed probes in a row that make an engine suspect whose own counters cannot be read: it may only have a queue. Where
they can be read and stand still, one is enough."""

LATELY_S: Final = 10.0
"""Requests wait for a backend that went down this short a time ago: a network or a front end is back within seconds. An engine that
restarts loads its weights for longer, and its callers should know."""

AWAITED: Final = "answers again, but has to generate a token before it is used"


class HealthState(Enum):
    """The health state of a backend, which decides whether requests or probes may be sent to it."""

    UNKNOWN = "unknown"
    """Not polled yet: nothing may be sent."""
    UP = "up"
    """Requests may be sent."""
    DOWN = "down"
    """The backend does not answer polls, serves another model, or has generated no token since it answers again: probes only."""
    EJECTED = "ejected"
    """The backend answers polls and generates no tokens: probes only."""


class ProbeOutcome(Enum):
    """How a one-token probe ended."""

    TOKEN = "token"
    BUSY = "busy"
    """The engine refused the probe for its load: it works, but has not shown it."""
    NO_WAY = "no_way"
    """The engine takes no request that generates one token, so it cannot be probed."""
    FAILED = "failed"


class ProbeResult(msgspec.Struct, frozen=True):
    """The result of one probe."""

    outcome: ProbeOutcome
    reason: str = ""
    """The reason of a failure, in words for an operator."""


class Health:
    """The health of one backend: takes evidence (polls, ends of requests, counters, probes) and keeps the state. Times are monotonic
    seconds.

    Args:
        silence_s: how long a backend that owes answers may show no progress until it is probed.
    """

    __slots__ = (
        "_answers",
        "_counters",
        "_misreport",
        "_misreport_told_at",
        "_misreports",
        "_owes_since",
        "_poll_failures",
        "_probe_at",
        "_probe_failures",
        "_probe_wait_s",
        "_probing",
        "_progress_at",
        "_suspected_at",
        "_timeouts",
        "away_at",
        "down_at",
        "frozen",
        "reason",
        "silence_s",
        "standing",
        "suspicion",
        "up_since",
    )

    def __init__(self, silence_s: float) -> None:
        self.silence_s = silence_s
        self.standing = HealthState.UNKNOWN
        self.reason = "not polled yet"
        """Why the backend is not up; empty when it is."""
        self.suspicion = ""
        """Why the backend should be ejected; empty when there is no reason to."""
        self.frozen = False
        """Whether the backend is suspect or ejected for bringing no token at all, so that its requests wait in vain."""
        self.up_since: float | None = None
        """When the backend came back with an empty cache; None when it was never away."""
        self.away_at = float("-inf")
        """When its process was last seen to be gone: a poll got no answer or an error, or another process answered."""
        self.down_at = float("-inf")
        """When the backend was last up and stopped to answer polls; a wrong model does not count."""
        self._answers = False  # whether it answers polls again after it was away
        self._poll_failures = 0
        self._probe_failures = 0
        self._owes_since = float("-inf")
        self._timeouts: deque[float] = deque(maxlen=TIMEOUTS_TO_EJECT)
        self._misreports: deque[float] = deque(maxlen=MISREPORTS_TO_EJECT)
        self._misreport = ""
        self._misreport_told_at = float("-inf")
        self._progress_at = float("-inf")
        self._suspected_at = 0.0
        self._counters: object = None
        self._probing = False
        self._probe_at = 0.0
        self._probe_wait_s = PROBE_FIRST_S

    # --- evidence -------------------------------------------------------------------------------------------------

    def polled(self, polled: PollResult, now: float) -> None:
        """Take the result of a poll."""
        if not polled.reason:
            self._poll_failures = 0
            if self.standing is HealthState.UNKNOWN:
                self.standing = HealthState.UP
                self.reason = ""
                self._owes_since = now
            elif self.standing is HealthState.DOWN and not self._answers:
                self._go(HealthState.DOWN, AWAITED, now)
                self._answers = True
                self._probe_at = now
            return
        self._answers = False
        self._poll_failures += 1
        if not polled.silent:
            self.away_at = now
        if self.standing is HealthState.UP:
            flowing = polled.silent and now - self._progress_at <= FLOWING_S
            if not polled.wrong and (flowing or self._poll_failures < FAILURES_TO_GO_DOWN):
                return
            if not polled.wrong:
                self.down_at = now
        self._go(HealthState.DOWN, polled.reason, now)

    def ended(self, kind: Kind | None, now: float) -> None:
        """Take the end of a request on this backend: None for a complete answer, else how it failed. All failures but a late first token
        are the breaker's matter (`backends.breaker`): an engine that fails fast is not silent."""
        if kind is None:
            self.progressed(now)
        elif kind is Kind.FIRST_TOKEN_TIMEOUT:
            self._timeouts.append(now)
            if len(self._timeouts) == TIMEOUTS_TO_EJECT and now - self._timeouts[0] <= TIMEOUTS_WITHIN_S:
                self._suspect(f"{TIMEOUTS_TO_EJECT} requests within {TIMEOUTS_WITHIN_S:g} s got no first token", now)

    def progressed(self, at: float) -> None:
        """Take a sign of progress, seen at this time."""
        if at > self._progress_at:
            self._progress_at = at
        if self._timeouts and at > self._timeouts[-1]:
            self._timeouts.clear()
        if self.suspicion and at > self._suspected_at:
            self.suspicion = ""
            self.frozen = False

    def misreported(self, what: str, now: float, *, above: bool) -> bool:
        """Take a reply with an implausible usage; returns whether it is worth a line in the log, once a minute at most.

        Args:
            what: the usage in words.
            above: whether it is more than the request can have used; less costs no caller anything.
        """
        if above:
            self._misreports.append(now)
            self._misreport = what
        if now - self._misreport_told_at < DISTRUST_S:
            return False
        self._misreport_told_at = now
        return True

    def distrust(self, now: float) -> str:
        """Why the backend's counts of tokens are not to be trusted, in words; empty where they are."""
        reports = self._misreports
        if len(reports) < MISREPORTS_TO_EJECT or now - reports[0] > MISREPORTS_WITHIN_S:
            return ""
        return f"reports more tokens than {len(reports)} requests can have used, for the last one: {self._misreport}"

    def counted(self, counters: object, read_at: float) -> None:
        """Take the engine's counters (tokens, share of KV in use), any value that can be compared: a changed value is a sign of
        progress."""
        if counters != self._counters:
            if self._counters is not None:
                self.progressed(read_at)
            self._counters = counters

    def idle(self, now: float) -> None:
        """Note that this gateway has no request on the backend: silence is no evidence, unless the last requests got no first token."""
        if not self._timeouts:
            self._owes_since = now

    def restarted(self, now: float) -> None:
        """The engine's process is another one, so its cache is empty."""
        self._timeouts.clear()
        self.away_at = now
        if self.standing is HealthState.UP:
            self.up_since = now

    def quarantine(self, reason: str, now: float) -> None:
        """Eject the backend at once, however many of its pool are ejected: it must get no request (another model is behind its port)."""
        self._go(HealthState.EJECTED, reason, now)

    def lately_lost(self, now: float) -> bool:
        """Whether the backend stopped to answer so short a time ago that it may be back in a moment."""
        return self.standing is HealthState.DOWN and now - self.down_at <= LATELY_S

    # --- decisions ------------------------------------------------------------------------------------------------

    def eject(self, now: float) -> None:
        """Eject the backend that is suspect or distrusted; `may_eject` must have said that the pool can spare it.

        Called by `HealthWatch.look` (`gateway/fleet/health.py`), twice a second; it also takes the backend out of the Fleet.
        """
        if self.suspicion:
            self._go(HealthState.EJECTED, self.suspicion, now)
            return
        self._go(HealthState.EJECTED, self.distrust(now), now)
        self._probe_at = now + DISTRUST_S
        self._misreports.clear()

    def wants_probe(self, now: float) -> bool:
        """Whether a one-token probe is due; call `probing` when it starts and `probed` when it is over."""
        if self._probing or now < self._probe_at:
            return False
        if self.standing is HealthState.UP:
            return self._silent_for(now) >= self.silence_s
        return self.standing is HealthState.EJECTED or (self.standing is HealthState.DOWN and self._answers)

    def probing(self) -> None:
        """A probe has started."""
        self._probing = True

    def probed(self, probe: ProbeResult, now: float) -> None:
        """Take the result of a probe."""
        self._probing = False
        if self.standing is HealthState.UP:
            if probe.outcome is ProbeOutcome.TOKEN:
                self._probe_failures = 0
                self.progressed(now)
            elif probe.outcome is ProbeOutcome.FAILED and self._silent_for(now) >= self.silence_s:
                self._probe_failures += 1
                if self._counters is not None or self._probe_failures >= PROBES_WITHOUT_COUNTERS:
                    self._suspect(f"no token for {self._silent_for(now):.0f} s, and none for a probe: {probe.reason}", now)
            self._probe_at = now
            return
        back = probe.outcome is ProbeOutcome.TOKEN or (probe.outcome is ProbeOutcome.NO_WAY and self._probe_wait_s >= PROBE_LONGEST_S)
        if back and self._poll_failures == 0:
            self._go(HealthState.UP, "", now)
            return
        self._probe_at = now + self._probe_wait_s
        self._probe_wait_s = min(2 * self._probe_wait_s, PROBE_LONGEST_S)
        if self._answers:
            self.reason = f"{AWAITED}; the last probe: {probe.reason or probe.outcome.value}"

    # --- within ---------------------------------------------------------------------------------------------------

    def _suspect(self, why: str, now: float) -> None:
        if self.standing is HealthState.UP:
            self.suspicion = why
            self.frozen = True
            self._suspected_at = now

    def _silent_for(self, now: float) -> float:
        return now - max(self._progress_at, self._owes_since)

    def _go(self, standing: HealthState, reason: str, now: float) -> None:
        if HealthState.UP in (standing, self.standing):
            self._probe_failures = 0
            self._timeouts.clear()
            self._probe_wait_s = PROBE_FIRST_S
            self._probe_at = now + PROBE_FIRST_S
        if standing is HealthState.UP:
            self.up_since = self._owes_since = now
        if standing is not HealthState.EJECTED:
            self.frozen = False
        if standing is not HealthState.DOWN:
            self._answers = False
        self.standing = standing
        self.reason = reason
        self.suspicion = ""


def may_eject(healths: "list[Health]") -> bool:
    """Whether a pool with these backends can spare one more: at most `EJECTED_SHARE` of them is out then, and one stays up."""
    up = sum(health.standing is HealthState.UP for health in healths)
    ejected = sum(health.standing is HealthState.EJECTED for health in healths)
    return up > 1 and ejected + 1 <= max(1, int(EJECTED_SHARE * len(healths)))
