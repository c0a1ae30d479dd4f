"""`tidegate tenant …` and `tidegate key …`, straight on the store: the bootstrap of tenancy, which needs no running gateway.

With `--admin` the same commands go over the admin API (`key_changes.py`). Both ways write the same audit.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from domain.identity import KeyId, ProjectId, TenantId
from domain.priority import CLASSES
from gateway.cli import key_changes
from gateway.cli.admin_client import OverApi, TokenFile, Yes, sure
from gateway.cli.printing import AsJson, err, fail, moment, out, print_json
from gateway.cli.stored import DEFAULT_CONFIG, Config, with_database
from gateway.config.load import ConfigError, Settings, load_settings
from gateway.config.read_secrets import SecretError, read_pepper
from tenancy.accounts import DEFAULT_PROJECT, MAX_LABEL_CHARS, NAME, NAME_RULE, Tenant
from tenancy.audit import Entry
from tenancy.directory_ports import EVERYWHERE, AlreadyExists, Conflict, DirectoryChange, NoRoom, NotFound, room_for_key
from tenancy.journal import JournalAway
from tenancy.keys import (
    ENTROPY_BYTES,
    MAX_OVERLAP_S,
    OVERLAP_S,
    SECRET_BYTES,
    CannotRotate,
    KeyRecord,
    digest_of,
    mint,
    mint_again,
    revoked,
    rotated,
)
from tenancy.rights import Rights

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from tenancy.stores.sql import SqlDirectory

keys_app = typer.Typer(no_args_is_help=True, help="API keys. On the store of --config, or with --admin over the API.")
tenant_app = typer.Typer(no_args_is_help=True, help="Tenants. On the store of --config, or with --admin over the API.")

ApiTenant = Annotated[str, typer.Option(help="Whose key it is; needed with --admin.")]
ENVIRONMENT: Final = "live"
MAX_DAYS: Final = 36_500
HOUR_S: Final = 3600.0


@tenant_app.command("create")
def create_tenant(name: str, config: Config = DEFAULT_CONFIG, admin: OverApi = None, token_file: TokenFile = None) -> None:
    """Make a tenant, with its project `default`."""
    tenant = _tenant(name)
    if admin is not None:
        key_changes.make_tenant(name, admin, token_file)
    else:
        entry = _entry("tenant.create", f"tenant/{tenant}", tenant)
        _changed(config, entry, lambda _, change: change.tenants.create(Tenant(tenant, created_unix=time.time())))
    out.print(f"tenant {name} created", markup=False)


@tenant_app.command("list")
def list_tenants(config: Config = DEFAULT_CONFIG, admin: OverApi = None, token_file: TokenFile = None) -> None:
    """Print every tenant."""
    if admin is not None:
        names = key_changes.tenants(admin, token_file)
    else:
        names = [tenant.name for tenant in _with_store(config, lambda store, _: store.load()).tenants]
    for tenant in sorted(names):
        out.print(tenant, markup=False)


@keys_app.command("create")
def create_key(
    tenant: Annotated[str, typer.Option(help="Whose key it is.")],
    config: Config = DEFAULT_CONFIG,
    project: Annotated[str, typer.Option(help="Project of the tenant.")] = DEFAULT_PROJECT,
    label: Annotated[str, typer.Option(help="A note for operators, at most 200 characters.")] = "",
    expires_days: Annotated[float | None, typer.Option(help="Days until it expires; default: never.")] = None,
    create: Annotated[bool, typer.Option("--create-tenant", help="Make the tenant if it does not exist.")] = False,
    highest: Annotated[
        str | None, typer.Option("--class", help=f"The highest class of its requests: {', '.join(CLASSES)}; default: the policy's.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="`name=value`, for the rules of policies; again for further ones.")] = None,
    role: Annotated[list[str] | None, typer.Option(help="A role on the admin port; over the API only.")] = None,
    admin: OverApi = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it, once: it is stored nowhere."""
    owner = _tenant(tenant)
    if role and admin is None:
        raise typer.BadParameter("keys with a role are made over the API; add --admin", param_hint="--role")
    if len(label) > MAX_LABEL_CHARS:
        raise typer.BadParameter(f"{len(label)} characters; at most {MAX_LABEL_CHARS} are kept", param_hint="--label")
    if expires_days is not None and not 0 < expires_days <= MAX_DAYS:
        raise typer.BadParameter(f"{expires_days:g} days; it must be above 0 and at most {MAX_DAYS}", param_hint="--expires-days")
    if highest is not None and highest not in CLASSES:
        raise typer.BadParameter(f"{highest!r} is no class; write one of {', '.join(CLASSES)}", param_hint="--class")
    tags = key_changes.tags_from(tag or [])
    now = time.time()
    expires_unix = None if expires_days is None else now + expires_days * 86_400
    if admin is not None:
        body = {
            "project": project,
            "label": label,
            "expires_unix": expires_unix,
            "roles": role or [],
            "rights": {"priority_class": highest},
            "tags": dict(tags),
        }
        key_changes.make_key(tenant, body, admin, token_file, as_json)
        return
    minted = mint(ENVIRONMENT, os.urandom(ENTROPY_BYTES))

    async def work(settings: Settings, change: DirectoryChange) -> None:
        pepper = read_pepper(settings)
        record = KeyRecord(
            id=minted.id,
            tenant=owner,
            project=ProjectId(project),
            kid=pepper.kid,
            digests=(digest_of(pepper.secret, minted.secret),),
            label=label,
            created_unix=now,
            expires_unix=expires_unix,
            rights=Rights(priority_class=CLASSES.get(highest or "")),
            tags=tags,
        )
        if create:
            try:
                await change.tenants.get(EVERYWHERE, owner)
            except NotFound:
                await change.tenants.create(Tenant(owner, created_unix=now))
        await room_for_key(change, owner, settings.tenants.bounds())
        await change.keys.create(EVERYWHERE, record)

    entry = _entry("key.create", f"tenant/{owner}/key/{minted.id}", owner)
    _changed(config, entry, work, hint=f"; create it with: tidegate tenant create {tenant}, or add --create-tenant")
    if as_json:
        print_json({"key": minted.text, "id": minted.id, "tenant": owner})
        return
    typer.echo(minted.text)
    err.print(f"key {minted.id} of tenant {tenant}: this is the only time it is shown", markup=False)


