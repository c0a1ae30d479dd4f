"""`tidegate lora …`: digests of adapter folders, and the backends that have adapters loaded."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from backends.lora.digest import NotAnAdapter, lora_digest
from backends.lora.residency import Adapter
from gateway.cli.backends import fleet_of
from gateway.cli.connection import GatewayOptions
from gateway.cli.groups import CommandGroup
from gateway.cli.printing import OutputOptions, err
from gateway.config.load import ConfigError, Settings, load_settings
from gateway.process.snapshots import BackendState

lora_app = CommandGroup("Adapters: what they are pinned by, and where they are.")


class AdapterRow(msgspec.Struct, frozen=True):
    """One adapter of one pool."""

    pool: str
    lora: str
    """The name that policies use; empty for an adapter that is not in the settings."""
    served: str
    """The engine-side name."""
    digest: str
    path: str
    backends: tuple[str, ...]
    """The backends that have it loaded."""


@lora_app.command("digest")
def digest(folder: Annotated[Path, typer.Argument(help="The adapter's folder, with adapter_config.json and the weights.")]) -> None:
    """Print the digest of an adapter folder: what goes into `digest` of tidegate.yaml. docs/reference/lora.md says what it is made of."""
    try:
        typer.echo(lora_digest(folder))
    except NotAnAdapter as error:
        err.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(1) from None


@lora_app.command("list")
def list_loras(gateway: GatewayOptions, output: OutputOptions) -> None:
    """Print every adapter of the settings with its digest, and the backends of the running gateway that have it loaded.

    Adapters that are loaded and not in the settings are listed without a name: older versions, until their place is needed.
    """
    try:
        settings = load_settings(gateway.config)
    except ConfigError as error:
        err.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    adapters = rows(settings, fleet_of(gateway.public()))
    shown = [
        {
            "adapter": row.lora or "-",
            "pool": row.pool,
            "digest": row.digest[:12] or "-",
            "engines_know_it_as": row.served,
            "loaded_on": row.backends or "-",
        }
        for row in adapters
    ]
    output.show(shown, ("adapter", "pool", "digest", "engines_know_it_as", "loaded_on"), adapters, expendable=("digest", "pool"))


def rows(settings: Settings, fleet: list[BackendState]) -> list[AdapterRow]:
    """By pool: the adapters of the settings in order of their names, then the adapters that only engines know."""
    listed = []
    for pool in settings.pools:
        members = [backend for backend in fleet if backend.pool == pool.name]
        known = {lora.name: Adapter(lora.name, lora.digest, lora.path) for lora in pool.loras}
        for name in sorted(known):
            adapter = known[name]
            backends = tuple(backend.backend for backend in members if adapter.served in backend.loras)
            listed.append(AdapterRow(pool.name, name, adapter.served, adapter.digest, adapter.path, backends))
        unknown = {served for backend in members for served in backend.loras} - {adapter.served for adapter in known.values()}
        for served in sorted(unknown):
            listed.append(
                AdapterRow(pool.name, "", served, "", "", tuple(backend.backend for backend in members if served in backend.loras))
            )
    return listed
