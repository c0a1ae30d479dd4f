"""`tidegate org …`, `tidegate tenant …` and `tidegate project …`: accounts, their rights, and whether they are enabled."""

from typing import Annotated, Any, Final

import typer

from gateway.cli.admin_client import API, AdminClient, Yes, segment, sure
from gateway.cli.connection import StoreOptions
from gateway.cli.groups import CommandGroup
from gateway.cli.printing import OutputOptions, fail, out
from gateway.cli.rights import RightsOptions, shown_rights
from tenancy.accounts import NAME, NAME_RULE

org_app = CommandGroup("Organisations: tenants that are limited and billed together.")
tenant_app = CommandGroup("Tenants: accounts whose data is isolated from each other.")
project_app = CommandGroup("Projects of a tenant.")

COLUMNS: Final = ("name", "label", "disabled", "created_unix")
TENANT_COLUMNS: Final = ("name", "organisation", "label", "disabled", "created_unix")
Label = Annotated[str | None, typer.Option(help="A note for people.")]
OrgName = Annotated[str, typer.Argument(metavar="ORG", help="The organisation's name.")]
TenantName = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.")]
ProjectName = Annotated[str, typer.Argument(metavar="PROJECT", help="The project's name.")]
Tenant = Annotated[str, typer.Option(help="The tenant whose project it is.")]
Org = Annotated[str | None, typer.Option(help="The organisation that the tenant belongs to; default for a new one: default.")]


@org_app.command("list")
def list_orgs(gateway: StoreOptions, output: OutputOptions) -> None:
    """Print every organisation."""
    output.show(gateway.api().items(f"{API}/organisations"), COLUMNS, expendable=("created_unix",))


@org_app.command("show")
def show_org(name: OrgName, gateway: StoreOptions, output: OutputOptions) -> None:
    """Print an organisation and its rights."""
    _show(gateway.api(), f"{API}/organisations/{segment(name)}", COLUMNS, output)


@org_app.command("create")
def create_org(name: OrgName, rights: RightsOptions, gateway: StoreOptions, label: Label = None) -> None:
    """Make an organisation."""
    _create(gateway.api(), f"{API}/organisations", name, f"organisation {name}", rights, {"label": label})


@org_app.command("set")
def set_org(name: OrgName, rights: RightsOptions, gateway: StoreOptions, label: Label = None) -> None:
    """Change the label or the rights of an organisation; what is not written stays."""
    _set(gateway, f"{API}/organisations/{segment(name)}", f"organisation {name}", rights, {"label": label})


@org_app.command("disable")
def disable_org(name: OrgName, gateway: StoreOptions) -> None:
    """Refuse every key of its tenants, until it is enabled again."""
    _set_disabled(gateway.api(), f"{API}/organisations/{segment(name)}", f"organisation {name}", disabled=True)


@org_app.command("enable")
def enable_org(name: OrgName, gateway: StoreOptions) -> None:
    """Take its keys again."""
    _set_disabled(gateway.api(), f"{API}/organisations/{segment(name)}", f"organisation {name}", disabled=False)


@org_app.command("delete")
def delete_org(name: OrgName, gateway: StoreOptions, yes: Yes = False) -> None:
    """Delete an organisation without tenants, with its limits."""
    sure(f"Delete organisation {name} and its limits?", yes)
    gateway.api().remove(f"{API}/organisations/{segment(name)}")
    out.print(f"organisation {name} deleted", markup=False)


@tenant_app.command("list")
def list_tenants(gateway: StoreOptions, output: OutputOptions) -> None:
    """Print every tenant."""
    output.show(gateway.api().items(f"{API}/tenants"), TENANT_COLUMNS, expendable=("created_unix", "organisation"))


@tenant_app.command("show")
def show_tenant(name: TenantName, gateway: StoreOptions, output: OutputOptions) -> None:
    """Print a tenant, its rights and its projects."""
    client = gateway.api()
    projects = client.items(f"{API}/tenants/{segment(name)}/projects")
    _show(client, f"{API}/tenants/{segment(name)}", TENANT_COLUMNS, output, projects=projects)


@tenant_app.command("create")
def create_tenant(name: TenantName, rights: RightsOptions, gateway: StoreOptions, org: Org = None, label: Label = None) -> None:
    """Make a tenant, with its project `default`."""
    checked_name("tenant", name)
    _create(gateway.api(), f"{API}/tenants", name, f"tenant {name}", rights, {"label": label, "organisation": org})


@tenant_app.command("set")
def set_tenant(name: TenantName, rights: RightsOptions, gateway: StoreOptions, org: Org = None, label: Label = None) -> None:
    """Change the organisation, the label or the rights of a tenant; what is not written stays.

    For instance `tidegate tenant set acme --models chat,code --max-output-tokens 4096`.
    """
    _set(gateway, f"{API}/tenants/{segment(name)}", f"tenant {name}", rights, {"label": label, "organisation": org})


