"""A stream through the order of steps, and the figures and goals made of it."""

import numpy as np
import pytest

from bench.cache.course import Came, Setup, run, together
from bench.cache.intents import HALVES, Asked, Stream, closest, half_of
from bench.cache.lines import best_static, hits_goal, judged, learned_lines, static_lines
from cache.semantic.decision import ThresholdDecider


def stream(texts: list[tuple[str, str]], angles: list[float]) -> Stream:
    vectors = np.array([[np.cos(angle), np.sin(angle)] for angle in angles], np.float32)
    return Stream([Asked(*text) for text in texts], vectors, 0, closest(vectors))


ASKED = [("one two", "a"), ("one two three", "a"), ("nine ten", "b"), ("one two", "a"), ("nine four", "c")]
SEEN = stream(ASKED, [0.0, 0.1, 1.5, 0.0, 1.45])


def test_a_threshold_gives_right_and_wrong_answers_and_exact_ones_come_first() -> None:
    came = run(SEEN, Setup(lambda: ThresholdDecider(0.9)))
    assert (came.requests, came.repeats, came.exact, came.hits, came.wrong, came.decided) == (5, 2, 1, 2, 1, 4)


def test_exact_answers_alone_and_texts_that_bypass() -> None:
    assert run(SEEN, Setup(None))[:6] == (5, 0, 2, 1, 0, 0)
    bypassed = run(SEEN, Setup(lambda: ThresholdDecider(0.9), refuses=lambda text: "time" if text.startswith("one") else ""))
    assert (bypassed.bypassed, bypassed.repeats, bypassed.hits) == (3, 0, 1)


def test_the_nearest_are_those_of_a_full_scan() -> None:
    chance = np.random.default_rng(1)
    vectors = chance.normal(size=(600, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = closest(vectors)
    similarities = vectors @ vectors.T
    np.fill_diagonal(similarities, -2)
    for row in (0, 299, 599):
        assert list(found[row][:50]) == list(np.argsort(-similarities[row])[:50])


def test_halves_do_not_change() -> None:
    assert [half_of(text) for text in ("a", "b", "c")] == [HALVES[int(bit)] for bit in (0, 0, 0)]
    halves = [half_of(f"question {number}") for number in range(1000)]
    assert 450 < halves.count(HALVES[0]) < 550


def test_sums() -> None:
    total = together([Came(requests=2, hits=1, slowest_s=1.0), Came(requests=3, wrong=1, slowest_s=3.0)])
    assert (total.requests, total.hits, total.wrong, total.slowest_s) == (5, 1, 1, 2.0)


@pytest.mark.parametrize(("hits", "wrong", "word"), [(299, 0, "too few"), (3000, 30, "met"), (3000, 60, "missed"), (400, 3, "met")])
def test_the_goal_of_wrong_answers(hits: int, wrong: int, word: str) -> None:
    assert judged(Came(requests=9000, repeats=9000, hits=hits, wrong=wrong)).error == word


def test_the_goal_of_hits_beside_the_best_static_line() -> None:
    good, better, bad = (judged(Came(repeats=9000, hits=h, wrong=w)) for h, w in ((400, 0), (500, 1), (5000, 900)))
    static = best_static({"threshold 0.95": good, "threshold 0.90": better, "threshold 0.70": bad, "verified": bad})
    assert static == "threshold 0.90"
    assert best_static({"threshold 0.70": bad}) is None
    assert hits_goal(judged(Came(repeats=9000, hits=1500)), better).startswith("met")
    assert hits_goal(judged(Came(repeats=9000, hits=1499)), better).startswith("missed")
    assert hits_goal(judged(Came(repeats=9000, hits=450)), None).startswith("met")
    assert hits_goal(judged(Came(repeats=9000, hits=449)), None).startswith("missed")


def test_the_lines_are_all_there() -> None:
    assert {"exact only", "guard alone", "threshold 0.70", "guard + threshold 0.95"} <= static_lines().keys()
    assert {"verified", "verified, without guard", "verified, eligible texts only, 5% of labels wrong"} <= learned_lines().keys()
