"""`python -m bench.fleet.holding --traces FOLDER`: what holding requests in the gateway brings near saturation, for one tenant and for 20.

The default policy alone, with the hold and without. Twenty tenants: each conversation, or each request that belongs to none, is of one of
twenty tenants at random, by Zipf, so that the largest sends more than a quarter of the traffic. Every figure
is the mean over the seeds; `worst` is the mean time to the first token of the tenant that has the longest, over that of all.
"""

import argparse
import os
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bench.fleet.workloads import CASES, dice, source
from bench.results_file import Row, refresh, write_rows
from routing.policy_instance import policy_instance
from routing.simulation.draws import zipf, zipf_weights
from routing.simulation.figures import figures
from routing.simulation.fleet import SimulatedFleet
from routing.simulation.fleet_file import FleetFile
from routing.simulation.outcomes import RequestEnd
from routing.simulation.turns import Workload

LINES: Final = (
    ("conversation", 1.5),
    ("conversation", 1.9),
    ("no-sharing", 1.2),
    ("no-sharing", 1.4),
    ("shared-prefix", 2.0),
    ("agents", 1.5),
)
"""Workloads, and arrivals times so much."""
TENANTS: Final = 20


class Run(NamedTuple):
    line: tuple[str, float]
    tenants: int
    hold: bool
    seed: int


def of_tenants(workload: Workload, tenants: int, seed: int) -> Workload:
    """The workload with its requests dealt to tenants."""
    rng, weights = dice(seed)("tenants"), zipf_weights(tenants)
    owner: defaultdict[int, str] = defaultdict(lambda: f"tenant-{zipf(rng, weights)}")
    turns = [msgspec.structs.replace(turn, tenant=owner[turn.session or -at - 1]) for at, turn in enumerate(workload.turns)]
    return Workload(workload.name, turns, workload.block_tokens, workload.notes)


def measured(run: Run, traces: Path, limit: int) -> tuple[float, float, float, float]:
    """Mean and 99th percentile of the time to the first token, the worst tenant's mean over the mean, and the hit rate."""
    case = next(case for case in CASES if case.name == run.line[0])
    workload = source(case, traces, run.line[1], limit, dice(run.seed))
    assert workload is not None, f"{traces} has no {case.source}"
    workload = of_tenants(workload, run.tenants, run.seed)
    fleet = FleetFile.model_validate(case.fleet if run.hold else {**case.fleet, "hold_s": 0})
    outcomes = SimulatedFleet(fleet, workload, partial(policy_instance, "predicted_latency"), dice(run.seed)).run()
    found = figures(workload, fleet, outcomes)
    of: defaultdict[str, list[float]] = defaultdict(list)
    for at, turn in enumerate(workload.turns):
        if outcomes.state[at] is RequestEnd.DONE:
            of[turn.tenant].append(outcomes.first[at] - outcomes.arrived[at])
    worst = max(sum(seconds) / len(seconds) for seconds in of.values() if len(seconds) >= 20)
    return found.ttft_mean_s, found.ttft_p99_s, worst / found.ttft_mean_s, found.hit_rate


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet.holding", description=__doc__)
    parser.add_argument("--traces", type=Path, required=True, help="folder with the public traces")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--limit", type=int, default=2_000, help="requests per run at most")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    runs = [Run(line, tenants, hold, seed) for line in LINES for tenants in (1, TENANTS) for hold in (False, True) for seed in seeds]
    with ProcessPoolExecutor(arguments.jobs) as processes:
        found = dict(zip(runs, processes.map(partial(measured, traces=arguments.traces, limit=arguments.limit), runs), strict=True))
    head = "| line | tenants | mean s, without | with | p99 s, without | with | worst tenant, without | with | hit rate, without | with |"
    lines = [
        f"`{parser.prog}`, simulated, seeds {seeds[0]} to {seeds[-1]}, the first {arguments.limit:,} requests.",
        "",
        head,
        "|---|" + "---|" * 9,
    ]
    rows: list[Row] = []
    for line in LINES:
        for tenants in (1, TENANTS):
            cells = []
            for at, (name, unit) in enumerate(
                (("ttft_mean_s", "s"), ("ttft_p99_s", "s"), ("worst_tenant", "ratio"), ("hit_rate", "share"))
            ):
                for hold in (False, True):
                    value = sum(found[Run(line, tenants, hold, seed)][at] for seed in seeds) / len(seeds)
                    cells.append(f"{value:.3g}")
                    subject = "hold" if hold else "none"
                    rows.append(Row(metric=f"{name}:{line[0]}@{line[1]}/{tenants}", subject=subject, value=value, unit=unit, n=len(seeds)))
            lines.append(f"| {line[0]} x{line[1]} | {tenants} | " + " | ".join(cells) + " |")
    print("\n".join(lines))
    refresh("holding", "\n".join(lines))
    write_rows("holding", rows)


if __name__ == "__main__":
    main()
