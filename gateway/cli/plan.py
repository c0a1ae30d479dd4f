"""`tidegate plan`: how many engines of which kind meet latency objectives for a trace, and what they cost, by the simulator."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from gateway.cli.connection import StoreOptions
from gateway.cli.plan_kinds import kinds_of
from gateway.cli.printing import AsJson, check_plot, err, fail, out, print_json, print_table
from gateway.cli.simulate import MAX_JOBS, MAX_SEEDS, processes, run_one
from gateway.process.simulation_job import seeded, workload_of
from policies.routing_choice import DEFAULT_ROUTING, routing_of
from policies.yaml.problems import ConfigError
from routing.simulation.fleet_file import Objective
from routing.simulation.plan import (
    FleetPlan,
    KindPlan,
    PlanExtras,
    PlannedKind,
    PlanTrial,
    cheapest,
    plan_kind,
    simulated,
)
from routing.simulation.traces import TraceError
from routing.simulation.turns import Workload
from routing.simulation.workloads import WORKLOADS

MOST_ENGINES: Final = 1024
"""As in a fleet file."""


def plan(
    trace: Annotated[str, typer.Option(help=f"A trace file or a folder of them, or a made-up workload: {', '.join(WORKLOADS)}.")],
    fleet: Annotated[list[Path], typer.Option(help="A fleet with one kind of engine, as YAML; again for each other kind to compare.")],
    ttft_s: Annotated[float, typer.Option(min=0.001, help="Objective: longest time to the first token, seconds.")],
    tpot_ms: Annotated[float, typer.Option(min=0.01, help="Objective: longest time for each further token, milliseconds.")],
    gateway: StoreOptions,
    profile: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE|MODEL@REVISION", help="A measured speed in place of the fleet file's; again for each other kind."),
    ] = None,
    launch: Annotated[
        list[str] | None, typer.Option(help="Launch configuration with their limits and GPUs: once for all kinds, or once for each.")
    ] = None,
    attain: Annotated[float, typer.Option(min=0.01, max=1, help="Share of all requests that has to meet both objectives.")] = 0.95,
    gpu_hour_usd: Annotated[list[float] | None, typer.Option(min=0.0001, help="Price of a GPU-hour: once, or once for each kind.")] = None,
    headroom: Annotated[float, typer.Option(min=0, max=0.9, help="Share of the serving engines that is left free.")] = 0.0,
    standby: Annotated[int, typer.Option(min=0, max=MOST_ENGINES, help="Further engines that run and serve nothing.")] = 0,
    spot: Annotated[float, typer.Option(min=0, max=1, help="Share of the serving engines on preemptible machines.")] = 0.0,
    spot_discount: Annotated[float, typer.Option(min=0, max=0.99, help="What a preemptible machine costs less.")] = 0.6,
    most: Annotated[int, typer.Option(min=1, max=MOST_ENGINES, help="Most engines that are tried.")] = 128,
    seeds: Annotated[int, typer.Option(min=1, max=MAX_SEEDS, help="Runs of each number, each with other dice; all have to meet.")] = 3,
    seed: Annotated[int, typer.Option(help="The first of them.")] = 0,
    speed: Annotated[float, typer.Option(min=0.001, max=1000, help="Arrivals this many times as dense.")] = 1.0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many requests.")] = None,
    jobs: Annotated[int, typer.Option(min=1, max=MAX_JOBS, help="Simulations at a time, each in a process of its own.")] = 1,
    plot: Annotated[
        Path | None, typer.Option(callback=check_plot, help="Draw share and cost by number, PNG or SVG; needs the extra report.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find how many engines meet latency objectives for a trace, and what they cost: simulated, with the default routing policy.

    Exit codes: 0 found, 1 no kind of engine can meet the objectives, or a revision or launch configuration that is named is not
    there, 2 something else that is given cannot be used.
    """
    if not trace:
        fail("--trace is empty: name a file, a folder or a made-up workload", 2)
    figure = _figure() if plot is not None else None
    slo = Objective(ttft_s=ttft_s, tpot_s=tpot_ms / 1e3)
    extras = PlanExtras(headroom, standby, spot, spot_discount if spot else 0.0)
    try:
        kinds = kinds_of(fleet, profile or [], launch or [], gpu_hour_usd or [], slo, gateway)
        workloads = _workloads(kinds, trace, [seed + n for n in range(seeds)], speed, limit)
    except (TraceError, ConfigError) as error:
        fail(str(error), 2)
    plans = []
    with _bar() as said:
        for number, kind in enumerate(kinds):
            with _simulator(kind, workloads[number], seed, jobs, said) as simulate:
                plans.append(plan_kind(kind, workloads[number][0], attain, most, extras, simulate))
    notes = [note for kind, (workload, *_) in zip(kinds, workloads, strict=True) for note in _unmeasured(kind, workload)]
    result = _result(msgspec.structs.replace(workloads[0][0], notes=[*notes, *workloads[0][0].notes]), seeds, attain, slo, extras, plans)
    if plot is not None and figure is not None:
        _draw(figure, plot, result)
    if as_json:
        print_json(result)
    else:
        _print(result)
    if result.cheapest is None:
        raise typer.Exit(1)


