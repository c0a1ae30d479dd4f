"""`python -m bench.plan`: whether a plan of `tidegate plan` holds on traffic that it has not seen, and how far it moves.

Each workload is planned with three seeds. The number found is then simulated with ten other seeds, which draw the traffic anew from
the same laws; and the plan is repeated with a fifth more traffic, and with prompts that take 0.6 and 1.6 times as long.
"""

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Final

import msgspec

from bench.results_file import Row, machine, refresh, write_rows
from gateway.process.simulation_job import seeded, workload_of
from policies.routing_choice import DEFAULT_ROUTING, routing_of
from routing.simulation.fleet_file import Engines, FleetFile, Objective
from routing.simulation.plan import KindPlan, PlanExtras, PlannedKind, PlanTrial, plan_kind, simulated

WORKLOADS: Final = ("chat", "no-sharing", "shared-prefix-steady", "mixed-lengths")
REQUESTS: Final = 1500
SEEDS: Final = range(3)
UNSEEN: Final = range(100, 110)
ATTAIN: Final = 0.95
SLO: Final = Objective(ttft_s=1.0, tpot_s=0.05)
VARIANTS: Final = {"as it is": (1.0, 1.0), "traffic x 1.2": (1.2, 1.0), "prompts x 0.6": (1.0, 0.6), "prompts x 1.6": (1.0, 1.6)}


class Planned(msgspec.Struct):
    """What came of one workload."""

    workload: str
    least: dict[str, int]
    """By variant; 0 where no number meets the objectives."""
    fewer: float
    """The least share over the planned seeds with one engine fewer."""
    unseen: list[float]
    """Shares that met the objectives with the number found, on unseen seeds."""
    seconds: float
    """How long the plan took as it is, on one core."""


def run(workload: str, seed: int, engines: int, speed: float, prompts: float) -> PlanTrial:
    kind = kind_of(prompts)
    made = workload_of(workload, kind.fleet, seeded(seed), speed, REQUESTS)
    return simulated(kind, engines, made, routing_of(DEFAULT_ROUTING).policy_instance, seeded(seed))


def kind_of(prompts: float) -> PlannedKind:
    return PlannedKind("h100-8b", FleetFile(engines=[Engines(machine="h100-8b", prefill_slower=prompts)], slo=SLO), "", 1)


def plan_of(workload: str, speed: float, prompts: float) -> KindPlan:
    kind = kind_of(prompts)
    made = workload_of(workload, kind.fleet, seeded(SEEDS[0]), speed, REQUESTS)
    return plan_kind(kind, made, ATTAIN, 128, PlanExtras(), lambda count: [run(workload, seed, count, speed, prompts) for seed in SEEDS])


def planned(workload: str) -> Planned:
    begun = time.process_time()
    plans = {"as it is": plan_of(workload, *VARIANTS["as it is"])}
    seconds = time.process_time() - begun
    plans |= {name: plan_of(workload, *variant) for name, variant in VARIANTS.items() if name not in plans}
    least = {name: found.least or 0 for name, found in plans.items()}
    fewer = plans["as it is"].at(least["as it is"] - 1)
    unseen = [run(workload, seed, least["as it is"], 1.0, 1.0).attained for seed in UNSEEN]
    return Planned(workload, least, 0.0 if fewer is None else fewer.worst, unseen, seconds)


def table(found: list[Planned]) -> list[str]:
    others = [name for name in VARIANTS if name != "as it is"]
    lines = [
        f"| workload | engines | one fewer | unseen seeds that meet | worst of them | {' | '.join(others)} | seconds |",
        f"|---|---|---|---|---|{'---|' * len(others)}---|",
    ]
    for one in found:
        held = sum(share >= ATTAIN for share in one.unseen)
        moved = " | ".join(str(one.least[name] or "none") for name in others)
        unseen = f"{held} of {len(one.unseen)} | {min(one.unseen):.1%}"
        lines.append(f"| `{one.workload}` | {one.least['as it is']} | {one.fewer:.1%} | {unseen} | {moved} | {one.seconds:.0f} |")
    return lines


def rows(found: list[Planned]) -> list[Row]:
    kept = []
    for one in found:
        values = {f"engines:{name}": float(count) for name, count in one.least.items()}
        values |= {"unseen_worst": min(one.unseen), "unseen_meet": sum(share >= ATTAIN for share in one.unseen) / len(one.unseen)}
        kept += [
            Row(metric=f"{metric}:{one.workload}", subject="tidegate", value=round(value, 4), unit="", n=1)
            for metric, value in values.items()
        ]
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.plan", description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    arguments = parser.parse_args()
    with ProcessPoolExecutor(arguments.jobs) as processes:
        found = list(processes.map(planned, WORKLOADS))
    write_rows("plan", rows(found))
    lines = table(found)
    print("\n".join(lines))
    head = f"`python -m bench.plan`, simulated, the first {REQUESTS:,} requests; {machine()}."
    refresh("plan", "\n".join([head, "", *lines]))


if __name__ == "__main__":
    main()
