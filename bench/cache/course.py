"""One stream through the cache's order of steps: eligible? -> exact -> nearest -> guard and decision -> label, and what came of it."""

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import NamedTuple

import numpy as np

from bench.cache.intents import Stream
from cache.semantic.decision import Decider, Guard, fit_at_once, unguarded
from cache.semantic.guard import difference, near_copy, profile
from cache.semantic.ports import Neighbour, Question

NEAR = 8
EVERY_S = 10.0
"""Seconds of the simulated clock between two questions: a stream of 9,000 takes a day."""
PARTITION = bytes(32)

profile_of = lru_cache(maxsize=40_000)(profile)


class Setup(NamedTuple):
    """What a line of the table differs in."""

    decider: Callable[[], Decider] | None
    """None: exact answers alone."""
    guard: bool = False
    noise: float = 0.0
    """The share of the labels that the decider is told the wrong way round."""
    refuses: Callable[[str], str] | None = None
    """Eligibility of a text: why it bypasses the cache, or an empty text."""
    keeps_agreeing: bool = True
    """A fresh answer becomes an entry also where it agrees with the one that it was compared with."""


class Came(NamedTuple):
    """What came of streams."""

    requests: int = 0
    bypassed: int = 0
    repeats: int = 0
    """Requests that did not bypass and whose answer an earlier one had."""
    exact: int = 0
    """Hits on an equal text; they come before the decision and count nowhere else."""
    hits: int = 0
    wrong: int = 0
    decided: int = 0
    decide_s: float = 0.0
    """Seconds spent in guard and decision."""
    slowest_s: float = 0.0
    """The 99th percentile of single decisions; of several streams the mean."""
    observe_s: float = 0.0


def together(parts: Sequence[Came]) -> Came:
    """The sums."""
    total = Came(*(sum(values) for values in zip(*parts, strict=True)))
    return total._replace(slowest_s=total.slowest_s / len(parts))


class _Kept:
    """The entries of a stream. The nearest of them are found among the nearest of the whole stream where those are enough, else by a scan;
    both find the same."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._is = np.zeros(len(stream.asked), bool)
        self._count = 0
        self.by_text: dict[str, int] = {}

    def add(self, place: int) -> None:
        self._is[place] = True
        self._count += 1
        self.by_text[self._stream.asked[place].text] = place

    def nearest(self, place: int) -> list[Neighbour]:
        most = min(NEAR, self._count)
        if not most:
            return []
        vectors, own = self._stream.vectors, self._stream.vectors[place]
        close = self._stream.closest[place]
        near = close[self._is[close]][:most]
        if len(near) < most:
            kept = np.flatnonzero(self._is)
            similarities = vectors[kept] @ own
            near = kept[np.argsort(-similarities)[:most]]
        return [Neighbour(self._question(int(row)), float(vectors[row] @ own)) for row in near]

    def _question(self, place: int) -> Question:
        key, text = place.to_bytes(8, "big"), self._stream.asked[place].text
        return Question(partition=PARTITION, owner="bench", key=key, text=text, vector=b"", kept_at=0.0, expires_at=1e12)


def _place(neighbour: Neighbour) -> int:
    return int.from_bytes(neighbour.question.key, "big")


def _guard(text: str) -> Guard:
    """`cache.semantic.decision.guard_of` with profiles remembered, as a stream comes by the same texts many times."""
    asked = profile_of(text)

    def judge(neighbour: Neighbour, strict: bool) -> str:
        kept = profile_of(neighbour.question.text)
        return difference(asked, kept) or ("copy" if strict and near_copy(asked, kept) else "")

    return judge


def run(stream: Stream, setup: Setup) -> Came:
    """Send one stream through. The label of a comparison is the equality of the answers, turned round with the chance `noise`."""
    decider = setup.decider() if setup.decider is not None else None
    chance, kept, known, took = Random(f"{stream.seed} labels"), _Kept(stream), set[str](), list[float]()
    bypassed = repeats = exact = hits = wrong = 0
    observe_s = 0.0
    for place, asked in enumerate(stream.asked):
        if setup.refuses is not None and setup.refuses(asked.text):
            bypassed += 1
            continue
        repeats += asked.answer in known
        known.add(asked.answer)
        if asked.text in kept.by_text:
            exact += 1
            continue
        if decider is None:
            kept.add(place)
            continue
        near, draw = kept.nearest(place), chance.random()
        begun = time.perf_counter()
        guard = _guard(asked.text) if setup.guard else unguarded
        decision = decider.decide(PARTITION, asked.text, near, draw, place * EVERY_S, guard)
        took.append(time.perf_counter() - begun)
        if decision.exploit and decision.neighbour is not None:
            hits += 1
            wrong += stream.asked[_place(decision.neighbour)].answer != asked.answer
            continue
        agrees = [stream.asked[_place(neighbour)].answer == asked.answer for neighbour in decision.compare]
        labels = [right != (chance.random() < setup.noise) for right in agrees]
        keeps = setup.keeps_agreeing or not labels or not labels[0]
        begun = time.perf_counter()
        fit_at_once(decider.observe(PARTITION, decision, labels, place.to_bytes(8, "big") if keeps else b"", place * EVERY_S))
        observe_s += time.perf_counter() - begun
        if keeps:
            kept.add(place)
    slowest_s = sorted(took)[int(0.99 * len(took))] if took else 0.0
    return Came(len(stream.asked), bypassed, repeats, exact, hits, wrong, len(took), sum(took), slowest_s, observe_s)
