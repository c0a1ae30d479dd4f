"""The panels of the dashboards asked of a Prometheus, for the console: their own queries and no other ones, with bounds on everything.

`PanelReader` makes the questions of a panel and of a variable's values, and reads the answers; `HttpPrometheus` sends them. What is asked
comes from `boards.py`; a viewer chooses the time and values of the variables, which stand in the queries as quoted texts.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

import msgspec

from domain.clock import WallClock
from gateway.config.trust import verify_for
from gateway.dashboards.grafana import FROM
from gateway.dashboards.panels import Dashboard, Panel, named, pattern_of, promql

WITHIN_S: Final = 10.0
"""Longest wait for all that a panel needs, the wait for its turn included; a person looks at an empty chart for no longer."""
AT_ONCE: Final = 4
"""Panels that are asked for at once: a page has thirty, and Prometheus serves others too. Its own bound is 20 queries."""
MAX_BYTES: Final = 4 * 1024**2
"""The bound on one answer: 40 series of 1,000 points are 1.2 MB."""
MAX_POINTS: Final = 1000
"""Points of a line; a chart is not wider. Prometheus refuses more than 11,000."""
USUAL_POINTS: Final = 240
MAX_RANGE_S: Final = 31 * 86_400
MIN_RANGE_S: Final = 60
MAX_SERIES: Final = 24
"""Series of one panel: those with the largest values. More lines cannot be told apart."""
MAX_CHOICES: Final = 500
"""Values of one variable to choose from: the bound on labels of our metrics."""
SCRAPES: Final = 4
"""A rate is over so many scrapes at least, as Grafana's `$__rate_interval`: two of them may be missing."""
PRESENT_S: Final = 300
"""The window of rates in panels of present values."""
MAX_REASON_CHARS: Final = 300

T = TypeVar("T")


class PrometheusAway(Exception):
    """Prometheus gave no usable answer; the message says why, as the rest of a sentence that begins with `Prometheus`."""


