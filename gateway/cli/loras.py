"""`tidegate lora …`: digests of adapter folders, registrations, and the backends that have adapters loaded."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from backends.lora.digest import NotAnAdapter, lora_digest
from backends.lora.residency import Adapter
from gateway.cli.admin_client import API, Yes, segment, sure
from gateway.cli.backends import fleet_of
from gateway.cli.connection import GatewayOptions
from gateway.cli.groups import CommandGroup
from gateway.cli.printing import OutputOptions, err, fail, out
from gateway.config.load import ConfigError, Settings, load_settings
from gateway.placement.backend_state import BackendState

lora_app = CommandGroup("Adapters: what they are pinned by, and where they are.")


class AdapterRow(msgspec.Struct, frozen=True):
    """One adapter of one pool."""

    pool: str
    lora: str
    """The name that policies use; empty for an adapter that only engines know."""
    served: str
    """The engine-side name."""
    digest: str
    path: str
    backends: tuple[str, ...]
    """The backends that have it loaded."""
    source: str
    """`static` for tidegate.yaml, `registered` for the admin API, `engine` for an adapter that only engines know."""


Pool = Annotated[str, typer.Option(help="The pool whose engines load the adapter.")]
AdapterName = Annotated[str, typer.Argument(metavar="ADAPTER", help="The adapter's name in policies.")]


@lora_app.command("create")
def create_lora(
    name: AdapterName,
    path: Annotated[str, typer.Argument(metavar="PATH", help="The adapter's folder as engines see it, below the pool's lora_folder.")],
    pool: Pool,
    gateway: GatewayOptions,
    pinned: Annotated[
        str | None,
        typer.Option("--digest", metavar="DIGEST", help="SHA-256 of its files; default: of the folder PATH on this machine."),
    ] = None,
) -> None:
    """Register an adapter with every gateway on the database. Policies of tenants may name it before and after."""
    wanted = {"pool": pool, "name": name, "digest": _digest_of(Path(path)) if pinned is None else pinned, "path": path}
    gateway.api().post(f"{API}/adapters", wanted)
    out.print(f"adapter {name} of pool {pool} registered; gateways use it within 5 s", markup=False, soft_wrap=True)


@lora_app.command("delete")
def delete_lora(name: AdapterName, pool: Pool, gateway: GatewayOptions, yes: Yes = False) -> None:
    """Delete a registration: models of policies that name the adapter are refused with a 503."""
    sure(f"Delete adapter {name} of pool {pool}?", yes)
    gateway.api().delete(f"{API}/adapters/{segment(pool)}/{segment(name)}")
    out.print(
        f"adapter {name} of pool {pool} is deleted within 5 s; engines keep it until its slot is needed", markup=False, soft_wrap=True
    )


@lora_app.command("digest")
def digest(folder: Annotated[Path, typer.Argument(help="The adapter's folder, with adapter_config.json and the weights.")]) -> None:
    """Print the digest of an adapter folder: what goes into `digest` of tidegate.yaml. docs/reference/lora.md says what it is made of."""
    typer.echo(_digest_of(folder))


def _digest_of(folder: Path) -> str:
    """Ends the command where the folder is no adapter that this machine can read."""
    try:
        return lora_digest(folder)
    except NotAnAdapter as error:
        fail(str(error))


@lora_app.command("list")
def list_loras(gateway: GatewayOptions, output: OutputOptions) -> None:
    """Print every adapter of the settings and every registered one with its digest, and the backends of the running gateway that have it
    loaded.

    Adapters that only engines know are listed without a name: older versions, until their place is needed. Registered ones are asked for
    where a pool of the settings has a lora_folder, which needs a token.
    """
    try:
        settings = load_settings(gateway.config)
    except ConfigError as error:
        err.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    may_register = any(pool.lora_folder is not None for pool in settings.pools)
    registered = [one for one in gateway.api().read(f"{API}/adapters")["items"] if one["source"] == "registered"] if may_register else []
    adapters = rows(settings, fleet_of(gateway.public()), registered)
    shown = [
        {
            "adapter": row.lora or "-",
            "pool": row.pool,
            "digest": row.digest[:12] or "-",
            "engines_know_it_as": row.served,
            "loaded_on": row.backends or "-",
            "source": row.source,
        }
        for row in adapters
    ]
    source = ("source",) if registered else ()
    columns = ("adapter", "pool", "digest", "engines_know_it_as", "loaded_on", *source)
    output.show(shown, columns, adapters, expendable=("source", "digest", "pool"))


def rows(settings: Settings, fleet: list[BackendState], registered: Sequence[Mapping[str, str]] = ()) -> list[AdapterRow]:
    """By pool: its adapters in order of their names, then the adapters that only engines know. An adapter of the settings hides a
    registered one of its name, as it does in gateways."""
    listed = []
    for pool in settings.pools:
        members = [backend for backend in fleet if backend.pool == pool.name]
        ours = {lora.name: Adapter(lora.name, lora.digest, lora.path) for lora in pool.loras}
        others = {one["name"]: Adapter(one["name"], one["digest"], one["path"]) for one in registered if one["pool"] == pool.name}
        known = {**others, **ours}
        for name in sorted(known):
            adapter = known[name]
            backends = tuple(backend.backend for backend in members if adapter.served in backend.loras)
            source = "static" if name in ours else "registered"
            listed.append(AdapterRow(pool.name, name, adapter.served, adapter.digest, adapter.path, backends, source))
        unknown = {served for backend in members for served in backend.loras} - {adapter.served for adapter in known.values()}
        for served in sorted(unknown):
            having = tuple(backend.backend for backend in members if served in backend.loras)
            listed.append(AdapterRow(pool.name, "", served, "", "", having, "engine"))
    return listed
