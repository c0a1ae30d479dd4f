"""The pooled boundary: what the features say, that the regression finds what is there, and that it forgets."""

from math import isclose
from random import Random

from cache.semantic.boundary import sigmoid
from cache.semantic.groups import AnswerGroup
from cache.semantic.pooled import KEPT, LEAST, NEAR, WIDTH, Outcome, PooledBoundary, candidates, features, words_of
from cache.semantic.ports import Neighbour, Question

DAY = 86_400.0


def neighbour(text: str, similarity: float) -> Neighbour:
    question = Question(partition=bytes(32), owner="o", key=text.encode(), text=text, vector=b"", kept_at=0, expires_at=1e9)
    return Neighbour(question, similarity)


NEIGHBOURS = [neighbour(f"question number {place}", 0.9 - place / 20) for place in range(NEAR)]


def test_features_of_a_mixed_neighbourhood() -> None:
    mine, other = AnswerGroup(64), AnswerGroup(64)
    mine.size, other.size = 5, 9
    groups = [mine, other, mine, None, None, mine, other, other]
    seen = features("question number 2 please", NEIGHBOURS, groups, 2)
    assert len(seen) == WIDTH
    assert seen[1] == 0.9
    assert isclose(seen[2], 0.05)
    assert seen[3] == 3 / 8
    assert seen[5] == 0
    assert seen[7] == 3 / 4
    assert features("x", NEIGHBOURS, [mine] * NEAR, 0)[5] == 1
    assert features("x", NEIGHBOURS, [None] * NEAR, 3)[3] == 1 / 8


def test_an_empty_question_and_zero_similarities_have_features() -> None:
    seen = features("", [neighbour(str(place), 0.0) for place in range(NEAR)], [None] * NEAR, 0)
    assert len(seen) == WIDTH


def test_candidates_are_those_of_most_of_the_neighbourhood() -> None:
    one, two = AnswerGroup(64), AnswerGroup(64)
    assert candidates(NEIGHBOURS, [one, two, two, two, two, two, two, one]) == [1, 2, 3, 4, 5, 6]
    assert candidates(NEIGHBOURS, [None] * NEAR) == [0]
    assert candidates(NEIGHBOURS, [one] * NEAR) == list(range(NEAR))


def test_words_are_those_of_the_beginning() -> None:
    assert words_of("How DO I? do-it") == {"how", "do", "i", "it"}
    assert len(words_of(" ".join(map(str, range(100_000))))) < 1000


def outcome(score: float, right: bool, at: float = 0.0) -> Outcome:
    return Outcome(at, (1.0, score, *([0.0] * (WIDTH - 2))), 0.0, right, 1.0)


def taught(count: int, seed: int = 1) -> PooledBoundary:
    chance, pooled = Random(seed), PooledBoundary(7 * DAY)
    for _ in range(count):
        score = chance.uniform(0, 1)
        pooled.observe(outcome(score, chance.random() < sigmoid(10 * score - 4)))
    return pooled


def test_too_few_observations_say_nothing() -> None:
    pooled = taught(LEAST - 1)
    assert not pooled.due(0.0)
    assert pooled.score(outcome(1.0, True).features) is None


def test_the_regression_finds_what_is_there() -> None:
    pooled = taught(3000)
    assert pooled.due(0.0)
    seen = pooled.refit(0.0)
    assert not pooled.due(0.0)
    assert len(seen) == 3000
    for score in (0.1, 0.4, 0.9):
        found = pooled.score(outcome(score, True).features)
        assert found is not None
        assert abs(sigmoid(found) - sigmoid(10 * score - 4)) < 0.05


def test_separate_classes_and_one_class_alone_have_finite_weights() -> None:
    for right in (lambda score: score > 0.5, lambda score: True):
        pooled, chance = PooledBoundary(DAY), Random(2)
        for _ in range(500):
            score = chance.random()
            pooled.observe(outcome(score, right(score)))
        pooled.refit(0.0)
        high, low = pooled.score(outcome(0.9, True).features), pooled.score(outcome(0.1, True).features)
        assert high is not None
        assert low is not None
        assert high >= low - 1e-6
        assert abs(high) < 100


def test_a_half_life_forgets() -> None:
    pooled = taught(2 * LEAST)
    pooled.refit(0.0)
    assert pooled.score(outcome(0.9, True).features) is not None
    assert pooled.due(DAY)  # the old has lost weight
    assert pooled.refit(8 * DAY) == []
    assert pooled.score(outcome(0.9, True).features) is None


def test_memory_is_bounded() -> None:
    assert len(taught(KEPT + 50).refit(0.0)) == KEPT
