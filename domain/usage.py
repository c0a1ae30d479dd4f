"""A request's token usage, and the finish reasons of answers. Integers only; prices turn usage into money elsewhere.

The finish reasons are OpenAI's words; which of them count as complete is our stream-integrity contract.
"""

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
    audio_seconds: int = 0
    """The length of the sound of a request for a transcript or for speech, a begun second counted; no tokens are in it."""
    audio_bytes: int = 0
    """The bytes of that sound: of the recording that came, or of the speech that went."""

    @property
    def total_tokens(self) -> int:
        """Prompt plus completion tokens."""
        return self.prompt_tokens + self.completion_tokens


NO_USAGE: Final = Usage()


WHOLE_FINISH_REASONS: Final = frozenset({"stop", "length", "tool_calls", "function_call", "content_filter", "eos_token"})
"""Finish reasons of a complete answer. Everything else (`abort`, `error`, missing, unknown) is a failure even when
`[DONE]` follows: engines end aborted streams with both. `eos_token` is TGI's word for `stop`."""

DECLINED: Final = "content_filter"
"""The finish reason of an answer that the model or a filter refused or stopped."""
