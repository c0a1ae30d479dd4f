"""`python -m bench.overload`: engines get 0.5 to 10 times what they can answer, a noisy tenant, and a burst that ends.

Rows for bench/results/overload.json, a table and a picture for docs/numbers.md. Every run has engines, gateway and caches of its own; the
generator is a process of its own and sends when requests are due. `--runs FILE` keeps each run as a line and does those that are not in it.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from bench.overhead.processes import LOAD_CPU, running, start
from bench.overload.figures import by_second, good, overall, recovery_s
from bench.overload.fleet import SUBJECTS, subject, template, there
from bench.overload.load import Plan, Sample
from bench.overload.picture import draw
from bench.overload.plan import PATIENCE_S, SLO_TTFT_S, TENANTS, Phase, Planned, planned
from bench.results_file import machine, percentile, refresh, rows_of, write_rows

MULTIPLES = (0.5, 1.0, 2.0, 5.0, 10.0)
NOISY = 20
"""How many times the load of another tenant the noisy one brings."""
QUIET = 0.6
"""Share of the capacity that twenty ordinary tenants ask for."""
BEFORE_S, TRIGGER_S, AFTER_S = 30.0, 60.0, 90.0
USUAL, TRIGGER = 0.7, 5.0
SATURATED_PER_S = 60.0
"""More than the engines can answer, to find out what that is."""


class Bench:
    """Runs scenarios; knows the capacity once it was measured."""

    def __init__(self, made: Path, keys: list[str], arguments: argparse.Namespace) -> None:
        self._made, self._keys, self._arguments = made, keys, arguments
        self.capacity = arguments.capacity
        self.outcomes: Counter[str] = Counter()
        """Of the last run."""

    def measure_capacity(self) -> float:
        """Answers a second of engines that always have more to do."""
        plan = planned("capacity", [Phase(20.0, SATURATED_PER_S)], range(TENANTS))
        samples, _, _ = self._run("tidegate-unlimited", plan, patience_s=60.0)
        self.capacity = sum(one.how == "ok" and 8.0 <= one.end_s < 20.0 for one in samples) / 12.0
        return self.capacity

    def _run(self, name: str, plan: Sequence[Planned], **how: Any) -> tuple[list[Sample], float, float]:
        """The samples, and the cores that gateway and engines used."""
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            asked, got = home / "plan.json", home / "samples.jsonl"
            asked.write_bytes(msgspec.json.encode(Plan(self._keys, list(plan), **how)))
            with subject(name, home, self._made, self._keys) as one:
                before = one.cpu_s()
                command = [sys.executable, "-m", "bench.overload.load", one.url, str(asked), str(got)]
                with running(start(command, LOAD_CPU, home / "load.log")) as process:
                    if process.wait() != 0:
                        raise RuntimeError((home / "load.log").read_text()[-2000:])
                after = one.cpu_s()
            samples = [msgspec.json.decode(line, type=Sample) for line in got.read_bytes().splitlines()]
        self.outcomes = Counter(sample.how for sample in samples)
        lasted = max(sample.end_s for sample in samples)
        return samples, (after[0] - before[0]) / lasted, (after[1] - before[1]) / lasted

    def at(self, name: str, multiple: float, seed: int) -> dict[str, Any]:
        """Steady overload: every tenant and class at its share."""
        warm, seconds = self._arguments.warm_s, self._arguments.seconds
        plan = planned(f"steady {multiple} {seed}", [Phase(warm + seconds, multiple * self.capacity)], range(TENANTS))
        samples, gateway, engine = self._run(name, plan)
        counted = [one for one in samples if one.at_s >= warm]
        figures = overall(counted, seconds) | {"gateway_cores": (gateway, "cores"), "engine_cores": (engine, "cores")}
        return {f"{metric}:{multiple:g}x": value for metric, value in figures.items()}

    def noisy(self, name: str, seed: int) -> dict[str, Any]:
        """Nineteen ordinary tenants alone, and the same requests of theirs beside one at twenty times."""
        warm, seconds = self._arguments.warm_s, self._arguments.seconds
        each = QUIET * self.capacity / TENANTS
        tiers = {"default": 1.0}
        others = planned(f"others {seed}", [Phase(warm + seconds, each * (TENANTS - 1))], range(1, TENANTS), tiers)
        loud = planned(f"loud {seed}", [Phase(warm + seconds, each * NOISY)], [0], tiers)
        found: dict[str, Any] = {}
        for how, plan in (("alone", others), ("noisy", sorted([*others, *loud], key=lambda one: one.at_s))):
            samples, _, _ = self._run(name, plan)
            of = [one for one in samples if one.tenant and one.at_s >= warm]
            first = [one.ttft_s for one in of if one.how == "ok" and one.ttft_s is not None]
            found[f"others_ttft_p99_s:{how}"] = (percentile(first, 0.99) if first else PATIENCE_S, "s")
            found[f"others_failed:{how}"] = (sum(one.how != "ok" for one in of) / len(of), "share")
            if how == "noisy":
                mine = [one for one in samples if not one.tenant and one.at_s >= warm]
                found["noisy_answered:noisy"] = (sum(one.how == "ok" for one in mine) / len(mine), "share")
        found["others_ttft_p99_ratio"] = (found["others_ttft_p99_s:noisy"][0] / found["others_ttft_p99_s:alone"][0], "ratio")
        return found

    def metastable(self, name: str, seed: int) -> dict[str, Any]:
        """Five times the capacity for a minute, with callers that try again twice, between times of 0.7."""
        before, trigger, after = (seconds * self._arguments.trigger for seconds in (BEFORE_S, TRIGGER_S, AFTER_S))
        ends, until = before + trigger, before + trigger + after
        usual = USUAL * self.capacity
        phases = [Phase(before, usual), Phase(trigger, TRIGGER * self.capacity), Phase(after, usual)]
        samples, _, _ = self._run(name, planned(f"trigger {seed}", phases, range(TENANTS)), retries=2)
        during = [one for one in samples if before <= one.at_s < ends]
        return {
            "recovery_s": (recovery_s(samples, (before / 3, before), ends, until), "s"),
            "goodput_trigger_per_s": (sum(map(good, during)) / trigger, "1/s"),
            "attempts_trigger": (sum(one.attempts for one in during) / len(during), "per request"),
            "timeline": by_second(samples, until),
        }


def scenarios(arguments: argparse.Namespace) -> Iterator[tuple[str, float]]:
    """Name and multiple of each."""
    if "steady" in arguments.scenarios:
        yield from (("steady", multiple) for multiple in arguments.multiples)
    yield from ((name, 0.0) for name in ("noisy", "metastable") if name in arguments.scenarios)


def done_run(bench: Bench, name: str, scenario: str, multiple: float, seed: int) -> dict[str, Any]:
    if scenario == "steady":
        return bench.at(name, multiple, seed)
    return bench.noisy(name, seed) if scenario == "noisy" else bench.metastable(name, seed)


SHOWN = (
    "goodput_per_s", "answered_per_s", "success_critical", "in_time_critical", "in_time_interactive", "refused_p50_ms", "refused_p99_ms",
    "refused_late_share", "ttft_p99_s_critical", "ttft_p99_s_default", "jain", "hit_rate", "gateway_cores", "late_p99_ms",
)  # fmt: skip


def report(runs: list[dict[str, Any]], capacity: float, arguments: argparse.Namespace) -> None:
    measured: dict[tuple[str, str, str], list[float]] = {("capacity_per_s", "engines", "1/s"): [capacity]}
    for run in runs:
        for metric, found in run["figures"].items():
            if metric != "timeline":
                measured.setdefault((metric, run["subject"], found[1]), []).append(found[0])
    values = {(metric, name): median(found) for (metric, name, _), found in measured.items()}
    names = [name for name in SUBJECTS if any(run["subject"] == name for run in runs)]
    for name in names:
        steady = {m: values[f"goodput_per_s:{m:g}x", name] for m in MULTIPLES if (f"goodput_per_s:{m:g}x", name) in values}
        if len(steady) > 1 and max(steady.values()) > 0:
            measured["goodput_of_peak:10x", name, "share"] = [steady[max(steady)] / max(steady.values())]
    print(f"wrote {write_rows('overload', rows_of(measured))}")
    curves = {
        name: [(m, values[f"goodput_per_s:{m:g}x", name] / capacity) for m in MULTIPLES if (f"goodput_per_s:{m:g}x", name) in values]
        for name in names
    }
    lines = {run["subject"]: [count / capacity for count in run["figures"]["timeline"]] for run in runs if run["scenario"] == "metastable"}
    began = BEFORE_S * arguments.trigger
    draw({name: points for name, points in curves.items() if points}, lines, (began, began + TRIGGER_S * arguments.trigger))
    text = table(values, names) + f"\n\nThe engines answer {capacity:.1f} requests a second; {machine()}."
    refresh("overload", text)
    print(text)


def table(values: dict[tuple[str, str], float], names: Sequence[str]) -> str:
    """Steady load, one row for each multiple; then the two other scenarios."""
    lines = ["| subject | load | " + " | ".join(f"`{m}`" for m in SHOWN) + " |", "|---|---|" + "---|" * len(SHOWN)]
    for name in names:
        for multiple in MULTIPLES:
            cells = [values.get((f"{metric}:{multiple:g}x", name)) for metric in SHOWN]
            if any(cell is not None for cell in cells):
                lines.append(f"| {name} | {multiple:g} | " + " | ".join("" if cell is None else f"{cell:.3g}" for cell in cells) + " |")
    others = (
        "others_ttft_p99_s:alone", "others_ttft_p99_s:noisy", "others_ttft_p99_ratio", "others_failed:noisy", "noisy_answered:noisy",
        "recovery_s", "goodput_trigger_per_s", "attempts_trigger",
    )  # fmt: skip
    lines += ["", "| subject | " + " | ".join(f"`{m}`" for m in others) + " |", "|---|" + "---|" * len(others)]
    for name in names:
        lines.append(f"| {name} | " + " | ".join(f"{values[m, name]:.3g}" if (m, name) in values else "" for m in others) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.overload", description=__doc__)
    parser.add_argument("--subjects", default=",".join(SUBJECTS))
    parser.add_argument("--scenarios", default="steady,noisy,metastable")
    parser.add_argument("--multiples", type=lambda text: [float(one) for one in text.split(",")], default=MULTIPLES)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=40.0, help="of arrivals that count, in each run")
    parser.add_argument("--warm-s", type=float, default=10.0, help="of arrivals before them")
    parser.add_argument("--trigger", type=float, default=1.0, help="scales the 30, 60 and 90 s of the burst")
    parser.add_argument("--capacity", type=float, default=0.0, help="requests a second; measured when not given")
    parser.add_argument("--runs", type=Path, help="where runs are kept, and read again")
    parser.add_argument("--dry", action="store_true", help="print only, write no rows, table or picture")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {LOAD_CPU})
    subjects = [name for name in arguments.subjects.split(",") if there(name)]
    kept = [json.loads(line) for line in arguments.runs.read_text().splitlines()] if arguments.runs and arguments.runs.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), template(Path(folder)), arguments)
        if not bench.capacity:
            bench.capacity = kept[0]["capacity"] if kept else bench.measure_capacity()
        print(f"capacity {bench.capacity:.2f} requests/s, objective {SLO_TTFT_S:g} s", flush=True)
        done = {(run["subject"], run["scenario"], run["multiple"], run["seed"]) for run in kept}
        for seed in range(arguments.repetitions):
            for scenario, multiple in scenarios(arguments):
                for name in subjects:
                    if (name, scenario, multiple, seed) in done:
                        continue
                    figures = done_run(bench, name, scenario, multiple, seed)
                    run = {"subject": name, "scenario": scenario, "multiple": multiple, "seed": seed, "capacity": bench.capacity}
                    kept.append(run | {"figures": figures})
                    if arguments.runs:
                        with arguments.runs.open("a") as out:
                            out.write(json.dumps(kept[-1]) + "\n")
                    shown = "  ".join(f"{metric} {found[0]:.3g}" for metric, found in figures.items() if metric != "timeline")
                    print(f"{name} {scenario}: {shown}  {dict(bench.outcomes)}", flush=True)
    if not arguments.dry:
        report(kept, bench.capacity, arguments)


if __name__ == "__main__":
    main()
