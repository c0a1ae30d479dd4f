"""`tidegate usage …`: usage as a table or as a file, straight from the database or over the admin API.

`ApiUsage` reads over the admin API, page by page, so that neither side holds a whole export in memory.
"""

import asyncio
import datetime as dt
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

import msgspec
import typer
from rich.table import Table

from gateway.cli.admin_client import API, PAGE, AdminClient, OverApi, TokenFile, api
from gateway.cli.printing import AsJson, err, fail, out, print_json
from gateway.cli.stored import DEFAULT_CONFIG, Config, with_database
from gateway.config.load import ConfigError, load_settings
from tenancy.money import dollars_of, shown_dollars
from tenancy.usage import BY, MAX_PAGE_ROWS, PAGE_ROWS, SUMS, By, Filter, LedgerAway, Page, UsageAnswerRow, UsageSums, UsageTotals, columns
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


usage_app = typer.Typer(no_args_is_help=True, help="What was used. From the database of --config, or with --admin over the API.")

First = Annotated[str | None, typer.Option("--from", help="First day, YYYY-MM-DD (UTC); default: the first of this month.")]
Last = Annotated[str | None, typer.Option("--to", help="Last day, included; default: today.")]
Divided = Annotated[str, typer.Option("--by", help=f"What to divide by, with commas: {', '.join(BY)}.")]
Tenant = Annotated[str | None, typer.Option(help="Only this tenant.")]
Project = Annotated[str | None, typer.Option(help="Only this project.")]
Key = Annotated[str | None, typer.Option(help="Only this key, by its public id.")]
Model = Annotated[str | None, typer.Option(help="Only this model.")]


@usage_app.command("show")
def show_usage(
    first: First = None,
    last: Last = None,
    by: Divided = "tenant,model",
    tenant: Tenant = None,
    project: Project = None,
    key: Key = None,
    model: Model = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_PAGE_ROWS, help="Rows at most.")] = 100,
    config: Config = DEFAULT_CONFIG,
    admin: OverApi = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Print what was used."""
    divided = _by(by)
    where = _filter(first, last, tenant, project, key, model)
    page: Page = _run(config, admin, token_file, lambda queries: queries.totals(divided, where, None, limit))
    names = columns(divided)
    if as_json:
        rows = [
            dict(zip(names, row.labels, strict=True)) | msgspec.to_builtins(row.sums) | {"cost_usd": dollars_of(row.sums.cost_nanousd)}
            for row in page.rows
        ]
        print_json(rows)
        return
    table = Table(*names)
    for name in ("requests", "prompt", "cached", "completion", "units", "cost"):
        table.add_column(name, justify="right")
    for row in page.rows:
        s = row.sums
        numbers = (s.requests, s.prompt_tokens, s.cached_tokens, s.completion_tokens)
        table.add_row(*(_cell(label) for label in row.labels), *(f"{n:,}" for n in numbers), f"{s.units:,}", shown_dollars(s.cost_nanousd))
    out.print(table)
    if page.next is not None:
        err.print(f"there are more than {limit} rows; add --limit, or a filter, or use: tidegate usage export")


@usage_app.command("export")
def export(
    target: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")],
    first: First = None,
    last: Last = None,
    by: Divided = "day,tenant,project,key,model,lora",
    kind: Annotated[Literal["csv", "parquet"], typer.Option("--format", help="csv, or parquet (needs the extra of that name).")] = "csv",
    tenant: Tenant = None,
    project: Project = None,
    key: Key = None,
    model: Model = None,
    config: Config = DEFAULT_CONFIG,
    admin: OverApi = None,
    token_file: TokenFile = None,
) -> None:
    """Write what was used to a file, which is there whole or not at all. Money is in nano-dollars."""
    divided = _by(by)
    where = _filter(first, last, tenant, project, key, model)
    partial = target.with_name(f".{target.name}.partial")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            rows = _run(config, admin, token_file, lambda queries: export_usage(queries, divided, where, file, kind))
        partial.replace(target)
    except OSError as error:
        fail(f"{target} cannot be written: {error.strerror or error}")
    finally:
        partial.unlink(missing_ok=True)
    err.print(f"{rows} rows written to {target}", markup=False)


def _cell(text: str) -> str:
    return text.replace("[", "\\[") or "-"


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


def _run(config: Path, admin: str | None, token_file: Path | None, work: Callable[[UsageTotals], Awaitable[Any]]) -> Any:
    try:
        return asyncio.run(_from_database(config, work) if admin is None else _over_api(ApiUsage(api(admin, token_file)), work))
    except (ConfigError, LedgerAway, ParquetMissing) as error:
        fail(str(error))


async def _over_api(totals: ApiUsage, work: Callable[[UsageTotals], Awaitable[Any]]) -> Any:
    return await work(totals)


async def _from_database(config: Path, work: Callable[[UsageTotals], Awaitable[Any]]) -> Any:
    from tenancy.stores.sql import SqlUsageQueries, StoreError

    try:
        return await with_database(load_settings(config), lambda engine: work(SqlUsageQueries(engine)))
    except StoreError as error:
        raise LedgerAway(str(error)) from error
