"""What is expected of an answer: better than one figure for all on real requests, never above the cap, and bounded."""

import csv
import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from routing.output_length import MAX_GROUPS, MIN_ANSWERS, PRIOR, Expected, OutputLengths

REAL = Path(__file__).parents[2] / "wire" / "output_lengths" / "requests.csv"


def pinball(told: int, tokens: int, share: float) -> float:
    """The loss that a quantile minimises."""
    return (tokens - told) * share if tokens >= told else (told - tokens) * (1 - share)


def losses(rows: list[tuple[str, str, int]]) -> tuple[float, float, float]:
    """Mean pinball losses of median and p90, each told before its answer is seen, and how many stayed within p90."""
    lengths, median, high, within = OutputLengths(), 0.0, 0.0, 0
    for tenant, route, tokens in rows:
        told = lengths.expect(tenant, route, 0, None)
        median += pinball(told.median, tokens, 0.5)
        high += pinball(told.high, tokens, 0.9)
        within += tokens <= told.high
        lengths.note(tenant, route, 0, tokens, None)
    return median / len(rows), high / len(rows), within / len(rows)


def test_on_real_requests_it_loses_less_than_one_quantile_for_all() -> None:
    with REAL.open() as file:
        rows = [(row["tenant"], row["route"], int(row["output_tokens"])) for row in csv.DictReader(file)]
    one = losses([("", "", tokens) for _, _, tokens in rows])
    own = losses(rows)
    assert own[0] <= 0.85 * one[0]
    assert own[1] <= 0.85 * one[1]
    assert 0.87 <= own[2] <= 0.97


def test_nothing_seen_is_told_as_the_prior_within_the_cap() -> None:
    lengths = OutputLengths()
    assert lengths.expect("t", "r", 1, None) == PRIOR
    assert lengths.expect("t", "r", 1, 300) == Expected(256, 300)
    assert lengths.expect("t", "r", 1, 8) == Expected(8, 8)


def test_the_finest_group_that_has_been_seen_enough_speaks() -> None:
    lengths = OutputLengths()

    def answers(count: int, tenant: str, route: str, template: int, tokens: int, cap: int | None = None) -> None:
        for _ in range(count):
            lengths.note(tenant, route, template, tokens, cap)

    answers(MIN_ANSWERS, "other", "r2", 9, 1000)
    assert lengths.expect("t", "r", 1, None).median >= 1000  # everything
    answers(3 * MIN_ANSWERS, "other", "r", 9, 500)
    assert 500 <= lengths.expect("t", "r", 1, None).median <= 560  # the route
    answers(2 * MIN_ANSWERS, "t", "r", 2, 12)
    assert lengths.expect("t", "r", 1, None).median == 12  # the tenant
    answers(2 * MIN_ANSWERS, "t", "r", 1, 3)
    assert lengths.expect("t", "r", 1, None).median == 3  # the template
    answers(MIN_ANSWERS - 1, "t", "r", 1, 5, cap=4096)
    assert lengths.expect("t", "r", 1, 4096).median == 3
    answers(1, "t", "r", 1, 5, cap=4096)
    assert lengths.expect("t", "r", 1, 4096).median == 5  # the size of the cap


def test_small_caps_of_some_do_not_make_answers_of_others_seem_short() -> None:
    draw, lengths = random.Random(3), OutputLengths()
    for _ in range(1000):
        cap = draw.choice([16, None])
        tokens = draw.randint(200, 400)
        lengths.note("t", "r", 0, min(tokens, cap or tokens), cap)
    assert lengths.expect("t", "r", 0, 16) == Expected(16, 16)
    assert 290 <= lengths.expect("t", "r", 0, None).median <= 340
    assert 290 <= lengths.expect("t", "r", 7, None).median <= 340


def test_where_all_are_cut_off_it_is_at_least_what_they_had() -> None:
    lengths = OutputLengths()
    for _ in range(MIN_ANSWERS):
        lengths.note("t", "r", 0, 4096, 4096)
    assert lengths.expect("t", "r", 0, 4096) == Expected(4096, 4096)


def test_memory_is_bounded_and_coarse_groups_outlive_a_flood_of_fine_ones() -> None:
    lengths = OutputLengths(max_groups=8)
    for _ in range(MIN_ANSWERS):
        lengths.note("quiet", "r", 1, 7, None)
    for template in range(1000):
        lengths.note("loud", "r", template, 900, None)
    assert len(lengths) <= 8 * 4
    assert lengths.expect("quiet", "r", 1, None).median == 7
    assert MAX_GROUPS <= 4096


@given(st.lists(st.tuples(st.integers(0, 5000), st.sampled_from([None, 64, 4096])), max_size=400))
def test_what_is_told_does_not_depend_on_how_often_it_is_asked(answers: list[tuple[int, int | None]]) -> None:
    """Quantiles are computed when a request asks, of the answers at the time when they were last due."""
    asked_always, asked_once = OutputLengths(), OutputLengths()
    for tokens, cap in answers:
        for lengths in (asked_always, asked_once):
            lengths.note("t", "r", 1, min(tokens, cap or tokens), cap)
        asked_always.expect("t", "r", 1, cap)
        asked_always.expect("t", "r", 2, None)
    for template, cap in ((1, None), (1, 64), (1, 4096), (2, None)):
        assert asked_once.expect("t", "r", template, cap) == asked_always.expect("t", "r", template, cap)


def test_quantiles_follow_answers_that_have_become_longer() -> None:
    lengths = OutputLengths()
    for tokens in (3, 9):
        for _ in range(10 * MIN_ANSWERS):
            lengths.note("t", "r", 1, tokens, None)
        assert lengths.expect("t", "r", 1, None).high == tokens


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 4), max_size=200))
def test_groups_come_and_go_within_their_bounds(answers: list[tuple[int, int, int, int]]) -> None:
    lengths = OutputLengths(max_groups=2)
    for tenant, route, template, cap in answers:
        lengths.note(f"t{tenant}", f"r{route}", template, 5, 4**cap)
        assert len(lengths) <= 2 * 4
        assert lengths.expect(f"t{tenant}", f"r{route}", template, None).median in (PRIOR.median, 5)


def test_a_forgotten_group_is_learnt_anew() -> None:
    lengths = OutputLengths(max_groups=1)
    for tenant, tokens in (("a", 3), ("b", 9), ("a", 9)):
        for _ in range(MIN_ANSWERS):
            lengths.note(tenant, "r", 1, tokens, None)
        assert lengths.expect(tenant, "r", 1, None) == Expected(tokens, tokens)
