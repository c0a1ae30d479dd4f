"""The paper's decision: laws of its tau."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from bench.cache.paper import LEAST, PaperDecider, paper_tau, separable_deviation
from cache.semantic.boundary import Sample
from cache.semantic.decision import unguarded
from cache.semantic.ports import Neighbour, Question


def seen_of(seed: int, separable: bool) -> list[Sample]:
    chance = Random(seed)
    seen = [Sample(s := chance.random(), s > 0.6 if separable else chance.random() < s) for _ in range(30)]
    return [*seen, Sample(0.1, False), Sample(0.95, True)]


@given(st.integers(0, 500), st.booleans(), st.floats(0, 1), st.floats(0.001, 0.2), st.floats(0.001, 0.2))
def test_tau_is_a_share_and_falls_with_delta(seed: int, separable: bool, similarity: float, one: float, other: float) -> None:
    seen = seen_of(seed, separable)
    strict, lax = paper_tau(similarity, seen, min(one, other)), paper_tau(similarity, seen, max(one, other))
    assert 0 <= lax <= strict <= 1


def test_tau_falls_with_similarity() -> None:
    seen = seen_of(1, True)
    shares = [paper_tau(step / 20, seen, 0.05) for step in range(21)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < shares[0]


def test_the_table_is_repeatable_and_narrows() -> None:
    assert separable_deviation.__wrapped__(10) == separable_deviation.__wrapped__(10)
    table = [separable_deviation(observations) for observations in (6, 12, 24, 48)]
    assert table == sorted(table, reverse=True)
    assert 0 < table[-1] < 0.05


def test_an_entry_with_separate_classes_is_given_in_the_end() -> None:
    decider, chance, partition = PaperDecider(0.2), Random(2), bytes(32)
    question = Question(partition=partition, owner="o", key=b"k", text="t", vector=b"", kept_at=0, expires_at=1)
    given = 0
    for number in range(600):
        near = [Neighbour(question, similarity := chance.random())]
        decision = decider.decide(partition, "q", near, chance.random(), 0.0, unguarded)
        assert number >= LEAST or not decision.exploit
        given += decision.exploit and similarity > 0.9
        decider.observe(partition, decision, [similarity > 0.5], b"", 0.0)
    assert given > 10