def _workloads(kinds: Sequence[PlannedKind], trace: str, seeds: Sequence[int], speed: float, limit: int | None) -> list[list[Workload]]:
    """The workload of each seed, for each kind; read once for the kinds whose fleet files limit the same tenants."""
    made: dict[frozenset[str], list[Workload]] = {}
    found = []
    for kind in kinds:
        limited = frozenset(name for name, tenant in kind.fleet.tenants.items() if tenant.tokens_per_s)
        if limited not in made:
            made[limited] = [workload_of(trace, kind.fleet, seeded(seed), speed, limit) for seed in seeds]
        if not all(workload.turns for workload in made[limited]):
            fail(f"{trace} has no requests to plan for", 2)
        found.append(made[limited])
    return found


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[str], None]]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda words: bar.update(task, description=words)


@contextlib.contextmanager
def _simulator(
    kind: PlannedKind, workloads: Sequence[Workload], seed: int, jobs: int, said: Callable[[str], None]
) -> Iterator[Callable[[int], list[PlanTrial]]]:
    """Runs a number of engines with every seed, `jobs` at a time."""

    def run(engines: int, number: int) -> PlanTrial:
        return simulated(kind, engines, workloads[number], routing_of(DEFAULT_ROUTING).policy_instance, seeded(seed + number))

    def every_seed(engines: int, run_all: Callable[[Sequence[tuple[int, int]]], Iterator[PlanTrial]]) -> list[PlanTrial]:
        trials: list[PlanTrial] = []
        for trial in run_all([(engines, number) for number in range(len(workloads))]):
            trials.append(trial)
            said(f"{kind.name}: {engines} engines, {len(trials)} of {len(workloads)} seeds, {trial.attained:.1%} met")
        return trials

    if jobs == 1 or len(workloads) == 1:
        yield lambda engines: every_seed(engines, lambda pairs: (run(*pair) for pair in pairs))
        return
    with processes(min(jobs, len(workloads)), run) as pool:
        yield lambda engines: every_seed(engines, lambda pairs: pool.map(run_one, pairs))


def _unmeasured(kind: PlannedKind, workload: Workload) -> list[str]:
    """A note where the trace has prompts beyond those that the profile was measured with."""
    longer = 0 if kind.measured_tokens is None else sum(turn.prompt_tokens > kind.measured_tokens for turn in workload.turns)
    if not longer:
        return []
    share = f"{longer:,} of {len(workload.turns):,} prompts are longer than the {kind.measured_tokens:,} tokens that were measured"
    return [f"{kind.name}: {share}, so their time is extrapolated: measure longer prompts (tidegate engine profile --longest)"]


def _result(workload: Workload, seeds: int, attain: float, slo: Objective, extras: PlanExtras, plans: list[KindPlan]) -> FleetPlan:
    best = cheapest(plans)
    return FleetPlan(
        workload=workload.name,
        notes=workload.notes,
        requests=len(workload.turns),
        prompt_tokens=sum(turn.prompt_tokens for turn in workload.turns),
        output_tokens=sum(turn.output_tokens for turn in workload.turns),
        policy=DEFAULT_ROUTING,
        seeds=seeds,
        slo=slo.model_dump(),
        attain=attain,
        extras=extras,
        kinds=plans,
        cheapest=None if best is None else best.kind,
    )


def _print(result: FleetPlan) -> None:
    slo = f"TTFT {result.slo['ttft_s']:g} s, TPOT {result.slo['tpot_s'] * 1e3:g} ms for {result.attain:.1%}"
    tokens = f"{result.prompt_tokens:,} prompt and {result.output_tokens:,} answer tokens"
    out.print(f"{result.workload}: {result.requests:,} requests, {tokens}; {slo}", markup=False, soft_wrap=True)
    found = [one for one in result.kinds if one.least is not None]
    # three tables, because one is wider than a terminal
    for rows in ([_latencies(one, result.seeds) for one in found], [_engines(one, result) for one in found], _prices(found, result)):
        if rows:
            print_table(rows, list(rows[0]))
    for one in result.kinds:
        if one.why_not:
            out.print(f"{one.kind}: {one.why_not}", markup=False, soft_wrap=True)
        elif fewer := one.at((one.least or 0) - 1):
            times = f"TTFT p95 {fewer.mean.ttft_p95_s:.3g} s, TPOT p95 {fewer.mean.tpot_p95_s * 1e3:.3g} ms"
            out.print(
                f"{one.kind}, one fewer ({fewer.engines}): {fewer.worst:.1%} attained in the worst seed, {times}",
                markup=False,
                soft_wrap=True,
            )
    for one in result.kinds:
        out.print(f"speed of {one.kind}: {one.timing}", markup=False, soft_wrap=True)
    runs = f"{result.seeds} seed{'s' * (result.seeds != 1)}, routing {result.policy}"
    out.print(f"simulated, not measured: a load test has the last word ({runs})", markup=False, soft_wrap=True)
    for note in result.notes:
        out.print(f"note: {note}", markup=False, soft_wrap=True)


