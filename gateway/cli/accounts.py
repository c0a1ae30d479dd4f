"""`tidegate org …`, `tidegate project …` and the commands for existing tenants: over the admin API of a running gateway."""

from typing import Annotated, Any

import typer

from gateway.cli.admin_client import ADMIN, API, AdminUrl, TokenFile, Yes, api, segment, sure
from gateway.cli.printing import AsJson, out, show

org_app = typer.Typer(no_args_is_help=True, help="Organisations: tenants that are limited and billed together. Over the admin API.")
project_app = typer.Typer(no_args_is_help=True, help="Projects of a tenant. Over the admin API.")

COLUMNS = ("name", "label", "disabled", "created_unix")
Label = Annotated[str, typer.Option(help="A note for people.")]


@org_app.command("list")
def list_orgs(admin: AdminUrl = ADMIN, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """Print every organisation."""
    show(api(admin, token_file).items(f"{API}/organisations"), COLUMNS, as_json)


@org_app.command("create")
def create_org(name: str, label: Label = "", admin: AdminUrl = ADMIN, token_file: TokenFile = None) -> None:
    """Make an organisation."""
    api(admin, token_file).post(f"{API}/organisations", {"name": name, "label": label})
    out.print(f"organisation {name} created", markup=False)


@org_app.command("disable")
def disable_org(name: str, admin: AdminUrl = ADMIN, token_file: TokenFile = None) -> None:
    """Refuse every key of its tenants, until it is enabled again."""
    _set_disabled(admin, token_file, f"{API}/organisations/{segment(name)}", f"organisation {name}", disabled=True)


@org_app.command("enable")
def enable_org(name: str, admin: AdminUrl = ADMIN, token_file: TokenFile = None) -> None:
    """Take its keys again."""
    _set_disabled(admin, token_file, f"{API}/organisations/{segment(name)}", f"organisation {name}", disabled=False)


@org_app.command("delete")
def delete_org(name: str, yes: Yes = False, admin: AdminUrl = ADMIN, token_file: TokenFile = None) -> None:
    """Remove an organisation without tenants, with its limits."""
    sure(f"Remove organisation {name} and its limits?", yes)
    api(admin, token_file).remove(f"{API}/organisations/{segment(name)}")
    out.print(f"organisation {name} removed", markup=False)


def add_tenant_commands(tenant_app: typer.Typer) -> None:
    """Add the commands for existing tenants."""

    @tenant_app.command("show")
    def show_tenant(name: str, admin: AdminUrl = ADMIN, token_file: TokenFile = None, as_json: AsJson = False) -> None:
        """Print a tenant and its projects. Over the admin API."""
        client = api(admin, token_file)
        tenant = client.read(f"{API}/tenants/{segment(name)}")
        projects = client.items(f"{API}/tenants/{segment(name)}/projects")
        if not as_json:
            show([tenant], ("name", "organisation", "label", "disabled", "created_unix"), False)
        show([{**tenant, "projects": projects}] if as_json else projects, COLUMNS, as_json)

    @tenant_app.command("disable")
    def disable_tenant(name: str, admin: AdminUrl = ADMIN, token_file: TokenFile = None) -> None:
        """Refuse every key of a tenant, until it is enabled again. Over the admin API."""
        _set_disabled(admin, token_file, f"{API}/tenants/{segment(name)}", f"tenant {name}", disabled=True)

    @tenant_app.command("enable")
    def enable_tenant(name: str, admin: AdminUrl = ADMIN, token_file: TokenFile = None) -> None:
        """Take its keys again. Over the admin API."""
        _set_disabled(admin, token_file, f"{API}/tenants/{segment(name)}", f"tenant {name}", disabled=False)

    @tenant_app.command("move")
    def move_tenant(name: str, organisation: str, admin: AdminUrl = ADMIN, token_file: TokenFile = None) -> None:
        """Give a tenant to another organisation. Over the admin API."""
        client = api(admin, token_file)
        client.rewrite(f"{API}/tenants/{segment(name)}", lambda resource: {**_changeable(resource), "organisation": organisation})
        out.print(f"tenant {name} belongs to organisation {organisation}", markup=False)

    @tenant_app.command("delete")
    def delete_tenant(name: str, yes: Yes = False, admin: AdminUrl = ADMIN, token_file: TokenFile = None) -> None:
        """Remove a tenant whose keys are all revoked, with its projects, keys and limits. Over the admin API."""
        sure(f"Remove tenant {name} with its projects, keys and limits?", yes)
        api(admin, token_file).remove(f"{API}/tenants/{segment(name)}")
        out.print(f"tenant {name} removed", markup=False)


@project_app.command("list")
def list_projects(tenant: str, admin: AdminUrl = ADMIN, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """Print the projects of a tenant."""
    show(api(admin, token_file).items(f"{API}/tenants/{segment(tenant)}/projects"), COLUMNS, as_json)


@project_app.command("create")
def create_project(tenant: str, name: str, label: Label = "", admin: AdminUrl = ADMIN, token_file: TokenFile = None) -> None:
    """Make a project."""
    api(admin, token_file).post(f"{API}/tenants/{segment(tenant)}/projects", {"name": name, "label": label})
    out.print(f"project {tenant}/{name} created", markup=False)


@project_app.command("disable")
def disable_project(tenant: str, name: str, admin: AdminUrl = ADMIN, token_file: TokenFile = None) -> None:
    """Refuse every key of a project, until it is enabled again."""
    _set_disabled(admin, token_file, f"{API}/tenants/{segment(tenant)}/projects/{segment(name)}", f"project {tenant}/{name}", disabled=True)


@project_app.command("enable")
def enable_project(tenant: str, name: str, admin: AdminUrl = ADMIN, token_file: TokenFile = None) -> None:
    """Take its keys again."""
    _set_disabled(
        admin, token_file, f"{API}/tenants/{segment(tenant)}/projects/{segment(name)}", f"project {tenant}/{name}", disabled=False
    )


@project_app.command("delete")
def delete_project(tenant: str, name: str, yes: Yes = False, admin: AdminUrl = ADMIN, token_file: TokenFile = None) -> None:
    """Remove a project whose keys are all revoked, with its keys and limits."""
    sure(f"Remove project {tenant}/{name} with its keys and limits?", yes)
    api(admin, token_file).remove(f"{API}/tenants/{segment(tenant)}/projects/{segment(name)}")
    out.print(f"project {tenant}/{name} removed", markup=False)


def _set_disabled(admin: str, token_file: Any, path: str, described: str, *, disabled: bool) -> None:
    api(admin, token_file).rewrite(path, lambda resource: {**_changeable(resource), "disabled": disabled})
    out.print(f"{described} {'disabled; gateways refuse its keys within 5 s' if disabled else 'enabled'}", markup=False)


def _changeable(resource: dict[str, Any]) -> dict[str, Any]:
    """The fields of a GET's answer that a PUT takes."""
    return {name: resource[name] for name in ("label", "disabled", "rights", "organisation") if name in resource}
