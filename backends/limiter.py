"""How much one engine bears at a time, found while it runs: requests, and uncached prompt tokens whose first token has not come. Pure.

Where the engine tells what runs and waits, of every window of `WINDOW_S`:

    standing = least that waited, batch = most that ran, slack = max(2, SLACK * batch)
    standing > slack                limit = batch + slack, at most halved at a time
    nothing stood, limit was used   limit *= GROWTH
    sequences were thrown out       limit = SPARE * running, and no growth for `CALM_S`

Where it does not, of every window with enough first tokens (`backends.first_tokens` has their seconds per token):

    stretch = sum ttft / sum (gap + base * (FIXED + uncached + before it)), base = the least seconds per token lately
    stretch > STRETCH               limit *= CUT
    else, limit was used            limit *= GROWTH, after a cut REGROWTH

Prompt tokens are so many seconds of prefill. While tokens of answers come slower than `Bounds.gap_s` (`backends.pace`), they are braked,
because prompts stretch the steps that answers share with them, down to one usual prompt per process; then the requests are.

What waits in an engine waits in its order and not in ours. The least of a window is what CoDel judges queues by (Nichols and Jacobson,
2012): a burst is gone by then, a standing queue is not. A step that takes longer because the batch is larger is no overload until
`gap_s` says so, nor is a long prompt, as times are per token. docs/decisions/0006 says what else was tried.
"""

from math import inf
from typing import Final

import msgspec

from backends.first_tokens import FirstTokens
from backends.pace import Pace

WINDOW_S: Final = 0.3
LOOKS: Final = 3
"""At least in a window: at the usual pace it has so many, of an engine that is slow to be read it lasts longer."""
SLACK: Final = 0.05
"""Of the batch may wait in the engine, so that a place is taken in the step after it came free."""
USED: Final = 0.9
"""Of a limit that is used."""
GROWTH: Final = 1.25
"""Per window: it doubles in a second."""
REGROWTH: Final = 1.05
CUT: Final = 0.85
"""Enough for the queue to empty, so that `base` is seen again."""
SPARE: Final = 0.95
CALM_S: Final = 3.0
CAREFUL_S: Final = 30.0
"""After a cut that times called for, limits grow by `REGROWTH` for so long: times tell late."""
STRETCH: Final = 2.5
BRAKED_TOKENS: Final = 256.0
"""The brake of one process goes no further: prompts come one at a time then. Several have a prompt each at least."""
BRAKE: Final = 0.7
"""At most so much at a time, as it is measured three times a second, and felt only later."""
RELEASE: Final = 1.1
KNEE: Final = 4.0
"""Where nothing is said, tokens may come so many times slower than they do alone: at three quarters of what the engine can do."""
USUAL_GAP_S: Final = 0.1
"""And as slow as this anyway: ten a second, faster than people read."""
NEAR: Final = 0.9
"""Nearer to the bound than this, nothing grows."""
FORGET: Final = 1.0005
"""`base` is believed so much less with each window: an engine may have become slower for good."""


class Bounds(msgspec.Struct, frozen=True):
    """Of the whole engine, whoever sends there."""

    least: int = 1
    most: int = 4096
    """Requests."""
    start: int = 64
    """Of a new engine: a burst on it is not held back, and it doubles in a second while it is used."""
    gap_s: float | None = None
    """Seconds between two tokens of an answer that are too many; None for `USUAL_GAP_S`, or `KNEE` times those of an empty engine."""


class Heard(msgspec.Struct, frozen=True):
    """What is known at one look; None is what the engine does not tell."""

    own: float
    """Requests of this process there."""
    begun: float | None = None
    """Of those, whose first token has come; the others are in prefill, or wait."""
    running: float | None = None
    waiting: float | None = None
    preemptions: int | None = None
    generated: int | None = None
    """Counters since its start."""


