"""`tidegate feedback …`: how answers were rated, by callers and by the judge."""

from typing import Annotated

import typer

from gateway.cli.admin_client import API, segment
from gateway.cli.connection import GatewayOptions
from gateway.cli.durations import unix_of
from gateway.cli.groups import CommandGroup
from gateway.cli.printing import OutputOptions

feedback_app = CommandGroup("Ratings of answers, by callers and by the judge.")

_COLUMNS = ("at_unix", "tenant", "request_id", "source", "rating", "score", "label", "comment", "model", "pool", "outcome")


@feedback_app.command("list")
def list_ratings(
    gateway: GatewayOptions,
    output: OutputOptions,
    tenant: Annotated[str, typer.Option(help="Only ratings of this tenant.")] = "",
    request_id: Annotated[str, typer.Option("--request", help="Only ratings of this request.")] = "",
    rating: Annotated[str, typer.Option(help="Only `up`, or only `down`.")] = "",
    source: Annotated[str, typer.Option(help="Only those of `caller`, or of `judge`.")] = "",
    label: Annotated[str, typer.Option(help="Only ratings with this label.")] = "",
    since: Annotated[str | None, typer.Option(help="Only ratings given at this moment or later, ISO 8601.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Most ratings, newest first.")] = 50,
) -> None:
    """Print ratings with what the ledger knows of their requests, the newest first."""
    conditions = {"tenant": tenant, "request_id": request_id, "rating": rating, "source": source, "label": label}
    if since is not None:
        conditions["since_unix"] = str(unix_of("--since", since))
    asked = "&".join([f"{name}={segment(value)}" for name, value in conditions.items() if value])
    found = gateway.api().items(f"{API}/feedback" + (f"?{asked}" if asked else ""), limit)
    output.show(found, _COLUMNS, expendable=("score", "pool", "outcome", "label"))
