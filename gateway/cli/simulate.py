"""`tidegate simulate`: replays a trace against a modelled fleet under several policies, to compare them before a roll-out."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from domain.strict import Strict
from gateway.cli.printing import STDOUT, AsJson, Target, err, fail, out, print_json, print_table, write_whole
from policies.routing_choice import RoutingField, routing_of
from policies.yaml.located import parse_yaml, read_yaml
from policies.yaml.problems import ConfigError
from policies.yaml.validate import validated
from routing.policy_instance import PolicyInstance
from routing.simulation.comparison import SHOWN, Result, compare, shown
from routing.simulation.fleet_file import FleetFile
from routing.simulation.page import PlotsMissing, drawn, page
from routing.simulation.traces import TraceError, load
from routing.simulation.turns import Dice, Workload
from routing.simulation.workloads import WORKLOADS

MAX_SEEDS: Final = 100


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
            _check_target(file)
        result = _run(trace, read, policies, [_dice(seed + n) for n in range(seeds)], speed, limit)
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


Contenders = dict[str, Callable[[], PolicyInstance]]
"""The policies to compare, by the names under which they are shown."""


class _Contenders(Strict):
    policies: list[RoutingField]


def _contenders(written: str) -> Contenders:
    """The policies by their shown names: the policy's own name, followed by its parameters as written. Raises ConfigError."""
    read = validated(_Contenders, parse_yaml(b"policies: [" + written.encode() + b"]", "--policy", None))
    if not read.policies:
        fail("--policy names none", 2)
    contenders = {}
    for choice in read.policies:
        routing = routing_of(choice)
        parameters = (
            {} if isinstance(choice, str) else {name: getattr(choice, name) for name in sorted(choice.model_fields_set - {"policy"})}
        )
        name = " ".join((routing.policy, *(f"{key}={value}" for key, value in parameters.items())))
        contenders[name] = routing.policy_instance
    return contenders


def _dice(seed: int) -> Dice:
    return lambda name: random.Random(f"{seed} {name}")


def _run(trace: str, fleet: FleetFile, policies: Contenders, dice: list[Dice], speed: float, limit: int | None) -> Result:
    def make(seeded: Dice) -> Workload:
        workload = WORKLOADS[trace](seeded) if trace in WORKLOADS else load(Path(trace), seeded)
        workload = workload.scaled(speed)
        return workload if limit is None else workload.first(limit)

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("reading", total=None)
        count = 0

        def counted(seeded: Dice) -> Workload:
            nonlocal count
            workload = make(seeded)
            count = len(workload.turns)
            return workload

        def progress(policy: str, number: int, done: int) -> None:
            before = (number * len(policies) + list(policies).index(policy)) * count
            bar.update(task, description=f"{policy}, seed {number + 1}", total=count * len(policies) * len(dice), completed=before + done)

        return compare(counted, fleet, policies, dice, progress, time.time())


def _page(result: Result, fleet: FleetFile) -> str:
    try:
        return page(result, drawn(result.policies, fleet.slo.ttft_s))
    except PlotsMissing as missing:
        err.print(f"note: {missing}", markup=False, soft_wrap=True)
        return page(result, [], str(missing))


def _check_target(target: Path | None) -> None:
    """Refuse a path that cannot be written, before a run of minutes and not after it."""
    if target is not None and target != STDOUT and (target.is_dir() or not target.absolute().parent.is_dir()):
        fail(f"{target} cannot be written: it is a folder, or its folder does not exist", 2)


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
    out.print(f"hit rate if all caches were one: {result.pooled_hit_rate:.1%}", markup=False)
    for policy in result.policies:
        lost = {name: policy.mean[name] for name in ("refused", "failed", "retries", "preemptions") if policy.mean[name]}
        if lost:
            out.print(f"{policy.policy}: {', '.join(f'{name} {value:g}' for name, value in lost.items())}", markup=False)
    for note in result.notes:
        out.print(f"note: {note}", markup=False, soft_wrap=True)
