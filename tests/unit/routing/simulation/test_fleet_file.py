"""Engines of a fleet file: their speed is that of a class of machine, or of a profile."""

import pytest
from pydantic import ValidationError

from routing.rates import PRIORS
from routing.simulation.fleet_file import Engines, MeasuredRates
from routing.simulation.timing import CLASSES

RATES = MeasuredRates(**PRIORS["h100-8b"]._asdict())


def test_the_rates_of_a_profile_are_a_machine() -> None:
    measured = Engines(rates=RATES, kv_tokens=440_000).timing
    assert [getattr(measured, name) for name in ("c0", "c1", "c1a", "c2", "c3", "kv_tokens")] == pytest.approx(
        [getattr(CLASSES["h100-8b"], name) for name in ("c0", "c1", "c1a", "c2", "c3", "kv_tokens")]
    )
    assert Engines(rates=RATES, kv_tokens=9000, slower=2.0).timing.c0 == pytest.approx(13.0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "write either machine, a class, or rates"),
        ({"machine": "h100-8b", "rates": RATES, "kv_tokens": 9000}, "write either machine, a class, or rates"),
        ({"rates": RATES}, "write the kv_tokens of the profile too"),
    ],
)
def test_engines_have_one_speed(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Engines.model_validate(fields)
