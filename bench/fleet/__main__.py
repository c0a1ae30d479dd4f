"""`python -m bench.fleet --traces FOLDER`: every policy on every workload at three loads, simulated; rows for bench/results/fleet.json and
the tables in docs/numbers.md.

The rows of architecture.md (`ttft_mean_s:W` and so on) are those of the middle load; `@low` and `@high` follow the workload's name for the
others. `--sensitivity` repeats the middle load with prompts 0.6 and 1.6 times as dear (`@0.6`, `@1.6`), `--stale` with metrics that are
1 s old (`@stale`); both for the default and its `RIVALS` only.
"""

import argparse
import os
import random
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.fleet.page import text
from bench.fleet.workloads import CASES, Case, source
from bench.results_file import Row, read_rows, refresh, rows_of, write_rows
from domain.clock import Rng
from routing.policy_instance import policy_instance
from routing.registry import POLICIES
from routing.simulation.comparison import Result, compare
from routing.simulation.fleet_file import FleetFile
from routing.simulation.turns import Dice, Workload

RIVALS = ("predicted_latency", "lmetric", "smg_cache_aware", "dynamo_cost", "llmd_223", "least_load")
"""Who runs again in the variants: the default, and who was best somewhere without it."""

METRICS = {
    "ttft_mean_s": "s",
    "ttft_p99_s": "s",
    "goodput": "share",
    "hit_rate": "share",
    "hotspot": "ratio",
    "jain": "index",
}


def dice(seed: int) -> Dice:
    def one(name: str) -> Rng:
        return random.Random(f"{seed} {name}")

    return one


class Variant(NamedTuple):
    """One comparison to make."""

    case: Case
    suffix: str
    """After the workload's name."""
    speed: float
    fleet: Mapping[str, Any]
    rivals_only: bool = False


def variants(case: Case, arguments: argparse.Namespace) -> list[Variant]:
    """The middle load first."""
    low, middle, high = case.speeds
    found = [Variant(case, "", middle, case.fleet), Variant(case, "@low", low, case.fleet), Variant(case, "@high", high, case.fleet)]
    if arguments.sensitivity:
        for factor in (0.6, 1.6):
            engines = [{**kind, "prefill_slower": factor} for kind in case.fleet["engines"]]
            found.append(Variant(case, f"@{factor}", middle, {**case.fleet, "engines": engines}, rivals_only=True))
    if arguments.stale:
        found.append(Variant(case, "@stale", middle, {**case.fleet, "signals": {"every_s": 0.1, "delay_s": 1.0}}, rivals_only=True))
    return found


def ran(variant: Variant, arguments: argparse.Namespace) -> tuple[Result | None, float]:
    """The comparison, and the CPU it took; None where its trace is not here."""
    began = time.process_time()
    made: list[Workload] = []
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        workload = source(variant.case, arguments.traces, variant.speed, arguments.limit, dice(seed))
        if workload is None:
            return None, 0.0
        made.append(workload)
    left = iter(made)
    names = [one for one in arguments.policies.split(",") if not variant.rivals_only or one in RIVALS]
    policies = {name: partial(policy_instance, name) for name in names}
    seeds = [dice(arguments.first_seed + seed) for seed in range(arguments.seeds)]
    result = compare(lambda _: next(left), FleetFile.model_validate(variant.fleet), policies, seeds, lambda policy, seed, done: None)
    return result, time.process_time() - began


def noted(name: str, result: Result, took_s: float, measured: dict[tuple[str, str, str], list[float]]) -> None:
    """Print a comparison, and keep its figures."""
    print(f"{name}: {result.requests} requests, pooled hit rate {result.pooled_hit_rate:.3f}, {took_s:.0f} s of CPU")
    for one in result.policies:
        print(f"  {one.policy:20} " + "  ".join(f"{metric} {one.mean[metric]:.4g}" for metric in METRICS), flush=True)
        for metric, unit in METRICS.items():
            measured[f"{metric}:{name}", one.policy, unit] = [getattr(run, metric) for run in one.runs]
    measured[f"hit_rate:{name}", "pooled", "share"] = [result.pooled_hit_rate]


def workload_of(row: Row) -> str:
    """Without its variant."""
    return row["metric"].partition(":")[2].partition("@")[0]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    parser.add_argument("--traces", type=Path, help="folder with the public traces; workloads without theirs are left out")
    parser.add_argument("--workloads", default=",".join(case.name for case in CASES), help="rows of others stay as they are")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=10, help="not among those that chose the default's weights, which are 0 to 5")
    parser.add_argument("--limit", type=int, default=3_000, help="requests per run at most")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--sensitivity", action="store_true")
    parser.add_argument("--stale", action="store_true")
    parser.add_argument("--dry", action="store_true", help="print only, write no rows")
    arguments = parser.parse_args()
    wanted = arguments.workloads.split(",")
    todo = [variant for case in CASES if case.name in wanted for variant in variants(case, arguments)]
    measured: dict[tuple[str, str, str], list[float]] = {}
    with ProcessPoolExecutor(arguments.jobs) as processes:
        for variant, future in [(one, processes.submit(ran, one, arguments)) for one in todo]:
            result, took_s = future.result()
            if result is None:
                print(f"{variant.case.name}{variant.suffix}: no trace here, left out")
            else:
                noted(variant.case.name + variant.suffix, result, took_s, measured)
    if not arguments.dry:
        rows = [row for row in read_rows("fleet") if workload_of(row) not in wanted] + rows_of(measured)
        refresh("fleet", text(rows, seeds=arguments.seeds, limit=arguments.limit))
        print(f"wrote {write_rows('fleet', rows)}")


if __name__ == "__main__":
    main()
