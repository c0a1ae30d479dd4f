"""A detector with bounds: of time, of questions at once, of failures in a row, and with a memory of its results.

A question costs its caller at most `timeout_s`, waiting for a place included. Equal questions of one tenant that are under way are one
question. After failures in a row the detector is left alone for a while (`guardrails.detectors.breaker`). Only whole results are
remembered (`guardrails.detectors.results`): of a text that was cut into windows either all of them were answered, or none counts.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Protocol
from weakref import WeakValueDictionary

import msgspec

from domain.clock import Clock
from guardrails.detectors.asking import TextRefused
from guardrails.detectors.breaker import DetectorBreaker
from guardrails.detectors.results import Results, result_key
from guardrails.detectors.windows import MAX_WINDOWS, count_windows, joined, windows
from guardrails.ports import Detected, Detector, DetectorAway

MAX_OF_TENANT: Final = 512
"""Questions of one tenant to one detector that may be under way or wait; further ones are `busy` at once. A request may ask 64 at once, one
for each of its texts."""
MAX_UNDER_WAY: Final = 4096
"""Questions of all tenants to one detector, likewise."""


class Timer(Protocol):
    """A call that is due later (`asyncio.TimerHandle`)."""

    def cancel(self) -> None:
        """Do not make the call."""
        ...


CallLater = Callable[[float, Callable[[], None]], Timer]
"""Makes a call after so many seconds (`loop.call_later`)."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one detector."""

    version: str
    """A digest of everything that decides what the detector says; part of the key of remembered results."""
    timeout_s: float
    """The most that a question costs, waiting for a place included."""
    at_once: int
    """Calls to the detector at the same time, in this worker."""
    at_once_of_tenant: int
    """Calls to the detector at the same time for one tenant, in this worker."""
    max_chars: int
    """Characters that the detector takes; longer texts are cut into windows."""
    overlap_chars: int
    """Characters that two neighbouring windows share."""
    remember_s: float
    """How long a result is remembered; 0 for not at all."""


class DetectorFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How one detector stands in one worker. Counts are of questions since the worker's start."""

    asked: int
    """Questions that the detector was asked; those below `remembered`, `joined`, `open` and `busy_at_once` are no part of them."""
    answered: int
    """Questions that the detector has answered, of those it was asked."""
    remembered: int
    """Answered from memory."""
    joined: int
    """Answered, or not, with an equal question that was under way."""
    timeouts: int
    open: int
    """Not asked, because the breaker was open."""
    busy: int
    """Without an answer, because no place was free in time."""
    errors: int
    unreadable: int
    seconds: float
    """Time that all questions took that the detector was asked."""
    under_way: int
    """Questions under way now."""
    breaker_open: bool
    """Whether the detector is left alone now."""
    breaker_opened: int
    """How often the breaker opened."""


class _Counts:
    __slots__ = ("answered", "asked", "joined", "remembered", "seconds", "words")

    def __init__(self) -> None:
        self.asked = self.answered = self.remembered = self.joined = 0
        self.seconds = 0.0
        self.words: Counter[str] = Counter()


class _AskedText:
    """A question under way."""

    __slots__ = ("askers", "began", "called", "key", "outcome", "probe", "task", "tenant", "timer")

    def __init__(self, key: bytes, tenant: str, began: float, outcome: "asyncio.Future[tuple[Detected, ...]]") -> None:
        self.key = key
        self.tenant = tenant
        self.began = began
        self.outcome = outcome
        self.askers = 0
        self.called = False
        """Whether the detector is being asked; else all parts of the question wait for a place."""
        self.probe = False
        """Whether it tries a detector that was left alone."""
        self.task: asyncio.Task[None] | None = None
        self.timer: Timer | None = None


