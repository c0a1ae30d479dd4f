"""Output of the commands: tables for people, JSON for scripts, moments, and the sentence that ends a command."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def fail(message: str, code: int = 1) -> NoReturn:
    """Print a sentence and end the command with this exit code."""
    err.print(message, markup=False, soft_wrap=True)
    raise typer.Exit(code)


def print_json(value: Any) -> None:
    """Print one line of JSON, flushed at once."""
    typer.echo(msgspec.json.encode(value).decode())


def show(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], as_json: bool) -> None:
    """Print a list: a table for people, JSON for scripts."""
    if as_json:
        print_json(rows)
        return
    out.print(table_of(rows, columns))


def table_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Table:
    """Rows as a table; a column whose name ends in `_unix` is shown as a moment."""
    table = Table()
    for name in columns:
        table.add_column(name.removesuffix("_unix"), overflow="fold")  # ids must be copyable, also from a narrow terminal
    for row in rows:
        table.add_row(*(Text(cell(name, row.get(name))) for name in columns))
    return table


def cell(name: str, value: Any) -> str:
    """One value as text for people."""
    if value is None or value == "" or value == []:
        return ""
    if name.endswith("_unix"):
        return moment(value)
    if isinstance(value, bool):
        return "yes" if value else ""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def moment(unix: float) -> str:
    """Seconds since 1970 as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="seconds")
