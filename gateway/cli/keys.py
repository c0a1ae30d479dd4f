"""`tidegate tenant …` and `tidegate key …`: the bootstrap of tenancy, straight on the store."""

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from domain.identity import KeyId, ProjectId, TenantId
from gateway.secrets import SecretError, read_pepper
from gateway.settings import ConfigError, Settings, load_settings
from tenancy.keys import ENTROPY_BYTES, KeyRecord, digest_of, mint
from tenancy.ports import DEFAULT_PROJECT, AlreadyExists, NotFound

if TYPE_CHECKING:
    from tenancy.stores.sql import SqlKeyStore

keys_app = typer.Typer(no_args_is_help=True, help="API keys.")
tenant_app = typer.Typer(no_args_is_help=True, help="Tenants.")

Config = Annotated[Path, typer.Option("--config", "-c", help="The settings file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
DEFAULT_CONFIG: Final = Path("tidegate.yaml")
ENVIRONMENT: Final = "live"
MAX_LABEL_CHARS: Final = 200
MAX_DAYS: Final = 36_500

TENANT: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""A DNS label: fits metric labels, file names and hash tags."""

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


@tenant_app.command("create")
def create_tenant(name: str, config: Config = DEFAULT_CONFIG) -> None:
    """Make a tenant, with its project `default`."""
    tenant = _tenant(name)
    _with_store(config, lambda _, store: store.create_tenant(tenant, time.time()))
    out.print(f"tenant {name} created", markup=False)


@tenant_app.command("list")
def list_tenants(config: Config = DEFAULT_CONFIG) -> None:
    """Print every tenant."""
    for tenant in _with_store(config, lambda _, store: store.tenants()):
        out.print(tenant, markup=False)


@keys_app.command("create")
def create_key(
    tenant: Annotated[str, typer.Option(help="Whose key it is.")],
    config: Config = DEFAULT_CONFIG,
    project: Annotated[str, typer.Option(help="Project of the tenant.")] = DEFAULT_PROJECT,
    label: Annotated[str, typer.Option(help="A note for operators, at most 200 characters.")] = "",
    expires_days: Annotated[float | None, typer.Option(help="Days until it expires; default: never.")] = None,
    create: Annotated[bool, typer.Option("--create-tenant", help="Make the tenant if it does not exist.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it, once: it is stored nowhere."""
    owner = _tenant(tenant)
    if len(label) > MAX_LABEL_CHARS:
        raise typer.BadParameter(f"{len(label)} characters; at most {MAX_LABEL_CHARS} are kept", param_hint="--label")
    if expires_days is not None and not 0 < expires_days <= MAX_DAYS:
        raise typer.BadParameter(f"{expires_days:g} days; it must be above 0 and at most {MAX_DAYS}", param_hint="--expires-days")
    minted = mint(ENVIRONMENT, os.urandom(ENTROPY_BYTES))
    now = time.time()

    async def work(settings: Settings, store: "SqlKeyStore") -> None:
        pepper = read_pepper(settings)
        record = KeyRecord(
            id=minted.id,
            tenant=owner,
            project=ProjectId(project),
            kid=pepper.kid,
            digests=(digest_of(pepper.secret, minted.secret),),
            label=label,
            created_unix=now,
            expires_unix=None if expires_days is None else now + expires_days * 86_400,
        )
        if create and owner not in await store.tenants():
            await store.create_tenant(owner, now)
        await store.add_key(record)

    _with_store(config, work, hint=f"; create it with: tidegate tenant create {tenant}, or add --create-tenant")
    if as_json:
        typer.echo(msgspec.json.encode({"key": minted.text, "id": minted.id, "tenant": owner}).decode())
        return
    typer.echo(minted.text)
    err.print(f"key {minted.id} of tenant {tenant}: this is the only time it is shown", markup=False)


@keys_app.command("list")
def list_keys(config: Config = DEFAULT_CONFIG, as_json: AsJson = False) -> None:
    """Print every key's public part and state, never a secret."""
    records: list[KeyRecord] = _with_store(config, lambda _, store: store.load())
    rows = [
        {
            "id": r.id,
            "tenant": r.tenant,
            "project": r.project,
            "label": r.label,
            "state": _state(r, time.time()),
            "created": _day(r.created_unix),
            "expires": _day(r.expires_unix),
        }
        for r in sorted(records, key=lambda r: (r.tenant, r.created_unix))
    ]
    if as_json:
        typer.echo(msgspec.json.encode(rows).decode())
        return
    table = Table("id", "tenant", "project", "label", "state", "created", "expires")
    for row in rows:
        table.add_row(*[value or "never" for value in row.values()])
    out.print(table)


@keys_app.command("revoke")
def revoke_key(key_id: str, config: Config = DEFAULT_CONFIG) -> None:
    """Revoke a key by its public id; running gateways refuse it within 5 s."""
    _with_store(config, lambda _, store: store.revoke_key(KeyId(key_id), time.time()))
    out.print(f"key {key_id} revoked", markup=False)


def _state(record: KeyRecord, now: float) -> str:
    if record.revoked_unix is not None:
        return "revoked"
    return "expired" if record.expires_unix is not None and record.expires_unix <= now else "active"


def _day(unix: float | None) -> str | None:
    """An instant as ISO 8601 in UTC, to the second."""
    return None if unix is None else datetime.fromtimestamp(unix, UTC).isoformat(timespec="seconds")


def _tenant(name: str) -> TenantId:
    if not TENANT.fullmatch(name):
        err.print(f"tenant {name!r}: 1 to 63 lower-case letters, digits and inner dashes, for instance acme-research", markup=False)
        raise typer.Exit(2)
    return TenantId(name)


def _with_store(config: Path, work: "Callable[[Settings, SqlKeyStore], Awaitable[Any]]", hint: str = "") -> Any:
    # imported only here: databases take 0.4 s, which `--help` need not wait for
    from tenancy.stores.sql import SqlKeyStore, StoreError, migrate, open_engine

    async def opened(settings: Settings) -> Any:
        engine = open_engine(settings.sql_url)
        try:
            await migrate(engine)
            return await work(settings, SqlKeyStore(engine))
        finally:
            await engine.dispose()

    try:
        return asyncio.run(opened(load_settings(config)))
    except NotFound as error:
        _fail(f"{error}{hint if str(error).startswith('no tenant') else ''}")
    except (AlreadyExists, ConfigError, SecretError, StoreError) as error:
        _fail(str(error))


def _fail(message: str) -> NoReturn:
    err.print(message, markup=False, soft_wrap=True)
    raise typer.Exit(1)
