"""`tidegate rollout …`: starts rollouts and experiments from a file, shows their state, and decides, over the admin API."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gateway.cli.admin_client import API, Yes, segment, sure
from gateway.cli.connection import DEFAULT_CONFIG, Config, GatewayOptions
from gateway.cli.durations import duration_in_words
from gateway.cli.groups import CommandGroup
from gateway.cli.printing import AsJson, OutputOptions, out, print_json

rollout_app = CommandGroup("Rollouts of what is new from pool to pool, and experiments.")

ROLLOUTS: Final = f"{API}/rollouts"
MOST_LISTED: Final = 20
_COLUMNS: Final = ("name", "baseline", "canary", "status", "share", "mirrored", "phase_index", "phases", "entered_unix")

File = Annotated[Path, typer.Argument(help="A rollout file, see docs/reference/rollouts.md.")]
Name = Annotated[str, typer.Argument(help="The rollout's name.")]


@rollout_app.command("check")
def check(file: File, config: Config = DEFAULT_CONFIG) -> None:
    """Read a rollout file, and print what it means or every mistake with line and key. Without a settings file, whether pools exist is
    left open. A note says where adapters registered over the admin API decide. Exit codes: 0 it can be started, 1 it cannot.
    """
    # imported only here, as in every command that asks no gateway
    from gateway.cli.rollout_files import check_targets, meaning, read_rollout

    document, located = read_rollout(file)
    notes = check_targets(document, located, config) if config.exists() else []
    for line in (*meaning(document), *notes):
        out.print(line, markup=False, soft_wrap=True)


@rollout_app.command("start")
def start(file: File, gateway: GatewayOptions) -> None:
    """Start a rollout or an experiment. Mistakes in the file are printed, and nothing is started."""
    from gateway.cli.rollout_files import read_rollout

    document, _ = read_rollout(file)
    rollout = gateway.api().post(ROLLOUTS, document.model_dump(mode="json", exclude_unset=True))
    out.print(f"{_line(rollout)}; see tidegate rollout show {rollout['name']}", markup=False, soft_wrap=True)


@rollout_app.command("list")
def list_rollouts(
    gateway: GatewayOptions,
    output: OutputOptions,
    closed: Annotated[bool, typer.Option("--closed", help="The last ones that are over.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Most rollouts.")] = MOST_LISTED,
) -> None:
    """Print the rollouts that are in force: phase, share, and since when."""
    rollouts = gateway.api().items(f"{ROLLOUTS}?closed={str(closed).lower()}", limit)
    if output.for_scripts or output.wide or output.target is not None:
        output.show(rollouts, _COLUMNS, rollouts)
        return
    lines = [_line(rollout) for rollout in rollouts] or [f"no rollout is {'over' if closed else 'in force'}"]
    _print(rollouts, lines, as_json=False)


@rollout_app.command("show")
def show(name: Name, gateway: GatewayOptions, as_json: AsJson = False) -> None:
    """Print how a rollout stands: phase, share, what was counted, what is found of each metric, and why."""
    rollout = gateway.api().read(f"{ROLLOUTS}/{segment(name)}")
    _print(rollout, _details(rollout), as_json)


def _print(record: Any, lines: Iterable[str], as_json: bool) -> None:
    if as_json:
        print_json(record)
        return
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)


@rollout_app.command("pause")
def pause(name: Name, gateway: GatewayOptions) -> None:
    """Keep its share and stop its time; it is still compared, and goes back when it is worse."""
    _decide(gateway, name, "pause")


@rollout_app.command("resume")
def resume(name: Name, gateway: GatewayOptions) -> None:
    """Go on from a pause."""
    _decide(gateway, name, "resume")


@rollout_app.command("promote")
def promote(name: Name, gateway: GatewayOptions) -> None:
    """On to the next phase: past a gate, out of a hold or a pause, or before its time."""
    _decide(gateway, name, "promote")


@rollout_app.command("abort")
def abort(
    name: Name,
    gateway: GatewayOptions,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is written down.")],
) -> None:
    """Back to the baseline. New requests go there within a second, those that run on the canary end there.

    While the database is away, the gateway that is asked does so alone and writes it down later: ask each gateway.
    """
    _decide(gateway, name, "abort", {"reason": reason})


@rollout_app.command("close")
def close(
    name: Name,
    gateway: GatewayOptions,
    yes: Yes = False,
    back: Annotated[bool, typer.Option("--back", help="Also while policies lead to the baseline: traffic goes back to it.")] = False,
) -> None:
    """Close one that is done. Requests then go where policies say: it is refused while policies lead to the baseline."""
    question = f"Close {name}, and send its traffic where policies say, back to the baseline if they lead there?"
    sure(question if back else f"Close {name}? Requests go where the policies of every gateway say.", yes)
    _decide(gateway, name, "close?back=true" if back else "close")


def _decide(gateway: GatewayOptions, name: str, decision: str, body: dict[str, str] | None = None) -> None:
    rollout = gateway.api().post(f"{ROLLOUTS}/{segment(name)}/{decision}", body)
    if rollout.get("pending"):
        here = (
            f"{rollout['name']}: the database is away; this gateway sends its traffic to {rollout['baseline']} now and writes it down later"
        )
        for line in (here, "  ask every other gateway on the database too: it goes on until the database is back"):
            out.print(line, markup=False, soft_wrap=True)
        return
    for line in (_line(rollout), f"  {rollout['reason']}"):
        out.print(line, markup=False, soft_wrap=True)


def _line(rollout: dict[str, Any]) -> str:
    prefix = "experiment " if rollout["experiment"] else ""
    moment = duration_in_words(max(0.0, time.time() - (rollout["entered_unix"] if rollout["open"] else rollout["changed_unix"])))
    if not rollout["open"]:
        return f"{prefix}{rollout['name']}: {rollout['baseline']} -> {rollout['canary']}, {rollout['status']} {moment} ago"
    share = f"{100 * rollout['mirrored']:g} % mirrored" if rollout["mirrored"] else f"{100 * rollout['share']:g} % of the conversations"
    phase = f"phase {rollout['phase_index'] + 1} of {rollout['phases']} for {moment}"
    return f"{prefix}{rollout['name']}: {rollout['baseline']} -> {rollout['canary']}, {rollout['status']}, {share}, {phase}"


def _details(rollout: dict[str, Any]) -> Iterator[str]:
    yield _line(rollout)
    if rollout["open"] and rollout["status"] != "done":
        spent = f"{duration_in_words(rollout['spent_s'])} of at most {duration_in_words(rollout['max_s'])}"
        counted = f"{rollout['counted']:,} requests of the canary counted in this phase, which asks for {rollout['min_requests']:,}"
        yield f"  {counted}; {rollout['counted_in_all']:,} in all; {spent}"
    yield f"  last change: {rollout['reason']}"
    for finding in rollout["findings"]:
        yield f"  {finding['judgement']}: {finding['words']}"
