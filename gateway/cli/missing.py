"""The sentence for a resource that the admin API does not have: what is missing, a name that is near, and the command that lists them.

The API answers 404 in the same words for what does not exist and for what the caller may not see, so the sentence is made here, from the
path and body of the request and from what the caller may read. A path names resources inside each other, such as a project of a tenant;
the first of them that cannot be read is the missing one.
"""

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, quote, unquote

from tenancy.limits import Level

MAX_NAMES: Final = 2000
"""Most names that are compared for one that is near."""


class Resource(NamedTuple):
    """One resource that a request names."""

    kind: str
    name: str
    path: str
    """Of the resource itself, below the API's prefix; empty where the API shows no single one."""
    listed: str
    """Path of the list that it would be in."""
    command: str
    """The command that prints the list."""
    id_field: str = "name"


class Reader(NamedTuple):
    """What the caller may read, for the sentence; neither function prints anything or ends the command."""

    exists: Callable[[str], bool | None]
    """Whether there is something at a path; None where that cannot be read."""
    items: Callable[[str, int], list[dict[str, Any]]]
    """Up to so many items of a list; empty where the list cannot be read."""
    hidden: bool
    """Whether there may be resources that this caller does not see."""


def what_is_missing(method: str, path: str, body: Any, reader: Reader) -> str | None:
    """The sentence for a 404; None for a path that names no known kind of resource, and where everything is there by now.

    Args:
        path: of the refused request, below the API's prefix, with its query.
        body: what was sent, decoded; None for nothing.
    """
    named = _resources(method, path, body if isinstance(body, dict) else {})
    if not named:
        return None
    missing = named[-1]
    for one in named:
        there = reader.exists(one.path) if one.path else None
        if there is False:
            missing = one
            break
        if there and one is named[-1]:
            return None
    names = [str(item[missing.id_field]) for item in reader.items(missing.listed, MAX_NAMES) if missing.id_field in item]
    near = get_close_matches(missing.name, names, n=1)
    seen = " (or this token may not see it)" if reader.hidden else ""
    meant = f"did you mean {near[0]!r}? " if near and near[0] != missing.name else ""
    return f"There is no {missing.kind} {missing.name!r}{seen}; {meant}`{missing.command}` shows those there are."


def _resources(method: str, path: str, body: dict[str, Any]) -> list[Resource]:
    """The resources that a request names, the outermost first."""
    target, _, query = path.strip("/").partition("?")
    asked = {name: values[0] for name, values in parse_qs(query).items()}
    parts = [unquote(part) for part in target.split("/")]
    match parts:
        case ["organisations", name]:
            return [_organisation(name)]
        case ["tenants", tenant, "projects", project]:
            return [_tenant(tenant), _project(tenant, project)]
        case ["tenants", tenant, "keys", key, *_]:
            return [_tenant(tenant), _key(key, tenant)]
        case ["tenants", tenant, *_]:
            return [_tenant(tenant)]
        case ["limits", "state"]:
            return [_organisation(asked.get("name", ""))] if asked.get("level") == "organisation" else [_tenant(asked.get("name", ""))]
        case ["limits", limit, *_]:
            return [*_limited(limit), *([] if method == "PUT" else [_limit(limit)])]
        case ["rollouts", name, *_]:
            return [Resource("rollout", name, f"rollouts/{_quoted(name)}", "rollouts", "tidegate rollout list")]
        case ["policies", "versions", version]:
            return [_policy_version(version)]
        case ["policies", "rollback"]:
            return [_policy_version(str(body.get("version", "")))]
        case ["adapters", pool, name]:
            return [Resource(f"registered adapter of pool {pool!r}", name, "", "adapters", "tidegate lora list")]
        case ["cache", *_] | ["usage"] | ["requests", "explanation"]:
            return _of_accounts({**asked, **body})
    return []


def _of_accounts(named: dict[str, Any]) -> list[Resource]:
    """The tenant and the project that the fields of a query or a body name."""
    tenant, project = (str(named.get(name) or "") for name in ("tenant", "project"))
    return [*([_tenant(tenant)] if tenant else []), *([_project(tenant, project)] if tenant and project else [])]


def _limited(limit: str) -> list[Resource]:
    """The accounts whose use a limit bounds."""
    level, _, rest = limit.partition(":")
    name = rest.rsplit(":", 2)[0]
    tenant, _, project = name.partition("/")
    match level:
        case Level.ORGANISATION.value:
            return [_organisation(name)]
        case Level.TENANT.value | Level.PROJECT.value | Level.USER.value:
            return _of_accounts({"tenant": tenant, "project": project})
        case Level.KEY.value:
            return [_key(name)]
    return []


def _organisation(name: str) -> Resource:
    return Resource("organisation", name, f"organisations/{_quoted(name)}", "organisations", "tidegate org list")


def _tenant(name: str) -> Resource:
    return Resource("tenant", name, f"tenants/{_quoted(name)}", "tenants", "tidegate tenant list")


def _project(tenant: str, name: str) -> Resource:
    listed = f"tenants/{_quoted(tenant)}/projects"
    command = f"tidegate project list --tenant {tenant}"
    return Resource(f"project in tenant {tenant!r} named", name, f"{listed}/{_quoted(name)}", listed, command)


def _key(key_id: str, tenant: str = "") -> Resource:
    """A key; without its tenant the API shows no single one."""
    if not tenant:
        return Resource("key", key_id, "", "", "tidegate key list", "id")
    listed = f"tenants/{_quoted(tenant)}/keys"
    return Resource("key", key_id, f"{listed}/{_quoted(key_id)}", listed, f"tidegate key list --tenant {tenant}", "id")


def _limit(limit: str) -> Resource:
    return Resource("limit", limit, f"limits/{_quoted(limit)}", "limits", "tidegate limit list", "id")


def _policy_version(version: str) -> Resource:
    return Resource("version of the policies", version, "", "", "tidegate policy history", "version")


def _quoted(name: str) -> str:
    return quote(name, safe="")
