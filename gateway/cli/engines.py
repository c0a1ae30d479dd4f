"""`tidegate engine …`: launch configurations of engines: list, show, render and size them.

`engine_check`, `engine_run` and `engine_profile` hold the commands `check`, `run` and `profile`.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from backends.dialects import DIALECTS, Dialect
from backends.launch.catalogue import load, names, shared_text, text_of
from backends.launch.config import Hardware
from backends.launch.kubernetes import kubernetes
from backends.launch.model_shape import SizingError, read_shape
from backends.launch.render import compose, runtime_dir, shell, systemd
from backends.launch.resolve import LaunchError, is_wildcard
from backends.launch.sizing import GIB, Sizes, plan_of, size
from gateway.cli.connection import StoreOptions
from gateway.cli.engine_check import check_engine
from gateway.cli.engine_profile import profile_engine
from gateway.cli.engine_run import run_engine
from gateway.cli.groups import CommandGroup
from gateway.cli.launch_options import Executable, Name, Revision, Sets, launch_from
from gateway.cli.models import revision_of
from gateway.cli.printing import OutputOptions, err, fail, out, print_table

engine_app = CommandGroup("Launch configurations of engines: show, start, compare, size.")

MAX_CONFIG_BYTES = 4 * 1024 * 1024
"""Largest config.json read; the longest published ones are 200 KB."""


@engine_app.command("list")
def list_engines(output: OutputOptions) -> None:
    """Print the kinds of engine Tidegate speaks with, and the launch configurations."""
    configs = [load(name) for name in names()]
    if not output.for_scripts:
        kinds = [
            {
                "dialect": dialect.name,
                "against_the_real_engine": "proven" if dialect.proven else "unproven: recordings or documents only",
                "known_from": dialect.known_from,
                "on_SIGTERM": dialect.drains or "not looked at",
            }
            for dialect in DIALECTS.values()
        ]
        output.show(kinds, tuple(kinds[0]), expendable=("on_SIGTERM", "known_from"))
    launches = [{"name": config.name, "engine": config.engine, "version": config.version, "summary": config.summary} for config in configs]
    rows = [
        {"launch_configuration": one.name, "flags_of": f"{one.engine} {one.version}", "gpus": _gpus(one.hardware), "for": one.summary}
        for one in configs
    ]
    dialects = [_described(dialect) for dialect in DIALECTS.values()]
    output.show(rows, tuple(rows[0]), {"dialects": dialects, "launch": launches}, expendable=("for", "flags_of"))


def _gpus(hardware: Hardware) -> str:
    return f"{hardware.gpus} x {hardware.gpu_memory_gib:g} GB" if hardware.gpus and hardware.gpu_memory_gib else "CPU"


def _described(dialect: Dialect) -> dict[str, Any]:
    isolation = None
    if dialect.isolation is not None:
        isolation = {"field": dialect.isolation.field, "endpoints": sorted(endpoint.value for endpoint in dialect.isolation.endpoints)}
    return {
        "dialect": dialect.name,
        "proven": dialect.proven,
        "known_from": dialect.known_from,
        "isolation": isolation,
        "priority": msgspec.to_builtins(dialect.priority),
        "lora_model": dialect.lora_model,
        "lora": msgspec.to_builtins(dialect.lora),
        "refusals": sorted(shape.value for shape in dialect.errors),
        "drains": dialect.drains,
    }


@engine_app.command("show")
def show_engine(
    name: Name,
    sets: Sets = None,
    as_json: Annotated[bool, typer.Option("--json", help="What results, with --set, as JSON.")] = False,
) -> None:
    """Print a launch configuration with the reason of every value, after what the gateway needs of every such engine."""
    if as_json or sets:
        launch = launch_from(name, sets)
        shown: dict[str, Any] = {
            "name": launch.config.name,
            "engine": launch.engine,
            "version": launch.config.version,
            "url": launch.url,
            "served_name": launch.served_name,
            "command": launch.command,
            "environment": launch.environment,
            "parameters": launch.parameters,
            "grace_s": launch.grace_s,
            "kv_events": msgspec.to_builtins(launch.kv_events),
            "load_push": msgspec.to_builtins(launch.load_push),
        }
        typer.echo(json.dumps(shown, indent=2))
        return
    try:
        config = load(name)
        own_text = text_of(name) if name in names() else Path(name).read_text(encoding="utf-8")
    except (LaunchError, OSError) as error:
        fail(str(error))
    typer.echo(f"# --- every {config.engine}\n{shared_text(config.engine)}\n# --- {name}\n{own_text}", nl=False)


@engine_app.command("render")
def render_engine(
    name: Name,
    gateway: StoreOptions,
    form: Annotated[Literal["shell", "compose", "kubernetes", "systemd"], typer.Option("--format", help="What to write.")] = "shell",
    sets: Sets = None,
    executable: Executable = None,
    revision: Revision = None,
) -> None:
    """Write a launch configuration down for somebody else to start. Containers listen on every interface of their own."""
    defaults = {"host": "0.0.0.0"} if form in ("compose", "kubernetes") else {"runtime_dir": runtime_dir(name)} if form == "systemd" else {}
    launch = launch_from(name, sets, executable, defaults, None if revision is None else revision_of(gateway.api(), revision))
    try:
        text = {"shell": shell, "compose": compose, "kubernetes": kubernetes, "systemd": systemd}[form](launch)
    except LaunchError as error:
        fail(str(error))
    typer.echo(text, nl=False)
    if launch.kv_events is not None and is_wildcard(launch.host):
        where = "other pods" if form == "kubernetes" else "other machines"
        err.print(f"note: KV events hold prompts in clear; keep {where} but the gateway's away from these ports", soft_wrap=True)


@engine_app.command("size")
def size_engine(
    name: Annotated[
        str, typer.Argument(help="A launch configuration: its flags, its GPUs and, unless --config says otherwise, its model.")
    ],
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The model's own config.json, or the folder it is in.")] = None,
    memory_gib: Annotated[
        float | None, typer.Option(min=0.1, max=4096, help="Memory of one GPU, GiB; default: the configuration's.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a sequence, prompt and answer; default: the configuration's.")
    ] = None,
    sets: Sets = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Compute weights, KV per token, KV capacity and concurrent sequences from the model's config.json. Nothing is started."""
    launch = launch_from(name, sets)
    try:
        shape = read_shape(launch.config.sizing.model if config is None else _model_config(config))
        plan = plan_of(launch, None if memory_gib is None else int(memory_gib * GIB))
        sizes = size(
            shape, plan, context or launch.config.sizing.context, weights_total_bytes=None if config is None else _weights_on_disk(config)
        )
    except SizingError as error:
        fail(f"{name}: {error}")
    if as_json:
        typer.echo(msgspec.json.encode(sizes).decode())
        return
    column = "per GPU" if launch.config.hardware.gpus else "of the process"
    print_table([{column: label, "size": value} for label, value in _rows(sizes)], (column, "size"))
    for note in sizes.notes:
        out.print(f"note: {note}", markup=False, soft_wrap=True)


