"""Limits that cannot mean anything are refused; amounts by meter."""

import pytest

from tenancy.limits import (
    MAX_AMOUNT,
    MAX_RATE,
    METERS_BY_NAME,
    Amounts,
    Level,
    Limit,
    Meter,
    Scope,
    Window,
    check_soft,
    line_of,
    meter_name,
    public_id,
    state_key,
)

ACME = Scope(Level.TENANT, "acme")


@pytest.mark.parametrize(
    "wrong",
    [
        {"meter": Meter.CONCURRENT_REQUESTS, "window": Window.DAY},
        {"meter": Meter.REQUESTS, "window": Window.NOW},
        {"meter": Meter.COST_NANOUSD, "window": Window.MINUTE},
        {"amount": -1},
        {"amount": MAX_RATE + 1},
        {"window": Window.MONTH, "amount": MAX_AMOUNT + 1},
        {"burst": 0},
        {"window": Window.DAY, "burst": 5},
        {"soft": 0},
        {"raised_to": 5},
        {"raised_until_unix": 5.0},
    ],
)
def test_a_limit_that_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Limit(**{"scope": ACME, "meter": Meter.TOKENS, "window": Window.MINUTE, "amount": 10, **wrong})  # type: ignore[arg-type]  # wrong ones are meant


def test_a_raise_counts_until_its_end_and_never_lowers() -> None:
    limit = Limit(ACME, Meter.TOKENS, Window.MINUTE, 100, raised_to=500, raised_until_unix=50.0)
    assert [limit.effective(now) for now in (0.0, 49.9, 50.0)] == [500, 500, 100]
    assert Limit(ACME, Meter.TOKENS, Window.MINUTE, 100, raised_to=5, raised_until_unix=50.0).effective(0.0) == 100


def test_burst_follows_the_amount_in_force() -> None:
    limit = Limit(ACME, Meter.TOKENS, Window.MINUTE, 100, raised_to=500, raised_until_unix=50.0)
    assert (line_of(limit, 0.0).burst, line_of(limit, 60.0).burst) == (500, 100)
    assert line_of(Limit(ACME, Meter.TOKENS, Window.DAY, 100), 0.0).burst == 0


def test_each_end_user_has_a_state_of_their_own() -> None:
    limit = Limit(Scope(Level.USER, "acme"), Meter.REQUESTS, Window.MINUTE, 10)
    keys = {line_of(limit, 0.0, label).key for label in ("", "a1", "b2")}
    assert len(keys) == 3


def test_the_vector_is_by_meter() -> None:
    vector = Amounts(input_tokens=3, output_tokens=4, units=5, cost_nanousd=6).vector()
    assert [vector[meter] for meter in (Meter.REQUESTS, Meter.INPUT_TOKENS, Meter.OUTPUT_TOKENS, Meter.TOKENS)] == [1, 3, 4, 7]
    assert [vector[meter] for meter in (Meter.UNITS, Meter.COST_NANOUSD, Meter.CONCURRENT_REQUESTS)] == [5, 6, 1]
    assert Amounts().vector(0)[Meter.CONCURRENT_REQUESTS] == 0


def test_money_is_called_dollars_outside_and_keeps_its_place_in_the_stores() -> None:
    place = (ACME, Meter.COST_NANOUSD, Window.MONTH)
    assert (public_id(*place), state_key(*place)) == ("tenant:acme:cost_usd:month", "tenant:acme:cost_nanousd:month")
    assert {METERS_BY_NAME[name] for name in ("cost_usd", "cost_nanousd")} == {Meter.COST_NANOUSD}
    assert all(METERS_BY_NAME[meter_name(meter)] is meter for meter in Meter)
    others = set(Meter) - {Meter.COST_NANOUSD}
    assert all(public_id(ACME, meter, Window.DAY) == state_key(ACME, meter, Window.DAY) for meter in others)


def test_what_is_wrong_with_an_amount_of_money_is_said_in_dollars() -> None:
    with pytest.raises(ValueError, match=r"^amount \$1000000\.000000001: at most \$1000000\.00, and not negative$"):
        Limit(ACME, Meter.COST_NANOUSD, Window.DAY, MAX_AMOUNT + 1)
    with pytest.raises(ValueError, match=r"^soft \$2\.00: above the amount, \$1\.50,"):
        check_soft(Limit(ACME, Meter.COST_NANOUSD, Window.DAY, 1_500_000_000, soft=2_000_000_000))
