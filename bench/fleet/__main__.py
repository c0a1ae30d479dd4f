"""`python -m bench.fleet --traces FOLDER`: routing policies on every workload at four loads, simulated; finished runs go to a results file.

What the results file holds already is not run again, so a grid that was stopped goes on with the same command. Loads are shares of the
measured capacity (`python -m bench.fleet.capacity`). `--report` makes the tables from results files and runs nothing.
"""

import argparse
import itertools
import math
import os
import sys
from pathlib import Path

from bench.fleet.cells import code, ordered, read
from bench.fleet.grid import run_all
from bench.fleet.report import text
from bench.fleet.workloads import CASES, case_of
from bench.results_file import ROOT, refresh
from routing.registry import POLICIES

LOADS = (0.60, 0.75, 0.92, 1.05)
PEERS = ("predicted_latency", "lmetric", "weighted", "llmd_223")
"""Who runs with several replicas and without events too: the default, and the three that came next on one replica."""
RESULTS = ROOT / "bench" / "results" / "fleet.jsonl"


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    made = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    made.add_argument("--traces", type=Path, help="folder with the public traces; workloads without theirs are left out")
    made.add_argument("--results", type=Path, nargs="+", default=[RESULTS], help="results files; all are read, the first is written")
    made.add_argument("--workloads", default=",".join(case.name for case in CASES))
    made.add_argument("--loads", default=",".join(map(str, LOADS)), help="shares of the measured capacity")
    made.add_argument("--policies", default=",".join(POLICIES))
    made.add_argument("--peers", default=",".join(PEERS), help="policies that run with several replicas and without events too")
    made.add_argument("--replicas", default="1", help="gateway processes, such as 1,2,4")
    made.add_argument("--events", default="on", help="KV events: on, off, or on,off")
    made.add_argument("--seeds", type=int, default=5)
    made.add_argument("--first-seed", type=int, default=0, help="0 to 5 are for tuning; those from 100 on for a final report only")
    made.add_argument("--sealed", action="store_true", help="run the last fifth of each trace instead: for a final report only")
    made.add_argument("--limit", type=int, default=12_000, help="requests per run at most")
    made.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    made.add_argument("--stop-after", type=float, default=math.inf, metavar="SECONDS", help="begin no run after so many seconds")
    made.add_argument("--any-code", action="store_true", help="count cells of other code as finished too")
    made.add_argument("--report", action="store_true", help="print the tables and run nothing")
    made.add_argument("--write", action="store_true", help="with --report: put them into docs/numbers.md")
    return made


def main() -> None:
    arguments = parser().parse_args()
    found = read(arguments.results, None if arguments.any_code else code())
    if arguments.report:
        made = text(found, f"python -m bench.fleet --limit {arguments.limit}")
        print(made)
        if arguments.write:
            refresh("fleet", made)
        return
    workloads = [case_of(name).name for name in arguments.workloads.split(",")]
    policies, peers = arguments.policies.split(","), arguments.peers.split(",")
    if unknown := [name for name in (*policies, *peers) if name not in POLICIES]:
        raise ValueError(f"--policies: there is no {unknown[0]}; there are {', '.join(POLICIES)}")
    events = [("off", "on").index(word) == 1 for word in arguments.events.split(",")]
    variants = sorted(
        itertools.product([int(word) for word in arguments.replicas.split(",")], events), key=lambda one: (one[0], not one[1])
    )
    cells = list(
        ordered(
            workloads,
            [float(word) for word in arguments.loads.split(",")],
            variants,
            range(arguments.first_seed, arguments.first_seed + arguments.seeds),
            policies,
            peers,
            part="sealed" if arguments.sealed else "open",
            limit=arguments.limit,
        )
    )
    todo = [cell for cell in cells if cell not in found]
    print(f"{len(cells)} cells, of which {len(cells) - len(todo)} are in the results; code {code()}", flush=True)
    tally = run_all(iter(todo), arguments.traces, arguments.results[0], jobs=arguments.jobs, stop_after_s=arguments.stop_after)
    print(f"ran {tally.ran}; {tally.without_trace} without their trace; {tally.left} left for the next call")


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"bench.fleet: {error}")
