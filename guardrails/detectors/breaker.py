"""The circuit breaker of one detector: it opens after several failures in a row, and one question tries the detector again. Pure: the time
and random numbers are handed in.

closed --FAILURES in a row--> open --rest--> half open --success--> closed
                                                       --failure--> open, for twice as long
"""

from typing import Final

from domain.clock import Rng

FAILURES: Final = 5
"""Failures in a row that open the breaker. Finagle's failure accrual has five too."""
REST_FIRST_S: Final = 2.0
REST_LONGEST_S: Final = 30.0
"""How long the detector rests the first time, and at most; the time doubles from one opening to the next. While it rests, its rules either
refuse requests or let them pass unseen, so it is tried sooner than an engine, for which others stand in."""
JITTER: Final = 0.2
"""Share by which a rest is randomly shortened or lengthened, so that workers do not come back in step (requirement R51)."""


class DetectorBreaker:
    """Counts failures of one detector in one worker. Times are monotonic seconds."""

    __slots__ = ("_failed", "_open_until", "_probing", "_rest_s", "_rng", "opened")

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._failed = 0
        self._open_until: float | None = None
        self._probing = False
        self._rest_s = REST_FIRST_S
        self.opened = 0
        """How often it opened."""

    def shut(self, now: float) -> bool:
        """Whether no question may be asked now."""
        return self._open_until is not None and (self._probing or now < self._open_until)

    def enter(self, now: float) -> bool:
        """Record that a question is asked, where the breaker is not shut; returns whether it is the one that tries a resting detector. The
        end of each question must be reported to `succeeded`, `failed` or `unknown`."""
        self._probing = self._open_until is not None
        return self._probing

    def succeeded(self) -> None:
        """The detector has answered in time."""
        self._failed = 0
        self._open_until = None
        self._probing = False
        self._rest_s = REST_FIRST_S

    def failed(self, now: float, *, probe: bool) -> None:
        """The detector has not answered in time, or with something else than an answer."""
        if self._open_until is not None and not probe:
            return  # asked before the breaker opened
        self._failed += 1
        if self._failed >= FAILURES:
            self.opened += 1
            self._open_until = now + self._rest_s * (1 + JITTER * (2 * self._rng.random() - 1))
            self._rest_s = min(2 * self._rest_s, REST_LONGEST_S)
            self._probing = False

    def unknown(self, *, probe: bool) -> None:
        """A question ended without saying anything of the detector: nobody waited for it any more, or the text was refused."""
        if probe:
            self._probing = False
