"""`tidegate key …`: makes, lists, changes, rotates and revokes API keys.

A key is found by its id alone; `--tenant` spares the search through all tenants that the caller may see.
"""

import time
from typing import Annotated, Any, Final, NoReturn

import typer

from gateway.cli.accounts import checked_name
from gateway.cli.admin_client import API, AdminClient, Yes, segment, sure
from gateway.cli.connection import StoreOptions
from gateway.cli.durations import DURATION, seconds_of, shown_duration
from gateway.cli.groups import CommandGroup
from gateway.cli.printing import AsJson, OutputOptions, err, fail, moment, out, print_json
from gateway.cli.rights import ANY, RightsOptions, shown_rights
from tenancy.accounts import DEFAULT_PROJECT, MAX_LABEL_CHARS
from tenancy.key_networks import BadNetworks, key_networks_of
from tenancy.keys import MAX_OVERLAP_S, OVERLAP_S, BadTags, Tags, tags_of, written_tags

keys_app = CommandGroup("API keys.")

MAX_EXPIRY_S: Final = 36_500 * 86_400.0
NEVER: Final = "never"
SHOWN: Final = (
    *("id", "tenant", "project", "label", "roles", "tags", "networks", "disabled"),
    *("created_unix", "expires_unix", "revoked_unix", "old_until_unix"),
)
COLUMNS: Final = ("id", "tenant", "project", "label", "state", "created_unix", "expires")

KeyId = Annotated[str, typer.Argument(metavar="KEY", help="The key's public id, the third part of its text.")]
Tenant = Annotated[str, typer.Option(help="The key's tenant; without it, the key is looked for in every tenant.")]
Label = Annotated[str | None, typer.Option(help=f"A note for people, at most {MAX_LABEL_CHARS} characters.")]
Expires = Annotated[str | None, typer.Option(metavar="DURATION", help=f"When it expires, counted from now, {DURATION}, or {NEVER}.")]
Tag = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="A tag for the rules of policies; again for further ones; others stay.")
]

NetworksOption = Annotated[
    str | None,
    typer.Option(
        "--networks", metavar="CIDR,…", help=f"Networks it may be used from, with commas, as 203.0.113.0/24; {ANY} for everywhere."
    ),
]


