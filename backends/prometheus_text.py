"""The few series wanted from an engine's Prometheus text, found by their names. Sans-io.

Why not a parser: engines expose 800 lines and more, of which about 15 are wanted, ten times a second and backend. Searching
for those is the fastest way past the others (`python -m bench.overhead.micro`).
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from math import isfinite
from typing import Final

import msgspec

_LABEL: Final = re.compile(rb'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPED: Final = re.compile(rb'\\(["\\n])')
_REST: Final = re.compile(rb'(?:\{((?:[^"}\n]|"(?:[^"\\]|\\.)*")*)\})?[ \t]+(\S+)')
"""What follows a name: labels, if any, and the value; a time stamp behind it is passed over."""
_NEWLINE: Final = 10

MAX_SAMPLES: Final = 10_000
"""Samples of one series; engines have one per rank, adapter or histogram bucket."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One line: its labels and its value."""

    labels: Mapping[str, str]
    value: float


class Wanted:
    """A set of series names."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = [name.encode("ascii") for name in dict.fromkeys(names)]

    def find(self, text: bytes) -> dict[str, list[Sample]]:
        """Samples by series name; values that are no finite numbers are left out (NaN is what engines write for "never").

        Raises:
            ValueError: a series has more than `MAX_SAMPLES`.
        """
        found = {}
        for name in self._names:
            samples = list(islice(_samples(text, name), MAX_SAMPLES + 1))
            if len(samples) > MAX_SAMPLES:
                raise ValueError(f"series {name.decode('ascii')} has more than {MAX_SAMPLES:,} samples")
            if samples:
                found[name.decode("ascii")] = samples
        return found


def _samples(text: bytes, name: bytes) -> Iterator[Sample]:
    at = text.find(name)
    while at >= 0:
        behind = at + len(name)
        if at == 0 or text[at - 1] == _NEWLINE:
            line = _REST.match(text, behind)
            if line is not None:
                behind = line.end()
                with contextlib.suppress(ValueError):
                    if isfinite(value := float(line[2])):
                        yield Sample(_labels(line[1]) if line[1] else {}, value)
        at = text.find(name, behind)


def _labels(text: bytes) -> dict[str, str]:
    return {name.decode("ascii"): _ESCAPED.sub(_unescape, value).decode("utf-8", "replace") for name, value in _LABEL.findall(text)}


def _unescape(found: "re.Match[bytes]") -> bytes:
    return b"\n" if found[1] == b"n" else found[1]