def _rows(sizes: Sizes) -> list[tuple[str, str]]:
    allowed = "" if sizes.max_sequences is None else f" by memory, {sizes.max_sequences:,} allowed"
    fits = f"{sizes.sequences:,}{allowed}"
    rows = [
        ("parameters of the model", f"{sizes.parameters:,}"),
        ("weights of the model", _gib(sizes.weights_total_bytes)),
        ("weights", _gib(sizes.weights_bytes)),
        ("KV memory", _gib(sizes.kv_bytes)),
        ("KV per token", f"{sizes.kv_token_bytes:,} bytes"),
        ("KV blocks", f"{sizes.blocks:,}"),
        ("KV capacity", f"{sizes.capacity_tokens:,} tokens"),
        (f"sequences of {sizes.context:,} tokens", fits),
    ]
    return rows if not sizes.lora_bytes else [*rows[:3], ("adapter slots", _gib(sizes.lora_bytes)), *rows[3:]]


def _gib(count: int) -> str:
    return f"{count / GIB:,.2f} GiB"


def _model_config(path: Path) -> dict[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    try:
        with file.open("rb") as opened:
            body = opened.read(MAX_CONFIG_BYTES + 1)
        model_config = json.loads(body) if len(body) <= MAX_CONFIG_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        raise SizingError(f"{file} cannot be read ({type(error).__name__})") from None
    if not isinstance(model_config, dict):
        raise SizingError(f"{file} is no model's config.json")
    return model_config


def _weights_on_disk(path: Path) -> int | None:
    """Bytes of the safetensors files beside config.json; None when there are none."""
    folder = path if path.is_dir() else path.parent
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) or None


engine_app.command("check")(check_engine)
engine_app.command("run")(run_engine)
engine_app.command("profile")(profile_engine)