@keys_app.command("list")
def list_keys(
    config: Config = DEFAULT_CONFIG,
    tenant: Annotated[str, typer.Option(help="Only the keys of this tenant.")] = "",
    admin: OverApi = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Print every key's public part and state, never a secret."""
    if tenant:
        _tenant(tenant)
    if admin is not None:
        keys = key_changes.keys(tenant, admin, token_file)
    else:
        records = _with_store(config, lambda store, _: store.load()).keys
        keys = [{name: getattr(r, name) for name in key_changes.SEEN} for r in records if tenant in ("", r.tenant)]
    rows = [key_changes.row(key, time.time()) for key in sorted(keys, key=lambda key: (key["tenant"], key["created_unix"]))]
    if as_json:
        print_json(rows)
        return
    table = Table(*key_changes.COLUMNS)
    for row in rows:
        table.add_row(*[Text(value or "never") for value in row.values()])
    out.print(table)


@keys_app.command("revoke")
def revoke_key(
    key_id: str,
    config: Config = DEFAULT_CONFIG,
    tenant: ApiTenant = "",
    yes: Yes = False,
    admin: OverApi = None,
    token_file: TokenFile = None,
) -> None:
    """Revoke a key for good by its public id; running gateways refuse it within 5 s."""
    sure(f"Revoke key {key_id} for good?", yes)
    if admin is not None:
        key_changes.revoke_key(key_id, tenant, admin, token_file)
        out.print(f"key {key_id} revoked", markup=False)
        return

    async def work(_: Settings, change: DirectoryChange) -> None:
        record = await change.keys.get(EVERYWHERE, KeyId(key_id))
        if record.revoked_unix is None:
            await change.keys.update(EVERYWHERE, revoked(record, time.time()))

    _changed(config, _entry("key.revoke", f"key/{key_id}"[:80]), work)
    out.print(f"key {key_id} revoked", markup=False)


@keys_app.command("rotate")
def rotate_key(
    key_id: str,
    config: Config = DEFAULT_CONFIG,
    overlap_hours: Annotated[float, typer.Option(help="How long the old secret still works; 0 ends it at once.")] = OVERLAP_S / HOUR_S,
    tenant: ApiTenant = "",
    admin: OverApi = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Give a key a new secret and print it, once. The old one works until the overlap ends."""
    if not 0 <= overlap_hours * HOUR_S <= MAX_OVERLAP_S:
        max_hours = MAX_OVERLAP_S / HOUR_S
        raise typer.BadParameter(f"{overlap_hours:g} hours; it must be between 0 and {max_hours:g}", param_hint="--overlap-hours")
    if admin is not None:
        key_changes.rotate_key(key_id, tenant, overlap_hours * HOUR_S, admin, token_file, as_json)
        return

    async def work(settings: Settings, change: DirectoryChange) -> tuple[str, KeyRecord]:
        pepper = read_pepper(settings)
        record = await change.keys.get(EVERYWHERE, KeyId(key_id))
        minted = mint_again(ENVIRONMENT, record.id, os.urandom(SECRET_BYTES))
        digest = digest_of(pepper.secret, minted.secret)
        record = rotated(record, pepper.kid, digest, time.time(), overlap_hours * HOUR_S)
        return minted.text, await change.keys.update(EVERYWHERE, record)

    text, record = _changed(config, _entry("key.rotate", f"key/{key_id}"[:80]), work)
    until = None if record.old_until_unix is None else moment(record.old_until_unix)
    if as_json:
        print_json({"key": text, "id": record.id, "tenant": record.tenant, "old_until": until})
        return
    typer.echo(text)
    old = f"the old secret works until {until}" if until else "the old secret is refused within 5 s"
    err.print(f"key {record.id} of tenant {record.tenant}: this is the only time it is shown; {old}", markup=False)


def _tenant(name: str) -> TenantId:
    if not NAME.fullmatch(name):
        err.print(f"tenant {name!r}: {NAME_RULE}", markup=False)
        raise typer.Exit(2)
    return TenantId(name)


def _entry(action: str, target: str, tenant: str = "") -> Entry:
    """A row of the audit; a user who can open the store counts as the owner."""
    return Entry("command line", "owner", "", action, target, tenant)


def _changed(config: Path, entry: Entry, work: Callable[[Settings, DirectoryChange], Awaitable[Any]], hint: str = "") -> Any:
    """Run `work` and write its audit row, in one transaction; returns the result of `work`."""
    settings = _settings(config)

    async def within(_store: "SqlDirectory", engine: "AsyncEngine") -> Any:
        from tenancy.stores.sql import SqlDirectory, SqlJournal

        async with SqlJournal(engine, time.time).change() as journal:
            async with SqlDirectory(journal.connections).transaction() as change:
                done = await work(settings, change)
            await journal.write_down(entry)
            return done

    return _with_store(config, within, hint)


def _settings(config: Path) -> Settings:
    try:
        return load_settings(config)
    except ConfigError as error:
        fail(str(error))


def _with_store(config: Path, work: "Callable[[SqlDirectory, AsyncEngine], Awaitable[Any]]", hint: str = "") -> Any:
    from tenancy.stores.sql import SqlDirectory, StoreError

    try:
        return asyncio.run(with_database(_settings(config), lambda engine: work(SqlDirectory(engine), engine)))
    except NotFound as error:
        fail(f"{error}{hint if str(error).startswith('no tenant') else ''}")
    except (AlreadyExists, Conflict, CannotRotate, JournalAway, NoRoom, SecretError, StoreError) as error:
        fail(str(error))
