"""How far to believe the simulated engine: what real vLLM did with 300 requests on two machines, and what the simulation makes of them.

`python -m bench.fleet.recorded_engines --data FOLDER`; the folder has `workload_llama31_8b.jsonl.gz` and, for each machine, what vLLM
0.19 told of each request (`…_requests.jsonl.gz`: arrival, first and last token) and its settings. The requests are of ShareGPT, ten a
second, and each is given to the simulated engine with the tokens and at the moment that vLLM had it.

Constants are compared in two ways. `as used` are those of `routing.simulation.timing.CLASSES`, which were found by hand on all requests.
`first half` are found here by a search on the requests that arrived first, whose error is as small as the model allows; what it says of the
requests that came later, in another state of the engine, is a prediction.
"""

import argparse
import gzip
import heapq
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bench.results_file import Row, machine, refresh, write_rows
from routing.prefix.chain import of_tokens, root
from routing.simulation.decoders import Decoding
from routing.simulation.engine import IDLE, SimulatedEngine
from routing.simulation.timing import CLASSES, StepTiming

MACHINES: Final = {"RTXPRO6000": "rtx-pro-6000-8b", "RTX4090": "rtx-4090-8b"}
"""The classes of machine of the simulator that the recordings are of, by the recordings' names."""
WORKLOAD: Final = "workload_llama31_8b.jsonl.gz"
FILES: Final = (WORKLOAD, *(f"{name}_{part}" for name in MACHINES for part in ("requests.jsonl.gz", "meta.json")))
BLOCK_TOKENS: Final = 64
STEPS: Final = (2.0, 1.5, 1.2, 1.07, 1.03)
"""Factors by which the search changes one constant at a time, each until nothing gets better."""
SEARCHED: Final = ("c0", "c1", "c2", "c3")


class RecordedRequest(NamedTuple):
    """One request, as vLLM had it and as it answered it; seconds since the first one."""

    at_s: float
    tokens: list[int]
    output: int
    first_s: float
    last_s: float


class Outcome(NamedTuple):
    """When the first and the last token of each request came; seconds since the first request."""

    first_s: list[float]
    last_s: list[float]


class Summary(NamedTuple):
    """Figures over some requests."""

    ttft_mean: float
    ttft_p50: float
    ttft_p90: float
    tpot_mean: float
    """Milliseconds per output token after the first."""


class EngineLimits(NamedTuple):
    """vLLM's settings."""

    max_num_seqs: int
    token_budget: int


