"""The weights of the classifier: how their file is written and read, and the scores of a text's windows. Pure Python.

The score of a window is `bias + sum(weights of its features) / sqrt(number of its features)`, over the features that are known, each once:
the log-odds of logistic regression over feature vectors of unit length.

A text is suspicious when its highest score is above a threshold that depends on its number of windows. A long text has more chances to
score high by accident, and honest long texts (sessions of agents with pages and code) are another kind of text than honest questions:
the threshold is `short` for one window, and `max(short, long + SLOPE * log2(windows / 4))` for more.

The file: one line of JSON (`format`, `features`, `bias`, `scale`, `thresholds` by sensitivity as [short, long], `made`), a line feed, and a
zlib stream of the features' names in order, each with a line feed behind it, and then one signed byte for each: its weight in units of
`scale`.
"""

import hashlib
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from guardrails.classifier.features import KnownFeatures, halves_of, known, windows

FORMAT: Final = "tidegate classifier 1"
WEIGHTS: Final = Path(__file__).with_name("weights.bin")
SLOPE: Final = 0.2
MAX_BYTES: Final = 8 * 1024 * 1024
"""The most bytes of names and weights when they are unpacked."""


class WeightsUnusable(ValueError):
    """The file of the weights is missing or not what was expected; the text says what to do."""


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line of the file."""

    format: str
    features: int
    bias: float
    scale: float
    thresholds: dict[str, tuple[float, float]]
    """For each sensitivity the threshold of a text of one window and that of a text of four."""
    made: str
    """The command that made the file, with a digest of what it read."""


class ScoredWindow(msgspec.Struct, frozen=True, gc=False):
    """A window of a text and its score."""

    begin: int
    """Its first token."""
    end: int
    """The token behind its last one."""
    score: float


class Model:
    """The classifier, made ready.

    Args:
        header: what is known of the weights.
        weights: the weight of each feature by its name, in log-odds.
    """

    def __init__(self, header: Header, weights: Mapping[str, float]) -> None:
        self.header: Final = header
        self._vocabulary = KnownFeatures(weights)
        self._weights = list(weights.values())

    def score(self, words: Sequence[str]) -> list[ScoredWindow]:
        """The windows of a text with their scores, in order.

        Args:
            words: the tokens of the whole text.
        """
        # windows overlap by half, so each half is gathered and added once; what both halves of a window have counts once
        halves = known(words, self._vocabulary)
        weight = self._weights.__getitem__
        bias = self.header.bias
        sums = [sum(map(weight, half)) for half in halves]
        scored = []
        for begin, end in windows(len(words)):
            first, second = halves_of(begin, end)
            total, count = sums[first], len(halves[first])
            if second > first:
                both = halves[first] & halves[second]
                total += sums[second] - sum(map(weight, both))
                count += len(halves[second]) - len(both)
            scored.append(ScoredWindow(begin, end, bias + (total / math.sqrt(count) if count else 0.0)))
        return scored

    def threshold(self, sensitivity: str, count: int) -> float:
        """The score above which a window of a text of `count` windows is suspicious. Raises ValueError for an unknown sensitivity."""
        if sensitivity not in self.header.thresholds:
            raise ValueError(f"the sensitivity {sensitivity!r} is unknown; there are {', '.join(self.header.thresholds)}")
        return threshold(self.header.thresholds[sensitivity], count)


def threshold(short_long: tuple[float, float], count: int) -> float:
    """The threshold of a text of `count` windows, by the formula above."""
    short, long = short_long
    return short if count <= 1 else max(short, long + SLOPE * math.log2(count / 4))


def written(header: Header, weights: Mapping[str, int]) -> bytes:
    """The file of weights that are given in units of the header's `scale`, -127 to 127. The same bytes for the same weights."""
    ordered = sorted(weights)
    names = "".join(f"{name}\n" for name in ordered).encode("utf-8", "surrogatepass")
    values = bytes([weights[name] & 0xFF for name in ordered])
    line = json.dumps(msgspec.to_builtins(header), sort_keys=True, separators=(",", ":"))
    return line.encode() + b"\n" + zlib.compress(names + values, 9)


def read(data: bytes) -> Model:
    """The model of a file's bytes. Raises WeightsUnusable."""
    line, _, packed = data.partition(b"\n")
    try:
        header = msgspec.json.decode(line, type=Header)
    except msgspec.DecodeError as error:
        raise WeightsUnusable(f"the weights of the classifier have no header ({error}); install the package again") from None
    if header.format != FORMAT:
        raise WeightsUnusable(
            f"the weights of the classifier are of the format {header.format!r}, not {FORMAT!r}; install the package again"
        )
    try:
        unpacker = zlib.decompressobj()
        body = unpacker.decompress(packed, MAX_BYTES)
    except zlib.error as error:
        raise WeightsUnusable(f"the weights of the classifier are damaged ({error}); install the package again") from None
    values, text = body[len(body) - header.features :], body[: len(body) - header.features]
    names: Sequence[str] = text.decode("utf-8", "surrogatepass").split("\n")[:-1]
    if unpacker.unconsumed_tail or not unpacker.eof or not len(names) == len(values) == header.features:
        raise WeightsUnusable("the weights of the classifier are cut short or too long; install the package again")
    signed = [(value - 256 if value > 127 else value) * header.scale for value in values]
    return Model(header, dict(zip(names, signed, strict=True)))


@cache
def packaged() -> Model:
    """The model that is part of the package, read when it is asked for first: about 50 ms. Raises WeightsUnusable."""
    return read(_packaged_bytes())


@cache
def packaged_version() -> str:
    """A digest of the packaged weights: 16 hexadecimal digits. Raises WeightsUnusable."""
    return hashlib.sha256(_packaged_bytes()).hexdigest()[:16]


def _packaged_bytes() -> bytes:
    try:
        return WEIGHTS.read_bytes()
    except OSError as error:
        raise WeightsUnusable(f"{WEIGHTS.name} of the classifier cannot be read ({error.strerror}); install the package again") from None
