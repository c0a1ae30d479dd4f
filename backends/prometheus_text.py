"""Reads a few series, by name, out of an engine's Prometheus text. Sans-io.

Why not a parser: engines expose 800 lines and more, of which about 15 are wanted, ten times a second and backend. Searching
for those is the fastest way past the others, and looking where they stood on the page before is faster still (`SeriesPlaces`;
`python -m bench.overhead.micro`).
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from math import isfinite
from typing import Final

import msgspec

# possessive quantifiers (`*+`) never backtrack, and no match goes beyond a line, so every byte is looked at once per name: with
# backtracking one label of 20 KB took 6 s
_LABEL: Final = re.compile(rb'\s*+([A-Za-z_][A-Za-z0-9_]*+)\s*+=\s*+"((?:[^"\\]++|\\.)*+)"\s*+,?')
_REST: Final = re.compile(rb'(?:\{((?:[^"}\n]++|"(?:[^"\\\n]++|\\.)*+")*+)\})?+[ \t]++(\S++)')
"""The rest of a line after the name: labels, if any, and the value; a time stamp behind it is ignored."""
_VALUE: Final = re.compile(rb"[ \t]++(\S++)")
_NEWLINE: Final = 10
_BEHIND_NAME: Final = b"{ \t"

MAX_PARTS: Final = 10_000
"""Most lines and labels of the wanted series in one page; vLLM has about 100 per data-parallel rank. Together with the page's size this
bounds the time to read it: a hostile page of 1 MiB takes 10 to 50 ms, a real one of 65 KB 0.4 ms."""


class PrometheusSample(msgspec.Struct, frozen=True, gc=False):
    """The labels and the value of one line."""

    labels: Mapping[str, str]
    value: float


NEAR: Final = 256
"""How far from where it is expected a line is looked for, in bytes: numbers before it have become longer."""
SEARCH_EVERY: Final = 100
"""Every so many pages are searched whole though all lines are where they were."""
MAX_PLACES: Final = 1000
"""Most lines whose places are remembered."""


class _WantedLine(msgspec.Struct, gc=False):
    """One wanted line."""

    at: int
    """The place of the line break before it; 0 for the page's first line."""
    line: bytes
    """The line break, the name, and the labels as they are written."""
    name: str
    labels: Mapping[str, str]
    is_last: bool = True
    """Whether no line of the same name follows at once."""


class SeriesPlaces:
    """Where the wanted lines stood on the last page of one program. It has the same lines next time, a few bytes further on.

    The whole page is searched again when it has another number of lines, when a line is not there or one of its name follows that was not
    there before, and once in `SEARCH_EVERY` pages: a name that comes for the first time while as many other lines go is found then.
    """

    def __init__(self) -> None:
        self._places: list[_WantedLine] = []
        self._lines = -1
        self._left = 0

    def found(self, text: bytes, places: list[_WantedLine]) -> None:
        """Remember what a search has found."""
        known = len(places) <= MAX_PLACES
        self._places = sorted(places, key=lambda place: place.at) if known else []
        for place, following in pairwise(self._places):
            place.is_last = place.name != following.name
        self._lines = text.count(b"\n") if known else -1
        self._left = SEARCH_EVERY

    def again(self, text: bytes) -> dict[str, list[PrometheusSample]] | None:
        """The samples of a page whose lines are where they were; None for one that has to be searched."""
        self._left -= 1
        if self._left < 0 or text.count(b"\n") != self._lines:
            return None
        by_name: dict[str, list[PrometheusSample]] = {}
        moved = behind = 0
        for place in self._places:
            line = place.line
            at = place.at + moved
            if at < behind or not text.startswith(line, at):
                if place.at == 0:
                    return None  # no line break is before it, by which it would be known for the begin of a line
                at = text.find(line, max(behind, at - NEAR), max(0, at + NEAR + len(line)))
            number = _VALUE.match(text, at + len(line)) if at >= 0 else None
            if number is None:
                return None
            behind = number.end()
            if place.is_last and _follows(text, behind, place.name):
                return None
            moved = at - place.at
            place.at = at
            with contextlib.suppress(ValueError):
                if isfinite(value := float(number[1])):
                    by_name.setdefault(place.name, []).append(PrometheusSample(place.labels, value))
        return by_name


def _follows(text: bytes, behind: int, name: str) -> bool:
    """Whether the next line is of the same name."""
    begin = text.find(b"\n", behind) + 1
    end = begin + len(name)
    return begin > 0 and text.startswith(name.encode("ascii"), begin) and text[end : end + 1] in _BEHIND_NAME


class WantedSeries:
    """A reader for a set of series names."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = [name.encode("ascii") for name in dict.fromkeys(names)]

    def find(self, text: bytes, places: SeriesPlaces | None = None) -> dict[str, list[PrometheusSample]]:
        """Samples by series name; values that are no finite numbers are left out (engines write NaN for "never").

        Args:
            places: of the same program's last page; they are moved to this one.

        Raises:
            ValueError: the wanted series have more than `MAX_PARTS` lines and labels.
        """
        if places is not None and (again := places.again(text)) is not None:
            return again
        by_name: dict[str, list[PrometheusSample]] = {}
        found: list[_WantedLine] = []
        left = MAX_PARTS
        for name in self._names:
            samples = []
            series = name.decode("ascii")
            for at, end, labels, number in _lines(text, name):
                left -= 1
                pairs: dict[str, str] = {}
                if labels:
                    pairs, left = _labels(labels, left)
                if left < 0:
                    raise ValueError(f"the wanted series have more than {MAX_PARTS:,} lines and labels")
                if number:  # else it is the line of a longer name
                    found.append(_WantedLine(max(0, at - 1), text[max(0, at - 1) : end], series, pairs))
                with contextlib.suppress(ValueError):
                    if isfinite(value := float(number)):
                        samples.append(PrometheusSample(pairs, value))
            if samples:
                by_name[series] = samples
        if places is not None:
            places.found(text, found)
        return by_name


def _lines(text: bytes, name: bytes) -> Iterator[tuple[int, int, bytes | None, bytes]]:
    """Every line that begins with the name: where it begins, where its value does, its labels and its value; an empty value for a line that
    does not continue with labels or a value."""
    at = text.find(name)
    while at >= 0:
        behind = at + len(name)
        if at == 0 or text[at - 1] == _NEWLINE:
            line = _REST.match(text, behind)
            if line is None:
                yield at, behind, None, b""
            else:
                yield at, behind if line[1] is None else line.end(1) + 1, line[1], line[2]
                behind = line.end()
        at = text.find(name, behind)


def _labels(text: bytes, left: int) -> tuple[dict[str, str], int]:
    """The labels, up to the first malformed one, and the rest of the budget `left` after them; reading ends when the budget is spent."""
    pairs: dict[str, str] = {}
    at = 0
    while left >= 0 and (label := _LABEL.match(text, at)) is not None:
        name, value = label.groups()
        pairs[name.decode("ascii")] = (_plain(value) if b"\\" in value else value).decode("utf-8", "replace")
        at = label.end()
        left -= 1
    return pairs, left


def _plain(value: bytes) -> bytes:
    """The value with its escapes resolved. A value has no line breaks, so they can mark text that is resolved already; a substitution by
    regular expression takes ten times as long."""
    marked = value.replace(b"\\\\", b"\n0").replace(b'\\"', b'"').replace(b"\\n", b"\n1")
    return marked.replace(b"\n0", b"\\").replace(b"\n1", b"\n")
