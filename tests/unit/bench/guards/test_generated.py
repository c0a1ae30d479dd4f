"""Made secrets: the same for the same seed, each where its span says, of every kind."""

from bench.guards.generated import NAMED, TOKENS, negatives, secrets
from guardrails.rules.secret_formats import KINDS


def test_spans_hold_the_values_and_every_kind_is_made() -> None:
    made = secrets(seed=3, each=5)
    assert {one.kind for one in made} == TOKENS.keys() | NAMED.keys()
    assert len(made) == 5 * (len(TOKENS) + len(NAMED))
    for one in made:
        assert 0 <= one.begin < one.end <= len(one.text)
        assert "{}" not in one.text[one.begin : one.end]


def test_every_kind_that_the_rules_know_is_made() -> None:
    assert TOKENS.keys() | NAMED.keys() == set(KINDS)


def test_a_seed_decides_all() -> None:
    assert secrets(3, 2) == secrets(3, 2)
    assert secrets(3, 2) != secrets(4, 2)
    assert negatives(3, 50) == negatives(3, 50)