@keys_app.command("create")
def create_key(
    tenant: Annotated[str, typer.Option(help="The tenant whose key it is.")],
    rights: RightsOptions,
    gateway: StoreOptions,
    project: Annotated[str, typer.Option(help="The tenant's project.")] = DEFAULT_PROJECT,
    label: Label = None,
    expires: Expires = None,
    create_tenant: Annotated[bool, typer.Option("--create-tenant", help="Make the tenant if it does not exist.")] = False,
    tag: Tag = None,
    networks: NetworksOption = None,
    role: Annotated[
        list[str] | None,
        typer.Option(help="A role on the admin port (docs/reference/admin-api.md); again for further ones; default: none."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it, once: it is stored nowhere."""
    checked_name("tenant", tenant)
    _check_label(label)
    body = {
        "project": project,
        "label": label or "",
        "expires_unix": _expiry(expires),
        "roles": role or [],
        "tags": dict(_tags_from(tag or [])),
        "networks": _networks_from(networks),
        "rights": rights.applied(),
    }
    client = gateway.api()
    path = f"{API}/tenants/{segment(tenant)}"
    if client.find(path) is None:
        if not create_tenant:
            fail(f"no tenant {tenant!r}; create it with: tidegate tenant create {tenant}, or add --create-tenant")
        client.post(f"{API}/tenants", {"name": tenant})
    _print_key(client.post(f"{path}/keys", body), as_json, "")


@keys_app.command("list")
def list_keys(
    gateway: StoreOptions, output: OutputOptions, tenant: Annotated[str, typer.Option(help="Only the keys of this tenant.")] = ""
) -> None:
    """Print every key's public part and state, never a secret."""
    if tenant:
        checked_name("tenant", tenant)
    client = gateway.api()
    names = [tenant] if tenant else _tenants(client)
    keys = [key for name in names for key in client.items(f"{API}/tenants/{segment(name)}/keys")]
    now = time.time()
    rows = [_row(key, now) for key in sorted(keys, key=lambda key: (key["tenant"], key["created_unix"]))]
    table = [{**row, "expires": NEVER if row["expires_unix"] is None else moment(row["expires_unix"])} for row in rows]
    output.show(table, COLUMNS, rows, expendable=("label", "project", "expires", "created_unix"))


@keys_app.command("show")
def show_key(key_id: KeyId, gateway: StoreOptions, output: OutputOptions, tenant: Tenant = "") -> None:
    """Print what is known of a key, never its secret."""
    client = gateway.api()
    key = client.read(_path(client, tenant, key_id))
    names = (
        "id",
        "tenant",
        "project",
        "label",
        "roles",
        "tags",
        "networks",
        "disabled",
        "created_unix",
        "expires_unix",
        "revoked_unix",
        "old_until_unix",
    )
    output.show_one({**{name: key[name] for name in names}, **shown_rights(key["rights"])}, key)


@keys_app.command("set")
def set_key(
    key_id: KeyId,
    rights: RightsOptions,
    gateway: StoreOptions,
    tenant: Tenant = "",
    label: Label = None,
    expires: Expires = None,
    tag: Tag = None,
    untag: Annotated[list[str] | None, typer.Option(metavar="NAME", help="A tag to take away; again for further ones.")] = None,
    networks: NetworksOption = None,
) -> None:
    """Change label, expiry, tags, networks or rights of a key; what is not written stays.

    For instance `tidegate key set 3FPADdIabc --models chat --expires 30d --tag team=search`.
    """
    new_tags = dict(_tags_from(tag or []))
    _check_label(label)
    expires_unix = _expiry(expires)
    new_networks = _networks_from(networks)
    if not (rights.given or new_tags or untag or networks is not None or label is not None or expires is not None):
        fail(f"key {key_id}: nothing to change; name at least one option, for instance --models or --tag (--help lists them)", code=2)

    def changed(key: dict[str, Any]) -> dict[str, Any]:
        kept_tags = {name: value for name, value in key["tags"].items() if name not in (untag or ())}
        return {
            **_changeable(key),
            "rights": rights.applied(key["rights"]),
            "tags": kept_tags | new_tags,
            **({} if networks is None else {"networks": new_networks}),
            **({} if label is None else {"label": label}),
            **({} if expires is None else {"expires_unix": expires_unix}),
        }

    client = gateway.api()
    client.rewrite(_path(client, tenant, key_id), changed)
    out.print(f"key {key_id} changed; gateways know within 5 s", markup=False)


@keys_app.command("disable")
def disable_key(key_id: KeyId, gateway: StoreOptions, tenant: Tenant = "") -> None:
    """Refuse a key until it is enabled again."""
    client = gateway.api()
    client.rewrite(_path(client, tenant, key_id), lambda key: {**_changeable(key), "disabled": True})
    out.print(f"key {key_id} disabled; gateways refuse it within 5 s", markup=False)


@keys_app.command("enable")
def enable_key(key_id: KeyId, gateway: StoreOptions, tenant: Tenant = "") -> None:
    """Take a disabled key again."""
    client = gateway.api()
    client.rewrite(_path(client, tenant, key_id), lambda key: {**_changeable(key), "disabled": False})
    out.print(f"key {key_id} enabled", markup=False)


@keys_app.command("revoke")
def revoke_key(key_id: KeyId, gateway: StoreOptions, tenant: Tenant = "", yes: Yes = False) -> None:
    """Revoke a key for good; running gateways refuse it within 5 s. It stays listed as revoked.

    While the database is away, the gateway that is asked refuses the key within 5 s and writes the revocation down later: ask each gateway.
    """
    sure(f"Revoke key {key_id} for good?", yes)
    client = gateway.api()
    within = f"/tenants/{segment(tenant)}" if tenant else ""
    done = client.post_to_found(f"{API}{within}/keys/{segment(key_id)}/revoke")
    if done is None:
        _no_key(tenant, key_id)
    if done.get("pending"):
        out.print(f"key {key_id} revoked on this gateway; the database is away: revoke the key at every other gateway too", markup=False)
    else:
        out.print(f"key {key_id} revoked", markup=False)


@keys_app.command("rotate")
def rotate_key(
    key_id: KeyId,
    gateway: StoreOptions,
    overlap: Annotated[
        str, typer.Option(metavar="DURATION", help=f"How long the old secret still works, {DURATION}; 0 ends it at once.")
    ] = shown_duration(OVERLAP_S),
    tenant: Tenant = "",
    as_json: AsJson = False,
) -> None:
    """Give a key a new secret and print it, once. The old one works until the overlap ends."""
    overlap_s = seconds_of("--overlap", overlap, 0.0, MAX_OVERLAP_S)
    client = gateway.api()
    key = client.post(f"{_path(client, tenant, key_id)}/rotate", {"overlap_s": overlap_s})
    until = key["old_until_unix"]
    old = "the old secret is refused within 5 s" if until is None else f"the old secret works until {moment(until)}"
    _print_key(key, as_json, f"; {old}", old_until=None if until is None else moment(until))


def _tags_from(words: list[str]) -> Tags:
    try:
        return tags_of(written_tags(words))
    except BadTags as error:
        fail(str(error), code=2)


def _networks_from(text: str | None) -> list[str]:
    if text is None or text == ANY:
        return []
    try:
        return list(key_networks_of(part.strip() for part in text.split(",")))
    except BadNetworks as error:
        fail(f"--networks: {error}", code=2)


def _check_label(label: str | None) -> None:
    if label is not None and len(label) > MAX_LABEL_CHARS:
        raise typer.BadParameter(f"{len(label)} characters; at most {MAX_LABEL_CHARS} are kept", param_hint="--label")


def _expiry(text: str | None) -> float | None:
    """The moment of an expiry; None for never."""
    if text is None or text == NEVER:
        return None
    return time.time() + seconds_of("--expires", text, 0.001, MAX_EXPIRY_S)


def _tenants(client: AdminClient) -> list[str]:
    return [tenant["name"] for tenant in client.items(f"{API}/tenants")]


def _path(client: AdminClient, tenant: str, key_id: str) -> str:
    """The path of a key; ends the command when no tenant has it."""
    for name in [tenant] if tenant else _tenants(client):
        path = f"{API}/tenants/{segment(name)}/keys/{segment(key_id)}"
        if client.find(path) is not None:
            return path
    _no_key(tenant, key_id)


def _no_key(tenant: str, key_id: str) -> NoReturn:
    fail(f"no key {key_id!r}" + (f" of tenant {tenant}" if tenant else "") + "; `tidegate key list` shows the ids")


def _row(key: dict[str, Any], now: float) -> dict[str, Any]:
    expires = key["expires_unix"]
    if key["revoked_unix"] is not None:
        state = "revoked"
    elif key["disabled"]:
        state = "disabled"
    else:
        state = "expired" if expires is not None and expires <= now else "active"
    named = {name: key[name] for name in ("id", "tenant", "project", "label")}
    return {**named, "state": state, "created_unix": key["created_unix"], "expires_unix": expires}


def _print_key(key: dict[str, Any], as_json: bool, remark: str, **more: Any) -> None:
    if as_json:
        print_json({**{name: key[name] for name in ("key", "id", "tenant")}, **more})
        return
    typer.echo(key["key"])
    err.print(f"key {key['id']} of tenant {key['tenant']}: this is the only time it is shown{remark}", markup=False, soft_wrap=True)


def _changeable(key: dict[str, Any]) -> dict[str, Any]:
    return {name: key[name] for name in ("label", "disabled", "expires_unix", "roles", "inference", "rights", "tags", "networks")}
