"""Money as text: each direction undoes the other, exactly; what is no amount is refused with what to write."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenancy.limits import MAX_AMOUNT
from tenancy.money import DOLLARS, BadMoney, dollars_of, nanousd_of, shown_dollars

AMOUNTS = st.integers(0, MAX_AMOUNT)


@given(AMOUNTS)
def test_what_is_printed_is_parsed_as_the_same_amount(nanousd: int) -> None:
    text = dollars_of(nanousd)
    assert nanousd_of(text, MAX_AMOUNT) == nanousd
    assert Decimal(text) * 10**9 == nanousd


@given(st.from_regex(DOLLARS, fullmatch=True))
def test_what_is_parsed_is_the_exact_decimal_or_above_the_bound(text: str) -> None:
    exact = Decimal(text) * 10**9
    try:
        assert nanousd_of(text, MAX_AMOUNT) == exact
    except BadMoney:
        assert exact > MAX_AMOUNT


@given(st.text(max_size=60))
def test_any_other_text_is_refused_by_name(text: str) -> None:
    try:
        amount = nanousd_of(text, MAX_AMOUNT)
    except BadMoney:
        with pytest.raises(BadMoney, match=r"(?s)^.{10,300}$"):
            nanousd_of(text, MAX_AMOUNT)
    else:
        assert Decimal(text) * 10**9 == amount
        assert text.isascii()


@given(st.integers(-(10**20), 10**20), st.integers(-(10**20), 10**20))
def test_different_amounts_read_differently(one: int, other: int) -> None:
    assert (shown_dollars(one) == shown_dollars(other)) is (one == other)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("-1", "not negative"),
        ("-0", "not negative"),
        ("nan", "plain decimal"),
        ("inf", "plain decimal"),
        ("1e3", "plain decimal"),
        ("0x10", "plain decimal"),
        ("\u0661", "plain decimal"),
        ("+5", "plain decimal"),
        ("5\n", "plain decimal"),
        ("$5", "plain decimal"),
        ("1,000", "separators"),
        ("1_000", "separators"),
        (" 5", "separators"),
        (".5", "both sides"),
        ("5.", "both sides"),
        ("0.0000000001", "digits after the point"),
        ("1000000.01", "more than the bound, $1000000.00"),
        ("9" * 60, "plain decimal"),
    ],
)
def test_what_is_no_amount_is_refused_with_what_to_write(text: str, says: str) -> None:
    with pytest.raises(BadMoney, match=says.replace("$", r"\$").replace(".", r"\.")):
        nanousd_of(text, MAX_AMOUNT)


def test_amounts_as_people_read_them() -> None:
    shown = [shown_dollars(n) for n in (0, 1, 1_500, 10**9, 12_500_000_000, 10**15, -1, -5 * 10**8)]
    assert shown == ["$0.00", "$0.000000001", "$0.0000015", "$1.00", "$12.50", "$1000000.00", "-$0.000000001", "-$0.50"]
