"""One question to a detector's service, as JSON: what its answer is worth. Adapters say what is asked and what the answer means."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from guardrails.ports import DetectorAway

MAX_REPLY_BYTES: Final = 1024 * 1024
"""Findings of a text of 100,000 characters take about 200 KB; a longer answer is no answer."""
MAX_FOUND: Final = 10_000
"""Findings of one answer."""
REFUSALS: Final = frozenset((400, 413, 422))
"""The service has refused this text, such as one that is too long. That says nothing about the next ones, so it opens no breaker."""

Post = Callable[[bytes], Awaitable[tuple[int, bytes]]]
"""Sends a JSON body to the service; returns the status and the body of the reply. Raises OSError where that fails."""

T = TypeVar("T")


class TextRefused(DetectorAway):
    """The service has refused this text."""


async def ask(post: Post, question: object, decode: Callable[[bytes], T]) -> T:
    """The service's answer.

    Args:
        question: the body, as something that msgspec encodes.
        decode: reads the answer's body; raises msgspec.MsgspecError or ValueError where it is something else.

    Raises:
        DetectorAway: `error` where the service cannot be reached or answers with another status than 200, `unreadable` where its answer is
            none. TextRefused where it refuses the text.
    """
    try:
        status, reply = await post(msgspec.json.encode(question))
    except OSError:
        raise DetectorAway("error") from None
    if status in REFUSALS:
        raise TextRefused("error")
    if status != 200:
        raise DetectorAway("error")
    if len(reply) > MAX_REPLY_BYTES:
        raise DetectorAway("unreadable")
    try:
        return decode(reply)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise DetectorAway("unreadable") from None


def sendable(text: str) -> str:
    """The text with `?` for each half of a surrogate pair, which no JSON can carry; of the same length."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
