"""A prompt's chain cut down to at most `MAX_MARKS` short hashes, for the access log, so that a replay finds which prompts shared how much.

The hashes stand at fixed places, the same for every prompt: at each of the first blocks, and from there on an eighth further each time. Two
prompts that agree at a place agree in all before it, so from the places alone a replay knows their common beginning to an eighth. A hash is
cut to 32 bits: among a million prompts of a tenant one look-up in 4,000 finds a stranger.

The chain is keyed and salted per tenant (`routing.prefix.chain`), so the hashes tell nothing of a prompt without the gateway's secret, and
prompts of two tenants have none in common. They are comparable where `chain.generation` is the same.
"""

import binascii
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

MAX_MARKS: Final = 64
"""Hashes kept of one prompt: 256 bytes."""
EACH: Final = 16
"""The first blocks, each of which has a place."""
GROWTH: Final = 8
"""Beyond them a place follows after an eighth of the blocks before it."""


def _places() -> tuple[int, ...]:
    places = list(range(1, EACH + 1))
    while len(places) < MAX_MARKS:
        places.append(places[-1] + max(1, places[-1] // GROWTH))
    return tuple(places)


PLACES: Final = _places()
"""Lengths of the beginnings that are hashed, in blocks, ascending; the last one is beyond the longest context of today's models."""
_INDEXES: Final = tuple(place - 1 for place in PLACES)
_LOW: Final = 0xFFFF_FFFF


def sampled(chain: Sequence[int]) -> str:
    """The hashes at `PLACES` within the chain, as base64 of four bytes each; at most 344 characters, none for an empty chain."""
    if not chain:
        return ""
    known = chain[: PLACES[-1]]
    marks = array("I", [known[at] & _LOW for at in _INDEXES[: bisect_right(PLACES, len(known))]])
    return binascii.b2a_base64(marks.tobytes(), newline=False).decode("ascii")


def marks_of(text: str) -> list[int]:
    """The hashes that `sampled` wrote, in the order of `PLACES`. A text that was cut short gives those that are whole.

    Raises:
        ValueError: the text is no base64, or has more than `MAX_MARKS` hashes.
    """
    try:
        data = binascii.a2b_base64(text[: len(text) // 4 * 4], strict_mode=True)
    except binascii.Error as error:
        raise ValueError(f"the chain is no base64: {error}") from None
    if len(data) > 4 * MAX_MARKS:
        raise ValueError(f"the chain has {len(data) // 4} hashes; a prompt has at most {MAX_MARKS}")
    marks = array("I")
    marks.frombytes(data[: len(data) // 4 * 4])
    return marks.tolist()
