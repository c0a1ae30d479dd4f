"""From what is configured of a backend to what routing knows of it before anything was measured. Pure."""

from typing import Final

import msgspec

from backends.limiter import Bounds
from domain.membership import Traits
from routing.board import NO_FACTS, Facts
from routing.rates import PRIORS, UNKNOWN, Rates


class Usual(msgspec.Struct, frozen=True):
    """What holds for every backend of a pool that says nothing else."""

    context_tokens: int = 0
    hardware: str = ""
    bounds: Bounds | None = Bounds()
    """Of the limits that are found for each; None to find none."""
    kept_free: float = 0.0
    """Share of what engines bear that is kept for tenants with little in flight."""


NOTHING_USUAL: Final = Usual()


def facts_of(traits: Traits, usual: Usual = NOTHING_USUAL) -> Facts:
    """Its facts; `NO_FACTS` itself where there are none, which costs a decision nothing."""
    facts = Facts(traits.max_in_flight, traits.context_tokens or usual.context_tokens, traits.price, traits.region)
    return NO_FACTS if facts == NO_FACTS else facts


def rates_of(traits: Traits, usual: Usual = NOTHING_USUAL) -> Rates:
    """What its speed is taken to be until it is measured."""
    return PRIORS.get(traits.hardware or usual.hardware, UNKNOWN)


def effective(facts: Facts, traits: Traits, usual: Usual = NOTHING_USUAL) -> dict[str, str | int | float]:
    """The thresholds that are in force for a backend, for the log: "none" is said, so that nobody relies on one that never acts."""
    return {
        "max_in_flight": facts.in_flight_cap or "none",
        "context_tokens": facts.context_tokens or "none",
        "price": facts.price,
        "region": facts.region or "none",
        "hardware": traits.hardware or usual.hardware or "unknown",
    }
