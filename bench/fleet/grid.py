"""Runs cells of the grid, several processes at a time, and keeps each finished one at once."""

import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from bench.fleet.bound import bound
from bench.fleet.cells import Cell, Finished, append, code
from bench.fleet.parts import dealt, scored, scored_figures
from bench.fleet.workloads import Case, capacity_of, case_of, dice, prepared
from routing.policy_instance import policy_instance
from routing.simulation.fleet import SimulatedFleet
from routing.simulation.fleet_file import FleetFile
from routing.simulation.turns import Workload

DEFAULT: Final = "predicted_latency"
NEED_TENANTS: Final = frozenset({"d2lpm"})
"""Policies that decide by tenant: requests without one are dealt to some for them."""


def fleet_of(case: Case, cell: Cell) -> FleetFile:
    """The case's fleet with the cell's replicas and events."""
    signals = {**case.fleet.get("signals", {}), "kv_events": cell.events}
    return FleetFile.model_validate({**case.fleet, "replicas": cell.replicas, "signals": signals})


@lru_cache(2)
def _workload(name: str, traces: Path | None, seed: int, part: str, limit: int) -> Workload | None:
    """The cells of one workload and seed follow each other, so a process makes it once for several."""
    return prepared(case_of(name), traces, dice(seed), sealed=part == "sealed", limit=limit)


def run(cell: Cell, traces: Path | None) -> Finished | None:
    """Run a cell; None where its trace is not here."""
    began = time.process_time()
    case = case_of(cell.workload)
    workload = _workload(cell.workload, traces, cell.seed, cell.part, cell.limit)
    if workload is None:
        return None
    workload = workload.scaled(cell.load * capacity_of(case))
    if cell.policy in NEED_TENANTS:
        workload = dealt(workload, dice(cell.seed))
    fleet = fleet_of(case, cell)
    outcomes = SimulatedFleet(fleet, workload, partial(policy_instance, cell.policy), dice(cell.seed)).run()
    chosen = scored(workload)
    found: dict[str, Any] = msgspec.to_builtins(scored_figures(workload, fleet, outcomes, chosen))
    best = bound(workload, fleet, outcomes, chosen) if cell.policy == DEFAULT else {}
    return Finished(cell, code(), found, best, workload.notes, time.process_time() - began)


class Tally(NamedTuple):
    """What a call of `run_all` did."""

    ran: int
    without_trace: int
    left: int
    """Cells that the time did not suffice for."""


def run_all(cells: Iterator[Cell], traces: Path | None, results: Path, *, jobs: int, stop_after_s: float) -> Tally:
    """Run the cells in their order and append each to the results file as it ends. No cell is begun after `stop_after_s`.

    Raises:
        what a cell raised; the cells that had ended are kept.
    """
    began = time.monotonic()
    ran = without = 0
    running: dict[Future[Finished | None], Cell] = {}
    with ProcessPoolExecutor(jobs) as processes:
        while True:
            room = 0 if time.monotonic() - began > stop_after_s else jobs - len(running)
            running |= {processes.submit(run, cell, traces): cell for cell in islice(cells, room)}
            if not running:
                return Tally(ran, without, sum(1 for _ in cells))
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell = running.pop(future)
                finished = future.result()
                if finished is None:
                    without += 1
                    continue
                ran += 1
                append(results, finished)
                print(
                    f"{cell.line} seed {cell.seed} {cell.policy}: {finished.figures['ttft_mean_s']:.4g} s, {finished.cpu_s:.0f} s of CPU",
                    flush=True,
                )
