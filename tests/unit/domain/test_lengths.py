"""Quantiles of lengths: never too short, at most an eighth too long, and not made short by caps."""

import random
from math import ceil

from hypothesis import example, given
from hypothesis import strategies as st

from domain.lengths import BUCKETS, MAX_TOKENS, MEMORY, Lengths, bucket, longest


@given(st.integers(0, MAX_TOKENS))
def test_a_bucket_holds_lengths_within_an_eighth(tokens: int) -> None:
    assert tokens <= longest(bucket(tokens)) <= tokens * 9 / 8
    assert bucket(longest(bucket(tokens))) == bucket(tokens) < BUCKETS


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=MEMORY), st.sampled_from([0.1, 0.5, 0.9, 0.95]))
@example([*[0] * 9, 1], 0.9)
def test_a_quantile_is_told_at_most_an_eighth_too_long(tokens: list[int], share: float) -> None:
    lengths = Lengths()
    for one in tokens:
        lengths.add(one)
    exact = sorted(tokens)[max(0, ceil(share * len(tokens) - 1e-9) - 1)]
    told = lengths.quantile(share)
    assert told is not None
    assert exact <= told <= exact * 9 / 8


def test_nothing_is_told_of_nothing() -> None:
    assert Lengths().quantile(0.5) is None
    assert Lengths().quantiles(0.5, 0.9) == [None, None]


@given(st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=200), st.lists(st.integers(1, 99), min_size=1).map(sorted))
def test_several_quantiles_at_once_are_those_one_by_one(answers: list[tuple[int, bool]], percent: list[int]) -> None:
    lengths = Lengths()
    for tokens, cut in answers:
        lengths.add(tokens, cut=cut)
    shares = [one / 100 for one in percent]
    assert lengths.quantiles(*shares) == [_told(answers, share) for share in shares]


def _told(answers: list[tuple[int, bool]], share: float) -> int | None:
    """The quantile by Kaplan and Meier, written down as in a book: the product over the lengths at which answers ended."""
    surviving = 1.0
    for at in sorted({bucket(tokens) for tokens, _ in answers}):
        reached = sum(bucket(tokens) >= at for tokens, _ in answers)
        surviving *= 1 - sum(bucket(tokens) == at and not cut for tokens, cut in answers) / reached
        if surviving <= 1 - share + 1e-9:
            return longest(at)
    return None


def test_answers_cut_off_do_not_hide_how_long_answers_get() -> None:
    """Half of all requests carry a cap of 100 tokens; without it every answer has 1 to 1,000."""
    draw = random.Random(1)
    plain, censored = Lengths(), Lengths()
    for _ in range(MEMORY):
        length, cap = draw.randint(1, 1000), draw.choice([100, 10**6])
        plain.add(min(length, cap))
        censored.add(min(length, cap), cut=length >= cap)
    assert (plain.quantile(0.5) or 0) < 150
    assert 430 <= (censored.quantile(0.5) or 0) <= 640
    assert 800 <= (censored.quantile(0.9) or 0) <= 1030


def test_nobody_can_say_where_all_were_cut_off() -> None:
    lengths = Lengths()
    for _ in range(50):
        lengths.add(100, cut=True)
    assert lengths.quantile(0.5) is None


def test_it_forgets() -> None:
    lengths = Lengths()
    for tokens in (4000, 40):
        for at in range(10 * MEMORY):
            lengths.add(tokens, cut=at % 16 == 0)
    assert 40 <= (lengths.quantile(0.9) or 0) <= 45


@given(st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=MEMORY))
def test_answers_gathered_and_added_at_once_count_as_those_added_one_by_one(answers: list[tuple[int, bool]]) -> None:
    single, gathered = Lengths(), Lengths()
    for tokens, cut in answers:
        single.add(tokens, cut=cut)
    gathered.add_all(*(bytes([bucket(tokens) for tokens, cut in answers if cut is wanted]) for wanted in (False, True)))
    assert gathered.noted == single.noted == len(answers)
    assert gathered.quantiles(0.1, 0.5, 0.9) == single.quantiles(0.1, 0.5, 0.9)
