"""`python -m bench.fleet_http`: routers over HTTP in real time, simulated engines behind them; rows for bench/results/fleet_http.json.

Every run has engines, router and caches of its own. Within a repetition all routers get the same requests, in an order that turns from
repetition to repetition; the next one gets others. `--runs FILE` keeps each run as a line and does those that are not in it.
`--simulated` prints what `routing.simulation` says of the same requests instead, and writes nothing.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import os
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import uvloop

from bench.fleet_http.load import Replay, Sample
from bench.fleet_http.subjects import SUBJECTS
from bench.fleet_http.workloads import ENGINES, FLEET, KV_TOKENS, SLOWER, WORKLOADS, bodies, dice
from bench.overhead.peers import installed
from bench.overhead.processes import LOAD_CPU, cpu_s, running, start, wait_for
from bench.overhead.subjects import MODEL
from bench.results_file import machine, percentile, refresh, rows_of, write_rows
from routing.policy_instance import policy_instance
from routing.simulation.figures import figures as simulated_figures
from routing.simulation.fleet import SimulatedFleet
from routing.simulation.fleet_file import FleetFile
from routing.simulation.outcomes import RequestEnd

PORT = 18700
UNITS = {
    "ttft_mean_s": "s", "ttft_p50_s": "s", "ttft_p90_s": "s", "ttft_p99_s": "s", "e2e_mean_s": "s", "e2e_p99_s": "s", "hit_rate": "share",
    "hotspot": "ratio", "missed": "share", "cpu_ms_request": "ms", "engine_cpu": "cores", "late_p99_s": "s",
}  # fmt: skip
SHOWN = ("ttft_mean_s", "ttft_p99_s", "hit_rate", "hotspot", "missed", "cpu_ms_request")
SIMULATED = ("predicted_latency", "weighted", "lmetric", "p2c", "round_robin", "smg_cache_aware")


@contextlib.contextmanager
def engines(home: Path) -> Iterator[tuple[list[str], list[int]]]:
    """Fresh ones: addresses and processes."""
    with contextlib.ExitStack() as stack:
        urls, pids = [], []
        for number in range(ENGINES):
            port = PORT + 10 + number
            command = [sys.executable, "-m", "backends.simengine", "--model", MODEL, "--port", str(port)]
            command += ["--speed", str(1 / SLOWER), "--kv-tokens", str(KV_TOKENS)]
            pids.append(stack.enter_context(running(start(command, LOAD_CPU, home / f"engine-{number}.log"))).pid)
            urls.append(f"http://127.0.0.1:{port}")
        for url in urls:
            wait_for(url + "/health")
        yield urls, pids


def computed(urls: list[str]) -> list[int]:
    """Prompt tokens each engine has computed."""
    found = []
    for url in urls:
        with urllib.request.urlopen(url + "/sim/state", timeout=10) as reply:
            state = json.load(reply)
        found.append(state["prefix_queries"] - state["prefix_hits"])
    return found


TOLD = (
    "tidegate_backend_index_trust_ratio",
    "tidegate_backend_index_off",
    "tidegate_backend_ttft_error_seconds",
    "tidegate_prefix_tokens_total",
    "tidegate_route_decisions_total",
)


def alarms(url: str) -> list[str]:
    """What Tidegate says of its own predictions, of the whole run."""
    host, _, port = url.rpartition(":")
    with urllib.request.urlopen(f"{host}:{int(port) + 1}/metrics", timeout=10) as reply:
        return [line for line in reply.read().decode().splitlines() if line.startswith(TOLD)]


def one_run(name: str, workload_name: str, seed: int, seconds: float, warm_s: float) -> dict[str, Any]:
    workload = WORKLOADS[workload_name](dice(seed), seconds)
    rendered = bodies(workload, MODEL)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        home = Path(folder)
        urls, pids = stack.enter_context(engines(home))
        subject = stack.enter_context(SUBJECTS[name][1](home, urls, PORT))
        replay = Replay(subject.url, subject.key, workload, rendered)

        def state() -> tuple[list[int], float, float, int]:
            return computed(urls), cpu_s(subject.pids), cpu_s(pids), sum(1 for one in replay.samples if one.due_s < warm_s)

        gc.collect()
        gc.disable()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            before = runner.run(replay.run(warm_s, state))
        gc.enable()
        after = state()
        told = alarms(subject.url) if name.startswith("tidegate") else []
    counted = [one for one in replay.samples if one.due_s >= warm_s]
    made = {"subject": name, "workload": workload_name, "seed": seed, "requests": len(counted)}
    tokens = [b - a for a, b in zip(before[0], after[0], strict=True)]
    lasted = max(one.due_s + (one.e2e_s or 0.0) for one in counted) - warm_s
    costs = {"cpu_ms_request": 1000 * (after[1] - before[1]) / len(counted), "engine_cpu": (after[2] - before[2]) / lasted}
    return {**made, **figures(counted), **costs, "hotspot": ENGINES * max(tokens) / sum(tokens), "errors": errors(counted), "told": told}


def figures(counted: list[Sample]) -> dict[str, float]:
    good = [one for one in counted if not one.error]
    first = [one.ttft_s for one in good if one.ttft_s is not None] or [float("nan")]
    whole = [one.e2e_s for one in good if one.e2e_s is not None] or [float("nan")]
    return {
        "ttft_mean_s": mean(first),
        "ttft_p50_s": percentile(first, 0.5),
        "ttft_p90_s": percentile(first, 0.9),
        "ttft_p99_s": percentile(first, 0.99),
        "e2e_mean_s": mean(whole),
        "e2e_p99_s": percentile(whole, 0.99),
        "hit_rate": sum(one.cached_tokens for one in good) / max(1, sum(one.prompt_tokens for one in good)),
        "missed": 1 - len(good) / len(counted),
        "late_p99_s": percentile([one.late_s for one in counted], 0.99),
    }


def errors(counted: list[Sample]) -> list[str]:
    return sorted({one.error for one in counted if one.error})[:5]


def simulated(names: list[str], seeds: int, seconds: float, warm_s: float) -> None:
    """The same requests of the same time in the simulator, printed."""
    fleet = FleetFile.model_validate(FLEET)
    metrics = ("ttft_mean_s", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "e2e_p50_s", "hit_rate", "hotspot")
    for name in names:
        print(f"{name}: simulated")
        for policy in SIMULATED:
            runs = []
            for seed in range(seeds):
                workload = WORKLOADS[name](dice(seed), seconds)
                outcomes = SimulatedFleet(fleet, workload, partial(policy_instance, policy), dice(seed)).run()
                for at, arrived in enumerate(outcomes.arrived):
                    if arrived < warm_s:
                        outcomes.state[at] = RequestEnd.PENDING
                runs.append(simulated_figures(workload, fleet, outcomes))
            print(f"  {policy:20} " + "  ".join(f"{m} {median(getattr(run, m) for run in runs):.3g}" for m in metrics), flush=True)


def table(runs: list[dict[str, Any]], workload: str) -> str:
    """Medians, and in brackets the least and the most of the repetitions."""
    lines = [f"`{workload}`", "", "| subject | runs | " + " | ".join(f"`{m}`" for m in SHOWN) + " |", "|---|---|" + "---|" * len(SHOWN)]
    for subject in SUBJECTS:
        of = [run for run in runs if run["subject"] == subject and run["workload"] == workload]
        if of:
            cells = []
            for metric in SHOWN:
                values = [run[metric] for run in of]
                spread = f" ({min(values):.3g}-{max(values):.3g})" if metric.startswith("ttft") and len(of) > 1 else ""
                cells.append(f"{median(values):.3g}{spread}")
            lines.append(f"| {subject} | {len(of)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def report(runs: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    measured: dict[tuple[str, str, str], list[float]] = {}
    for run in runs:
        for metric, unit in UNITS.items():
            measured.setdefault((f"{metric}:{run['workload']}", run["subject"], unit), []).append(run[metric])
    print(f"wrote {write_rows('fleet_http', rows_of(measured))}")
    names = [name for name in WORKLOADS if any(run["workload"] == name for run in runs)]
    per_run = {name: round(median(run["requests"] for run in runs if run["workload"] == name)) for name in names}
    busy, late = max(run["engine_cpu"] for run in runs), [run["late_p99_s"] for run in runs]
    text = "\n\n".join(table(runs, name) for name in names)
    text += f"\n\nEach run has {arguments.seconds:g} s of arrivals, the first {arguments.warm_s:g} s of them not counted: "
    text += ", ".join(f"{count} requests a run of {name}" for name, count in per_run.items())
    text += f". All engines together used at most {busy:.2g} of a core. The load generator sent 99 of 100 requests within "
    text += f"{1000 * median(late):.0f} ms of when they were due (median of runs; {1000 * max(late):.0f} in the worst). {machine()}."
    refresh("fleet-http", text)
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet_http", description=__doc__)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--subjects", default=",".join(SUBJECTS))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=24.0, help="of arrivals, in each run")
    parser.add_argument("--warm-s", type=float, default=8.0, help="of them not counted")
    parser.add_argument("--runs", type=Path, help="where runs are kept, and read again")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--dry", action="store_true", help="print only, write no rows")
    arguments = parser.parse_args()
    workloads = arguments.workloads.split(",")
    if arguments.simulated:
        simulated(workloads, arguments.repetitions, arguments.seconds, arguments.warm_s)
        return
    os.sched_setaffinity(0, {LOAD_CPU})
    subjects = [name for name in arguments.subjects.split(",") if installed(SUBJECTS[name][0])]
    runs = [json.loads(line) for line in arguments.runs.read_text().splitlines()] if arguments.runs and arguments.runs.exists() else []
    done = {(run["subject"], run["workload"], run["seed"]) for run in runs}
    for seed in range(arguments.repetitions):
        for workload in workloads:
            turned = subjects[seed * 3 % len(subjects) :] + subjects[: seed * 3 % len(subjects)]
            for name in turned:
                if (name, workload, seed) in done:
                    continue
                run = one_run(name, workload, seed, arguments.seconds, arguments.warm_s)
                runs.append(run)
                if arguments.runs:
                    with arguments.runs.open("a") as kept:
                        kept.write(json.dumps(run) + "\n")
                shown = "  ".join(f"{metric} {run[metric]:.3g}" for metric in UNITS)
                print(f"{seed} {workload} {name}: {run['requests']}  {shown}  {run['errors'] or ''}", flush=True)
    if not arguments.dry:
        report(runs, arguments)


if __name__ == "__main__":
    main()