@tenant_app.command("disable")
def disable_tenant(name: TenantName, gateway: StoreOptions) -> None:
    """Refuse every key of a tenant, until it is enabled again."""
    _set_disabled(gateway.api(), f"{API}/tenants/{segment(name)}", f"tenant {name}", disabled=True)


@tenant_app.command("enable")
def enable_tenant(name: TenantName, gateway: StoreOptions) -> None:
    """Take its keys again."""
    _set_disabled(gateway.api(), f"{API}/tenants/{segment(name)}", f"tenant {name}", disabled=False)


@tenant_app.command("delete")
def delete_tenant(name: TenantName, gateway: StoreOptions, yes: Yes = False) -> None:
    """Delete a tenant whose keys are all revoked, with its projects, keys and limits."""
    sure(f"Delete tenant {name} with its projects, keys and limits?", yes)
    gateway.api().remove(f"{API}/tenants/{segment(name)}")
    out.print(f"tenant {name} deleted", markup=False)


@project_app.command("list")
def list_projects(tenant: Tenant, gateway: StoreOptions, output: OutputOptions) -> None:
    """Print the projects of a tenant."""
    output.show(gateway.api().items(f"{API}/tenants/{segment(tenant)}/projects"), COLUMNS, expendable=("created_unix",))


@project_app.command("show")
def show_project(name: ProjectName, tenant: Tenant, gateway: StoreOptions, output: OutputOptions) -> None:
    """Print a project and its rights."""
    _show(gateway.api(), _project(tenant, name), ("tenant", *COLUMNS), output)


@project_app.command("create")
def create_project(name: ProjectName, tenant: Tenant, rights: RightsOptions, gateway: StoreOptions, label: Label = None) -> None:
    """Make a project."""
    _create(gateway.api(), f"{API}/tenants/{segment(tenant)}/projects", name, f"project {tenant}/{name}", rights, {"label": label})


@project_app.command("set")
def set_project(name: ProjectName, tenant: Tenant, rights: RightsOptions, gateway: StoreOptions, label: Label = None) -> None:
    """Change the label or the rights of a project; what is not written stays."""
    _set(gateway, _project(tenant, name), f"project {tenant}/{name}", rights, {"label": label})


@project_app.command("disable")
def disable_project(name: ProjectName, tenant: Tenant, gateway: StoreOptions) -> None:
    """Refuse every key of a project, until it is enabled again."""
    _set_disabled(gateway.api(), _project(tenant, name), f"project {tenant}/{name}", disabled=True)


@project_app.command("enable")
def enable_project(name: ProjectName, tenant: Tenant, gateway: StoreOptions) -> None:
    """Take its keys again."""
    _set_disabled(gateway.api(), _project(tenant, name), f"project {tenant}/{name}", disabled=False)


@project_app.command("delete")
def delete_project(name: ProjectName, tenant: Tenant, gateway: StoreOptions, yes: Yes = False) -> None:
    """Delete a project whose keys are all revoked, with its keys and limits."""
    sure(f"Delete project {tenant}/{name} with its keys and limits?", yes)
    gateway.api().remove(_project(tenant, name))
    out.print(f"project {tenant}/{name} deleted", markup=False)


def checked_name(kind: str, name: str) -> None:
    """End the command for a name that no account may have, with the rule."""
    if not NAME.fullmatch(name):
        fail(f"{kind} {name!r}: {NAME_RULE}", code=2)


def _project(tenant: str, name: str) -> str:
    return f"{API}/tenants/{segment(tenant)}/projects/{segment(name)}"


def _written(values: dict[str, str | None]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _create(client: AdminClient, path: str, name: str, described: str, rights: RightsOptions, values: dict[str, str | None]) -> None:
    client.post(path, {"name": name, **_written(values), **({"rights": rights.applied()} if rights.given else {})})
    out.print(f"{described} created", markup=False)


def _set(gateway: StoreOptions, path: str, described: str, rights: RightsOptions, values: dict[str, str | None]) -> None:
    if not rights.given and not _written(values):
        fail(f"{described}: nothing to change; name at least one option, for instance --models (--help lists them)", code=2)
    gateway.api().rewrite(path, lambda record: {**_changeable(record), **_written(values), "rights": rights.applied(record["rights"])})
    out.print(f"{described} changed; gateways follow within 5 s", markup=False)


def _set_disabled(client: AdminClient, path: str, described: str, *, disabled: bool) -> None:
    client.rewrite(path, lambda record: {**_changeable(record), "disabled": disabled})
    out.print(f"{described} {'disabled; gateways refuse its keys within 5 s' if disabled else 'enabled'}", markup=False)


def _show(client: AdminClient, path: str, columns: tuple[str, ...], output: OutputOptions, **more: Any) -> None:
    record = client.read(path)
    listed = {name: [part["name"] for part in parts] for name, parts in more.items()}
    output.show_one({**{name: record[name] for name in columns}, **shown_rights(record["rights"]), **listed}, {**record, **more})


def _changeable(record: dict[str, Any]) -> dict[str, Any]:
    """The fields of a GET's answer that a PUT takes."""
    return {name: record[name] for name in ("label", "disabled", "rights", "organisation") if name in record}
