"""An engine's own metrics as one value (`Signals`), and its prefill speed and its load now, from two such readings. Pure.

`SignalTable` reads the bytes of a metrics page by a dialect's table of series names. A missing signal is None and never zero: an engine
whose metrics lost a series would otherwise look idle, and get all requests (routers, failure no. 6). The dialect says which series are
required; missing ones are listed by name.

`measured` is the prefill speed, `standing` the load now. A reading is up to a poll interval old, and older when the engine is slow; the
requests that this process has sent and seen end since are known exactly. Every router that balances well adds the second to the first
(`routing.load` counts it).
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from operator import mul
from typing import Any, Final

import msgspec

from backends.prometheus_text import PrometheusSample, SeriesPlaces, WantedSeries


class Signals(msgspec.Struct, frozen=True):
    """One reading of one engine. Counts and tokens are of the whole engine; counters count from the engine's start."""

    read_at: float
    """Monotonic seconds of this process."""
    running: int | None = None
    """Sequences in the batch."""
    waiting: int | None = None
    """Requests not yet in the batch."""
    waiting_uncached_tokens: int | None = None
    """Prompt tokens of the waiting requests that the prefix cache does not hold."""
    kv_usage: float | None = None
    """Share of the KV cache in use, 0 to 1."""
    kv_capacity_tokens: int | None = None
    block_size: int | None = None
    """Tokens per KV block."""
    prefix_queries: int | None = None
    """Counter: prompt tokens looked up in the prefix cache."""
    prefix_hits: int | None = None
    """Counter: of those tokens, the ones found."""
    prefill_tokens: int | None = None
    """Counter: prompt tokens computed."""
    generated_tokens: int | None = None
    """Counter: tokens of answers."""
    prefill_busy_s: float | None = None
    """Counter: seconds spent computing prompt tokens."""
    preemptions: int | None = None
    """Counter: sequences removed from the batch for lack of memory."""
    asleep: bool | None = None
    """Whether the weights are offloaded: the engine answers health checks and no requests."""
    started_unix: float | None = None
    """When its process started; another value means that its cache is empty."""
    loras: tuple[str, ...] | None = None
    """Adapters that have requests, running or waiting, by the engine's name; the loaded adapters are in its model list."""
    missing: tuple[str, ...] = ()
    """Required signals that the reading lacks."""
    pushed_at: float | None = None
    """When the engine pushed some of the signals (`backends.load_reports`); None when all are from the reading."""
    pushed: tuple[str, ...] = ()
    """The signals that are from `pushed_at`; all others are from `read_at`."""

    @property
    def load_at(self) -> float:
        """The time of `running` and `waiting`."""
        return self.read_at if self.pushed_at is None else self.pushed_at


START_JITTER_S: Final = 1.0
"""Start times nearer than this are one start: some engines compute theirs anew from a wall clock that is being corrected. A real
restart within this time shows in the counters, unless the engine had computed nothing."""

COUNTERS: Final = ("prefix_queries", "prefix_hits", "prefill_tokens", "prefill_busy_s", "generated_tokens", "preemptions")
"""Signals that only rise while a process lives."""


def restarted(before: Signals, after: Signals) -> bool:
    """Whether the engine's process is another one than at the reading before, so that its cache is empty.

    Either its start time changed by more than `START_JITTER_S`, or a counter fell. A signal that one of the two readings lacks is
    ignored: a metrics page that loses a series for a moment is no restart.
    """
    was = before.started_unix
    now = after.started_unix
    if was is not None and now is not None and abs(now - was) > START_JITTER_S:
        return True
    pairs = ((getattr(before, name), getattr(after, name)) for name in COUNTERS)
    return any(was is not None and now is not None and now < was for was, now in pairs)


class SignalSource(msgspec.Struct, frozen=True):
    """The source of one signal: series names, the newest name first, and the function that folds their samples into a value."""

    names: tuple[str, ...]
    fold: Callable[[Sequence[PrometheusSample]], object]
    required: bool = False
    other: str | None = None
    """A second series; its total is joined with the folded value. The signal is unknown without it."""
    join: Callable[[Any, Any], object] = mul


class SignalTable:
    """A dialect's sources by signal name, compiled for reading. Of several sources of one signal, the first with a value counts."""

    def __init__(self, sources: Mapping[str, SignalSource | tuple[SignalSource, ...]]) -> None:
        unknown = set(sources) - {field.name for field in msgspec.structs.fields(Signals)}
        if unknown:
            raise ValueError(f"no such signals: {', '.join(sorted(unknown))}")
        self.sources: Final = {signal: source if isinstance(source, tuple) else (source,) for signal, source in sources.items()}
        every = [source for several in self.sources.values() for source in several]
        self._wanted = WantedSeries(name for source in every for name in (*source.names, *((source.other,) if source.other else ())))

    @property
    def required(self) -> tuple[str, ...]:
        """The required signals."""
        return tuple(signal for signal, several in self.sources.items() if any(source.required for source in several))

    def read(self, text: bytes, read_at: float) -> Signals:
        """The signals in an engine's metrics page."""
        return self._signals(self._wanted.find(text), read_at)

    def reader(self) -> Callable[[bytes, float], Signals]:
        """`read` for the pages of one engine, which remembers where on them its signals stand."""
        places = SeriesPlaces()
        return lambda text, read_at: self._signals(self._wanted.find(text, places), read_at)

    def _signals(self, by_name: Mapping[str, Sequence[PrometheusSample]], read_at: float) -> Signals:
        values: dict[str, object] = {}
        for signal, several in self.sources.items():
            value = next((value for source in several if (value := _sane(source, by_name)) is not None), None)
            if value is not None:
                values[signal] = value
        missing = tuple(signal for signal in self.required if signal not in values)
        return msgspec.convert({**values, "read_at": read_at, "missing": missing}, Signals)


