"""The verified decision on simulated streams: wrong answers per hit stay below the bound, noise is not trusted, memory is bounded."""

from bisect import bisect_right, insort
from math import sqrt
from random import Random

import pytest

from cache.semantic.decision import Decision, fit_at_once, unguarded
from cache.semantic.pooled import NEAR
from cache.semantic.ports import Neighbour, Question
from cache.semantic.verified import VerifiedDecider, VerifiedSettings

PARTITION = bytes(32)
DAY = 86_400.0


def neighbour(key: int, similarity: float, owner: str = "o") -> Neighbour:
    question = Question(
        partition=PARTITION, owner=owner, key=key.to_bytes(8, "big"), text=f"text {key}", vector=b"", kept_at=0.0, expires_at=1e12
    )
    return Neighbour(question, similarity)


class World:
    """Questions of `answers` answers on a circle, each answer an arc with a width of its own: what is near has mostly the same answer."""

    def __init__(self, answers: int, seed: int) -> None:
        self.chance = Random(seed)
        edges = sorted(self.chance.random() for _ in range(answers))
        self.edges = edges
        self.asked: list[tuple[float, int]] = []
        """Places with their keys, in the order of places."""

    def answer(self, place: float) -> int:
        return bisect_right(self.edges, place) % len(self.edges)

    def near(self, place: float) -> list[Neighbour]:
        at, count = bisect_right(self.asked, (place, 0)), len(self.asked)
        around = {self.asked[index % count] for index in range(at - NEAR, at + NEAR)} if count else ()
        ordered = sorted((min(abs(asked - place), 1 - abs(asked - place)), key) for asked, key in around)[:NEAR]
        return [neighbour(key, 1 - distance) for distance, key in ordered]


def stream(decider: VerifiedDecider, requests: int, seed: int, noise: float = 0.0, blind: bool = False) -> tuple[int, int]:
    """Hits and wrong ones. Labels are turned round with the chance `noise`; with `blind` answers have nothing to do with places."""
    world, hits, wrong = World(40, seed), 0, 0
    answers: list[int] = []
    for number in range(requests):
        place = world.chance.random()
        answer = world.chance.randrange(5) if blind else world.answer(place)
        near = world.near(place)
        decision = decider.decide(PARTITION, f"text {number}", near, world.chance.random(), number * 10.0, unguarded)
        if decision.exploit:
            assert decision.neighbour is not None
            hits += 1
            wrong += answers[int.from_bytes(decision.neighbour.question.key, "big")] != answer
            continue
        labels = [(answers[int.from_bytes(n.question.key, "big")] == answer) != (world.chance.random() < noise) for n in decision.compare]
        fit_at_once(decider.observe(PARTITION, decision, labels, len(answers).to_bytes(8, "big"), number * 10.0))
        insort(world.asked, (place, len(answers)))
        answers.append(answer)
    return hits, wrong


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
@pytest.mark.req("R46")
def test_wrong_answers_per_hit_stay_below_the_bound(noise: float) -> None:
    hits = wrong = 0
    for seed in range(2):
        more = stream(VerifiedDecider(), 2500, seed, noise)
        hits, wrong = hits + more[0], wrong + more[1]
    assert hits >= 300
    assert wrong / hits <= 0.01 + 3 * sqrt(0.01 * 0.99 / hits)


def test_a_larger_bound_gives_more_hits() -> None:
    few, _ = stream(VerifiedDecider(VerifiedSettings(delta_hit=0.005)), 2000, 3)
    many, wrong = stream(VerifiedDecider(VerifiedSettings(delta_hit=0.1)), 2000, 3)
    assert few < many
    assert wrong / many <= 0.1 + 3 * sqrt(0.1 * 0.9 / many)


def test_where_answers_are_chance_nothing_is_given() -> None:
    hits, _ = stream(VerifiedDecider(), 1500, 4, blind=True)
    assert hits <= 15


def test_a_new_partition_explores() -> None:
    decider = VerifiedDecider()
    near = [neighbour(key, 0.999) for key in range(NEAR)]
    assert decider.decide(PARTITION, "q", [], 0.9, 0.0, unguarded).reason == "none"
    assert decider.decide(PARTITION, "q", near[:3], 0.9, 0.0, unguarded).reason == "cold"
    decision = decider.decide(PARTITION, "q", near, 0.9, 0.0, unguarded)
    assert (decision.exploit, decision.reason, decision.compare) == (False, "cold", tuple(near))


