"""Options shared by the `tidegate engine` commands: a launch configuration by name, changed by `--set` and others."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import typer
import yaml
from pydantic import JsonValue

from backends.launch.catalogue import load
from backends.launch.manifest import manifest_for
from backends.launch.resolve import Launch, LaunchError, resolve
from backends.launch.weights import weights_place
from gateway.cli.printing import fail

Name = Annotated[str, typer.Argument(help="A launch configuration of `tidegate engine list`, or a file of your own (….yaml).")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A parameter, or a flag of the engine without dashes; NAME=false takes a flag away."),
]
Revision = Annotated[
    str | None,
    typer.Option(metavar="MODEL@REVISION", help="Serve this revision of the registry: its weights, and its digest in a served name."),
]
Executable = Annotated[str | None, typer.Option(help="The program to run in place of the configuration's own (vllm, python3).")]


def launch_from(
    name: str,
    sets: Sequence[str] | None = None,
    executable: str | None = None,
    defaults: Mapping[str, JsonValue] | None = None,
    revision: Mapping[str, Any] | None = None,
) -> Launch:
    """The launch of the engine; ends the command with a sentence when name or parameters cannot be used.

    Args:
        defaults: parameters that override the configuration's own, and that `sets` override.
        revision: the registered revision to serve, as the registry shows it; its parameters override both but `sets`.
    """
    try:
        config = load(name)
        values = {key: value for key, value in (defaults or {}).items() if key in config.parameters}
        given = parse_sets(sets or ())
        values |= {} if revision is None else _revision_values(revision, name, given)
        launch = resolve(config, manifest_for(config.engine, config.version), {**values, **given})
    except LaunchError as error:
        fail(str(error))
    if revision is not None:
        _check_layout(launch, revision)
    if executable is None:
        return launch
    return msgspec.structs.replace(launch, command=(executable, *launch.command[1:]))


def _revision_values(revision: Mapping[str, Any], name: str, given: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The parameters with which a registered revision is served; ends the command for one that must not be.

    Args:
        revision: as the registry shows it.
        name: the launch configuration.
        given: what the command line sets.
    """
    reference = revision["reference"]
    if revision["retired_unix"] is not None:
        fail(f"{reference} is retired: register another revision, or serve one that is not (`tidegate model list`)")
    if revision["launch"] not in ("", name):
        fail(f"{reference} is registered with the launch configuration {revision['launch']}, not {name}")
    values: dict[str, JsonValue] = {"digest": revision["digest"], "served_name": revision["model"]}
    place = weights_place(revision["weights"])
    if place.kind == "path":
        values["model"] = place.path
    elif place.kind == "pvc":
        values["model"] = f"/models{place.path}"
    elif "model" not in given:
        there = f"the weights of {reference} lie at {revision['weights']}, which no engine opens"
        fail(f"{there}: say where they are copied to, with --set model=/folder")
    return values


def _check_layout(launch: Launch, revision: Mapping[str, Any]) -> None:
    """End the command when a launch spreads a revision over other GPUs than it is registered with."""
    ways = {"tensor": ("tensor-parallel-size", "tp-size"), "pipeline": ("pipeline-parallel-size", "pp-size")}
    for way, flags in ways.items():
        flag = flags[launch.engine == "sglang"]
        used, registered = int(str(launch.flags.get(flag, 1))), revision["layout"][way]
        if used != registered:
            said = f"{revision['reference']} is registered for {way} parallelism {registered}"
            fail(f"{said}, and --{flag} is {used}: say --set {flag}={registered}")


def parse_sets(sets: Sequence[str]) -> dict[str, JsonValue]:
    """The values of `NAME=VALUE` texts by name, read as YAML, so that numbers, true and {json: too} have their types.

    Raises:
        LaunchError: a text has no `=`, or a value is no YAML.
    """
    values: dict[str, JsonValue] = {}
    for assignment in sets:
        name, equals, text = assignment.partition("=")
        if not equals or not name:
            raise LaunchError(f"--set {assignment!r}: write NAME=VALUE")
        try:
            value = yaml.safe_load(text) if text else ""
        except yaml.YAMLError:
            raise LaunchError(f"--set {name}: the value is no YAML; put quotes around it") from None
        if not isinstance(value, str | int | float | bool | list | dict | None):
            value = text  # a date of YAML is text here
        values[name.removeprefix("--")] = value
    return values
