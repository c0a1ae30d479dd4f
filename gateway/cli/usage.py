"""`tidegate usage …`: usage as a table or as a file.

`ApiUsage` reads over the admin API, page by page, so that neither side holds a whole export in memory.
"""

import asyncio
import datetime as dt
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

import msgspec
import typer

from gateway.cli.admin_client import API, PAGE, AdminClient, segment
from gateway.cli.connection import StoreOptions
from gateway.cli.groups import CommandGroup
from gateway.cli.key_labels import key_labels, labelled
from gateway.cli.printing import STDOUT, OutputOptions, err, fail, write_whole
from tenancy.money import dollars_of, shown_dollars
from tenancy.usage import BY, MAX_PAGE_ROWS, PAGE_ROWS, SUMS, By, Filter, LedgerAway, Page, UsageAnswerRow, UsageSums, columns
from tenancy.usage_export import ParquetMissing, export_usage

MOST: Final = PAGE
"""Most rows of one page over the API."""


class ApiUsage:
    """`tenancy.usage.UsageTotals` over a running gateway. A failure ends the command with a sentence."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    async def totals(self, by: Sequence[By], where: Filter, after: str | None = None, limit: int = PAGE_ROWS) -> Page:
        """Sums per combination of labels, sorted by labels; at most `limit` rows after the cursor `after`."""
        filters: dict[str, Any] = {name: str(value) for name in Filter.__struct_fields__ if (value := getattr(where, name)) is not None}
        rows: list[UsageAnswerRow] = []
        while True:
            page = self._page({"by": list(by), "limit": min(MOST, limit - len(rows)), **filters, **({"cursor": after} if after else {})})
            rows += (_row(item, by) for item in page["items"])
            after = page["next_cursor"]
            if after is None or len(rows) >= limit:
                return Page(tuple(rows), after)

    def _page(self, query: dict[str, Any]) -> Any:
        return self._client.read(f"{API}/usage?{urlencode(query, doseq=True)}")


def _row(item: dict[str, Any], by: Sequence[By]) -> UsageAnswerRow:
    return UsageAnswerRow(
        tuple(item["labels"][name] for name in columns(by)), msgspec.convert({name: item[name] for name in SUMS}, UsageSums)
    )


usage_app = CommandGroup("What was used, and what it cost.")

First = Annotated[str | None, typer.Option("--from", help="First day, YYYY-MM-DD (UTC); default: the first of this month.")]
Last = Annotated[str | None, typer.Option("--to", help="Last day, included; default: today.")]
Divided = Annotated[str, typer.Option("--by", help=f"What to divide by, with commas: {', '.join(BY)}.")]
Tenant = Annotated[str | None, typer.Option(help="Only this tenant.")]
Project = Annotated[str | None, typer.Option(help="Only this project.")]
Key = Annotated[str | None, typer.Option(help="Only this key, by its public id.")]
Model = Annotated[str | None, typer.Option(help="Only this model.")]


@usage_app.command("show")
def show_usage(
    gateway: StoreOptions,
    output: OutputOptions,
    first: First = None,
    last: Last = None,
    by: Divided = "tenant,model",
    tenant: Tenant = None,
    project: Project = None,
    key: Key = None,
    model: Model = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_PAGE_ROWS, help="Most rows.")] = 100,
) -> None:
    """Print what was used."""
    divided = _by(by)
    where = _filter(first, last, tenant, project, key, model)
    client = gateway.api()
    page: Page = asyncio.run(ApiUsage(client).totals(divided, where, None, limit))
    if not page.rows:
        _require_accounts(client, where)
    names = columns(divided)
    rows = [
        dict(zip(names, row.labels, strict=True)) | msgspec.to_builtins(row.sums) | {"cost_usd": dollars_of(row.sums.cost_nanousd)}
        for row in page.rows
    ]
    labels = _labels(gateway, divided, where, limit) if "key" in names and not output.for_scripts else {}
    table = [_for_people(row, names, labels) for row in rows] if not output.as_csv else rows
    sums = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "units", "cost_usd")
    # most gateways have no models of sound, and a table is narrow
    sound = ("audio_seconds", "audio_bytes") if output.as_csv or any(row.sums.audio_bytes for row in page.rows) else ()
    narrow = ("audio_bytes", "completion_tokens", "prompt_tokens", "cached_tokens", "units")
    output.show(table, (*names, *sums, *sound), rows, expendable=narrow)
    if page.next is not None:
        err.print(f"there are more than {limit} rows; add --limit, or a filter, or use: tidegate usage export")


@usage_app.command("export")
def export(
    gateway: StoreOptions,
    target: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write; - is stdout.")] = STDOUT,
    first: First = None,
    last: Last = None,
    by: Divided = "day,tenant,project,key,model,lora",
    kind: Annotated[Literal["csv", "parquet"], typer.Option("--format", help="csv, or parquet (needs the extra of that name).")] = "csv",
    tenant: Tenant = None,
    project: Project = None,
    key: Key = None,
    model: Model = None,
) -> None:
    """Write what was used to stdout, or to a file, which is there whole or not at all. Money is in nano-dollars, and in the
    last column in dollars."""
    divided = _by(by)
    where = _filter(first, last, tenant, project, key, model)
    client = gateway.api()
    totals = ApiUsage(client)
    if where.tenant is not None and not asyncio.run(totals.totals(divided, where, None, 1)).rows:
        _require_accounts(client, where)
    try:
        rows = write_whole(target, lambda file: asyncio.run(export_usage(totals, divided, where, file, kind)))
    except (LedgerAway, ParquetMissing) as error:
        fail(str(error))
    if target != STDOUT:
        err.print(f"{rows} rows written to {target}", markup=False)


def _require_accounts(client: AdminClient, where: Filter) -> None:
    """End the command where nothing was used because the tenant, the project or the key is none. What was used by a deleted one stays in
    the ledger, so they are asked for only where no row is found."""
    if where.tenant is None:
        return
    tenant = f"{API}/tenants/{segment(where.tenant)}"
    client.read(tenant)
    if where.project is not None:
        client.read(f"{tenant}/projects/{segment(where.project)}")
    if where.key is not None:
        client.read(f"{tenant}/keys/{segment(where.key)}")


def _labels(gateway: StoreOptions, divided: tuple[By, ...], where: Filter, limit: int) -> dict[str, str]:
    """The labels of the keys in a table. Their tenants are in the ledger, whose rows of a key are those of one tenant."""
    client = gateway.api(quiet=True)
    page: Page = asyncio.run(ApiUsage(client).totals(("tenant", *(by for by in divided if by != "tenant")), where, None, limit))
    return key_labels(client, (row.labels[0] for row in page.rows if row.labels[0]))


def _for_people(row: dict[str, Any], names: Sequence[str], labels: dict[str, str]) -> dict[str, Any]:
    numbers = {name: f"{value:,}" for name, value in row.items() if isinstance(value, int)}
    shown = {name: labelled(row[name], labels) if name == "key" else row[name] or "-" for name in names}
    return {**row, **numbers, **{name: text or "-" for name, text in shown.items()}, "cost_usd": shown_dollars(row["cost_nanousd"])}


def _by(text: str) -> tuple[By, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        columns(names)  # type: ignore[arg-type]  # that is what it checks
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--by") from None
    return names  # type: ignore[return-value]  # checked


def _filter(first: str | None, last: str | None, tenant: str | None, project: str | None, key: str | None, model: str | None) -> Filter:
    today = dt.datetime.fromtimestamp(time.time(), dt.UTC).date()
    days = [_day(first, "--from") or today.replace(day=1), _day(last, "--to") or today]
    if days[0] > days[1]:
        raise typer.BadParameter(f"{days[0]} is after {days[1]}", param_hint="--from")
    return Filter(days[0], days[1], tenant=tenant, project=project, key=key, model=model)


def _day(text: str | None, option: str) -> dt.date | None:
    try:
        return None if text is None else dt.date.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no day; write it like 2026-01-31", param_hint=option) from None
