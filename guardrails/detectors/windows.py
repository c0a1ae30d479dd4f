"""Texts that are longer than a detector takes: cut into windows that overlap, and their results put together. Pure.

What lies across a cut is found if it is no longer than the overlap. A finding of which two windows have a part is joined: two findings of
one kind that overlap and come from different windows become one, with the higher score.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from guardrails.ports import Detected

MAX_WINDOWS: Final = 64
"""Windows of one text. With more the detector could not be done within its time anyway."""


def windows(text: str, most: int, overlap: int) -> list[tuple[int, str]]:
    """The text in pieces of at most `most` characters, each with the place where it begins; neighbours share `overlap` characters.

    Args:
        overlap: less than `most`.
    """
    if len(text) <= most:
        return [(0, text)]
    step = most - overlap
    return [(begin, text[begin : begin + most]) for begin in range(0, len(text) - overlap, step)]


def count_windows(length: int, most: int, overlap: int) -> int:
    """How many windows a text of so many characters has."""
    return 1 if length <= most else -(-(length - overlap) // (most - overlap))


def joined(parts: Iterable[tuple[int, Sequence[Detected]]]) -> tuple[Detected, ...]:
    """The results of windows as those of the whole text, in order of `begin`.

    Args:
        parts: where each window begins, and what was found in it.
    """
    by_kind: dict[tuple[str, bool], list[tuple[int, Detected]]] = {}
    for number, (offset, found) in enumerate(parts):
        for one in found:
            moved = msgspec.structs.replace(one, begin=one.begin + offset, end=one.end + offset)
            by_kind.setdefault((one.kind, one.decided), []).append((number, moved))
    out: list[Detected] = []
    for group in by_kind.values():
        group.sort(key=lambda placed: (placed[1].begin, placed[1].end))
        last_of = -1
        whole: Detected | None = None
        for number, one in group:
            if whole is not None and number != last_of and one.begin < whole.end:
                whole = msgspec.structs.replace(whole, end=max(whole.end, one.end), score=max(whole.score, one.score))
            else:
                if whole is not None:
                    out.append(whole)
                whole = one
            last_of = number
        if whole is not None:
            out.append(whole)
    return tuple(sorted(out, key=lambda one: (one.begin, one.end, one.kind, not one.decided)))
