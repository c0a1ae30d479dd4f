"""Wrong answers per hit, held below a bound: where the line between giving and asking lies, and the proof that goes on behind it.

The paper bounds wrong answers per request. Whoever reads an answer from a cache cares for wrong answers per hit, so the bound per request
would have to be delta_hit times the hit rate; and it allows every single request the same risk, so a request with a risk of 50 % is
given 2 % of the time. For the same sum of wrong answers far more hits come from giving all answers below one line of risk and none above
(`bench/cache` measures both). So the paper's tau is 0 or 1 here, apart from the audits.

The line is the lowest bound of the log odds above which the wrong share of all observations is delta_hit at most. Observations are made of
requests that were explored, and whether a request is explored depends on that bound and a draw alone, so at each bound they are a fair
sample of the requests, as long as the traffic stays what it is. Above the line they grow scarce; audits go on there, and too many wrong
ones stop all giving until enough new observations say otherwise.
"""

from collections import deque
from collections.abc import Sequence
from math import inf, log, sqrt
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:  # it brings numpy, of an extra
    from cache.semantic.pooled import Weighed

DELTA_HIT = 0.01
AUDIT = 0.03
"""The share of would-be hits that goes to the engine for ever …"""
FIRST_AUDIT = 0.25
"""… and until there are `FIRST_AUDITS` audits. A line that was drawn too low by luck hides what would prove it wrong: with 3 % from
the start one of five orders of banking77's tuning half (eligible texts) stayed at 6 % wrong answers per hit, unseen by 45 audits."""
FIRST_AUDITS = 100
MOST_WEIGHT = 4.0
"""Most requests that an audit stands for in drawing the line. It was drawn of 33, but one wrong audit would then move the line as far as 33
explored requests."""
LEAST_PROOF = 50
"""Observations above the line below which no line is drawn."""
MARGIN = 0.5
"""Square roots of the wrong answers above the line, and one, that are added to them: room for the luck in choosing among many lines."""
SURE = 0.25
"""A line that is proven never asks for a risk below this part of delta_hit, unless observations above that speak against it."""
AUDITS = 1024
"""Audits that are remembered, the newest."""
Z = 1.96
"""Standard deviations of a two-sided 95 % interval."""
STOP = 0.005
"""Nothing is given any more once so many wrong audits would come up with less than this chance if the bound held …"""
RESUME = 0.05
"""… until they would come up with at least this one. A single wrong audit never stops: with a share of 1 % its chance is 1 %."""


def wilson(wrong: float, number: float, z: float = Z) -> tuple[float, float]:
    """Wilson's interval of a share (Wilson, 1927); 0 to 1 where nothing was counted. Both may be fractions: counts that lost weight."""
    if number <= 0:
        return 0.0, 1.0
    share = wrong / number
    middle, room = share + z * z / (2 * number), z * sqrt(share * (1 - share) / number + z * z / (4 * number * number))
    return max(0.0, (middle - room) / (1 + z * z / number)), min(1.0, (middle + room) / (1 + z * z / number))


def chance_of(wrong: int, number: int, share: float) -> float:
    """The chance of `wrong` or more among `number` independent draws that are each wrong with the chance `share` (binomial)."""
    below, term = 0.0, (1 - share) ** number
    for count in range(wrong):
        below += term
        term *= (number - count) / (count + 1) * share / (1 - share)
    return max(0.0, 1 - below)


class Proof(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What audits say of the hits of a partition."""

    audits: float
    """Would-be hits that were explored and labelled, by weight."""
    wrong: float
    """Those of them whose kept answer was wrong."""
    lower: float
    """Wilson's 95 % bounds of wrong answers per hit."""
    upper: float
    stopped: bool
    """Nothing is given: more audits were wrong than the bound explains."""

    def joined(self, other: "Proof") -> "Proof":
        """What the audits of both say. Each stands for as many would-be hits as any other, as long as both audit the same share of theirs;
        stopped where either is."""
        audits, wrong = self.audits + other.audits, self.wrong + other.wrong
        lower, upper = wilson(wrong, audits)
        return Proof(audits=audits, wrong=wrong, lower=lower, upper=upper, stopped=self.stopped or other.stopped)


class HitControl:
    """Draws the line for one partition.

    Args:
        delta_hit: wrong answers per hit that are allowed, above 0 and below 1.
        audit: the share of would-be hits that is explored, above 0 and below 1.
        half_life_s: seconds after which an audit counts half.
    """

    def __init__(self, delta_hit: float, audit: float, half_life_s: float) -> None:
        if not 0 < delta_hit < 1 or not 0 < audit < 1:
            raise ValueError(f"shares lie between 0 and 1: delta_hit {delta_hit}, audit {audit}")
        self._delta, self._audit, self._half_life_s = delta_hit, audit, half_life_s
        self._audits: deque[tuple[float, bool]] = deque(maxlen=AUDITS)
        self._sure = log((1 - SURE * delta_hit) / (SURE * delta_hit))
        self._line = inf
        self._stopped = False

    @property
    def line(self) -> float:
        """The bound of the log odds from which an answer is given; infinite while nothing is proven."""
        return self._line

    @property
    def stopped(self) -> bool:
        """Whether audits show more wrong answers than are allowed, so that every would-be hit is explored until they do not."""
        return self._stopped

    def share(self) -> float:
        """The share of would-be hits that is explored now."""
        if self._stopped:
            return 1.0
        return self._audit if len(self._audits) >= FIRST_AUDITS else max(self._audit, FIRST_AUDIT)

    def redraw(self, observations: Sequence["Weighed"]) -> None:
        """Draw the line anew from all observations of the partition as the newest fit sees them."""
        self.take(self.drawn(observations))

    def take(self, line: float) -> None:
        """Take a line that `drawn` gave."""
        self._line = line

    def drawn(self, observations: Sequence["Weighed"]) -> float:
        """The line that observations give; nothing changes, so that a thread may draw it."""
        wrong = number = 0.0
        line = inf
        for place, seen in enumerate(ordered := sorted(observations, key=lambda seen: -seen.score)):
            number += seen.weight
            wrong += 0.0 if seen.right else seen.weight
            last = place + 1 == len(ordered) or ordered[place + 1].score < seen.score
            if last and number >= LEAST_PROOF and wrong + MARGIN * sqrt(wrong + 1) <= self._delta * number:
                line = seen.score
        if self._sure < line < inf:
            # where (nearly) all were right, scores rise with every fit: the lowest one seen is then no line for the next
            above = [seen for seen in observations if seen.score >= self._sure]
            if sum(seen.weight for seen in above if not seen.right) <= self._delta * sum(seen.weight for seen in above):
                line = self._sure
        return line

    def audited(self, right: bool, now: float) -> None:
        """Note what an audit found."""
        self._audits.append((now, right))
        proof = self.proof(now)
        chance = chance_of(round(proof.wrong), max(round(proof.audits), round(proof.wrong)), self._delta)
        self._stopped = chance < (RESUME if self._stopped else STOP)

    def proof(self, now: float) -> Proof:
        """What the audits say now."""
        number = wrong = 0.0
        for at, right in self._audits:
            weight = 0.5 ** (max(0.0, now - at) / self._half_life_s)
            number += weight
            wrong += 0.0 if right else weight
        lower, upper = wilson(wrong, number)
        return Proof(audits=number, wrong=wrong, lower=lower, upper=upper, stopped=self._stopped)
