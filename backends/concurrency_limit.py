"""The adaptive concurrency limit of one engine, found while it runs (`Limiter`). Pure.

It limits requests, and uncached prompt tokens of requests whose first token has not come. Where the engine
reports what runs and waits, for every window of `WINDOW_S`:

    standing = least that waited, batch = most that ran, slack = max(2, SLACK * batch)
    standing > slack                limit = batch + slack, at most halved at a time; the batch is known
    standing >= 1                   limit = min(limit, batch + slack); the batch is known
    nothing stood, limit was used   limit *= GROWTH; with a known batch at most PROBE more than that batch + slack,
                                    until the engine has run BIGGER times as many
    sequences were preempted        limit = SPARE * running, and no growth for `CALM_S`

Where it does not, for every window with enough first tokens (`FirstTokens` has their seconds per token):

    stretch = sum ttft / sum (gap + base * (FIXED_TOKENS + uncached + before it)), base = the least seconds per token lately
    stretch > STRETCH               limit *= CUT
    else, limit was used            limit *= GROWTH, after a cut REGROWTH

The limit of prompt tokens is worth a fixed time of prefill. While the tokens of answers come slower than `LimitBounds.gap_s`, that limit
is braked first, because prompts stretch the steps that answers share with them, down to one usual prompt per process; then the limit of
requests is.

Requests that wait in an engine wait in the engine's order and not in the gateway's. The least of a window is CoDel's measure of a queue
(Nichols and Jacobson, 2012): a burst is gone by then, a standing queue is not. A step that takes longer because the batch is larger is no
overload until it exceeds `gap_s`, nor is a long prompt, as times are per token. docs/explanation/decisions/0006 lists the alternatives
that were tried.

`FirstTokens` measures the prefill speed of the engine by times to first token, and how many uncached prompt tokens it has use for:

    per token = sum ttft / sum (FIXED_TOKENS + uncached + before it)
    room = max(LEAST_TOKENS, QUEUE_S of prefill, QUEUE_PROMPTS usual prompts but at most QUEUE_MOST_S of prefill)

The usual prompt is the length-weighted mean: sum uncached^2 / sum uncached. `AnswerPace` measures the time between tokens of the engine's
answers, from the engine's own token counter where it reports one, else from answers that ended:

    gap = sequences that decode, summed over time / tokens made in that time
"""

from math import inf
from typing import Final

import msgspec

MIN_FIRST_TOKENS: Final = 10
"""First tokens that a window needs at least."""
FIXED_TOKENS: Final = 256.0
"""Tokens whose prefill takes as long as a step without any: 170 to 260 on the machines of `routing.simulation.timing`."""
QUEUE_S: Final = 0.3
"""Seconds of prefill that may be queued on an engine: the prompts of its next step must be there, and those of the step after."""
QUEUE_PROMPTS: Final = 2.5
"""Usual prompts that may lie on an engine; with fewer it has none left when one has ended."""
QUEUE_MOST_S: Final = 0.8
"""Seconds of prefill that `QUEUE_PROMPTS` may come to."""
LEAST_TOKENS: Final = 2048.0
"""Tokens that may always lie on an engine: usual engines prefill this many in one step, or more."""
WINDOW_WEIGHT: Final = 0.3
"""Weight of a new window in the moving averages."""


