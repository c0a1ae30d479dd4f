"""`tidegate audit …`: over the admin API of a running gateway."""

from typing import Annotated

import typer

from gateway.cli.admin_client import ADMIN, API, AdminUrl, TokenFile, api, segment
from gateway.cli.printing import AsJson, err, out, print_json, show

audit_app = typer.Typer(no_args_is_help=True, help="The audit: who changed what. Over the admin API.")


@audit_app.command("list")
def list_rows(
    tenant: Annotated[str, typer.Option(help="Only what concerns this tenant.")] = "",
    most: Annotated[int, typer.Option(min=1, max=100_000, help="Rows, newest first.")] = 50,
    admin: AdminUrl = ADMIN,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the newest changes."""
    rows = api(admin, token_file).items(f"{API}/audit" + (f"?tenant={segment(tenant)}" if tenant else ""), most)
    shown = rows if as_json else [{**row, "at_unix": row["at_unix_ms"] / 1000} for row in rows]
    show(shown, ("seq", "at_unix", "actor", "role", "address", "action", "target"), as_json)


@audit_app.command("verify")
def verify(
    head: Annotated[str, typer.Option(help="The hash an earlier verification printed: the chain must still hold it.")] = "",
    admin: AdminUrl = ADMIN,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Walk the whole chain; exit code 1 when a row was changed, removed or put in. Keep the printed hash elsewhere."""
    client = api(admin, token_file)
    verification = client.read(f"{API}/audit/verification")
    if as_json:
        print_json(verification)
    if verification["broken_at"] is not None:
        err.print(f"the audit is broken: {verification['why']}", markup=False, soft_wrap=True)
        raise typer.Exit(1)
    if head and all(row["hash"] != head for row in client.items(f"{API}/audit")):
        err.print("the chain is sound, but it is not the one with that hash: it was made anew", markup=False, soft_wrap=True)
        raise typer.Exit(1)
    if not as_json:
        out.print(f"{verification['rows']} rows, unbroken; head {verification['head']}", markup=False, soft_wrap=True)