def _latencies(one: KindPlan, seeds: int) -> dict[str, str]:
    point = one.at(one.least or 0)
    assert point is not None
    mean = point.mean
    spread = f" ({point.worst:.1%} to {point.best:.1%})" if seeds > 1 else ""
    return {
        "kind": one.kind,
        "least": str(one.least),
        "TTFT p50 s": f"{mean.ttft_p50_s:.3g}",
        "p95": f"{mean.ttft_p95_s:.3g}",
        "p99": f"{mean.ttft_p99_s:.3g}",
        "TPOT p95 ms": f"{mean.tpot_p95_s * 1e3:.3g}",
        "attained": f"{mean.attained:.1%}{spread}",
    }


def _engines(one: KindPlan, result: FleetPlan) -> dict[str, str]:
    cost, point = one.cost, one.at(one.least or 0)
    assert cost is not None
    assert point is not None
    spare = result.extras.serving(point.engines) - point.engines
    parts = [f"{spare} headroom"] * (spare > 0) + [f"{result.extras.standby} standby"] * (result.extras.standby > 0)
    parts += [f"{cost.preemptible} preemptible"] * (cost.preemptible > 0)
    row = {
        "kind": one.kind,
        "engines": str(cost.engines) + (f" ({', '.join(parts)})" if parts else ""),
        "GPUs": str(cost.gpus),
        "GPU-hours": f"{cost.gpu_hours:.3g}",
        "KV mean": f"{point.mean.kv_mean:.0%}",
        "KV peak": f"{point.mean.kv_peak:.0%}",
    }
    unpriced = one.usd_engine_hour is None and len(result.kinds) > 1
    return row | ({"": "fewest GPUs" if one.kind == result.cheapest else ""} if unpriced else {})


def _prices(found: Sequence[KindPlan], result: FleetPlan) -> list[dict[str, str]]:
    """Dollars; no rows where no price is known."""
    return [
        {
            "kind": one.kind,
            "USD an hour": f"{cost.usd_hour:,.2f}",
            "USD for 1M tokens in and out": f"{cost.usd_per_million_tokens:.3f}",
            "USD for 1M tokens out": f"{cost.usd_per_million_output_tokens:.3f}",
            **({"": "cheapest" if one.kind == result.cheapest else ""} if len(result.kinds) > 1 else {}),
        }
        for one in found
        if (cost := one.cost) is not None and cost.usd_hour is not None
    ]


def _figure() -> type:
    """Matplotlib's figure, before a run of minutes and not after it."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        fail("--plot needs matplotlib: pip install 'tidegate[report]'", code=2)
    return Figure


def _draw(figure: type, file: Path, result: FleetPlan) -> None:
    """Share of requests and cost by number of engines, one line for each kind."""
    drawn = figure(figsize=(11, 4.5), layout="constrained")
    share, cost = drawn.subplots(1, 2)
    priced = any(one.usd_engine_hour is not None for one in result.kinds)
    for one in result.kinds:
        numbers = [point.engines for point in one.tried]
        means = [point.mean.attained for point in one.tried]
        below = [mean - point.worst for mean, point in zip(means, one.tried, strict=True)]
        above = [point.best - mean for mean, point in zip(means, one.tried, strict=True)]
        lines = share.errorbar(numbers, means, yerr=[below, above], marker="o", capsize=3, label=one.kind)
        values = [found.usd_per_million_tokens if priced else found.gpu_hours for found in one.costs]
        cost.plot(numbers, values, "o-", color=lines[0].get_color(), label=one.kind)
        if one.least is not None:
            share.axvline(one.least, color=lines[0].get_color(), linestyle=":", linewidth=1)
            cost.axvline(one.least, color=lines[0].get_color(), linestyle=":", linewidth=1)
    for axes in (share, cost):
        axes.xaxis.get_major_locator().set_params(integer=True)
    share.axhline(result.attain, color="grey", linewidth=0.8)
    share.set(xlabel="engines that serve (dotted: the least that suffices)", ylabel="share that met both objectives (bars: seeds)")
    cost.set(xlabel="engines that serve", ylabel="USD for a million tokens" if priced else "GPU-hours", ylim=(0, None))
    for axes in (share, cost):
        axes.legend(fontsize=8)
    drawn.suptitle(f"{result.workload}, simulated", fontsize=10)
    try:
        drawn.savefig(file)
    except (OSError, ValueError) as error:
        fail(f"--plot {file}: cannot be written ({error})")
