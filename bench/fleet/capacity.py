"""`python -m bench.fleet.capacity --traces FOLDER`: the highest rate of arrivals that each workload's fleet follows.

Written to bench/fleet/capacity.json. A rate is followed where, in the middle of the run, 95 % of the requests and of the prompt tokens that
would begin on idle engines have begun. The default policy runs, on the open part and seed 0, with one replica and events; the rate is found
by bisection to 4 %.
"""

import argparse
import json
import math
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from bench.fleet.workloads import CAPACITIES, CASES, Case, case_of, dice, prepared
from routing.policy_instance import policy_instance
from routing.simulation.fleet import SimulatedFleet
from routing.simulation.fleet_file import FleetFile
from routing.simulation.turns import Workload

FOLLOWED: Final = 0.95
STEP: Final = 1.04
"""Ratio of the last rate that was not followed to the last that was, at most."""
WIDEST: Final = 64.0
"""Factor on a workload's own rate beyond which the search gives up."""


def due(workload: Workload, fleet: FleetFile) -> list[float]:
    """When each request would begin to answer if engines were idle and caches empty, seconds."""
    kind = fleet.engines[0]
    token_s = (kind.timing.c0 + kind.timing.c2) / 1e3
    starts: list[float] = []
    ends: list[float] = []
    for turn in workload.turns:
        arrives = turn.at_s if turn.after < 0 else ends[turn.after] + turn.think_s
        starts.append(arrives)
        ends.append(arrives + turn.output_tokens * token_s)
    return starts


def followed(workload: Workload, fleet: FleetFile) -> float:
    """The share of the requests or of their prompt tokens, whichever is less, that begin in time in the middle of a run."""
    planned = due(workload, fleet)
    outcomes = SimulatedFleet(fleet, workload, partial(policy_instance, "predicted_latency"), dice(0)).run()
    in_order = sorted(planned)
    begin, end = in_order[len(in_order) // 5], in_order[len(in_order) * 9 // 10]
    shares = []
    for weights in ([1] * len(planned), [turn.prompt_tokens for turn in workload.turns]):
        wanted = sum(weight for weight, at in zip(weights, planned, strict=True) if begin <= at <= end)
        begun = sum(weight for weight, first in zip(weights, outcomes.first, strict=True) if begin <= first <= end)
        shares.append(begun / (wanted or 1))
    return min(shares)


def highest(is_followed: Callable[[float], bool], start: float) -> float:
    """The highest speed that is followed, within `STEP`, by doubling and bisection; `WIDEST` where every one is.

    Raises:
        ValueError: not even 1/`WIDEST` is followed.
    """
    low = high = start
    if is_followed(start):
        while low == high or is_followed(high):
            low, high = high, high * 1.5
            if high > WIDEST:
                return WIDEST
    else:
        while low == high or not is_followed(low):
            low, high = low / 1.5, low
            if low < 1 / WIDEST:
                raise ValueError(f"not even {low:.3g} times the workload's own rate is followed; the fleet is too small for it")
    while high / low > STEP:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_followed(middle) else (low, middle)
    return low


def measured(name: str, traces: Path | None, limit: int) -> dict[str, float] | None:
    """The capacity of a workload on its fleet; None where its trace is not here."""
    case: Case = case_of(name)
    workload = prepared(case, traces, dice(0), sealed=False, limit=limit)
    if workload is None:
        return None
    # faults take capacity away for a while; the loads of such a case are in shares of the whole fleet's
    fleet = FleetFile.model_validate({**case.fleet, "faults": []})
    speed = highest(lambda speed: followed(workload.scaled(speed), fleet) >= FOLLOWED, case.speeds[1])
    span = max(turn.at_s for turn in workload.turns) / speed
    return {"speed": round(speed, 3), "requests_s": round(len(workload.turns) / span, 2), "requests": len(workload.turns)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet.capacity", description=__doc__)
    parser.add_argument("--traces", type=Path, help="folder with the public traces; workloads without theirs stay as they are")
    parser.add_argument("--workloads", default=",".join(case.name for case in CASES), help="the others stay as they are")
    parser.add_argument("--limit", type=int, default=12_000, help="requests per run at most")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    arguments = parser.parse_args()
    names = arguments.workloads.split(",")
    found = json.loads(CAPACITIES.read_text()) if CAPACITIES.exists() else {}
    with ProcessPoolExecutor(arguments.jobs) as processes:
        for name, one in zip(names, processes.map(partial(measured, traces=arguments.traces, limit=arguments.limit), names), strict=True):
            print(f"{name}: {one or 'no trace here'}", flush=True)
            if one is not None:
                found[name] = one
                CAPACITIES.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