MAX_NUMBER: Final = 2.0**53
"""Largest number that is believed: above every possible count of tokens; floats represent all whole numbers up to here."""


def _sane(source: SignalSource, by_name: Mapping[str, Sequence[PrometheusSample]]) -> object:
    """The source's value; None (unknown) for a number that no engine can have counted: the page is another program's or broken."""
    try:
        value = _value(source, by_name)
    except (OverflowError, ValueError):
        return None
    if isinstance(value, int | float) and not 0 <= value <= MAX_NUMBER:
        return None
    return value


def _value(source: SignalSource, by_name: Mapping[str, Sequence[PrometheusSample]]) -> object:
    samples = next((by_name[name] for name in source.names if name in by_name), None)
    value = source.fold(samples) if samples is not None else None
    if source.other is None or value is None:
        return value
    second = total()(by_name.get(source.other, ()))
    try:
        return None if second is None else source.join(value, second)
    except ZeroDivisionError:
        return None


def total(**labels: str) -> Callable[[Sequence[PrometheusSample]], int | None]:
    """The sum of the samples that carry these labels; data-parallel engines report one sample per rank."""

    def fold(samples: Sequence[PrometheusSample]) -> int | None:
        matching = [s.value for s in samples if all(s.labels.get(name) == value for name, value in labels.items())]
        return int(sum(matching)) if matching else None

    return fold


def mean(samples: Sequence[PrometheusSample]) -> float | None:
    """The mean of the samples."""
    return sum(s.value for s in samples) / len(samples) if samples else None


def first(samples: Sequence[PrometheusSample]) -> float:
    """The first sample's value."""
    return samples[0].value


def whole(samples: Sequence[PrometheusSample]) -> int:
    """The first sample's value as a whole number."""
    return int(samples[0].value)


def label(name: str) -> Callable[[Sequence[PrometheusSample]], int | None]:
    """A whole number in a label of an info series."""

    def fold(samples: Sequence[PrometheusSample]) -> int | None:
        for sample in samples:
            text = sample.labels.get(name, "")
            if text.isdecimal():
                return int(text)
        return None

    return fold


def product(*names: str) -> Callable[[Sequence[PrometheusSample]], int | None]:
    """The product of whole numbers in labels of an info series, summed over samples."""

    def fold(samples: Sequence[PrometheusSample]) -> int | None:
        sums = []
        for sample in samples:
            texts = [sample.labels.get(name, "") for name in names]
            if all(text.isdecimal() for text in texts):
                sums.append(prod(map(int, texts)))
        return sum(sums) if sums else None

    return fold


def words(*names: str) -> Callable[[Sequence[PrometheusSample]], tuple[str, ...] | None]:
    """Names in comma-separated labels of the sample with the highest value: engines use time stamps as values there."""

    def fold(samples: Sequence[PrometheusSample]) -> tuple[str, ...] | None:
        newest = max(samples, key=lambda sample: sample.value)
        listed = {word for name in names for word in newest.labels.get(name, "").split(",") if word}
        return tuple(sorted(listed))

    return fold


def none_set(**labels: str) -> Callable[[Sequence[PrometheusSample]], bool | None]:
    """True when the sample with these labels is 0."""

    def fold(samples: Sequence[PrometheusSample]) -> bool | None:
        matching = [s.value for s in samples if all(s.labels.get(name) == value for name, value in labels.items())]
        return all(value == 0.0 for value in matching) if matching else None

    return fold


MEASURED_BUSY_S: Final = 0.2
"""Least prefill time over which a rate is measured: a few batches, so that one unusual batch does not set the rate."""


class PrefillRate(msgspec.Struct, frozen=True):
    """The prefill speed of one engine, and the reading from which the next one is measured."""

    since: Signals
    tokens_per_s: float | None = None
    """Prompt tokens computed per second of prefill; None until enough was computed, and again after a restart."""


def measured(known: PrefillRate | None, now: Signals) -> PrefillRate:
    """The rate after one more reading: tokens over busy seconds, both differences of the engine's own counters.

    Time in which nothing was prefilled does not count, so an idle engine keeps its rate. An engine that does not report its
    busy time has no rate: over wall-clock time the number would be its load and not its speed.
    """
    if known is None or restarted(known.since, now):
        return PrefillRate(now)
    before = known.since
    if before.prefill_tokens is None or before.prefill_busy_s is None:
        return PrefillRate(now)
    if now.prefill_tokens is None or now.prefill_busy_s is None:
        return known
    busy_s = now.prefill_busy_s - before.prefill_busy_s
    if busy_s < MEASURED_BUSY_S:
        return known
    return PrefillRate(now, (now.prefill_tokens - before.prefill_tokens) / busy_s)


class EngineLoadNow(msgspec.Struct, frozen=True):
    """An engine's probable load now; None is unknown and not zero."""

    running: int | None
    waiting: int | None


def standing(read: Signals, sent: int, ended: int, in_flight: int = 0) -> EngineLoadNow:
    """The load of the last reading, updated by the requests that one gateway sent and saw end since.

    Where requests wait, the batch is full: a new request joins the queue, and one that ends lets the queue move up. Where none waits, a
    new request joins the batch. The total is never below that gateway's own `in_flight`: SGLang counts a request in its first prefill
    neither as running nor as waiting (0.5.23, read and pushed alike).
    """
    running = read.running
    waiting = read.waiting
    if running is None or waiting is None:
        return EngineLoadNow(running, waiting)
    all_now = max(in_flight, running + waiting + sent - ended, 0)
    running_now = min(running, all_now) if waiting else all_now
    return EngineLoadNow(running_now, all_now - running_now)
