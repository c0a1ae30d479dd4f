"""ServeGen's profiles of real tenants (Alibaba Model Studio): JSON lines, one client each, with rates and distributions by window.

    {"client": 0, "window_s": 600, "rate": [[window_start_s, requests_per_s, cv, "Gamma"|"Weibull", shape, scale], ...],
     "lengths": {"129600": {"input_tokens": [quantiles..., mean, max], "output_tokens": [...]}, ...}}

Arrivals are drawn: the gaps of a window follow its distribution and are scaled to its rate. The busiest hour of the sum of all clients is
replayed, because idle nights do not test routing. Source: alibaba/ServeGen, as condensed per client.
"""

from collections import defaultdict
from pathlib import Path
from typing import Final

import msgspec

from domain.clock import Rng
from routing.simulation.draws import from_quantiles, gamma_draw, weibull
from routing.simulation.traces.lines import rows, wrong
from routing.simulation.turns import BLOCK_TOKENS, Dice, TraceRequest, Workload, fresh_chain

WINDOWS: Final = 6
"""Windows replayed: an hour of ten minutes each."""
MAX_TURNS: Final = 5_000_000
"""Requests at most: more means a wrong rate, and would not fit into memory."""


class LengthQuantiles(msgspec.Struct):
    """Quantile vectors of one period."""

    input_tokens: list[float]
    output_tokens: list[float]


class Client(msgspec.Struct):
    """One line of the trace: a client."""

    client: int
    window_s: float
    rate: list[tuple[float, float, float, str, float, float]]
    lengths: dict[str, LengthQuantiles] | None


def knows(head: bytes) -> bool:
    """Whether a first line is of this kind."""
    return b'"rate"' in head and b'"lengths"' in head


def read(files: list[Path], dice: Dice) -> Workload:
    """The requests of the busiest hour. Raises TraceError."""
    clients: list[Client] = []
    without = 0
    for file in files:
        for number, row in rows(file, Client):
            if not row.lengths:
                without += 1
                continue
            for lengths in row.lengths.values():
                if len(lengths.input_tokens) != 16 or len(lengths.output_tokens) != 16:
                    raise wrong(file, number, "needs 16 numbers per quantile vector: 14 quantiles, mean, maximum")
            clients.append(row)
    start = _busiest(clients)
    notes = [f"the busiest hour, from second {start:g}", "no prefixes are known: no two requests share one"]
    if without:
        notes.append(f"{without} clients without lengths were left out")
    turns: list[TraceRequest] = []
    for client in clients:
        turns += _arrivals(client, start, dice(f"servegen {client.client}"))
        if len(turns) > MAX_TURNS:
            raise wrong(files[0], 1, f"more than {MAX_TURNS} requests in an hour")
    turns.sort(key=lambda turn: turn.at_s)
    return Workload("servegen", turns, notes=notes)


def _busiest(clients: list[Client]) -> float:
    sums: defaultdict[float, float] = defaultdict(float)
    width = clients[0].window_s if clients else 600.0
    for client in clients:
        for window in client.rate:
            sums[window[0]] += window[1]
    return max(sums, key=lambda t: (sum(sums.get(t + i * width, 0.0) for i in range(WINDOWS)), -t), default=0.0)


def _arrivals(client: Client, start: float, rng: Rng) -> list[TraceRequest]:
    assert client.lengths
    turns: list[TraceRequest] = []
    known = sorted((float(at), lengths) for at, lengths in client.lengths.items())
    for begin, rate, _, law, shape, scale in client.rate:
        if not start <= begin < start + WINDOWS * client.window_s:
            continue
        draw = weibull if law == "Weibull" else gamma_draw
        gaps = [draw(rng, shape, scale) for _ in range(max(1, round(rate * client.window_s)))]
        stretch = client.window_s / (sum(gaps) or 1.0)
        lengths = min(known, key=lambda span: (span[0] > begin, abs(span[0] - begin)))[1]
        at = begin - start
        for gap in gaps:
            at += gap * stretch
            prompt = max(1, round(from_quantiles(rng, _with_max(lengths.input_tokens))))
            output = max(1, round(from_quantiles(rng, _with_max(lengths.output_tokens))))
            turns.append(
                TraceRequest(
                    at, prompt, output, fresh_chain(prompt, BLOCK_TOKENS, 13, client.client, len(turns)), f"client-{client.client}"
                )
            )
    return turns


def _with_max(vector: list[float]) -> list[float]:
    return [*vector[:14], vector[15]]
