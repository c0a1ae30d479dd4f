"""`tidegate simulate`: replays a trace against a modelled fleet under several policies, to compare them before a roll-out."""

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from domain.strict import Strict
from gateway.cli.printing import STDOUT, AsJson, Target, check_target, err, fail, out, print_json, print_table, write_whole
from gateway.process.simulation_job import Contenders, contenders, seeded, workload_of
from policies.routing_choice import RoutingField
from policies.yaml.located import parse_yaml, read_yaml
from policies.yaml.problems import ConfigError
from policies.yaml.validate import validated
from routing.simulation.comparison import SHOWN, Result, compare, one_by_one, shown
from routing.simulation.fleet_file import FleetFile
from routing.simulation.outcomes import Outcomes
from routing.simulation.page import PlotsMissing, drawn, page
from routing.simulation.traces import TraceError
from routing.simulation.turns import Dice, Workload
from routing.simulation.workloads import WORKLOADS

MAX_SEEDS: Final = 100
MAX_JOBS: Final = 256


def simulate(
    trace: Annotated[str, typer.Option(help=f"A trace file or a folder of them, or a made-up workload: {', '.join(WORKLOADS)}.")],
    fleet: Annotated[Path, typer.Option(help="The fleet, as YAML (docs/explanation/simulation.md).")],
    policy: Annotated[
        str, typer.Option(help="Routing policies to compare, with commas; with parameters as in policy files: {policy: NAME, …}.")
    ],
    seeds: Annotated[
        int, typer.Option(min=1, max=MAX_SEEDS, help="Runs per policy, each with other dice; two or more give intervals.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="The first of them.")] = 0,
    speed: Annotated[float, typer.Option(min=0.001, max=1000, help="Arrivals this many times as dense.")] = 1.0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many requests.")] = None,
    jobs: Annotated[int, typer.Option(min=1, max=MAX_JOBS, help="Simulations at a time, each in a process of its own.")] = 1,
    html: Annotated[Path | None, typer.Option(help="Write the report there; plots need the extra `report`.")] = None,
    target: Target = None,
    as_json: AsJson = False,
) -> None:
    """Replay a trace against a modelled fleet and print what each policy comes to; `-o FILE` writes all figures as JSON.

    Exit codes: 0 done, 2 the trace, the fleet or a policy cannot be used.
    """
    if not trace:
        fail("--trace is empty: name a file, a folder or a made-up workload", 2)
    try:
        policies = _contenders(policy)
        read = validated(FleetFile, read_yaml(fleet, None))
        for file in (target, html):
            check_target(file)
        result = _run(trace, read, policies, [seeded(seed + n) for n in range(seeds)], speed, limit, jobs)
    except (TraceError, ConfigError) as error:
        fail(str(error), 2)
    if target is not None:
        _write(target, msgspec.json.format(msgspec.json.encode(result), indent=1).decode() + "\n")
    if html is not None:
        _write(html, _page(result, read))
    if as_json:
        print_json(result)
    elif STDOUT not in (target, html):
        _print(result)


Run = Callable[[int, str], Outcomes]
"""Runs one simulation, by the number of its seed and the policy."""

_forked_run: Callable[..., Any] | None = None
"""What the forked processes of `--jobs` run."""


class _Contenders(Strict):
    policies: list[RoutingField]


def _contenders(written: str) -> Contenders:
    """The policies of `--policy`, by their shown names. Raises ConfigError."""
    read = validated(_Contenders, parse_yaml(b"policies: [" + written.encode() + b"]", "--policy", None))
    if not read.policies:
        fail("--policy names none", 2)
    return contenders(read.policies)


def _run(trace: str, fleet: FleetFile, policies: Contenders, dice: list[Dice], speed: float, limit: int | None, jobs: int) -> Result:
    def make(thrown: Dice) -> Workload:
        return workload_of(trace, fleet, thrown, speed, limit)

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("reading", total=None)
        count = 0

        def counted(thrown: Dice) -> Workload:
            nonlocal count
            workload = make(thrown)
            count = len(workload.turns)
            return workload

        def progress(policy: str, number: int, done: int) -> None:
            before = (number * len(policies) + list(policies).index(policy)) * count
            bar.update(task, description=f"{policy}, seed {number + 1}", total=count * len(policies) * len(dice), completed=before + done)

        def in_processes(run: Run, pairs: Sequence[tuple[int, str]]) -> Iterator[Outcomes]:
            with processes(jobs, run) as pool:
                for ended, outcomes in enumerate(pool.map(run_one, pairs), 1):
                    bar.update(task, description=f"{jobs} at a time", total=len(pairs), completed=ended)
                    yield outcomes

        result = compare(counted, fleet, policies, dice, progress, in_processes if jobs > 1 else one_by_one)
        return msgspec.structs.replace(result, made_unix=time.time())


@contextlib.contextmanager
def processes(jobs: int, run: Callable[..., Any]) -> Iterator[ProcessPoolExecutor]:
    """Processes that have this one's workloads, because they are forked from it: nothing is read or made a second time. They call `run`
    with what `run_one` is given."""
    global _forked_run  # a closure cannot be sent to a process, but a fork has it
    _forked_run = run
    try:
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
            yield pool
    finally:
        _forked_run = None


def run_one(arguments: Sequence[Any]) -> Any:
    """What a process of `processes` is sent: it calls their `run`."""
    assert _forked_run is not None
    return _forked_run(*arguments)


def _page(result: Result, fleet: FleetFile) -> str:
    try:
        return page(result, drawn(result.policies, fleet.slo.ttft_s))
    except PlotsMissing as missing:
        err.print(f"note: {missing}", markup=False, soft_wrap=True)
        return page(result, [], str(missing))


def _write(target: Path, text: str) -> None:
    write_whole(target, lambda file: file.write(text.encode()))
    if target != STDOUT:
        err.print(f"wrote {target}", markup=False, soft_wrap=True)


def _table(result: Result, names: tuple[str, ...]) -> None:
    rows = [{"policy": policy.policy, **{SHOWN[name]: shown(name, policy) for name in names}} for policy in result.policies]
    print_table(rows, ("policy", *(SHOWN[name] for name in names)))


def _print(result: Result) -> None:
    out.print(f"{result.workload}: {result.requests:,} requests, simulated", markup=False)
    # three tables, because one is wider than a terminal
    for group in (tuple(n for n in SHOWN if n.startswith("ttft")), tuple(n for n in SHOWN if n.startswith(("tpot", "e2e")))):
        _table(result, group)
    _table(result, tuple(n for n in SHOWN if not n.startswith(("ttft", "tpot", "e2e"))))
    _print_differences(result)
    out.print(f"hit rate if all caches were one: {result.pooled_hit_rate:.1%}", markup=False)
    for policy in result.policies:
        lost = {name: policy.mean[name] for name in ("refused", "failed", "retries", "preemptions") if policy.mean[name]}
        if lost:
            out.print(f"{policy.policy}: {', '.join(f'{name} {value:g}' for name, value in lost.items())}", markup=False)
    for note in result.notes:
        out.print(f"note: {note}", markup=False, soft_wrap=True)


def _print_differences(result: Result) -> None:
    """What each policy differs by from the first one, and whether the interval says that it does."""
    for policy in result.policies[1:]:
        for name, unit in (("ttft_mean_s", " s"), ("hit_rate", "")):
            if (found := policy.against_first.get(name)) is not None:
                verdict = "" if found.clear else ": no difference shown"
                words = f"{policy.policy} less {result.policies[0].policy}: {SHOWN[name].removesuffix(' s')} {found.mean:+.4g}{unit}"
                out.print(f"{words} (95 %: {found.low:+.4g} to {found.high:+.4g}){verdict}", markup=False, soft_wrap=True)
