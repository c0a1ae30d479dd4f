"""Options shared by the `tidegate engine` commands: a launch configuration by name, changed by `--set` and others."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
import typer
import yaml
from pydantic import JsonValue

from backends.launch.catalogue import load
from backends.launch.manifest import manifest_for
from backends.launch.resolve import Launch, LaunchError, resolve
from gateway.cli.printing import fail

Name = Annotated[str, typer.Argument(help="A launch configuration of `tidegate engine list`, or a file of your own (….yaml).")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A parameter, or a flag of the engine without dashes; NAME=false takes a flag away."),
]
Executable = Annotated[str | None, typer.Option(help="The program to run in place of the configuration's own (vllm, python3).")]


def launch_from(
    name: str, sets: Sequence[str] | None = None, executable: str | None = None, defaults: Mapping[str, JsonValue] | None = None
) -> Launch:
    """The launch of the engine; ends the command with a sentence when name or parameters cannot be used.

    Args:
        defaults: parameters that override the configuration's own, and that `sets` override.
    """
    try:
        config = load(name)
        values = {**{key: value for key, value in (defaults or {}).items() if key in config.parameters}, **parse_sets(sets or ())}
        launch = resolve(config, manifest_for(config.engine, config.version), values)
    except LaunchError as error:
        fail(str(error))
    if executable is None:
        return launch
    return msgspec.structs.replace(launch, command=(executable, *launch.command[1:]))


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
