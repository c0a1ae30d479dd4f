"""`tidegate model …`: digests of models, and the registry of their revisions."""

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from backends.launch.catalogue import load
from backends.launch.resolve import LaunchError
from backends.launch.weights import weights_place
from backends.launch.weights_digest import ModelFiles, NotAModel, read_model, unlike
from gateway.cli.admin_client import API, AdminClient, Yes, sure
from gateway.cli.connection import StoreOptions
from gateway.cli.groups import CommandGroup
from gateway.cli.printing import OutputOptions, err, fail, moment, out

model_app = CommandGroup("The registry of models: revisions, their digests, and what was measured.")

REVISIONS = f"{API}/model-revisions"

Reference = Annotated[str, typer.Argument(metavar="MODEL@REVISION", help="The revision's name in the registry.")]
Ways = Annotated[int, typer.Option(min=1, max=1024)]
Full = Annotated[bool, typer.Option("--full", help="Read the weights too and not only their headers; slow.")]


@model_app.command("digest")
def digest(
    path: Annotated[Path, typer.Argument(help="The model's folder, or its GGUF file.")],
    output: OutputOptions,
    full: Full = False,
    expect: Annotated[str | None, typer.Option(metavar="DIGEST", help="End with code 1 unless this is the digest.")] = None,
) -> None:
    """Print the digest of a model's manifest, and what its configuration says. docs/reference/models.md says what it is made of.

    Exit codes: 0 done, 1 the path is no model, or its digest is not the expected one.
    """
    files = files_at(path, full=full)
    row = {"digest": files.digest, "architecture": files.architecture, "precision": files.precision, "context": files.context_tokens}
    if output.for_scripts:
        output.show([row], tuple(row), {**row, "bytes": files.bytes})
    else:
        typer.echo(files.digest)
    if expect is not None and expect != files.digest and (differs := unlike(path, expect)):
        fail(differs)