def recorded(data: Path, name: str) -> tuple[list[RecordedRequest], EngineLimits]:
    """The requests of one machine in order of arrival, and its engine's settings. Raises OSError, KeyError."""
    with gzip.open(data / WORKLOAD, "rt") as lines:
        tokens = [json.loads(line)["input_tok_ids"] for line in lines]
    with gzip.open(data / f"{name}_requests.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    kwargs = json.loads((data / f"{name}_meta.json").read_text())["engine_kwargs"]
    begun = min(row["queued_ts"] for row in rows)
    requests = [
        RecordedRequest(
            row["queued_ts"] - begun,
            tokens[int(row["request_id"].removeprefix("bench-"))],
            row["output_toks"],
            row["first_token_ts"] - begun,
            row["last_token_ts"] - begun,
        )
        for row in rows
    ]
    return sorted(requests), EngineLimits(kwargs["max_num_seqs"], kwargs["max_num_batched_tokens"])


def chains_of(requests: Sequence[RecordedRequest]) -> list[list[int]]:
    """The hashes of the prompts' blocks."""
    start = root("llama", "", "", bytes(16))
    return [of_tokens(start, request.tokens, BLOCK_TOKENS) for request in requests]


def simulated(requests: Sequence[RecordedRequest], chains: Sequence[list[int]], timing: StepTiming, limits: EngineLimits) -> Outcome:
    """What the simulated engine does with these requests."""
    first, last = [math.nan] * len(requests), [math.nan] * len(requests)
    engine = SimulatedEngine(
        timing,
        BLOCK_TOKENS,
        max_num_seqs=limits.max_num_seqs,
        token_budget=limits.token_budget,
        begun=lambda run, now: first.__setitem__(run.order, now),
        ended=lambda run, now: last.__setitem__(run.order, now),
    )
    to_come = [(request.at_s, order) for order, request in enumerate(requests)]
    heapq.heapify(to_come)
    while to_come or engine.until != IDLE:
        if to_come and to_come[0][0] <= engine.until:
            now, order = heapq.heappop(to_come)
            request = requests[order]
            engine.submit(Decoding(None, len(request.tokens), request.output, chains[order], order), now)
        else:
            engine.advance()
    return Outcome(first, last)


def summary(requests: Sequence[RecordedRequest], outcome: Outcome, those: range) -> Summary:
    """Figures over the requests at these places."""
    ttft = [outcome.first_s[at] - requests[at].at_s for at in those]
    tpot = [(outcome.last_s[at] - outcome.first_s[at]) / (requests[at].output - 1) for at in those if requests[at].output > 1]
    deciles = statistics.quantiles(ttft, n=10)
    return Summary(statistics.fmean(ttft), statistics.median(ttft), deciles[8], 1e3 * statistics.fmean(tpot))


def error(found: Summary, real: Summary) -> float:
    """How far a simulation is from what was: the mean of the ratios' absolute logarithms, over the mean and the ninth decile of the time to
    the first token and the mean time per token."""
    pairs = zip(found, real, strict=True)
    logs = [abs(math.log(one / other)) for one, other in pairs]
    return statistics.fmean([logs[0], logs[2], logs[3]])


def fitted(
    requests: Sequence[RecordedRequest], chains: Sequence[list[int]], start: StepTiming, limits: EngineLimits, those: range
) -> StepTiming:
    """The constants with the smallest `error` over some requests that a search from `start` finds."""
    real = summary(requests, Outcome([r.first_s for r in requests], [r.last_s for r in requests]), those)

    def of(timing: StepTiming) -> float:
        return error(summary(requests, simulated(requests, chains, timing, limits), those), real)

    best, least = start, of(start)
    for step in STEPS:
        better = True
        while better:
            better = False
            for name in SEARCHED:
                for factor in (step, 1 / step):
                    tried = msgspec.structs.replace(best, **{name: getattr(best, name) * factor})
                    if (found := of(tried)) < least - 1e-6:
                        best, least, better = tried, found, True
    return best


def order_kept(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation, 1 for the same order."""

    def ranks(values: Sequence[float]) -> list[int]:
        out = [0] * len(values)
        for rank, at in enumerate(sorted(range(len(values)), key=values.__getitem__)):
            out[at] = rank
        return out

    return statistics.correlation(ranks(one), ranks(other))


def lines_of(data: Path, name: str) -> list[tuple[str, str, float, Summary, Summary, float]]:
    """A row for each set of constants and half of the requests: machine, constants, half, real, simulated, order kept."""
    requests, limits = recorded(data, name)
    chains = chains_of(requests)
    half = len(requests) // 2
    was = Outcome([request.first_s for request in requests], [request.last_s for request in requests])
    used = CLASSES[MACHINES[name]]
    # far from what was found by hand, so that the search finds something of its own
    start = msgspec.structs.replace(CLASSES["h100-8b"].times(2.0), kv_tokens=used.kv_tokens)
    out = []
    for constants, timing in (("as used", used), ("first half", fitted(requests, chains, start, limits, range(half)))):
        found = simulated(requests, chains, timing, limits)
        for part, those in ((1.0, range(half)), (2.0, range(half, len(requests)))):
            ttfts = [[outcome.first_s[at] - requests[at].at_s for at in those] for outcome in (was, found)]
            row = summary(requests, was, those), summary(requests, found, those), order_kept(*ttfts)
            out.append((name, constants, part, *row))
    return out


def main() -> int:
    """Compare, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the recordings")
    data = parser.parse_args().data
    missing = [name for name in FILES if not (data / name).exists()]
    if missing:
        parser.error(f"{data} has no {missing[0]}; the folder needs {', '.join(FILES)}")
    lines = [
        "| machine | constants | requests | TTFT mean s, real / simulated | median | p90 | ms a token | order kept |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows: list[Row] = []
    for name in MACHINES:
        for of, constants, part, real, found, kept in lines_of(data, name):
            halves = {1.0: "1 to 150", 2.0: "151 to 300"}
            pairs = " | ".join(f"{one:.3g} / {other:.3g}" for one, other in zip(real, found, strict=True))
            lines.append(f"| {of} | {constants} | {halves[part]} | {pairs} | {kept:.2f} |")
            subject = f"{of}, {constants}, {halves[part]}"
            ratios = zip(Summary._fields, found, real, strict=True)
            rows += [Row(metric=metric, subject=subject, value=round(one / other, 4), unit="ratio", n=1) for metric, one, other in ratios]
    write_rows("recorded_engines", rows)
    lines.append(f"\n{machine()}.")
    refresh("recorded-engines", "\n".join(lines))
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
