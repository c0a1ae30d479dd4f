"""What the `tidegate engine` verbs share: a launch configuration by name, with what `--set` and the other options change."""

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
    """The engine that was asked for; ends the command with a sentence when it makes no sense.

    Args:
        defaults: parameters in place of the configuration's own, below `sets`.
    """
    try:
        config = load(name)
        given = {**{key: value for key, value in (defaults or {}).items() if key in config.parameters}, **parse_sets(sets or ())}
        launch = resolve(config, manifest_for(config.engine, config.version), given)
    except LaunchError as error:
        fail(str(error))
    if executable is None:
        return launch
    return msgspec.structs.replace(launch, command=(executable, *launch.command[1:]))


def parse_sets(sets: Sequence[str]) -> dict[str, JsonValue]:
    """`NAME=VALUE` texts; values are read as YAML, so numbers, true and {json: too} are what they look like.

    Raises:
        LaunchError: no `=`, or a value that is no YAML.
    """
    given: dict[str, JsonValue] = {}
    for one in sets:
        name, equals, text = one.partition("=")
        if not equals or not name:
            raise LaunchError(f"--set {one!r}: write NAME=VALUE")
        try:
            value = yaml.safe_load(text) if text else ""
        except yaml.YAMLError:
            raise LaunchError(f"--set {name}: the value is no YAML; put quotes around it") from None
        if not isinstance(value, str | int | float | bool | list | dict | None):
            value = text  # what YAML takes for a date is text here
        given[name.removeprefix("--")] = value
    return given