class FirstTokens:
    """One window of first tokens, and the averages over earlier windows. `add` only adds up; `learn` closes the window."""

    __slots__ = ("_before", "_per_token", "_squares", "_uncached", "count", "room", "ttft", "usual")

    def __init__(self) -> None:
        self.room = inf
        """Uncached prompt tokens that the engine has use for; infinite while unknown."""
        self.usual = 0.0
        """Uncached tokens of the usual prompt."""
        self._per_token = 0.0
        """Seconds of prefill per uncached token; 0 while unknown."""
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self.ttft = 0.0
        """Sum of the times to first token in this window, seconds."""
        self._before = self._uncached = self._squares = 0.0

    @property
    def enough(self) -> bool:
        """Whether this window can be judged."""
        return self.count >= MIN_FIRST_TOKENS

    def add(self, uncached: float, before: float, ttft_s: float) -> None:
        """Add a first token; arguments as of `Limiter.began`."""
        self.count += 1
        self.ttft += ttft_s
        self._before += before
        self._uncached += uncached
        self._squares += uncached * uncached

    def units(self, own_share: float) -> float:
        """Tokens that the engine had to compute before these first tokens: the requests' own, and those before them from all processes, of
        which this process knows the share `own_share`."""
        return FIXED_TOKENS * self.count + self._uncached + self._before / own_share

    def learn(self, own_share: float) -> None:
        """Close the window: update the averages and `room`, and begin a new window."""
        weight = WINDOW_WEIGHT if self._per_token else 1.0
        self._per_token += weight * (self.ttft / self.units(own_share) - self._per_token)
        if self._uncached:
            self.usual += weight * (self._squares / self._uncached - self.usual)
        if self._per_token > 0.0:
            tokens_s = 1.0 / self._per_token
            self.room = max(LEAST_TOKENS, QUEUE_S * tokens_s, min(QUEUE_PROMPTS * self.usual, QUEUE_MOST_S * tokens_s))
        self._clear()


MIN_PACE_TOKENS: Final = 10
"""Tokens, or answers, that one measurement needs at least."""
MEASURED_S: Final = 0.3
"""Shortest time of one measurement: three readings of an engine at the usual poll interval."""
MEASURE_WEIGHT: Final = 0.3
"""Weight of a new measurement in the moving average."""
FORGET_PER_MEASURE: Final = 1.00005
"""Factor by which the best gap grows with each measurement, nearly double in an hour: an engine may have become slower for good."""


class AnswerPace:
    """The time between tokens on one engine. `ended` only adds up; `heard` and `by_answers` return whether there is a new measurement."""

    __slots__ = ("_answers", "_decoded", "_gaps", "_looks", "_since", "best_s", "gap_s")

    def __init__(self) -> None:
        self.gap_s = 0.0
        """Seconds between two tokens of an answer lately; 0 while unknown."""
        self.best_s = inf
        """The least `gap_s` measured so far, slowly forgotten; infinite while unknown."""
        self._gaps = 0.0
        self._answers = 0
        self._since: tuple[int, float] | None = None
        self._decoded = 0.0
        self._looks = 0

    def ended(self, gap_s: float) -> None:
        """Add a complete answer whose tokens came `gap_s` seconds apart."""
        self._gaps += gap_s
        self._answers += 1

    def heard(self, decoding: float, generated: int, now: float) -> bool:
        """Take the engine's counter of generated tokens, and how many sequences decode; returns whether there is a new measurement."""
        self._gaps = 0.0
        self._answers = 0
        self._decoded += decoding
        self._looks += 1
        new = False
        if self._since is not None:
            tokens = generated - self._since[0]
            lasted = now - self._since[1]
            if 0 <= tokens < MIN_PACE_TOKENS or lasted < MEASURED_S:
                return False
            new = tokens > 0  # else the counter was reset: measure from here
            if new:
                self._take(self._decoded / self._looks * lasted / tokens)
        self._since = (generated, now)
        self._decoded = 0.0
        self._looks = 0
        return new

    def by_answers(self) -> bool:
        """Measure by the answers that ended, if there are enough; returns whether there is a new measurement."""
        if self._answers < MIN_PACE_TOKENS:
            return False
        self._take(self._gaps / self._answers)
        self._gaps = 0.0
        self._answers = 0
        return True

    def _take(self, gap_s: float) -> None:
        self.gap_s += (MEASURE_WEIGHT if self.gap_s else 1.0) * (gap_s - self.gap_s)
        self.best_s = min(self.best_s * FORGET_PER_MEASURE, gap_s)