class Limiter:
    """One engine's, as one of several processes finds it. `began` and `ended` only add up; `look` decides."""

    __slots__ = (
        "_base",
        "_batch",
        "_brake",
        "_calm_until",
        "_careful_until",
        "_firsts",
        "_of_all",
        "_part",
        "_preemptions",
        "_seen",
        "_standing",
        "_there",
        "_until",
        "_used",
        "bounds",
        "pace",
        "tokens",
        "told",
        "whole",
    )  # fmt: skip

    _used: bool
    _standing: float
    _batch: float
    _seen: int

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = bounds if bounds is not None else Bounds()
        self.restarted()

    def restarted(self) -> None:
        """Another process is behind the address: nothing that was learned holds."""
        self.whole = float(max(self.bounds.least, min(self.bounds.start, self.bounds.most)))
        """Requests that the engine bears."""
        self.tokens = inf
        """Uncached prompt tokens that it bears; infinite until some were seen."""
        self.pace = Pace()
        self.told = False
        """Whether the last look had the engine's word."""
        self._part = 0.0
        """Of the engine's requests are this process's, while it uses its share; else 0."""
        self._of_all = 1.0
        """Of them are this process's, as far as that is known."""
        self._firsts = FirstTokens()
        self._base = inf
        self._brake = inf
        self._until = self._calm_until = -inf
        self._careful_until = -inf
        self._there = (0.0, 0.0)
        self._fresh_window()
        self._preemptions: int | None = None

    def began(self, uncached: float, before: float, ttft_s: float) -> None:
        """A first token came.

        Args:
            uncached: tokens of its prompt that were to be computed.
            before: those of other prompts that were there when it was sent.
            ttft_s: seconds since it was sent.
        """
        self._firsts.add(uncached, before, ttft_s)

    def ended(self, gap_s: float) -> None:
        """A whole answer came, a token each `gap_s` seconds."""
        self.pace.ended(gap_s)

    def look(self, heard: Heard, processes: int, now: float) -> None:
        """Decide; to be called some ten times a second, and with each report of the engine.

        Args:
            processes: that share the engine, this one included.
        """
        self.told = heard.running is not None and heard.waiting is not None
        if heard.running is None or heard.waiting is None:
            self._part, self._of_all = 0.0, 1.0 / processes
            self._used = self._used or heard.own + 1.0 > USED * self.whole / processes
            self._by_times(now)
        else:
            self._weigh(heard.own, heard.running + heard.waiting, processes)
            self._standing = min(self._standing, heard.waiting)
            self._batch = max(self._batch, heard.running)
            self._by_word(heard.running, heard.preemptions, now)
        if heard.generated is None or heard.running is None:
            new = self.pace.by_answers()
        else:
            begun = heard.running if heard.begun is None else heard.begun / self._of_all
            new = self.pace.heard(min(heard.running, begun), heard.generated, now)
        if new:
            self._keep_pace(processes, now)
        if self._firsts.enough and (self.told or now >= self._until - WINDOW_S):
            self._firsts.learn(self._of_all)
        self.tokens = min(self._firsts.room, self._brake)
        self.whole = max(float(self.bounds.least), min(float(self.bounds.most), self.whole))

    def _weigh(self, own: float, there: float, processes: int) -> None:
        """Which part of what is there is this process's."""
        self._there = (own, max(own, there))
        self._used = self._used or there + 1.0 > USED * self.whole
        part = min(1.0, own / there) if there else 0.0
        uses = own >= 0.8 * self.whole / processes
        self._part += 0.5 * ((part if uses else 0.0) - self._part)
        if there:
            self._of_all += 0.2 * (max(0.25 / processes, part) - self._of_all)

    def room(self) -> tuple[int, float]:
        """Requests and tokens that this process may have there while nobody knows how many others there are: what it has, and all that
        the engine says is left. Only for engines that tell (`told`)."""
        own, there = self._there
        left = self.whole - there
        requests = own + left if left >= 0.0 else own * self.whole / there
        return max(1, int(requests)), self.tokens * self._of_all

    def share(self, processes: int, rank: int) -> tuple[int, float]:
        """Requests and tokens that this process may have there.

        Each of them has at least one request, so more processes than places have more than the limit. What the others leave unused
        is lent to whoever has it already.

        Args:
            rank: this process's place among them, from 0; the first ones get what does not divide.
        """
        whole = round(self.whole)
        each, rest = divmod(whole, processes)
        own = each + (1 if rank < rest else 0)
        return max(1, own, int(whole * self._part)), self.tokens * max(1.0 / processes, self._part)

    # --- requests -------------------------------------------------------------------------------------------------

    def _fresh_window(self) -> None:
        self._standing, self._batch, self._used, self._seen = inf, 0.0, False, 0

    def _by_word(self, running: float, preemptions: int | None, now: float) -> None:
        before, self._preemptions = self._preemptions, preemptions
        if before is not None and preemptions is not None and preemptions > before and now >= self._calm_until - CALM_S + WINDOW_S:
            self.whole = min(self.whole, max(running, 1.0) * SPARE)
            self._calm_until = now + CALM_S
        self._seen += 1
        if now < self._until or self._seen < LOOKS:
            return
        slack = max(2.0, SLACK * self._batch)
        if self._standing > slack:
            self.whole = max(min(self.whole, self._batch + slack), 0.5 * self.whole)
        elif self._standing < 1.0 and self._used and now >= self._calm_until:
            self._grow(now)
        self._until = now + WINDOW_S
        self._fresh_window()

    def _by_times(self, now: float) -> None:
        firsts = self._firsts
        if now < self._until or not firsts.enough:
            return
        units, pause = firsts.units(self._of_all), WINDOW_S
        self._base = min(self._base * FORGET, firsts.ttft / units)
        if firsts.ttft > STRETCH * (self._base * units + self.pace.gap_s * firsts.count):
            self.whole *= CUT
            self._careful_until = now + CAREFUL_S
            pause += firsts.ttft / firsts.count  # what is judged next was sent after this
        elif self._used:
            self._grow(now)
        self._until = now + pause
        self._fresh_window()

    def _grow(self, now: float) -> None:
        factor = GROWTH if now >= self._careful_until else REGROWTH
        if self.pace.gap_s < NEAR * self._gap_bound():
            self.whole = max(self.whole * factor, self.whole + 1.0)

    # --- time between tokens --------------------------------------------------------------------------------------

    def _gap_bound(self) -> float:
        if self.bounds.gap_s is not None:
            return self.bounds.gap_s
        return max(USUAL_GAP_S, KNEE * self.pace.best_s)

    def _keep_pace(self, processes: int, now: float) -> None:
        gap_s, bound = self.pace.gap_s, self._gap_bound()
        if gap_s > bound:
            slower = max(BRAKE, bound / gap_s)
            sharing = 1.0 / max(1.0 / processes, self._part)
            least = BRAKED_TOKENS if sharing < 1.5 else sharing * self._firsts.usual
            if self.tokens > least:
                self._brake = max(least, self.tokens * slower)
            else:
                self.whole *= slower
                self._careful_until = self._careful_until if self.told else now + CAREFUL_S
        elif gap_s < NEAR * bound:
            self._brake = self._brake * RELEASE if self._brake < self._firsts.room else inf