def learned(decider: VerifiedDecider, owner: str = "o", partition: bytes = PARTITION, now: float = 0.0) -> list[Neighbour]:
    """Teach that one answer is always right; the neighbours that have it."""
    near = [neighbour(key, 0.95, owner) for key in range(NEAR)]
    for number in range(300):
        decision = decider.decide(partition, "q", near, 0.0, now, unguarded)
        fit_at_once(decider.observe(partition, decision, [True] * NEAR, (1000 + number).to_bytes(8, "big"), now))
    return near


def test_an_answer_that_is_always_right_is_given_and_audited() -> None:
    decider = VerifiedDecider()
    near = learned(decider)
    given = decider.decide(PARTITION, "q", near, 0.9, 0.0, unguarded)
    assert (given.exploit, given.reason) == (True, "sure")
    assert given.assured > 0.9
    assert decider.decide(PARTITION, "q", near, 0.01, 0.0, unguarded).reason == "audit"
    figures = decider.figures(PARTITION, 0.0)
    assert figures is not None
    assert (figures.hits, figures.proof.wrong) == (1, 0)
    assert figures.proof.audits > 0


def test_wrong_audits_stop_it() -> None:
    decider = VerifiedDecider()
    near = learned(decider)
    for _ in range(12):
        decision = decider.decide(PARTITION, "q", near, 0.0, 0.0, unguarded)
        fit_at_once(decider.observe(PARTITION, decision, [False] * NEAR, b"", 0.0))
    assert not decider.decide(PARTITION, "q", near, 0.9, 0.0, unguarded).exploit


def test_what_was_learned_fades() -> None:
    decider = VerifiedDecider()
    near = learned(decider)
    late = 60 * DAY
    for _ in range(20):
        decision = decider.decide(PARTITION, "q", near, 0.0, late, unguarded)
        fit_at_once(decider.observe(PARTITION, decision, [True] * NEAR, b"", late))
    assert decider.decide(PARTITION, "q", near, 0.9, late, unguarded).reason == "cold"


def test_the_guard_is_asked_for_the_answer_that_would_be_given() -> None:
    decider = VerifiedDecider()
    near = learned(decider)
    other = decider.decide(PARTITION, "q", near, 0.9, 0.0, lambda n, strict: "numbers" if n is near[0] else "")
    assert other.exploit
    assert other.neighbour is near[1]
    refused = decider.decide(PARTITION, "q", near, 0.9, 0.0, lambda n, strict: "numbers")
    assert (refused.exploit, refused.reason) == (False, "guard")


def test_unknown_labels_teach_nothing() -> None:
    decider = VerifiedDecider()
    near = [neighbour(key, 0.95) for key in range(NEAR)]
    for _ in range(200):
        decision = decider.decide(PARTITION, "q", near, 0.5, 0.0, unguarded)
        fit_at_once(decider.observe(PARTITION, decision, [None] * NEAR, b"", 0.0))
        fit_at_once(decider.observe(PARTITION, decision, [], b"", 0.0))
    figures = decider.figures(PARTITION, 0.0)
    assert figures is not None
    assert figures.observed == 0


def test_memory_is_bounded_by_owner_and_over_all() -> None:
    decider = VerifiedDecider(VerifiedSettings(partitions=4, partitions_of_owner=2, entries=10))
    for number in range(3):
        learned(decider, "flood", bytes([number]) * 32)
    learned(decider, "other", bytes([9]) * 32)
    kept = [decider.figures(bytes([number]) * 32, 0.0) for number in (0, 1, 2, 9)]
    assert [figures is not None for figures in kept] == [False, True, True, True]
    assert all(figures.entries <= 10 for figures in kept if figures is not None)
    for number in range(20, 26):
        learned(decider, f"owner {number}", bytes([number]) * 32)
    assert sum(decider.figures(bytes([number]) * 32, 0.0) is not None for number in range(32)) == 4


def test_forgetting_and_observing_the_unknown_do_nothing() -> None:
    decider = VerifiedDecider()
    decider.forget(PARTITION, b"gone")
    fit_at_once(decider.observe(PARTITION, Decision(exploit=False, reason="none"), [], b"new", 0.0))
    assert decider.figures(PARTITION, 0.0) is None
    near = learned(decider)
    decider.forget(PARTITION, near[0].question.key)
    assert decider.decide(PARTITION, "q", near, 0.9, 0.0, unguarded).neighbour is not near[0]
