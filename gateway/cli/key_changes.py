"""Changes to existing keys and tenants over the admin API of a running gateway, and the list of keys."""

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gateway.cli.admin_client import ADMIN, API, AdminUrl, TokenFile, api, segment
from gateway.cli.printing import AsJson, err, fail, moment, out, print_json, show
from tenancy.keys import BadTags, Tags, tags_of, written_tags

Tenant = Annotated[str, typer.Option(help="Whose key it is.")]
COLUMNS: Final = ("id", "tenant", "project", "label", "state", "created", "expires")
SEEN: Final = ("id", "tenant", "project", "label", "disabled", "created_unix", "expires_unix", "revoked_unix")
"""The fields that a row of the list is made from; records of the store and answers of the API have them alike."""


def add_key_commands(keys_app: typer.Typer) -> None:
    """Add the commands for existing keys to `tidegate key`."""

    @keys_app.command("show")
    def show_key(key_id: str, tenant: Tenant, admin: AdminUrl = ADMIN, token_file: TokenFile = None, as_json: AsJson = False) -> None:
        """Print what is known of a key, never its secret. Over the admin API."""
        key = api(admin, token_file).read(_path(tenant, key_id))
        columns = ("id", "tenant", "project", "label", "roles", "tags", "disabled", "expires_unix", "revoked_unix", "old_until_unix")
        show([key], columns, as_json)

    @keys_app.command("disable")
    def disable_key(key_id: str, tenant: Tenant, admin: AdminUrl = ADMIN, token_file: TokenFile = None) -> None:
        """Refuse a key until it is enabled again. Over the admin API."""
        api(admin, token_file).rewrite(_path(tenant, key_id), lambda key: {**_changeable(key), "disabled": True})
        out.print(f"key {key_id} disabled; gateways refuse it within 5 s", markup=False)

    @keys_app.command("tag")
    def tag_key(
        key_id: str,
        tenant: Tenant,
        tag: Annotated[list[str] | None, typer.Argument(help="`name=value` each.")] = None,
        remove: Annotated[list[str] | None, typer.Option(help="The name of a tag to take away; again for further ones.")] = None,
        admin: AdminUrl = ADMIN,
        token_file: TokenFile = None,
    ) -> None:
        """Set tags of a key, which the rules of policies can ask about; others stay. Over the admin API."""
        new_tags = dict(tags_from(tag or []))
        if not new_tags and not remove:
            fail("name a tag to set as name=value, or one to take away with --remove", code=2)

        def changed(key: dict[str, Any]) -> dict[str, Any]:
            kept_tags = {name: value for name, value in key["tags"].items() if name not in (remove or ())}
            return {**_changeable(key), "tags": kept_tags | new_tags}

        api(admin, token_file).rewrite(_path(tenant, key_id), changed)
        out.print(f"key {key_id} tagged; gateways know within 5 s", markup=False)

    @keys_app.command("enable")
    def enable_key(key_id: str, tenant: Tenant, admin: AdminUrl = ADMIN, token_file: TokenFile = None) -> None:
        """Take a disabled key again. Over the admin API."""
        api(admin, token_file).rewrite(_path(tenant, key_id), lambda key: {**_changeable(key), "disabled": False})
        out.print(f"key {key_id} enabled", markup=False)


def tags_from(words: list[str]) -> Tags:
    """Tags from the words of a command line; ends the command for a word that is no tag."""
    try:
        return tags_of(written_tags(words))
    except BadTags as error:
        fail(str(error), code=2)


def make_tenant(name: str, admin: str, token_file: Path | None) -> None:
    """Make a tenant over the admin API."""
    api(admin, token_file).post(f"{API}/tenants", {"name": name})


def tenants(admin: str, token_file: Path | None) -> list[str]:
    """The names of all tenants that the caller may see."""
    return [tenant["name"] for tenant in api(admin, token_file).items(f"{API}/tenants")]


def keys(tenant: str, admin: str, token_file: Path | None) -> list[dict[str, Any]]:
    """The keys of one tenant, or with `""` of all that the caller may see."""
    client = api(admin, token_file)
    names = [tenant] if tenant else [listed["name"] for listed in client.items(f"{API}/tenants")]
    return [key for name in names for key in client.items(f"{API}/tenants/{segment(name)}/keys")]


def row(key: dict[str, Any], now: float) -> dict[str, str | None]:
    """One line of the list, in the order of `COLUMNS`."""
    expires = key["expires_unix"]
    if key["revoked_unix"] is not None:
        state = "revoked"
    elif key["disabled"]:
        state = "disabled"
    else:
        state = "expired" if expires is not None and expires <= now else "active"
    named = {name: key[name] for name in ("id", "tenant", "project", "label")}
    return {**named, "state": state, "created": moment(key["created_unix"]), "expires": None if expires is None else moment(expires)}


def make_key(tenant: str, body: dict[str, Any], admin: str, token_file: Path | None, as_json: bool) -> None:
    """Make a key and print it, once."""
    key = api(admin, token_file).post(f"{API}/tenants/{segment(tenant)}/keys", body)
    _print_key(key, as_json, "")


def rotate_key(key_id: str, tenant: str, overlap_s: float, admin: str, token_file: Path | None, as_json: bool) -> None:
    """Give a key a new secret and print it, once."""
    key = api(admin, token_file).post(f"{_path(tenant, key_id)}/rotate", {"overlap_s": overlap_s})
    _print_key(key, as_json, f"; the old secret works for {overlap_s:g} s")


def revoke_key(key_id: str, tenant: str, admin: str, token_file: Path | None) -> None:
    """Revoke a key for good."""
    api(admin, token_file).post(f"{_path(tenant, key_id)}/revoke")


def _print_key(key: dict[str, Any], as_json: bool, remark: str) -> None:
    if as_json:
        print_json({name: key[name] for name in ("key", "id", "tenant")})
        return
    typer.echo(key["key"])
    err.print(f"key {key['id']} of tenant {key['tenant']}: this is the only time it is shown{remark}", markup=False)


def _path(tenant: str, key_id: str) -> str:
    if not tenant:
        fail("say with --tenant whose key it is", code=2)
    return f"{API}/tenants/{segment(tenant)}/keys/{segment(key_id)}"


def _changeable(key: dict[str, Any]) -> dict[str, Any]:
    return {name: key[name] for name in ("label", "disabled", "expires_unix", "roles", "inference", "rights", "tags")}
