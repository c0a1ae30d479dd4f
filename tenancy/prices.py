"""Prices of tokens: in money, and in units of GPU work. Pure, and integers throughout.

A price is nano-dollars per million tokens, so a request's cost is one sum and one rounding: ceil(sum(tokens * price) / 10^6)
nano-dollars. Weights work the same way: thousandths of a unit per token, and one rounding up to whole units.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from domain.usage import Usage

PER_TOKENS: Final = 1_000_000
MILLI: Final = 1000
ANY_REVISION: Final = "*"


class TokenRates(msgspec.Struct, frozen=True):
    """One number per kind of token. Cached input is the part of the prompt that the engine had in its prefix cache, reasoning the
    part of the output spent on hidden reasoning."""

    uncached_input: int = 0
    cached_input: int = 0
    output: int = 0
    reasoning: int = 0

    def of(self, usage: Usage) -> int:
        """The sum over a usage. A part that is larger than its whole counts as the whole."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        reasoning = min(usage.reasoning_tokens, usage.completion_tokens)
        return (
            (usage.prompt_tokens - cached) * self.uncached_input
            + cached * self.cached_input
            + (usage.completion_tokens - reasoning) * self.output
            + reasoning * self.reasoning
        )

    def worst(self, input_tokens: int, output_tokens: int) -> int:
        """The most that so many tokens can come to, however they are divided."""
        return input_tokens * max(self.uncached_input, self.cached_input) + output_tokens * max(self.output, self.reasoning)


def rates_of(written: Mapping[str, int | None]) -> TokenRates:
    """Rates as somebody wrote them: a part that is left out, or None, costs as much per token as its whole; 0 is free.

    Args:
        written: rates by field of `TokenRates`. `uncached_input` and `output` are 0 where they are left out.
    """
    uncached_input, output = written.get("uncached_input") or 0, written.get("output") or 0
    cached_input, reasoning = written.get("cached_input"), written.get("reasoning")
    return TokenRates(
        uncached_input,
        uncached_input if cached_input is None else cached_input,
        output,
        output if reasoning is None else reasoning,
    )


PLAIN_UNITS: Final = TokenRates(1000, 1000, 1000, 1000)
"""Every token is one unit, where no weights are set."""
NO_COST: Final = TokenRates()
"""No money, where no price is set."""


class Price(msgspec.Struct, frozen=True):
    """The price of a model from a moment on. `model` is the public name; `revision` one revision of its pool, or `*`."""

    id: str
    model: str
    revision: str
    effective_unix: float
    nanousd_per_mtok: TokenRates
    units: TokenRates = PLAIN_UNITS
    """Thousandths of a unit per token."""
    zeros_stated: bool = True
    """False for prices of older versions, which stored 0 for a rate that was left out: nobody knows whether such a 0 was meant."""

    @property
    def doubtful(self) -> tuple[str, ...]:
        """The parts, `cached_input` and `reasoning`, that are free while their whole is not, perhaps only because they were left out."""
        if self.zeros_stated:
            return ()
        rates = self.nanousd_per_mtok
        parts = (("cached_input", rates.cached_input, rates.uncached_input), ("reasoning", rates.reasoning, rates.output))
        return tuple(name for name, part, whole in parts if part == 0 and whole != 0)

    def at_percent(self, percent: int) -> "Price":
        """The price with so many percent of its money, rounded up; its units stay."""
        if self.nanousd_per_mtok is NO_COST:
            return self
        rates = self.nanousd_per_mtok
        reduced = TokenRates(*(-(-getattr(rates, name) * percent // 100) for name in TokenRates.__struct_fields__))
        return msgspec.structs.replace(self, nanousd_per_mtok=reduced)

    def units_of(self, usage: Usage) -> int:
        """Weighted tokens of a usage, rounded up to a whole one."""
        if self.units is PLAIN_UNITS:
            return usage.prompt_tokens + usage.completion_tokens
        return -(-self.units.of(usage) // MILLI)

    def worst_units(self, input_tokens: int, output_tokens: int) -> int:
        """The most weighted tokens that so many tokens can come to."""
        if self.units is PLAIN_UNITS:
            return input_tokens + output_tokens
        return -(-self.units.worst(input_tokens, output_tokens) // MILLI)

    def cost_nanousd(self, usage: Usage) -> int:
        """Money for a usage, rounded up to a whole nano-dollar."""
        if self.nanousd_per_mtok is NO_COST:
            return 0
        return -(-self.nanousd_per_mtok.of(usage) // PER_TOKENS)

    def worst_nanousd(self, input_tokens: int, output_tokens: int) -> int:
        """The most that so many tokens can cost."""
        if self.nanousd_per_mtok is NO_COST:
            return 0
        return -(-self.nanousd_per_mtok.worst(input_tokens, output_tokens) // PER_TOKENS)


FREE: Final = Price("", "", ANY_REVISION, 0.0, NO_COST)
"""The price of a model without a price."""


class PriceBook:
    """Every price, for look-ups on the request path: the newest one in force at a moment; a price of the revision goes before one of any
    revision."""

    __slots__ = ("by_model",)

    def __init__(self, prices: Iterable[Price]) -> None:
        self.by_model: dict[tuple[str, str], tuple[list[float], list[Price]]] = {}
        """By public name and revision, the moments from which prices are in force, and the prices; empty where every model is free."""
        for price in sorted(prices, key=lambda price: (price.effective_unix, price.id)):
            starts, versions = self.by_model.setdefault((price.model, price.revision), ([], []))
            starts.append(price.effective_unix)
            versions.append(price)

    def at(self, model: str, revision: str, at_unix: float) -> Price:
        """The price in force; FREE where there is none. A request keeps the price that it was admitted at."""
        for key in ((model, revision), (model, ANY_REVISION)):
            entry = self.by_model.get(key)
            if entry is not None:
                starts, versions = entry
                place = bisect_right(starts, at_unix)
                if place:
                    return versions[place - 1]
        return FREE
