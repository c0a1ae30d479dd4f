"""Money is exact: integers, one rounding, and the price that was in force."""

import random
from fractions import Fraction

import pytest

from domain.usage import Usage
from tenancy.prices import FREE, PER_TOKENS, Price, PriceBook, TokenRates, rates_of
from tests.scale import scaled


def price(price_id: str, at: float, revision: str = "*", model: str = "m", **rates: int) -> Price:
    return Price(price_id, model, revision, at, TokenRates(**rates))


@pytest.mark.req("R44")
def test_cost_is_the_exact_sum_rounded_up_once() -> None:
    rng = random.Random(44)
    for _ in range(scaled(20_000, 1_000_000)):
        rates = TokenRates(*(rng.choice((0, rng.randrange(10**3), rng.randrange(10**9), rng.randrange(10**12))) for _ in range(4)))
        prompt, completion = rng.randrange(10**6), rng.randrange(10**6)
        usage = Usage(prompt, completion, rng.randrange(prompt + 1), rng.randrange(completion + 1))
        exact = (
            Fraction(rates.uncached_input * (usage.prompt_tokens - usage.cached_tokens), PER_TOKENS)
            + Fraction(rates.cached_input * usage.cached_tokens, PER_TOKENS)
            + Fraction(rates.output * (usage.completion_tokens - usage.reasoning_tokens), PER_TOKENS)
            + Fraction(rates.reasoning * usage.reasoning_tokens, PER_TOKENS)
        )
        cost = Price("p", "m", "*", 0.0, rates).cost_nanousd(usage)
        assert type(cost) is int
        assert 0 <= cost - exact < 1
        assert cost <= Price("p", "m", "*", 0.0, rates).worst_nanousd(prompt, completion)


def test_a_part_of_a_price_is_rounded_up() -> None:
    whole = price("p", 0.0, uncached_input=101, cached_input=10, output=1_000, reasoning=1)
    assert whole.at_percent(50) == price("p", 0.0, uncached_input=51, cached_input=5, output=500, reasoning=1)
    assert whole.at_percent(0).cost_nanousd(Usage(10**9, 10**9)) == 0
    assert FREE.at_percent(50) is FREE


@pytest.mark.req("R44")
def test_a_moment_has_the_newest_price_that_is_in_force_then() -> None:
    book = PriceBook([price("late", 200.0, output=2), price("early", 100.0, output=1), price("r2", 150.0, "r2", output=9)])
    assert [book.at("m", "r1", at).id for at in (99.0, 100.0, 199.9, 200.0)] == ["", "early", "early", "late"]
    assert [book.at("m", "r2", at).id for at in (120.0, 150.0, 500.0)] == ["early", "r2", "r2"]
    assert book.at("other", "r1", 500.0) is FREE


def test_parts_larger_than_their_whole_count_as_the_whole() -> None:
    rates = TokenRates(uncached_input=10, cached_input=1, output=10, reasoning=20)
    assert rates.of(Usage(5, 5, 9, 9)) == 5 * 1 + 5 * 20


def test_what_is_not_worked_out_for_plain_units_and_no_price_comes_to_the_same() -> None:
    plain, same = FREE, Price("", "", "*", 0.0, TokenRates(), TokenRates(1000, 1000, 1000, 1000))
    for usage in (Usage(), Usage(7, 3), Usage(7, 3, 7, 3), Usage(5, 2, 9, 9)):
        assert (plain.units_of(usage), plain.cost_nanousd(usage)) == (same.units_of(usage), same.cost_nanousd(usage))
        used = (usage.prompt_tokens, usage.completion_tokens)
        assert (plain.worst_units(*used), plain.worst_nanousd(*used)) == (same.worst_units(*used), same.worst_nanousd(*used))


@pytest.mark.parametrize(
    ("rates", "doubtful"),
    [
        (TokenRates(1, 0, 1, 0), ("cached_input", "reasoning")),
        (TokenRates(1, 0, 1, 1), ("cached_input",)),
        (TokenRates(1, 1, 1, 0), ("reasoning",)),
        (TokenRates(0, 0, 1, 0), ("reasoning",)),
        (TokenRates(1, 2, 3, 4), ()),
        (TokenRates(), ()),
    ],
)
def test_a_zero_is_doubtful_where_its_whole_costs_something_and_nobody_stated_it(rates: TokenRates, doubtful: tuple[str, ...]) -> None:
    assert Price("p", "m", "*", 0.0, rates, zeros_stated=False).doubtful == doubtful
    assert Price("p", "m", "*", 0.0, rates).doubtful == ()


def test_an_omitted_part_costs_as_much_as_its_whole() -> None:
    assert rates_of({"uncached_input": 5, "output": 7}) == TokenRates(5, 5, 7, 7)
    assert rates_of({"uncached_input": 5, "cached_input": 0, "output": 7, "reasoning": 0}) == TokenRates(5, 0, 7, 0)
    assert rates_of({}) == TokenRates()
