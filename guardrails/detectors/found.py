"""Findings as services send them, read strictly: rules name their kinds, and `redact` cuts where they say."""

from typing import Final

from guardrails.detectors.asking import MAX_FOUND
from guardrails.ports import Detected

MAX_KIND_CHARS: Final = 64


def kind_of(name: str) -> str:
    """The kind of a finding as rules name it, by the service's name for it. Raises ValueError for one that no rule can name."""
    kind = name.replace(" ", "_")
    if not 0 < len(kind) <= MAX_KIND_CHARS or not kind.isascii() or not kind.isprintable():
        raise ValueError("has a kind that no rule can name")
    return kind


def score_of(score: float) -> float:
    """The score itself. Raises ValueError for one outside 0 to 1."""
    if not 0 <= score <= 1:
        raise ValueError("has a score that is none")
    return score


def placed(kind: str, score: float, begin: int, end: int, length: int) -> Detected:
    """A finding at a place of a text of `length` characters.

    Raises:
        ValueError: the place is not in the text or is empty, the score is none, or no rule can name the kind.
    """
    if not 0 <= begin < end <= length:
        raise ValueError("has a finding outside the text")
    return Detected(kind_of(kind), score_of(score), begin, end)


def few(count: int) -> None:
    """Raises ValueError where an answer has more findings than are taken."""
    if count > MAX_FOUND:
        raise ValueError(f"has more than {MAX_FOUND} findings")
