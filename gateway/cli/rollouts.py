"""`tidegate rollout …`: starts rollouts and experiments from a file, shows their state, and decides, over the admin API."""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gateway.cli.admin_client import API, Yes, segment, sure
from gateway.cli.connection import DEFAULT_CONFIG, Config, GatewayOptions
from gateway.cli.groups import CommandGroup
from gateway.cli.printing import AsJson, OutputOptions, err, out, print_json
from gateway.config.load import load_settings
from gateway.config.pools import PoolSettings
from policies.prompts.folder import names_in
from policies.rollout.document import RolloutDocument
from policies.rollout.plan import RolloutStep, StepNeeds
from policies.yaml.located import Located, read_yaml
from policies.yaml.problems import ConfigError
from policies.yaml.validate import validated

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
    document, located = _read(file)
    notes = _check_targets(document, located, config) if config.exists() else []
    for line in (*_meaning(document), *notes):
        out.print(line, markup=False, soft_wrap=True)


@rollout_app.command("start")
def start(file: File, gateway: GatewayOptions) -> None:
    """Start a rollout or an experiment. Mistakes in the file are printed, and nothing is started."""
    document, _ = _read(file)
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


def _read(file: Path) -> tuple[RolloutDocument, Located]:
    try:
        located = read_yaml(file, os.environ)
        return validated(RolloutDocument, located), located
    except ConfigError as error:
        err.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(1) from None


def _check_targets(document: RolloutDocument, located: Located, config: Path) -> list[str]:
    """Check pools or prompts against the settings file; returns notes on what only the gateway knows. Ends the command at a mistake."""
    try:
        settings = load_settings(config)
        known = {pool.name for pool in settings.pools} if document.of == "pool" else names_in(settings.prompts_dir)
        problem = "is no pool of the settings" if document.of == "pool" else "is no version of a prompt there"
        listed = f"there are: {', '.join(sorted(known)[:20]) or 'none'}"
        named = {key: getattr(document, key) for key in ("baseline", "canary")}
        if unknown := [located.problem((key,), problem, listed) for key, name in named.items() if name not in known]:
            raise ConfigError(unknown)
        if document.of != "pool":
            return []
        by_name = {pool.name: pool for pool in settings.pools}
        return _adapter_notes(by_name[document.baseline], by_name[document.canary], located)
    except ConfigError as error:
        err.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(1) from None


def _adapter_notes(baseline: PoolSettings, canary: PoolSettings, located: Located) -> list[str]:
    """Notes where adapters registered over the admin API decide whether the rollout starts: the settings file does not have those.

    Raises:
        ConfigError: the canary lacks an adapter of the baseline, and takes no registrations.
    """
    missing = sorted({lora.name for lora in baseline.loras} - {lora.name for lora in canary.loras})
    if missing and canary.lora_folder is None:
        text = f"pool {canary.name!r} lacks adapter {missing[0]!r}, which pool {baseline.name!r} has"
        raise ConfigError([located.problem(("canary",), text, "add it to the pool's `loras` in the settings")])
    if missing:
        lacks = f"{missing[0]!r}{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}, which pool {baseline.name!r} has"
        where = "adapters registered over the admin API are not known here, and start refuses it unless registered (tidegate lora list)"
        return [f"note: pool {canary.name!r} has no adapter {lacks}, in the settings; {where}"]
    if baseline.lora_folder is not None:
        where = "are not known here; start refuses it unless the canary has each of them too (tidegate lora list)"
        return [f"note: adapters registered over the admin API for pool {baseline.name!r} {where}"]
    return []


def _meaning(document: RolloutDocument) -> Iterator[str]:
    plan = document.plan("check")
    kind = "experiment" if not plan.acts else "rollout"
    yield f"ok, {kind} {document.name}: {document.baseline} -> {document.canary}"
    for only, names in (("tenants", document.tenants), ("models", document.models)):
        if names is not None:
            yield f"  only {only} {', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
    asked_for = 0
    for name, step in plan.named()[:-1]:
        asked_for += step.min_requests
        short = step.needs is StepNeeds.NOT_WORSE and asked_for < plan.terms.min_samples
        yield f"  {_step_in_words(name, step)}{_waiting(asked_for, plan.terms.min_samples) if short else ''}"
    yield f"  then {'nothing by itself' if not plan.acts else 'all of the traffic'}; no decision in time: {document.on_timeout}"
    margins = ", ".join(f"{metric} {margin:g}" for metric, margin in plan.terms.margins.items())
    yield f"  margins {margins}; alpha {plan.terms.alpha:g}"


def _waiting(asked_for: int, min_samples: int) -> str:
    """The note on a step whose requests are too few for any judgement."""
    requests = f"{asked_for:,} request{'s' * (asked_for != 1)}"
    return f"; note: {requests} are fewer than min_samples ({min_samples:,}), so it also waits until one metric has {min_samples:,} samples"


def _step_in_words(name: str, step: RolloutStep) -> str:
    text = f"{name}: {step.min_requests:,} requests and {_duration(step.min_s)}, at most {_duration(step.max_s)}; {step.needs.value}"
    return text + ("; waits to be promoted" if step.gate else "")


def _line(rollout: dict[str, Any]) -> str:
    prefix = "experiment " if rollout["experiment"] else ""
    moment = _duration(max(0.0, time.time() - (rollout["entered_unix"] if rollout["open"] else rollout["changed_unix"])))
    if not rollout["open"]:
        return f"{prefix}{rollout['name']}: {rollout['baseline']} -> {rollout['canary']}, {rollout['status']} {moment} ago"
    share = f"{100 * rollout['mirrored']:g} % mirrored" if rollout["mirrored"] else f"{100 * rollout['share']:g} % of the conversations"
    phase = f"phase {rollout['phase_index'] + 1} of {rollout['phases']} for {moment}"
    return f"{prefix}{rollout['name']}: {rollout['baseline']} -> {rollout['canary']}, {rollout['status']}, {share}, {phase}"


def _details(rollout: dict[str, Any]) -> Iterator[str]:
    yield _line(rollout)
    if rollout["open"] and rollout["status"] != "done":
        spent = f"{_duration(rollout['spent_s'])} of at most {_duration(rollout['max_s'])}"
        counted = f"{rollout['counted']:,} requests of the canary counted in this phase, which asks for {rollout['min_requests']:,}"
        yield f"  {counted}; {rollout['counted_in_all']:,} in all; {spent}"
    yield f"  last change: {rollout['reason']}"
    for finding in rollout["findings"]:
        yield f"  {finding['judgement']}: {finding['words']}"


def _duration(seconds: float) -> str:
    """A duration as text, in the largest unit of which there are at least two, else in seconds."""
    for unit, length in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}" if seconds >= 10 * length else f"{seconds / length:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.0f} s"