WINDOW_S: Final = 0.3
WINDOW_LOOKS: Final = 3
"""Readings that a window needs at least: at the usual poll interval it has this many; with an engine that is read slowly it lasts
longer."""
SLACK: Final = 0.05
"""Share of the batch that may wait in the engine, so that a slot is taken in the step after it came free."""
USED: Final = 0.9
"""Share of the limit from which the limit counts as used."""
GROWTH: Final = 1.25
"""Growth per window: the limit doubles in a second."""
REGROWTH: Final = 1.05
"""Growth per window while `CAREFUL_S` lasts."""
CUT: Final = 0.85
"""Cut of the limit by times: enough for the queue to empty, so that `base` is measured again."""
PROBE: Final = 1.0
"""Requests by which a known batch is taken to have grown per window in which nothing stood: a standing queue of one request shows that it
has not. Larger steps would put requests into the engine's own queue again and again, where nothing can pass them."""
PROBE_PAUSE_S: Final = 3.0
PROBE_PAUSE_MOST_S: Final = 600.0
"""The first pause after the probe of a batch that has not grown, and the longest: each further one is twice as long. A batch that the
engine's settings bound never grows, and one that its cache bounds has grown once the answers in it are shorter."""
BIGGER: Final = 1.02
"""Factor above the known batch from which the engine's batch has certainly grown, so that the limit grows by `GROWTH` again."""
SPARE: Final = 0.95
"""Share of the running sequences that becomes the limit after a preemption."""
CALM_S: Final = 3.0
"""No growth for this long after a preemption."""
CAREFUL_S: Final = 30.0
"""After a cut by times, limits grow by `REGROWTH` for this long: times tell late."""
STRETCH: Final = 2.5
"""The limit is cut when first tokens take this many times the least."""
BRAKED_TOKENS: Final = 256.0
"""Least token limit that the brake of a single process leaves: prompts come one at a time then. Several processes keep a prompt each."""
BRAKE: Final = 0.7
"""Least factor by which the brake cuts at a time: the gap is measured three times a second, and a cut takes effect later."""
RELEASE: Final = 1.1
"""Factor by which the brake is released at a time."""
KNEE: Final = 4.0
"""Where `LimitBounds.gap_s` is None, tokens may come this many times slower than on an empty engine: at three quarters of its
throughput."""
USUAL_GAP_S: Final = 0.1
"""Gap that is always allowed where `LimitBounds.gap_s` is None: ten tokens a second, faster than people read."""
NEAR: Final = 0.9
"""No limit grows while the gap is above this share of its bound."""
FORGET_PER_WINDOW: Final = 1.0005
"""Factor by which `base` grows with each window: an engine may have become slower for good."""


class LimitBounds(msgspec.Struct, frozen=True):
    """Bounds of the concurrency limit of one whole engine, over all processes that send to it."""

    least: int = 1
    """Requests."""
    most: int = 4096
    """Requests."""
    start: int = 64
    """Limit of a new engine, in requests: it does not hold back a burst, and it doubles in a second while it is used."""
    gap_s: float | None = None
    """Longest allowed gap between two tokens of an answer, seconds; None for the larger of `USUAL_GAP_S` and `KNEE` times an empty
    engine's."""


class Heard(msgspec.Struct, frozen=True):
    """The load of an engine at one call of `Limiter.update`; None where the engine does not report it."""

    own: float
    """Requests of this process on the engine."""
    begun: float | None = None
    """The requests among `own` whose first token has come; the rest are in prefill, or wait."""
    running: float | None = None
    waiting: float | None = None
    preemptions: int | None = None
    """Counter since the engine's start."""
    generated: int | None = None
    """Counter since the engine's start: tokens."""


