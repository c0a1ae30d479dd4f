"""The samples of canary and baseline: per interval, arm and metric the number of samples and their sum, nothing else.

Sums are additive: every gateway adds its own to a counter store, and a reader of the store gets the totals of all gateways. Both arms
use the same intervals, because load, time of day and neighbours affect the latencies of both at the same time; the test looks at
differences within intervals and at their scatter between intervals, so no sum of squares is needed.

Latencies, lengths and costs are summed as logarithms: their tails are heavy, and the comparison is by ratio.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from math import isfinite, log
from types import MappingProxyType
from typing import Final

import msgspec

from policies.rollout.assignment import Arm

PROMPT_OFFSET_TOKENS: Final = 256
"""Added to a prompt's tokens before its time to first token is divided by them: the time of one engine step whatever the
prompt, in tokens of prefill. Its exact size does not matter for the comparison: both arms have the same."""


class Scale(Enum):
    """The kind of a metric's samples."""

    SHARE = "share"
    """0 or 1; compared by difference."""
    RATIO = "ratio"
    """Positive, summed as logarithms; compared by ratio of geometric means."""


class Worse(Enum):
    """The direction in which a canary must not differ from the baseline."""

    UP = "up"
    EITHER = "either"


class Metric(msgspec.Struct, frozen=True):
    """One metric that a rollout compares."""

    name: str
    words: str
    scale: Scale
    margin: float
    """The greatest difference that is tolerated: absolute for a share (0.005 is half a percentage point), relative to the baseline's value
    for a ratio (0.05 is 5 %)."""
    wander: float
    """Standard deviation of one arm alone from its own mean that lasts for a minute or two (`evidence.WANDER_S`), of logarithms or relative
    to a share's value; assumed until the samples show more."""
    worse: Worse = Worse.UP
    unit: str = ""
    per_unit: float = 1.0
    """The factor that converts a value into `unit`."""
    by_default: bool = True
    """Whether every rollout compares it; else those alone that name its margin."""


JUDGED: Final = "judged"
"""The metric of the judge (`gateway/judge`): whether an arm's answer lost against the other arm's."""


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
            Metric(JUDGED, "comparisons lost", Scale.SHARE, 0.05, 0.1, by_default=False),
        )
    }
)
"""All metrics that a rollout can compare, by name."""


class RequestSample(msgspec.Struct, frozen=True, kw_only=True):
    """One finished request. None stands for a value that is unknown or does not apply; it is left out, never taken for zero.

    A request that its caller cancelled, or that was refused before it reached an engine, makes no sample.
    """

    failed: bool
    """Whether the pool failed to give a usable answer: engine error, time-out, no capacity."""
    broken: bool | None = None
    """Whether the stream broke after it began; None when no stream began."""
    refused: bool | None = None
    """Whether the model declined or a guard blocked the answer; None without an answer."""
    ttft_s: float | None = None
    uncached_tokens: int = 0
    """Tokens of the prompt that the engine had to compute: a small canary has fewer cache hits, which must not count against it."""
    itl_s: float | None = None
    """Mean seconds between output tokens of this request."""
    output_tokens: int | None = None
    """Output tokens of a request that completed."""
    cost_nanousd: int | None = None
    """Cost of the whole request, in nano-dollars; counted per output token."""


def values_of(sample: RequestSample) -> list[tuple[str, float]]:
    """The values of a sample, by name of the metric: 0 or 1 for a share, a logarithm for a ratio."""
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
    """The number of samples of one metric, and their sum."""

    n: int = 0
    total: float = 0.0


NOTHING: Final = Tally()


class ArmSums(msgspec.Struct, frozen=True):
    """The sums of one arm in one interval."""

    requests: int = 0
    """Number of samples, whichever metrics they have."""
    tallies: dict[str, Tally] = msgspec.field(default_factory=dict)
    """By metric; a metric without samples is missing. Not to be mutated."""

    def __add__(self, other: "ArmSums") -> "ArmSums":
        tallies = dict(self.tallies)
        for name, added in other.tallies.items():
            tally = tallies.get(name, NOTHING)
            tallies[name] = Tally(tally.n + added.n, tally.total + added.total)
        return ArmSums(self.requests + other.requests, tallies)


def sums_of(samples: Iterable[RequestSample]) -> ArmSums:
    """The sums of some samples."""
    requests = 0
    tallies: dict[str, Tally] = {}
    for sample in samples:
        requests += 1
        for name, value in values_of(sample):
            tally = tallies.get(name, NOTHING)
            tallies[name] = Tally(tally.n + 1, tally.total + value)
    return ArmSums(requests, tallies)


class Interval(msgspec.Struct, frozen=True):
    """The sums of both arms in one interval of time; a request belongs to the interval in which it ended."""

    index: int
    """Wall-clock seconds divided by the interval's length, rounded down."""
    canary: ArmSums = ArmSums()
    baseline: ArmSums = ArmSums()

    def __add__(self, other: "Interval") -> "Interval":
        """The sums of two gateways in the same interval.

        Raises:
            ValueError: the intervals differ.
        """
        if self.index != other.index:
            raise ValueError(f"intervals {self.index} and {other.index} are not the same one")
        return Interval(self.index, self.canary + other.canary, self.baseline + other.baseline)


def to_fields(arm: Arm, sums: ArmSums) -> dict[str, float]:
    """Sums as fields to add to a counter store, which keeps the fields of one interval together: `canary.itl.n`, `canary.itl.total`."""
    fields: dict[str, float] = {f"{arm.value}.requests": sums.requests}
    for name, tally in sums.tallies.items():
        fields[f"{arm.value}.{name}.n"] = tally.n
        fields[f"{arm.value}.{name}.total"] = tally.total
    return fields


def from_fields(index: int, fields: Mapping[str, float]) -> Interval:
    """The interval that a counter store holds; fields of metrics that this version does not know are left out."""
    arms = []
    for arm in (Arm.CANARY, Arm.BASELINE):
        numbers = {name: int(fields.get(f"{arm.value}.{name}.n", 0)) for name in METRICS}
        tallies = {name: Tally(n, fields.get(f"{arm.value}.{name}.total", 0.0)) for name, n in numbers.items() if n > 0}
        arms.append(ArmSums(int(fields.get(f"{arm.value}.requests", 0)), tallies))
    return Interval(index, *arms)
