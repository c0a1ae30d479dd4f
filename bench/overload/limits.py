"""`python -m bench.overload.limits`: limits found online beside the best fixed ones, on engines of several kinds, in virtual time.

Goodput is whole answers a second within both objectives; loads are multiples of what the engine answers when it always has enough to
do. The best fixed limits are found by a sweep for each engine and each load, so no operator could set them.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from math import inf
from multiprocessing import Pool
from statistics import mean

from bench.overload.rivals import AimdOnWaiting, Envoy, Gradient2
from bench.results_file import Row, machine, refresh, write_rows
from tests.one_engine import CASES, Case, Found, Gate, Score, Static, World, capacity

LOADS = (0.5, 1.0, 2.0, 10.0)
SECONDS = 130.0
REQUESTS = (8, 24, 48, 96, 320, inf)
TOKENS = (2048, 4096, 16384, inf)
UNEVEN = (1.0, 0.0, 0.0)
FOUND = "tidegate"
BEST = "best fixed of 24"
SUBJECTS: dict[str, Callable[[Case], tuple[list[Gate], bool, Sequence[float]]]] = {
    FOUND: lambda case: ([Found(case)], True, ()),
    "tidegate, engine tells nothing": lambda case: ([Found(case)], False, ()),
    "tidegate, no pace told": lambda case: ([Found(case, pace=False)], True, ()),
    "tidegate, 3 gateways": lambda case: ([Found(case, 3, i) for i in range(3)], True, ()),
    "tidegate, 3 gateways, one used": lambda case: ([Found(case, 3, i) for i in range(3)], True, UNEVEN),
    "tidegate, 3 gateways, store away": lambda case: ([Found(case, 0, i) for i in range(3)], True, ()),
    "AIMD on waiting": lambda case: ([AimdOnWaiting()], True, ()),
    "Gradient2": lambda case: ([Gradient2()], True, ()),
    "Envoy's gradient": lambda case: ([Envoy()], True, ()),
}
Job = tuple[str, Case, float, float, int]


def one(job: Job) -> tuple[Job, Score]:
    subject, case, load, rate, seed = job
    gates: list[Gate]
    tells: bool
    shares: Sequence[float]
    if subject.startswith("fixed"):
        _, requests, tokens = subject.split(":")
        gates, tells, shares = [Static(float(requests), float(tokens))], True, ()
    else:
        gates, tells, shares = SUBJECTS[subject](case)
    return job, World(case, rate * load, SECONDS, gates, seed=seed, tells=tells, shares=shares).run()


def measured(seeds: int, processes: int) -> dict[tuple[str, str, float], Score]:
    """Means over seeds by subject, case and load; the best of the sweep as one subject."""
    rates = {case.name: capacity(case) for case in CASES}
    fixed = [f"fixed:{requests}:{tokens}" for requests in REQUESTS for tokens in TOKENS]
    jobs = [(s, c, load, rates[c.name], seed) for s in (*SUBJECTS, *fixed) for c in CASES for load in LOADS for seed in range(seeds)]
    runs: dict[tuple[str, str, float], list[Score]] = defaultdict(list)
    with Pool(processes) as pool:
        for (subject, case, load, _, _), score in pool.imap_unordered(one, jobs, chunksize=4):
            runs[subject, case.name, load].append(score)
    found = {key: joined(scores) for key, scores in runs.items()}
    for case in CASES:
        for load in LOADS:
            swept = [found.pop((name, case.name, load)) for name in fixed[:-1]]
            found["none", case.name, load] = nothing = found.pop((fixed[-1], case.name, load))
            found[BEST, case.name, load] = max([*swept, nothing], key=lambda score: score.goodput)
    return found


def joined(scores: Sequence[Score]) -> Score:
    names = Score.__struct_fields__
    return Score(**{name: mean(getattr(score, name) for score in scores) for name in names})


def rows_of(found: dict[tuple[str, str, float], Score], seeds: int) -> list[Row]:
    rows = []
    for (subject, case, load), score in found.items():
        at = f"{case.replace(' ', '-')}@{load:g}"
        for metric, value, unit in (
            ("goodput", score.goodput, "1/s"),
            ("answers", score.done, "1/s"),
            ("ttft_p99_s", score.ttft_p99_s, "s"),
            ("waiting_in_engine", score.waited_mean, "requests"),
        ):
            rows.append(Row(metric=f"{metric}:{at}", subject=subject, value=round(value, 3), unit=unit, n=seeds))
    return rows


def shown(found: dict[tuple[str, str, float], Score]) -> str:
    """Goodput over that of the best fixed limits: the mean over the loads above capacity, and the least of all loads."""
    cases = [case.name for case in CASES]
    lines = [f"| limits | {' | '.join(cases)} |", "|---|" + "---|" * len(cases)]
    for subject in dict.fromkeys(subject for subject, _, _ in found):
        cells = []
        for case in cases:
            ratios = {load: found[subject, case, load].goodput / found[BEST, case, load].goodput for load in LOADS}
            cells.append(f"{mean(r for load, r in ratios.items() if load > 1.0):.2f} ({min(ratios.values()):.2f})")
        lines.append(f"| {subject} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and refresh the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--print-only", action="store_true", help="leave docs and results as they are")
    args = parser.parse_args()
    found = measured(args.seeds, args.processes)
    text = shown(found)
    print(text)
    if not args.print_only:
        write_rows("limits", rows_of(found, args.seeds))
        about = (
            f"`make bench-limits`, {machine()}, seeds: {args.seeds}; goodput over that of the best fixed limits for each load, which a "
            "sweep finds: mean of 2 and 10 times capacity, in parentheses the least of 0.5 to 10 times."
        )
        refresh("limits", f"{about}\n\n{text}\n")


if __name__ == "__main__":
    main()