@model_app.command("register")
def register(
    reference: Reference,
    weights: Annotated[
        str,
        typer.Argument(
            help="Where they lie: /folder, pvc://claim/folder, s3://bucket/folder, gs://, az://, https://host/file, oci://name:tag."
        ),
    ],
    gateway: StoreOptions,
    files: Annotated[Path | None, typer.Option(help="A copy on this machine to read; default: WEIGHTS, where it is a path here.")] = None,
    pinned: Annotated[str | None, typer.Option("--digest", help="The digest, where there is no copy here; else it is compared.")] = None,
    precision: Annotated[str | None, typer.Option(help="Default: as config.json says.")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Longest prompt and answer, tokens; default: as config.json says.")] = None,
    tp: Ways = 1,
    pp: Ways = 1,
    dp: Ways = 1,
    ep: Ways = 1,
    tokenizer: Annotated[str | None, typer.Option(help="Where the tokenizer lies; default: beside the weights.")] = None,
    adapter: Annotated[list[str] | None, typer.Option(help="An adapter that goes with it; again for further ones.")] = None,
    launch: Annotated[str | None, typer.Option(help="The launch configuration that it is served with.")] = None,
    full: Full = False,
) -> None:
    """Register a revision of a model. Digest, precision, architecture and context are read from its files, where this machine has them."""
    model, revision = named(reference)
    try:
        place = weights_place(weights)
        if launch is not None:
            load(launch)
    except (ValueError, LaunchError) as error:
        fail(f"{weights}: {error}" if isinstance(error, ValueError) else f"--launch: {error}", code=2)
    here = files if files is not None else Path(place.path) if place.kind == "path" and Path(place.path).exists() else None
    if here is None and pinned is None:
        fail(f"{weights} is not on this machine: name a copy with --files, or say the digest of one with --digest", code=2)
    said = files_at(here, full=full) if here is not None else ModelFiles(pinned or "", 0)
    if here is not None and pinned is not None and pinned != said.digest and (differs := unlike(here, pinned)):
        fail(differs)
    body = {
        "model": model,
        "revision": revision,
        "weights": weights,
        "digest": pinned or said.digest,
        "architecture": said.architecture,
        "precision": precision if precision is not None else said.precision,
        "layout": {"tensor": tp, "pipeline": pp, "data": dp, "expert": ep},
        "tokenizer": tokenizer,
        "context_tokens": context or said.context_tokens,
        "adapters": adapter or [],
        "launch": launch or "",
    }
    made = gateway.api().post(REVISIONS, body)
    proof = f"engines prove it with a name that ends with {made['proof']}"
    out.print(f"{made['reference']} registered: {made['digest']}; {proof}", markup=False, soft_wrap=True)
    _print_doubts(made)


@model_app.command("list")
def list_revisions(
    gateway: StoreOptions, output: OutputOptions, model: Annotated[str, typer.Option(help="Only revisions of this model.")] = ""
) -> None:
    """Print the registry, retired revisions included."""
    items = gateway.api().items(REVISIONS + (f"?model={quote(model, safe='')}" if model else ""))
    rows = [
        {
            "revision": one["reference"],
            "digest": one["digest"][:19],
            "precision": one["precision"] or "-",
            "context": one["context_tokens"] or "-",
            "layout": layout_text(one["layout"]),
            "pools": ", ".join(f"{pool} (other digest)" if pool in _disagreeing(one) else pool for pool in one["pools"]) or "-",
            "state": _state(one),
            "weights": one["weights"],
        }
        for one in items
    ]
    columns = ("revision", "digest", "precision", "context", "layout", "pools", "state", "weights")
    output.show(rows, columns, items, expendable=("weights", "layout", "context", "digest"))


@model_app.command("show")
def show(reference: Reference, gateway: StoreOptions, output: OutputOptions) -> None:
    """Print one revision, and the lines that pin a pool to it."""
    revision = revision_of(gateway.api(), reference)
    profile = revision["profile"] or {}
    measured = {f"profile {name}": profile[name] for name in ("rates", "kv_tokens", "cold_start_s") if name in profile}
    fields = {name: value for name, value in revision.items() if name != "profile"} | {"layout": layout_text(revision["layout"])} | measured
    output.show_one({name: value if isinstance(value, float | None) else _text(value) for name, value in fields.items()}, revision)
    if not output.for_scripts:
        out.print(f"\npin a pool to it with\n  {pool_lines(revision)}", markup=False, soft_wrap=True)
        _print_doubts(revision)


@model_app.command("profile")
def profile(reference: Reference, gateway: StoreOptions) -> None:
    """Print the profile that was kept with a revision as JSON, for `profile` of a pool."""
    found = revision_of(gateway.api(), reference)["profile"]
    if found is None:
        fail(f"{reference} has no profile; `tidegate engine profile URL --save {reference}` measures one")
    typer.echo(msgspec.json.encode(found).decode())


@model_app.command("retire")
def retire(reference: Reference, gateway: StoreOptions, yes: Yes = False) -> None:
    """Mark a revision as no longer to be served. It stays in the registry; refused while a pool is pinned to it.

    The pools are those of the gateway that is asked, or of --config without one. Gateways with other settings are not asked.
    """
    api = gateway.api()
    shown = revision_of(api, reference)
    whose = f"the gateway at {api.where}" if api.asks_gateway else str(gateway.config)
    if shown["pools"]:
        fail(f"{reference} is in use: of {whose}, {_pools_are(shown['pools'])} pinned to it; pin to another revision first")
    if shown["retired_unix"] is not None:
        out.print(f"{reference} is retired already, since {moment(shown['retired_unix'])}", markup=False, soft_wrap=True)
        return
    seen = f"no pool of {whose} is pinned to it, and gateways with other settings"
    sure(f"Retire {reference}? As far as is known here, {seen} are not asked.", yes)
    api.post(f"{REVISIONS}/{quote(reference)}/retire")
    out.print(f"{reference} is retired; {seen} were not asked", markup=False, soft_wrap=True)


def named(reference: str) -> tuple[str, str]:
    """Model and revision of a reference; ends the command for a text that is none."""
    model, at, revision = reference.rpartition("@")
    if not at or not model or not revision:
        fail(f"{reference!r} names no revision; write MODEL@REVISION, as tide-8b@v1", code=2)
    return model, revision


def revision_of(api: AdminClient, reference: str) -> dict[str, Any]:
    """A revision as the registry shows it; ends the command where there is none."""
    named(reference)
    found: dict[str, Any] | None = api.find(f"{REVISIONS}/{quote(reference)}")
    if found is None:
        fail(f"there is no revision {reference}; `tidegate model list` shows those there are")
    return found


def files_at(path: Path, *, full: bool = False) -> ModelFiles:
    """The model at a path; ends the command where there is none."""
    try:
        return read_model(path, full=full)
    except NotAModel as error:
        fail(str(error))


def layout_text(layout: dict[str, int]) -> str:
    """A parallel layout in short, as `tp4 dp2`; `1 GPU` for none."""
    short = {"tensor": "tp", "pipeline": "pp", "data": "dp", "expert": "ep"}
    return " ".join(f"{short[way]}{count}" for way, count in layout.items() if count > 1) or "1 GPU"


def pool_lines(revision: dict[str, Any]) -> str:
    """The settings that pin a pool to a revision."""
    return f"revision: {revision['revision']}\n  pinned: {{model: {revision['model']}, digest: {revision['digest']}, unproven: refuse}}"


def doubts_of(revision: dict[str, Any]) -> list[str]:
    """What the registry says against the pools of the settings that are pinned to a revision, one sentence each."""
    reference, sentences = revision["reference"], []
    if pools := _disagreeing(revision):
        there = f"{_pools_are(pools)} pinned to {reference} with another digest than the registry has, {revision['digest']}"
        sentences.append(f"{there}: correct the digest in the settings, or pin to another revision")
    if revision["retired_unix"] is not None and revision["pools"]:
        sentences.append(f"{_pools_are(revision['pools'])} pinned to {reference}, which is retired: pin to another revision")
    return sentences


def _print_doubts(revision: dict[str, Any]) -> None:
    for sentence in doubts_of(revision):
        err.print(f"note: {sentence}", markup=False, soft_wrap=True)


def _disagreeing(revision: dict[str, Any]) -> list[str]:
    found: list[str] = revision.get("disagreeing_pools", [])  # a gateway of the release before does not say it
    return found


def _pools_are(names: list[str]) -> str:
    return f"pool {names[0]} is" if len(names) == 1 else f"pools {', '.join(names)[:300]} are"


def _state(revision: dict[str, Any]) -> str:
    if revision["retired_unix"] is not None:
        return "retired, pinned" if revision["pools"] else "retired"
    return "profiled" if revision["profile"] else "registered"


def _text(value: Any) -> str:
    return "-" if value in (None, "", []) else str(value)
