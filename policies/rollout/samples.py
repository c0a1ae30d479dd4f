"""What is counted of canary and baseline: per interval, arm and metric a number of samples and their sum, nothing else.

Sums add up: every gateway adds its own to a counter store, and whoever reads them there has those of all. Both arms are kept by the
same intervals because what load, time of day and neighbours do to latencies, they do to both at the same time; the test looks at
differences within intervals and at how those scatter between intervals, so no sum of squares is needed.

Latencies, lengths and costs are summed as logarithms: their tails are heavy, and what is asked is how many times one is the other.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from math import isfinite, log
from types import MappingProxyType
from typing import Final

import msgspec

from policies.rollout.assignment import Arm

PROMPT_OFFSET_TOKENS: Final = 256
"""Added to a prompt's tokens before its time to first token is divided by them: what an engine takes for one step whatever the prompt,
in tokens of prefill. Its exact size does not matter for the comparison, both arms have the same."""


class Scale(Enum):
    """What a metric's samples are."""

    SHARE = "share"
    """0 or 1; compared by difference."""
    RATIO = "ratio"
    """Positive, summed as logarithms; compared by ratio of geometric means."""


class Worse(Enum):
    """Which way a canary must not differ."""

    UP = "up"
    EITHER = "either"


class Metric(msgspec.Struct, frozen=True):
    """One thing that is compared."""

    name: str
    words: str
    scale: Scale
    margin: float
    """Differences up to this are none: points of 1 for a share (0.005 is half a percentage point), a part of the baseline's value
    for a ratio (0.05 is 5 %)."""
    wander: float
    """How far one arm alone strays from its own mean for a minute or two (standard deviation, of logarithms or as a part of a share's
    value), as is assumed until the samples show more: `evidence.WANDER_S`."""
    worse: Worse = Worse.UP
    unit: str = ""
    per_unit: float = 1.0
    """What a value is multiplied with to be in that unit."""


METRICS: Final[Mapping[str, Metric]] = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            Metric("errors", "error rate", Scale.SHARE, 0.005, 0.3),
            Metric("broken_streams", "broken streams", Scale.SHARE, 0.005, 0.3),
            Metric("refusals", "refusals and guard hits", Scale.SHARE, 0.02, 0.1),
            Metric("ttft", "time to first token, per token to compute,", Scale.RATIO, 0.10, 0.15, unit=" ms", per_unit=1e3),
            Metric("itl", "inter-token latency", Scale.RATIO, 0.05, 0.075, unit=" ms", per_unit=1e3),
            Metric("output_tokens", "output length", Scale.RATIO, 0.15, 0.12, Worse.EITHER, " tokens"),
            Metric("token_cost", "cost per output token", Scale.RATIO, 0.10, 0.05, unit=" nano-USD"),
        )
    }
)
"""Everything that can be compared, by name."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One finished request, as far as it is known. None is not known, or not so for this request; it is left out, never taken for zero.

    Of requests that their caller broke off or that were refused before they reached an engine there is no sample.
    """

    failed: bool
    """No usable answer for a reason of the pool's: engine error, time-out, no capacity."""
    broken: bool | None = None
    """A stream that began and broke; None where none began."""
    refused: bool | None = None
    """The model declined or a guard struck; None without an answer."""
    ttft_s: float | None = None
    uncached_tokens: int = 0
    """Of the prompt, what the engine had to compute: a small canary finds less in its cache, which is not its fault."""
    itl_s: float | None = None
    """Mean seconds between output tokens of this request."""
    output_tokens: int | None = None
    """Of an answer that came to its end."""
    cost_nanousd: int | None = None
    """Of the whole request; counted per output token."""


def values_of(sample: Sample) -> list[tuple[str, float]]:
    """What a sample adds, by name of the metric: 0 or 1 for a share, a logarithm for a ratio."""
    values = [("errors", float(sample.failed))]
    if sample.broken is not None:
        values.append(("broken_streams", float(sample.broken)))
    if sample.refused is not None:
        values.append(("refusals", float(sample.refused)))
    positive: list[tuple[str, float | None]] = [("itl", sample.itl_s), ("output_tokens", sample.output_tokens)]
    if sample.ttft_s is not None:
        positive.append(("ttft", sample.ttft_s / (max(0, sample.uncached_tokens) + PROMPT_OFFSET_TOKENS)))
    if sample.cost_nanousd and sample.output_tokens:
        positive.append(("token_cost", sample.cost_nanousd / sample.output_tokens))
    values.extend((name, log(value)) for name, value in positive if value is not None and value > 0 and isfinite(value))
    return values


class Tally(msgspec.Struct, frozen=True, array_like=True):
    """How many samples there were and what they add up to."""

    n: int = 0
    total: float = 0.0


NOTHING: Final = Tally()


class ArmSums(msgspec.Struct, frozen=True):
    """One arm in one interval."""

    requests: int = 0
    """Samples, whatever they held."""
    tallies: dict[str, Tally] = msgspec.field(default_factory=dict)
    """By metric; what was not seen is not in it. Not to be changed."""

    def __add__(self, other: "ArmSums") -> "ArmSums":
        tallies = dict(self.tallies)
        for name, more in other.tallies.items():
            had = tallies.get(name, NOTHING)
            tallies[name] = Tally(had.n + more.n, had.total + more.total)
        return ArmSums(self.requests + other.requests, tallies)


def sums_of(samples: Iterable[Sample]) -> ArmSums:
    """Those of some requests."""
    requests, tallies = 0, dict[str, Tally]()
    for sample in samples:
        requests += 1
        for name, value in values_of(sample):
            had = tallies.get(name, NOTHING)
            tallies[name] = Tally(had.n + 1, had.total + value)
    return ArmSums(requests, tallies)


class Interval(msgspec.Struct, frozen=True):
    """Both arms over one stretch of time; a request belongs to the interval in which it ended."""

    index: int
    """Wall-clock seconds over the interval's length, whole part."""
    canary: ArmSums = ArmSums()
    baseline: ArmSums = ArmSums()

    def __add__(self, other: "Interval") -> "Interval":
        """What two gateways counted in the same interval.

        Raises:
            ValueError: for two intervals.
        """
        if self.index != other.index:
            raise ValueError(f"intervals {self.index} and {other.index} are not the same one")
        return Interval(self.index, self.canary + other.canary, self.baseline + other.baseline)


def to_fields(arm: Arm, sums: ArmSums) -> dict[str, float]:
    """Sums as fields to add to a counter store's, in which those of one interval lie together: `canary.itl.n`, `canary.itl.total`."""
    fields: dict[str, float] = {f"{arm.value}.requests": sums.requests}
    for name, tally in sums.tallies.items():
        fields[f"{arm.value}.{name}.n"] = tally.n
        fields[f"{arm.value}.{name}.total"] = tally.total
    return fields


def from_fields(index: int, fields: Mapping[str, float]) -> Interval:
    """The interval that a counter store holds; fields of metrics that this version does not know are left out."""
    arms = []
    for arm in (Arm.CANARY, Arm.BASELINE):
        counted = {name: int(fields.get(f"{arm.value}.{name}.n", 0)) for name in METRICS}
        tallies = {name: Tally(n, fields.get(f"{arm.value}.{name}.total", 0.0)) for name, n in counted.items() if n > 0}
        arms.append(ArmSums(int(fields.get(f"{arm.value}.requests", 0)), tallies))
    return Interval(index, *arms)
