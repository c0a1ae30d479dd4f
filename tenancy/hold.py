"""A Hold: the worst case of one request, reserved before it runs, and closed in exactly one of three ways. Pure.

    open --settle--> closed      the engine reported its usage
    open --estimate-> closed     the stream broke first: what was delivered was counted
    open --release--> closed     nothing was generated

A closed hold stays as it was closed: a second closing changes nothing, so no error path can charge twice or leak.
"""

from typing import Final, Literal

import msgspec

from domain.identity import TenantId
from domain.usage import NO_USAGE, Usage

Word = Literal["settle", "estimate", "release"]


class Amounts(msgspec.Struct, frozen=True, gc=False):
    """What one request may use at most, in tokens; the concurrency slot is the hold itself."""

    prompt_tokens: int
    output_tokens: int

    @property
    def tokens(self) -> int:
        """Both together."""
        return self.prompt_tokens + self.output_tokens


class Closing(msgspec.Struct, frozen=True, gc=False):
    """How a hold ends and what is charged for it."""

    word: Word
    usage: Usage


class Hold(msgspec.Struct, frozen=True, gc=False):
    """An open reservation. `id` is the request's, so that a repeated reservation is recognised."""

    id: str
    tenant: TenantId
    amounts: Amounts

    def counted(self, output_tokens: int) -> Usage:
        """Usage of an answer that broke after `output_tokens`: never more than was held."""
        return Usage(prompt_tokens=self.amounts.prompt_tokens, completion_tokens=min(output_tokens, self.amounts.output_tokens))


def settled(usage: Usage) -> Closing:
    """Close with what the engine reported."""
    return Closing("settle", usage)


def estimated(usage: Usage) -> Closing:
    """Close with what was counted on the way."""
    return Closing("estimate", usage)


RELEASED: Final = Closing("release", NO_USAGE)
"""Close with nothing: nothing was generated."""
