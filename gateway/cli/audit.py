"""`tidegate audit …`: the rows of the audit, and the check of their chain."""

from typing import Annotated

import typer

from gateway.cli.admin_client import API, segment
from gateway.cli.connection import StoreOptions
from gateway.cli.groups import CommandGroup
from gateway.cli.printing import AsJson, OutputOptions, err, out, print_json

audit_app = CommandGroup("The audit: who changed what.")


@audit_app.command("list")
def list_rows(
    gateway: StoreOptions,
    output: OutputOptions,
    tenant: Annotated[str, typer.Option(help="Only what concerns this tenant.")] = "",
    action: Annotated[str, typer.Option(help="Only these actions: `key.create`, or `key` for all that begin so.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Most rows, newest first.")] = 50,
) -> None:
    """Print the newest changes."""
    asked = "&".join([f"{name}={segment(value)}" for name, value in (("tenant", tenant), ("action", action)) if value])
    rows = gateway.api().items(f"{API}/audit" + (f"?{asked}" if asked else ""), limit)
    shown = [{**row, "at_unix": row["at_unix_ms"] / 1000} for row in rows]
    output.show(shown, ("seq", "at_unix", "actor", "role", "address", "action", "target"), rows, expendable=("seq", "role", "address"))


@audit_app.command("verify")
def verify(
    gateway: StoreOptions,
    head: Annotated[str, typer.Option(help="The hash an earlier verification printed: the chain must still hold it.")] = "",
    as_json: AsJson = False,
) -> None:
    """Walk the whole chain; exit code 1 when a row was changed, removed or put in. Keep the printed hash elsewhere."""
    client = gateway.api()
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
