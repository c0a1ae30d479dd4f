"""Reads a few series, by name, out of an engine's Prometheus text. Sans-io.

Why not a parser: engines expose 800 lines and more, of which about 15 are wanted, ten times a second and backend. Searching
for those is the fastest way past the others (`python -m bench.overhead.micro`).
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Final

import msgspec

# possessive quantifiers (`*+`) never backtrack, and no match goes beyond a line, so every byte is looked at once per name: with
# backtracking one label of 20 KB took 6 s
_LABEL: Final = re.compile(rb'\s*+([A-Za-z_][A-Za-z0-9_]*+)\s*+=\s*+"((?:[^"\\]++|\\.)*+)"\s*+,?')
_REST: Final = re.compile(rb'(?:\{((?:[^"}\n]++|"(?:[^"\\\n]++|\\.)*+")*+)\})?+[ \t]++(\S++)')
"""The rest of a line after the name: labels, if any, and the value; a time stamp behind it is ignored."""
_NEWLINE: Final = 10

MAX_PARTS: Final = 10_000
"""Most lines and labels of the wanted series in one page; vLLM has about 100 per data-parallel rank. Together with the page's size this
bounds the time to read it: a hostile page of 1 MiB takes 10 to 50 ms, a real one of 65 KB 0.4 ms."""


class PrometheusSample(msgspec.Struct, frozen=True, gc=False):
    """The labels and the value of one line."""

    labels: Mapping[str, str]
    value: float


class WantedSeries:
    """A reader for a set of series names."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = [name.encode("ascii") for name in dict.fromkeys(names)]

    def find(self, text: bytes) -> dict[str, list[PrometheusSample]]:
        """Samples by series name; values that are no finite numbers are left out (engines write NaN for "never").

        Raises:
            ValueError: the wanted series have more than `MAX_PARTS` lines and labels.
        """
        by_name: dict[str, list[PrometheusSample]] = {}
        left = MAX_PARTS
        for name in self._names:
            samples = []
            for labels, number in _lines(text, name):
                left -= 1
                pairs: dict[str, str] = {}
                if labels:
                    pairs, left = _labels(labels, left)
                if left < 0:
                    raise ValueError(f"the wanted series have more than {MAX_PARTS:,} lines and labels")
                with contextlib.suppress(ValueError):
                    if isfinite(value := float(number)):
                        samples.append(PrometheusSample(pairs, value))
            if samples:
                by_name[name.decode("ascii")] = samples
        return by_name


def _lines(text: bytes, name: bytes) -> Iterator[tuple[bytes | None, bytes]]:
    """Labels and value of every line that begins with the name; an empty value for a line that does not continue with labels or a value."""
    at = text.find(name)
    while at >= 0:
        behind = at + len(name)
        if at == 0 or text[at - 1] == _NEWLINE:
            line = _REST.match(text, behind)
            if line is None:
                yield None, b""
            else:
                behind = line.end()
                yield line[1], line[2]
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
