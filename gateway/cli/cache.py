"""`tidegate cache …`: what the answer cache did, what it keeps, and purges. `gateway.cli.cache_warm` has the command that fills it."""

from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from gateway.cli.admin_client import API, Yes, sure
from gateway.cli.cache_warm import warm
from gateway.cli.connection import GatewayOptions
from gateway.cli.durations import unix_of
from gateway.cli.groups import CommandGroup
from gateway.cli.printing import OutputOptions, fail, out

cache_app = CommandGroup("The answer cache: what it did, what it keeps, and what it is to forget.")
cache_app.command("warm")(warm)

_COLUMNS = (
    "tenant",
    "hits",
    "partial_hits",
    "semantic_hits",
    "misses",
    "bypassed",
    "not_kept",
    "not_similar",
    "saved_prompt_tokens",
    "saved_completion_tokens",
    "saved_usd",
)


_BY_REASON = ("bypassed", "not_similar", "not_kept")
"""Columns of counts by reason."""


@cache_app.command("stats")
def stats(gateway: GatewayOptions, output: OutputOptions) -> None:
    """Print hits, misses, reasons and savings of each tenant since the workers started."""
    shown = gateway.api().read(f"{API}/cache")
    output.show([_row(one) for one in shown["tenants"]], _COLUMNS, shown["tenants"], expendable=("partial_hits", *_BY_REASON))


def _row(one: dict[str, Any]) -> dict[str, Any]:
    counts = {
        name: ", ".join(f"{reason} {count}" for reason, count in sorted(one[name].items()))
        for name in ("bypassed", "not_kept", "not_similar")
    }
    return {**one, **counts, "saved_usd": f"${one['saved_usd']}"}


_AUDIT_COLUMNS = ("owner", "wrong_rate", "lower", "upper", "allowed", "audits", "stopped")


@cache_app.command("wrong")
def wrong(gateway: GatewayOptions, output: OutputOptions) -> None:
    """Print how many answers to similar questions are wrong, by tenant or group: estimated from audits, with bounds of 95 % confidence."""
    found = gateway.api().read(f"{API}/cache")["audited"]
    output.show(found, _AUDIT_COLUMNS, found)


_ENTRY_COLUMNS = ("key", "model", "namespace", "bytes", "kept_unix", "expires_unix", "writer")


@cache_app.command("list")
def entries(
    gateway: GatewayOptions,
    output: OutputOptions,
    tenant: Annotated[str | None, typer.Option(help="The tenant whose answers are listed; this or --group.")] = None,
    group: Annotated[str | None, typer.Option(help="The sharing group whose answers are listed.")] = None,
    model: Annotated[str, typer.Option(help="Only answers of this model.")] = "",
    namespace: Annotated[str, typer.Option(help="Only answers of this namespace.")] = "",
    before: Annotated[str | None, typer.Option(help="Only answers kept before this moment, ISO 8601.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Answers at most.")] = 100,
) -> None:
    """List kept answers without their content, those kept last first."""
    owner = _owner(tenant, group)
    conditions = {"model": model, "namespace": namespace, "before_unix": None if before is None else unix_of("--before", before)}
    query = urlencode({**owner, **{name: value for name, value in conditions.items() if value not in ("", None)}, "limit": limit})
    found = gateway.api().read(f"{API}/cache/entries?{query}")["entries"]
    output.show(found, _ENTRY_COLUMNS, expendable=("namespace", "expires_unix", "writer"))


def _owner(tenant: str | None, group: str | None) -> dict[str, str]:
    """The tenant or the group that a command names; ends the command unless it names one."""
    if tenant is not None and group is None:
        return {"tenant": tenant}
    if group is not None and tenant is None:
        return {"group": group}
    fail("write --tenant or --group, and not both", code=2)


@cache_app.command("purge")
def purge(
    gateway: GatewayOptions,
    tenant: Annotated[str | None, typer.Option(help="The tenant whose answers are removed; this or --group.")] = None,
    group: Annotated[str | None, typer.Option(help="The sharing group whose answers are removed.")] = None,
    model: Annotated[str, typer.Option(help="Only answers of this model.")] = "",
    namespace: Annotated[str, typer.Option(help="Only answers of this namespace.")] = "",
    user: Annotated[
        str, typer.Option(help="Only answers to this end user, by the label that its requests have in `user`; its stored Responses go too.")
    ] = "",
    before: Annotated[str | None, typer.Option(help="Only answers kept before this moment, ISO 8601.")] = None,
    yes: Yes = False,
) -> None:
    """Remove kept answers on every gateway of the database, within 5 s."""
    owner = _owner(tenant, group)
    before_unix = None if before is None else unix_of("--before", before)
    whose = f"tenant {tenant}" if tenant is not None else f"group {group}"
    conditions = {"model": model, "namespace": namespace, "user": user}
    only = "".join(f", {name} {value}" for name, value in conditions.items() if value) + ("" if before is None else f", before {before}")
    sure(f"Remove the kept answers of {whose}{only}?", yes)
    gateway.api().post(f"{API}/cache/purge", {**owner, **conditions, "before_unix": before_unix})
    out.print(f"kept answers of {whose}{only} are removed within 5 s", markup=False, soft_wrap=True)