class Limiter:
    """The concurrency limit of one engine, as one of several processes finds it. `began` and `ended` only add up; `update` decides."""

    __slots__ = (
        "_base",
        "_batch",
        "_brake",
        "_calm_until",
        "_careful_until",
        "_firsts",
        "_known_batch",
        "_known_share",
        "_looks",
        "_preemptions",
        "_probe_at",
        "_probe_pause_s",
        "_standing",
        "_there",
        "_until",
        "_usable_share",
        "_used",
        "bounds",
        "has_report",
        "pace",
        "requests",
        "tokens",
    )

    _used: bool
    _standing: float
    _batch: float
    _looks: int

    def __init__(self, bounds: LimitBounds | None = None) -> None:
        self.bounds = bounds if bounds is not None else LimitBounds()
        self.restarted()

    def restarted(self) -> None:
        """Forget everything learned: another process is behind the address."""
        self.requests = float(max(self.bounds.least, min(self.bounds.start, self.bounds.most)))
        """The limit in requests, of the whole engine."""
        self.tokens = inf
        """The limit in uncached prompt tokens, of the whole engine; infinite until it is measured."""
        self.pace = AnswerPace()
        self.has_report = False
        """Whether the last look had the engine's own report of what runs and waits."""
        self._usable_share = 0.0
        """Smoothed share of the engine's requests that are this process's, counted as 0 while it does not use its share of the limit."""
        self._known_share = 1.0
        """Smoothed share of the engine's requests that are this process's, as far as that is known."""
        self._firsts = FirstTokens()
        self._known_batch = 0.0
        """The most requests that ran while others stood in the engine's queue, and what was probed since; 0 while none stood."""
        self._probe_pause_s = 0.0
        self._probe_at = inf
        """When the known batch is probed next."""
        self._base = inf
        self._brake = inf
        self._until = self._calm_until = -inf
        self._careful_until = -inf
        self._there = (0.0, 0.0)  # requests on the engine: this process's, and all
        self._fresh_window()
        self._preemptions: int | None = None

    def began(self, uncached: float, before: float, ttft_s: float) -> None:
        """Add a request's first token.

        Args:
            uncached: uncached tokens of its prompt.
            before: uncached tokens of the prompts that were on the engine when it was sent.
            ttft_s: seconds since it was sent.
        """
        self._firsts.add(uncached, before, ttft_s)

    def ended(self, gap_s: float) -> None:
        """Add a complete answer whose tokens came `gap_s` seconds apart."""
        self.pace.ended(gap_s)

    def update(self, heard: Heard, processes: int, now: float) -> None:
        """Adjust the limits; to be called some ten times a second, and with each report of the engine.

        Args:
            processes: number of processes that share the engine, this one included.
        """
        self.has_report = heard.running is not None and heard.waiting is not None
        if heard.running is None or heard.waiting is None:
            self._usable_share = 0.0
            self._known_share = 1.0 / processes
            self._used = self._used or heard.own + 1.0 > USED * self.requests / processes
            self._by_times(now)
        else:
            self._measure_shares(heard.own, heard.running + heard.waiting, processes)
            self._standing = min(self._standing, heard.waiting)
            self._batch = max(self._batch, heard.running)
            self._by_report(heard.running, heard.preemptions, now)
        if heard.generated is None or heard.running is None:
            new = self.pace.by_answers()
        else:
            begun = heard.running if heard.begun is None else heard.begun / self._known_share
            new = self.pace.heard(min(heard.running, begun), heard.generated, now)
        if new:
            self._keep_pace(processes, now)
        if self._firsts.enough and (self.has_report or now >= self._until - WINDOW_S):
            self._firsts.learn(self._known_share)
        self.tokens = min(self._firsts.room, self._brake)
        self.requests = max(float(self.bounds.least), min(float(self.bounds.most), self.requests))

    def _measure_shares(self, own: float, there: float, processes: int) -> None:
        """Update the shares of this process in the `there` requests on the engine, of which `own` are its own."""
        self._there = (own, max(own, there))
        self._used = self._used or there + 1.0 > USED * self.requests
        share = min(1.0, own / there) if there else 0.0
        uses = own >= 0.8 * self.requests / processes
        self._usable_share += 0.5 * ((share if uses else 0.0) - self._usable_share)
        if there:
            self._known_share += 0.2 * (max(0.25 / processes, share) - self._known_share)

    @property
    def slots(self) -> float:
        """The part of the limit in requests that the engine runs at once, as far as that is known; the rest stands in its queue."""
        if not self.has_report or not self._known_batch:
            return self.requests
        return max(1.0, self.requests - max(2.0, SLACK * self._known_batch))

    def room(self) -> tuple[int, float]:
        """Requests and tokens that this process may have on the engine while the number of processes is unknown: its own, and all that the
        limit leaves over the engine's report. Only for engines that report their load (`has_report`)."""
        own, there = self._there
        left = self.requests - there
        requests = own + left if left >= 0.0 else own * self.requests / there
        return max(1, int(requests)), self.tokens * self._known_share

    def share(self, processes: int, rank: int) -> tuple[int, float]:
        """Requests and tokens that this process may have on the engine.

        Each process has at least one request, so more processes than slots together exceed the limit. A share that other processes leave
        unused is lent to the processes that use it already.

        Args:
            rank: this process's index among them, from 0; the first ones get the remainder of the division.
        """
        whole = round(self.requests)
        each, rest = divmod(whole, processes)
        own = each + (1 if rank < rest else 0)
        return max(1, own, int(whole * self._usable_share)), self.tokens * max(1.0 / processes, self._usable_share)

    # --- requests -------------------------------------------------------------------------------------------------

    def _fresh_window(self) -> None:
        self._standing = inf
        self._batch = 0.0
        self._used = False
        self._looks = 0

    def _by_report(self, running: float, preemptions: int | None, now: float) -> None:
        before = self._preemptions
        self._preemptions = preemptions
        if before is not None and preemptions is not None and preemptions > before and now >= self._calm_until - CALM_S + WINDOW_S:
            self.requests = min(self.requests, max(running, 1.0) * SPARE)
            self._calm_until = now + CALM_S
        self._looks += 1
        if now < self._until or self._looks < WINDOW_LOOKS:
            return
        slack = max(2.0, SLACK * self._batch)
        if self._standing >= 1.0:
            self._stood(now)
            self.requests = max(min(self.requests, self._batch + slack), 0.5 * self.requests)
        elif self._used and now >= self._calm_until:
            self._grow_by_report(now)
        self._until = now + WINDOW_S
        self._fresh_window()

    def _stood(self, now: float) -> None:
        self._known_batch = self._batch
        if now >= self._probe_at or not self._probe_pause_s:
            self._probe_pause_s = min(max(PROBE_PAUSE_S, 2.0 * self._probe_pause_s), PROBE_PAUSE_MOST_S)
            self._probe_at = now + self._probe_pause_s

    def _grow_by_report(self, now: float) -> None:
        if self._batch > BIGGER * self._known_batch + 1.0:
            self._known_batch = self._probe_pause_s = 0.0
        if not self._known_batch:
            self._grow(now)
        elif now >= self._probe_at:
            before = self.requests
            self._grow(now)
            self._known_batch += PROBE
            self.requests = max(before, min(self.requests, self._known_batch + max(2.0, SLACK * self._known_batch)))

    def _by_times(self, now: float) -> None:
        firsts = self._firsts
        if now < self._until or not firsts.enough:
            return
        units = firsts.units(self._known_share)
        pause = WINDOW_S
        self._base = min(self._base * FORGET_PER_WINDOW, firsts.ttft / units)
        if firsts.ttft > STRETCH * (self._base * units + self.pace.gap_s * firsts.count):
            self.requests *= CUT
            self._careful_until = now + CAREFUL_S
            pause += firsts.ttft / firsts.count  # the next window holds only requests sent after this cut
        elif self._used:
            self._grow(now)
        self._until = now + pause
        self._fresh_window()

    def _grow(self, now: float) -> None:
        factor = GROWTH if now >= self._careful_until else REGROWTH
        if self.pace.gap_s < NEAR * self._gap_bound():
            self.requests = max(self.requests * factor, self.requests + 1.0)

    # --- time between tokens --------------------------------------------------------------------------------------

    def _gap_bound(self) -> float:
        if self.bounds.gap_s is not None:
            return self.bounds.gap_s
        return max(USUAL_GAP_S, KNEE * self.pace.best_s)

    def _keep_pace(self, processes: int, now: float) -> None:
        gap_s = self.pace.gap_s
        bound = self._gap_bound()
        if gap_s > bound:
            slower = max(BRAKE, bound / gap_s)
            sharing = 1.0 / max(1.0 / processes, self._usable_share)
            least = BRAKED_TOKENS if sharing < 1.5 else sharing * self._firsts.usual
            if self.tokens > least:
                self._brake = max(least, self.tokens * slower)
            else:
                self.requests *= slower
                self._careful_until = self._careful_until if self.has_report else now + CAREFUL_S
        elif gap_s < NEAR * bound:
            self._brake = self._brake * RELEASE if self._brake < self._firsts.room else inf
