"""Turns the configured traits of a backend into the facts and prior rates that routing uses before anything was measured. Pure."""

from typing import Final

import msgspec

from backends.concurrency_limit import LimitBounds
from domain.membership import Traits
from routing.load import NO_FACTS, PRIORS, UNKNOWN, BackendFacts, Rates


class Usual(msgspec.Struct, frozen=True):
    """The defaults of a pool, for backends that configure nothing else."""

    context_tokens: int = 0
    hardware: str = ""
    bounds: LimitBounds | None = LimitBounds()
    """The bounds of each backend's concurrency limit; None for no limits."""
    kept_free: float = 0.0
    """The share of engines' capacity that is reserved for tenants with little in flight."""


NOTHING_USUAL: Final = Usual()


def facts_of(traits: Traits, usual: Usual = NOTHING_USUAL) -> BackendFacts:
    """The facts of a backend; `NO_FACTS` itself where there are none, which costs a decision nothing."""
    facts = BackendFacts(traits.max_in_flight, traits.context_tokens or usual.context_tokens, traits.price, traits.region)
    return NO_FACTS if facts == NO_FACTS else facts


def rates_of(traits: Traits, usual: Usual = NOTHING_USUAL) -> Rates:
    """The assumed speed of a backend until it is measured."""
    return PRIORS.get(traits.hardware or usual.hardware, UNKNOWN)


def effective(facts: BackendFacts, traits: Traits, usual: Usual = NOTHING_USUAL) -> dict[str, str | int | float]:
    """The thresholds that apply to a backend, for the log; "none" is logged, so that nobody relies on a threshold that never acts."""
    return {
        "max_in_flight": facts.in_flight_cap or "none",
        "context_tokens": facts.context_tokens or "none",
        "price": facts.price,
        "region": facts.region or "none",
        "hardware": traits.hardware or usual.hardware or "unknown",
    }