class AsksPrometheus(Protocol):
    """Sends one question."""

    async def get(self, path: str, params: list[tuple[str, str]]) -> tuple[int, bytes]:
        """Status and body of the answer. Raises PrometheusAway."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class Span(msgspec.Struct, frozen=True):
    """The time that a viewer looks at."""

    end_s: float
    """Seconds since the epoch."""
    range_s: float
    step_s: float

    @property
    def times(self) -> list[float]:
        """The moments of its points: multiples of the step, so that a chart stands still between two looks."""
        points = int(self.range_s // self.step_s)
        last_s = self.end_s // self.step_s * self.step_s
        return [last_s - self.step_s * (points - at) for at in range(points + 1)]


class PanelSeries(msgspec.Struct, frozen=True):
    """One line of a panel, or one of its present values."""

    label: str
    values: list[float | None]
    """One for each moment; None where there is no value."""


class PanelData(msgspec.Struct, frozen=True):
    """What a panel shows."""

    times: list[float]
    """Seconds since the epoch; the end alone, where it shows present values."""
    series: list[PanelSeries]
    left_out: int
    """Series beyond `MAX_SERIES`."""
    step_s: float


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []
    value: tuple[float, str] | None = None


class _QueryResult(msgspec.Struct):
    result: list[_Series]


class _Queried(msgspec.Struct):
    data: _QueryResult


class _Listed(msgspec.Struct):
    data: list[str]


class _Refused(msgspec.Struct):
    error: str = ""


class PanelReader:
    """Asks Prometheus for panels.

    Args:
        prometheus: sends the questions.
        scrape_s: seconds between two scrapes.
        wall: seconds since the epoch.
        within_s: longest wait for a panel.
    """

    def __init__(self, prometheus: AsksPrometheus, scrape_s: float, wall: WallClock, within_s: float = WITHIN_S) -> None:
        self._prometheus = prometheus
        self._scrape_s = scrape_s
        self._wall = wall
        self._within_s = within_s
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def close(self) -> None:
        """Close the connections."""
        await self._prometheus.close()

    def span(self, range_s: float, step_s: float | None = None, end_s: float | None = None) -> Span:
        """The span of so many seconds up to a moment, or up to now. Raises ValueError where it has more than `MAX_POINTS` points."""
        step = max(self._scrape_s, math.ceil(range_s / USUAL_POINTS)) if step_s is None else step_s
        if range_s / step > MAX_POINTS:
            raise ValueError(f"{range_s:g} s in steps of {step:g} s are more than {MAX_POINTS} points")
        return Span(self._wall() if end_s is None else end_s, range_s, step)

    async def panel(self, panel: Panel, span: Span, chosen: Mapping[str, list[str]]) -> PanelData:
        """What a panel shows. Raises PrometheusAway.

        Args:
            chosen: values of the variables; every value of those that are not there.
        """
        window_s = max(SCRAPES * self._scrape_s, span.step_s if panel.over_time else PRESENT_S)
        patterns = {name: pattern_of(values) for name, values in chosen.items()}
        queries = [promql(query.expr, f"{math.ceil(window_s)}s", **patterns) for query in panel.queries]

        async def asked() -> list[bytes]:
            return [await self._answer(*_question(query, span, over_time=panel.over_time)) for query in queries]

        answers = await self._in_turn(asked)
        # off the loop: megabytes of JSON take it for longer than a probe should wait
        return await asyncio.to_thread(_data, panel, span, answers)

    async def choices(self, board: Dashboard, span: Span) -> dict[str, list[str]]:
        """The values that each variable of a dashboard had in that time. Raises PrometheusAway."""

        async def asked() -> dict[str, bytes]:
            time = [("start", f"{span.end_s - span.range_s:.3f}"), ("end", f"{span.end_s:.3f}"), ("limit", str(MAX_CHOICES))]
            paths = {name: f"/api/v1/label/{name}/values" for name in board.choices}
            return {name: await self._answer(path, [("match[]", FROM[name]), *time]) for name, path in paths.items()}

        answers = await self._in_turn(asked)
        return {name: sorted(_read(answer, _Listed).data)[:MAX_CHOICES] for name, answer in answers.items()}

    async def _in_turn(self, asked: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(self._within_s), self._turns:
                return await asked()
        except TimeoutError:
            raise PrometheusAway(f"did not answer within {self._within_s:g} s") from None

    async def _answer(self, path: str, params: list[tuple[str, str]]) -> bytes:
        status, body = await self._prometheus.get(path, params)
        if status != 200:
            raise PrometheusAway(f"answered {status}{_reason(body)}")
        return body


async def line_of(prometheus: AsksPrometheus, query: str, start_s: float, end_s: float, step_s: float) -> list[tuple[float, float]]:
    """The points of a query with one series, each with its moment; those that are no number are left out. Raises PrometheusAway."""
    asked = [("query", query), ("start", f"{start_s:.3f}"), ("end", f"{end_s:.3f}"), ("step", f"{step_s:g}")]
    try:
        async with asyncio.timeout(WITHIN_S):
            status, body = await prometheus.get("/api/v1/query_range", asked)
    except TimeoutError:
        raise PrometheusAway(f"did not answer within {WITHIN_S:g} s") from None
    if status != 200:
        raise PrometheusAway(f"answered {status}{_reason(body)}")
    points = [point for series in _read(body, _Queried).data.result for point in series.values]
    return [(moment, number) for moment, text in points if (number := _number(text)) is not None]


def _question(query: str, span: Span, *, over_time: bool) -> tuple[str, list[tuple[str, str]]]:
    if not over_time:
        return "/api/v1/query", [("query", query), ("time", f"{span.end_s:.3f}")]
    times = span.times
    asked = {"query": query, "start": f"{times[0]:.3f}", "end": f"{times[-1]:.3f}", "step": f"{span.step_s:g}"}
    return "/api/v1/query_range", list(asked.items())


def _reason(body: bytes) -> str:
    """The error that an answer names, on one line; empty where it is none of Prometheus."""
    try:
        error = msgspec.json.decode(body, type=_Refused).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    text = "".join(char if char.isprintable() else " " for char in error[:MAX_REASON_CHARS])
    return f": {text}" if text else ""


def _read(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise PrometheusAway("sent an answer that is none of Prometheus's API") from None


def _data(panel: Panel, span: Span, answers: list[bytes]) -> PanelData:
    times = span.times if panel.over_time else [span.end_s]
    found: list[PanelSeries] = []
    taken: set[str] = set()
    for query, answer in zip(panel.queries, answers, strict=True):
        for one in _read(answer, _Queried).data.result:
            points = one.values if panel.over_time else [one.value] if one.value is not None else []
            values: list[float | None] = [None] * len(times)
            for moment, text in points:
                at = round((moment - times[0]) / span.step_s)
                if 0 <= at < len(values):
                    values[at] = _number(text)
            found.append(PanelSeries(_another(named(query.legend, one.metric) or panel.title, taken), values))
    largest = sorted(found, key=lambda series: -max((value for value in series.values if value is not None), default=-math.inf))
    kept = {id(series) for series in largest[:MAX_SERIES]}
    shown = [series for series in found if id(series) in kept]
    return PanelData(times, shown, len(found) - len(shown), span.step_s)


def _another(label: str, taken: set[str]) -> str:
    """The label, with a number where another series of the panel has it already."""
    at, unlike = 1, label
    while unlike in taken:
        at += 1
        unlike = f"{label} ({at})"
    taken.add(unlike)
    return unlike


def _number(text: str) -> float | None:
    """The value of a point; None where it is no number: nothing divided by nothing is NaN."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


class HttpPrometheus:
    """A Prometheus at an address; any program with its API, as Thanos and Mimir have it.

    Args:
        url: without a slash at its end.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Any = None

    async def get(self, path: str, params: list[tuple[str, str]]) -> tuple[int, bytes]:
        """Status and body of the answer; a redirect is an answer too."""
        # imported only here: most gateways name no Prometheus, and the import takes longer than a start should
        import httpx

        if self._client is None:
            self._client = httpx.AsyncClient(timeout=WITHIN_S, trust_env=False, verify=verify_for(self._url))
        try:
            async with self._client.stream("GET", self._url + path, params=params) as reply:
                body = bytearray()
                async for part in reply.aiter_bytes():
                    body += part
                    if len(body) > MAX_BYTES:
                        raise PrometheusAway(f"sent more than {MAX_BYTES // 1024**2} MiB: choose a shorter time or fewer values")
                return reply.status_code, bytes(body)
        except httpx.TimeoutException:
            raise PrometheusAway(f"did not answer within {WITHIN_S:g} s") from None
        except httpx.HTTPError as error:
            raise PrometheusAway(f"cannot be reached ({type(error).__name__})") from None

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
