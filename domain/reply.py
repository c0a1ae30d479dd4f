"""Finish reasons of an answer. The words are OpenAI's; which of them count as complete is our stream-integrity contract."""

from typing import Final

WHOLE_FINISH_REASONS: Final = frozenset({"stop", "length", "tool_calls", "function_call", "content_filter", "eos_token"})
"""Finish reasons of a complete answer. Everything else (`abort`, `error`, missing, unknown) is a failure even when
`[DONE]` follows: engines end aborted streams with both. `eos_token` is TGI's word for `stop`."""

DECLINED: Final = "content_filter"
"""The finish reason of an answer that the model or a filter refused or stopped."""
