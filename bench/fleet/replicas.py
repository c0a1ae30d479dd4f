"""`python -m bench.fleet.replicas --traces FOLDER`: one gateway process, and four before the same engines, with KV events and without.

The default policy alone. A replica knows of the other ones' requests what they tell it (load, and without events prompts), or nothing. The
arrivals of each line are about three quarters of what its fleet can do. Every figure is the mean over the seeds.
"""

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from bench.fleet.workloads import CASES, dice, source
from routing.policy_instance import policy_instance
from routing.simulation.figures import figures
from routing.simulation.fleet import SimulatedFleet
from routing.simulation.fleet_file import FleetFile
from routing.simulation.outcomes import RequestEnd

LINES: Final = {"conversation": 1.6, "shared-prefix": 1.5, "hot-prefix": 1.0}
"""Workloads, and arrivals times so much."""
SHARE_S: Final = 0.025


class Setting(NamedTuple):
    replicas: int
    events: bool
    share: bool

    @property
    def name(self) -> str:
        told = "" if self.replicas == 1 else ", told" if self.share else ", not told"
        return f"{self.replicas}, {'events' if self.events else 'no events'}{told}"


SETTINGS: Final = (
    Setting(1, False, False),
    Setting(4, False, False),
    Setting(4, False, True),
    Setting(1, True, False),
    Setting(4, True, False),
    Setting(4, True, True),
)


class Found(NamedTuple):
    """Figures of one run; times in seconds."""

    hit_rate: float
    ttft_mean_s: float
    ttft_p99_s: float
    done: int


def measured(run: tuple[str, Setting, int], traces: Path, limit: int) -> Found:
    """One line under one setting with one seed."""
    line, setting, seed = run
    case = next(case for case in CASES if case.name == line)
    workload = source(case, traces, LINES[line], limit, dice(seed))
    assert workload is not None, f"{traces} has no {case.source}"
    given = {"replicas": setting.replicas, "signals": {"kv_events": setting.events}, "siblings_s": SHARE_S if setting.share else 0.0}
    fleet = FleetFile.model_validate({**case.fleet, **given})
    outcomes = SimulatedFleet(fleet, workload, partial(policy_instance, "predicted_latency"), dice(seed)).run()
    found = figures(workload, fleet, outcomes)
    return Found(found.hit_rate, found.ttft_mean_s, found.ttft_p99_s, sum(state is RequestEnd.DONE for state in outcomes.state))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet.replicas", description=__doc__)
    parser.add_argument("--traces", type=Path, required=True, help="folder with the public traces")
    parser.add_argument("--lines", nargs="+", default=list(LINES), choices=list(LINES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=3_000, help="requests per run at most")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    runs = [(line, setting, seed) for line in arguments.lines for setting in SETTINGS for seed in seeds]
    print(
        "| workload | gateway processes | hit rate | mean s | p99 s | against one process: hit rate, p99 |\n|---|---|---|---|---|---|",
        flush=True,
    )
    with ProcessPoolExecutor(arguments.jobs) as pool:
        results = pool.map(partial(measured, traces=arguments.traces, limit=arguments.limit), runs)
        for line in arguments.lines:
            alone: dict[bool, Found] = {}
            for setting in SETTINGS:
                found = [next(results) for _ in seeds]
                mean = Found(*(sum(column) / len(found) for column in zip(*found, strict=True)))
                alone.setdefault(setting.events, mean)
                one = alone[setting.events]
                against = f"{mean.hit_rate / one.hit_rate - 1:+.1%}, {mean.ttft_p99_s / one.ttft_p99_s - 1:+.1%}"
                row = (line, setting.name, f"{mean.hit_rate:.3f}", f"{mean.ttft_mean_s:.3f}", f"{mean.ttft_p99_s:.3f}", against)
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