class BoundedDetector:
    """`guardrails.ports.Detector` over one that has no bounds.

    Args:
        detector: asks the service, however long that takes; it stops when it is cancelled.
        terms: the bounds.
        results: the memory that all detectors of a worker share.
        breaker: of this detector alone.
        clock: monotonic seconds.
        call_later: makes a call after so many seconds of the same time.
    """

    def __init__(
        self, detector: Detector, terms: Terms, results: Results, breaker: DetectorBreaker, clock: Clock, call_later: CallLater
    ) -> None:
        self._detector = detector
        self._terms = terms
        self._results = results
        self._breaker = breaker
        self._clock = clock
        self._call_later = call_later
        self._places = asyncio.Semaphore(terms.at_once)
        self._of_tenant: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._under_way: dict[bytes, _AskedText] = {}
        self._tenants: Counter[str] = Counter()
        self._counts = _Counts()

    async def detect(self, text: str, direction: str, tenant: str) -> Sequence[Detected]:
        """As the port.

        Raises:
            DetectorAway: `timeout`, `open`, `busy`, `error` or `unreadable`; within `timeout_s`.
        """
        now = self._clock()
        key = result_key(self._terms.version, tenant, direction, text)
        remembered = self._results.get(key, now)
        if remembered is not None:
            self._counts.remembered += 1
            return remembered
        question = self._under_way.get(key)
        if question is None:
            question = self._begun(key, text, direction, tenant, now)
        else:
            self._counts.joined += 1
        question.askers += 1
        try:
            return await asyncio.shield(question.outcome)
        except DetectorAway as away:
            raise DetectorAway(str(away)) from None  # its own for each who asked, as tracebacks are kept in exceptions
        finally:
            question.askers -= 1
            if not question.askers and not question.outcome.done():
                self._settle(question, None)

    def figures(self) -> DetectorFigures:
        """How the detector stands."""
        counts = self._counts
        return DetectorFigures(
            asked=counts.asked,
            answered=counts.answered,
            remembered=counts.remembered,
            joined=counts.joined,
            timeouts=counts.words["timeout"],
            open=counts.words["open"],
            busy=counts.words["busy"],
            errors=counts.words["error"],
            unreadable=counts.words["unreadable"],
            seconds=counts.seconds,
            under_way=len(self._under_way),
            breaker_open=self._breaker.shut(self._clock()),
            breaker_opened=self._breaker.opened,
        )

    async def close(self) -> None:
        """End every question under way; whoever waits for one is told `error`."""
        tasks = [question.task for question in self._under_way.values() if question.task is not None]
        for question in list(self._under_way.values()):
            self._settle(question, DetectorAway("error"), counts_against=False)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begun(self, key: bytes, text: str, direction: str, tenant: str, now: float) -> _AskedText:
        terms = self._terms
        if len(self._under_way) >= MAX_UNDER_WAY or self._tenants[tenant] >= MAX_OF_TENANT:
            self._counts.words["busy"] += 1
            raise DetectorAway("busy")
        if count_windows(len(text), terms.max_chars, terms.overlap_chars) > MAX_WINDOWS:
            self._counts.words["error"] += 1
            raise DetectorAway("error")
        if self._breaker.shut(now):
            self._counts.words["open"] += 1
            raise DetectorAway("open")
        self._counts.asked += 1
        question = self._under_way[key] = _AskedText(key, tenant, now, asyncio.get_running_loop().create_future())
        question.probe = self._breaker.enter(now)
        self._tenants[tenant] += 1
        question.timer = self._call_later(terms.timeout_s, lambda: self._late(question))
        question.task = asyncio.ensure_future(self._asked(question, text, direction))
        return question

    async def _asked(self, question: _AskedText, text: str, direction: str) -> None:
        terms = self._terms
        pieces = windows(text, terms.max_chars, terms.overlap_chars)
        try:
            if len(pieces) == 1:
                found = tuple(await self._one(question, text, direction))
            else:
                async with asyncio.TaskGroup() as group:
                    tasks = [(begin, group.create_task(self._one(question, piece, direction))) for begin, piece in pieces]
                found = joined((begin, task.result()) for begin, task in tasks)
        except DetectorAway as away:
            self._settle(question, away)
        except ExceptionGroup as several:
            of_detector = [error for error in several.exceptions if isinstance(error, DetectorAway)]
            self._settle(question, of_detector[0] if of_detector else DetectorAway("error"))
        except Exception:  # noqa: BLE001 - whatever an adapter raises, rules say what a detector's failure means
            self._settle(question, DetectorAway("error"))
        else:
            self._settle(question, found)

    async def _one(self, question: _AskedText, text: str, direction: str) -> Sequence[Detected]:
        place = self._of_tenant.setdefault(question.tenant, asyncio.Semaphore(self._terms.at_once_of_tenant))
        async with place, self._places:
            question.called = True
            return await self._detector.detect(text, direction, question.tenant)

    def _late(self, question: _AskedText) -> None:
        # the detector is not to blame for a question that it was never asked
        self._settle(question, DetectorAway("timeout" if question.called else "busy"), counts_against=question.called)

    def _settle(self, question: _AskedText, outcome: "tuple[Detected, ...] | DetectorAway | None", *, counts_against: bool = True) -> None:
        """The question is over, with what was found, with the reason why nothing was, or with None where nobody waits."""
        if question.outcome.done():
            return
        now = self._clock()
        del self._under_way[question.key]
        self._tenants[question.tenant] -= 1
        if not self._tenants[question.tenant]:
            del self._tenants[question.tenant]
        if question.timer is not None:
            question.timer.cancel()
        self._counts.seconds += now - question.began
        if isinstance(outcome, tuple):
            self._breaker.succeeded()
            self._counts.answered += 1
            if self._terms.remember_s:
                self._results.put(question.key, outcome, now + self._terms.remember_s)
            question.outcome.set_result(outcome)
            return
        if outcome is None:
            self._breaker.unknown(probe=question.probe)
            question.outcome.cancel()
        else:
            self._counts.words[str(outcome)] += 1
            if counts_against and not isinstance(outcome, TextRefused):
                self._breaker.failed(now, probe=question.probe)
            else:
                self._breaker.unknown(probe=question.probe)
            question.outcome.set_exception(outcome)
            question.outcome.exception()  # whoever asked may have gone
        if question.task is not None and question.task is not asyncio.current_task():
            question.task.cancel()
