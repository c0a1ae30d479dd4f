"""What was measured of an engine: its speed as routing uses it, and its capacity. Pure.

The six rates are those of `routing.rates.Rates`; `fitted` finds three of them from measurements, by least squares with weights:

    seconds = x0 + x1 * a + x2 * b      every x at least 0

Each measurement counts by one over its own seconds, so that the relative errors are least: a short prompt says as much as a long one. With
three unknowns, the best solution without a negative rate is one of eight, those of the subsets of rates that are not 0; all are computed.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import isfinite
from typing import Annotated, Final

import msgspec

from routing.rates import Rates

MAX_POINTS: Final = 1000
"""Most measurements of each kind that a profile keeps."""
STEP_TOKENS: Final = 2048
"""Prompt tokens that an engine computes in a step, where nothing else is said; as `pools[].step_tokens`."""
LEAST_SHARE: Final = 0.01
"""Share of the least measured time that each rate makes up at least, at the largest size measured: the calibration scales each prior by
50 at most (`routing.calibration`), and could never move one that is 0."""

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]


class PromptPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The time to the first token of one prompt on the idle engine."""

    tokens: Count
    seconds: Seconds
    held_out: bool = False
    """Whether it took no part in the fit, and tests it."""


class StepPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The mean time of a decode step with so many sequences, and tokens in all their contexts."""

    sequences: Count
    context_tokens: float
    seconds: Seconds


class EngineProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that one run of `tidegate engine profile` found.

    Raises:
        ValueError: a rate is no positive number.
    """

    engine: str
    """Dialect of the engine."""
    served: str
    """The model name that was measured."""
    measured_unix: float
    rates: dict[str, float]
    """By field of `routing.rates.Rates`."""
    kv_tokens: Count | None = None
    """Capacity of its KV cache; None where it does not report it."""
    cold_start_s: Seconds | None = None
    """From its start until it was healthy; None where the run did not start it."""
    usd_per_hour: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None
    prompts: Annotated[list[PromptPoint], msgspec.Meta(max_length=MAX_POINTS)] = []
    steps: Annotated[list[StepPoint], msgspec.Meta(max_length=MAX_POINTS)] = []
    error_share: float = 0.0
    """Mean relative error of the predicted times to the first token of the held-out prompts."""

    def __post_init__(self) -> None:
        if set(self.rates) != set(Rates._fields) or not all(isfinite(rate) and rate > 0 for rate in self.rates.values()):
            raise ValueError(f"rates are the positive numbers {', '.join(Rates._fields)}")

    @property
    def prior(self) -> Rates:
        """The rates as routing takes them."""
        return Rates(**self.rates)


def profile_text(profile: EngineProfile) -> str:
    """The profile as JSON."""
    return msgspec.json.encode(profile).decode()


def read_profile(text: bytes | str) -> EngineProfile:
    """A profile from JSON. Raises ValueError with what is wrong."""
    try:
        return msgspec.json.decode(text, type=EngineProfile)
    except msgspec.DecodeError as error:
        raise ValueError(f"is no profile of `tidegate engine profile`: {error}") from None


def ttft_s(rates: Rates, tokens: float, step_tokens: int = STEP_TOKENS) -> float:
    """The predicted time to the first token of a prompt alone on an idle engine with nothing cached; every step but the first costs its
    fixed part again."""
    steps = (tokens - 1) // step_tokens
    return rates.prefill_s + rates.prefill_s_token * tokens + rates.prefill_s_token_ctx * tokens * tokens / 2 + steps * rates.step_s


def step_s(rates: Rates, sequences: float, context_tokens: float) -> float:
    """The predicted time of a decode step."""
    return rates.step_s + rates.step_s_seq * sequences + rates.step_s_token * context_tokens


def fitted_rates(prompts: Sequence[PromptPoint], steps: Sequence[StepPoint], step_tokens: int = STEP_TOKENS) -> Rates:
    """The rates of an engine from its measurements; those that are held out take no part.

    Args:
        step_tokens: most prompt tokens that it computes in a step.

    Raises:
        ValueError: there are fewer than three measurements of a kind.
    """
    step = fitted([(1.0, point.sequences, point.context_tokens, point.seconds) for point in steps])
    rows = [
        (1.0, point.tokens, point.tokens**2 / 2, point.seconds - (point.tokens - 1) // step_tokens * step[0])
        for point in prompts
        if not point.held_out
    ]
    return Rates(*fitted(rows), *step)


def error_share(rates: Rates, prompts: Sequence[PromptPoint], step_tokens: int = STEP_TOKENS) -> float:
    """The mean relative error of the predicted times to the first token of held-out prompts; 0 without any."""
    apart = [abs(ttft_s(rates, one.tokens, step_tokens) - one.seconds) / one.seconds for one in prompts if one.held_out and one.seconds]
    return sum(apart) / len(apart) if apart else 0.0


def fitted(rows: Sequence[tuple[float, float, float, float]]) -> tuple[float, float, float]:
    """The least-squares rates of rows (x0, x1, x2, seconds), none below its floor. Raises ValueError for fewer than three rows."""
    usable = [row for row in rows if row[3] > 0]
    if len(usable) < 3:
        raise ValueError(f"three measurements at least are needed, and there are {len(usable)}")
    # columns are scaled to one size, or squares of contexts would drown the rest
    scales = [max(row[column] for row in usable) or 1.0 for column in range(3)]
    weighted = [(*(row[column] / scales[column] / row[3] for column in range(3)), 1.0) for row in usable]
    best, least = (0.0, 0.0, 0.0), float("inf")
    for rates in _candidates(weighted):
        error = sum((sum(row[column] * rates[column] for column in range(3)) - row[3]) ** 2 for row in weighted)
        if error < least - 1e-12:
            best, least = rates, error
    floor = LEAST_SHARE * min(row[3] for row in usable)
    first, second, third = (max(rate, floor) / scale for rate, scale in zip(best, scales, strict=True))
    return first, second, third


def _candidates(rows: Sequence[tuple[float, ...]]) -> Iterator[tuple[float, float, float]]:
    """The solutions of the normal equations for each subset of columns, those without a negative rate."""
    for count in (1, 2, 3):
        for chosen in combinations(range(3), count):
            solved = _solved([[sum(r[i] * r[j] for r in rows) for j in chosen] + [sum(r[i] * r[3] for r in rows)] for i in chosen])
            if solved is not None and min(solved) >= 0:
                rates = [0.0, 0.0, 0.0]
                for column, rate in zip(chosen, solved, strict=True):
                    rates[column] = rate
                yield rates[0], rates[1], rates[2]


def _solved(system: list[list[float]]) -> list[float] | None:
    """The solution of a small linear system by elimination with pivots; None where it has not exactly one."""
    size = len(system)
    for place in range(size):
        pivot = max(range(place, size), key=lambda row: abs(system[row][place]))
        if abs(system[pivot][place]) < 1e-14:
            return None
        system[place], system[pivot] = system[pivot], system[place]
        for row in range(size):
            if row != place:
                share = system[row][place] / system[place][place]
                system[row] = [mine - share * theirs for mine, theirs in zip(system[row], system[place], strict=True)]
    return [system[row][size] / system[row][row] for row in range(size)]
