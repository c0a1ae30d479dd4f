"""A request's token usage. Integers only; prices turn it into money elsewhere."""

from typing import Final

import msgspec


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts of one finished request, as the engine that ran it reports them.

    `cached_tokens` is the part of `prompt_tokens` served from the engine's prefix cache,
    `reasoning_tokens` the part of `completion_tokens` spent on hidden reasoning.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt plus completion tokens."""
        return self.prompt_tokens + self.completion_tokens


NO_USAGE: Final = Usage()
