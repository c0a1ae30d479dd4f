"""Options shared by the `tidegate engine` commands: a launch configuration by name, changed by `--set` and others."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
import typer
import yaml
from pydantic import JsonValue

from backends.launch.catalogue import load
from backends.launch.config import LaunchConfig
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
        values |= {} if revision is None else _revision_values(revision, config, name, given)
        launch = resolve(config, manifest_for(config.engine, config.version), {**values, **given})
    except LaunchError as error:
        fail(str(error))
    if revision is not None:
        _check_layout(launch, revision)
        _check_served(launch, revision)
        launch = msgspec.structs.replace(launch, revision=revision["reference"].rpartition("@")[2])
    if executable is None:
        return launch
    return msgspec.structs.replace(launch, command=(executable, *launch.command[1:]))


def _revision_values(revision: Mapping[str, Any], config: LaunchConfig, name: str, given: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The parameters with which a registered revision is served; ends the command for one that must not be.

    Args:
        revision: as the registry shows it.
        config: the launch configuration.
        name: its name, as the command line gives it.
        given: what the command line sets.
    """
    reference = revision["reference"]
    if revision["retired_unix"] is not None:
        fail(f"{reference} is retired: register another revision, or serve one that is not (`tidegate model list`)")
    if revision["launch"] not in ("", name):
        fail(f"{reference} is registered with the launch configuration {revision['launch']}, not {name}")
    values: dict[str, JsonValue] = {"digest": revision["digest"], "served_name": revision["model"]}
    if (model := _path_of(revision["weights"])) is not None:
        values["model"] = model
    elif "model" not in given:
        there = f"the weights of {reference} lie at {revision['weights']}, which no engine opens"
        fail(f"{there}: say where they are copied to, with --set model=/folder")
    flags = _FLAGS[config.engine]
    if revision["context_tokens"]:
        values[_setting(config, flags["context"][0])] = revision["context_tokens"]
    if revision["tokenizer"]:
        setting = _setting(config, flags["tokenizer"][0])
        claims = {place.where for place in map(weights_place, (revision["weights"], revision["tokenizer"])) if place.kind == "pvc"}
        if len(claims) > 1 and given.keys().isdisjoint((setting, *flags["tokenizer"])):
            there = f"the tokenizer of {reference} lies in another claim than its weights, and one is mounted at /models"
            fail(f"{there}: say where it is mounted, with --set {setting}=/folder")
        if (tokenizer := _path_of(revision["tokenizer"])) is not None:
            values[setting] = tokenizer
        elif given.keys().isdisjoint((setting, *flags["tokenizer"])):
            there = f"the tokenizer of {reference} lies at {revision['tokenizer']}, which no engine opens"
            fail(f"{there}: say where it is copied to, with --set {setting}=/folder")
    for way in ("data", "expert"):
        written = [flag for flag in flags.get(way, ()) if flag in config.flags]
        if written and revision["layout"][way] > 1:
            values[_setting(config, written[0])] = revision["layout"][way]
    return values


def _path_of(reference: str) -> str | None:
    """Where an engine opens weights or a tokenizer of the registry; None where no engine does."""
    place = weights_place(reference)
    return {"path": place.path, "pvc": f"/models{place.path}"}.get(place.kind)


def _setting(config: LaunchConfig, flag: str) -> str:
    """The name that sets a flag: that of the parameter that it is written with, so that what else follows the parameter does too."""
    written = re.fullmatch(r"\{([a-z][a-z0-9_]*)\}", str(config.flags.get(flag)))
    return flag if written is None else written[1]


_FLAGS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "vllm": {
        "tensor": ("tensor-parallel-size",),
        "pipeline": ("pipeline-parallel-size",),
        "data": ("data-parallel-size",),
        "context": ("max-model-len",),
        "tokenizer": ("tokenizer",),
    },
    "sglang": {
        "tensor": ("tp-size", "tensor-parallel-size"),
        "pipeline": ("pp-size", "pipeline-parallel-size"),
        "data": ("dp-size", "data-parallel-size"),
        "expert": ("ep-size", "expert-parallel-size", "ep"),
        "context": ("context-length",),
        "tokenizer": ("tokenizer-path",),
    },
}
"""The flags of an engine for what the registry says of a revision, under every name that it has for them; vLLM has a switch for experts."""


def _check_layout(launch: Launch, revision: Mapping[str, Any]) -> None:
    """End the command when a launch spreads a revision over other GPUs than it is registered with.

    A revision that is registered without data or expert parallelism has that of the launch configuration.
    """
    reference = revision["reference"]
    for way in ("tensor", "pipeline", "data", "expert"):
        registered = revision["layout"][way]
        names = _FLAGS[launch.engine].get(way)
        if names is None or (registered == 1 and way in ("data", "expert")):
            continue
        used = {name: launch.flags[name] for name in names if name in launch.flags} or {names[0]: 1}
        for flag, value in used.items():
            if int(str(value)) != registered:
                said = f"{reference} is registered for {way} parallelism {registered}"
                shown = value if flag in launch.flags else f"not in {launch.config.name}"
                fail(f"{said}, and --{flag} is {shown}: say --set {flag}={registered}")
    if launch.engine == "vllm" and revision["layout"]["expert"] > 1:
        _check_experts(launch, reference, revision["layout"]["expert"])


def _check_experts(launch: Launch, reference: str, registered: int) -> None:
    """End the command unless vLLM deals the experts out over as many GPUs as are registered: over all of tensor and data parallelism."""
    said = f"{reference} is registered for expert parallelism {registered}"
    off = any(launch.flags.get(f"{no}-expert-parallel") is True for no in ("no-enable", "disable"))
    if off or launch.flags.get("enable-expert-parallel") is not True:
        fail(f"{said}, and {launch.config.name} is without --enable-expert-parallel: say --set enable-expert-parallel=true")
    tensor, data = (int(str(launch.flags.get(f"{way}-parallel-size", 1))) for way in ("tensor", "data"))
    if tensor * data != registered:
        spread = f"tensor parallelism {tensor} times data parallelism {data}"
        fail(f"{said}, and vLLM spreads the experts over {spread}, which is {tensor * data}: register another revision with that --ep")


def _check_served(launch: Launch, revision: Mapping[str, Any]) -> None:
    """End the command when a launch has another context or tokenizer than the revision is registered with."""
    reference, flags = revision["reference"], _FLAGS[launch.engine]
    (flag,) = flags["context"]
    context, used = revision["context_tokens"], launch.flags.get(flag)
    if context and str(used) != str(context):
        shown = "taken away" if used is None else used
        said = f"{reference} is registered for a context of {context} tokens, and --{flag} is {shown}"
        fail(f"{said}: leave the --set out, or register another revision with the other --context")
    (flag,) = flags["tokenizer"]
    registered = revision["tokenizer"] or ""
    # a volume claim may be mounted elsewhere, as that of the weights
    if registered.startswith("/") and str(launch.flags.get(flag)) != registered:
        said = f"{reference} is registered with the tokenizer {registered}, and --{flag} is {launch.flags.get(flag, 'taken away')}"
        fail(f"{said}: leave the --set out, or register another revision with the other --tokenizer")


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
