"""Output of the commands: tables for people, JSON and CSV for scripts, files, moments, and the sentence that ends a command.

Nothing in a table is cut. Where it goes to a pipe or a file, a table is as wide as its longest rows. On a terminal that is too narrow,
columns are left out, the least important first, which stderr says, and `--wide` prints all of them.
"""

import csv
import io
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any, Final, NoReturn, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.groups import Options
from gateway.docs_links import docs_base, linked

T = TypeVar("T")

UNBOUNDED: Final = 100_000
"""The width of a medium that has none, in characters."""
PANEL: Final = "Output"
STDOUT: Final = Path("-")
PLOTS: Final = (".png", ".svg", ".pdf")
"""The endings of plots, each of which Matplotlib writes."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.", rich_help_panel=PANEL)]
Target = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write there; - is stdout.", rich_help_panel=PANEL)]


class LinkingConsole(Console):
    """A console whose texts name pages by their addresses (`gateway.docs_links`), and which draws no pictures: `people:email:redact` is a
    finding of a guard rule, and `:email:` in it no emoji."""

    def __init__(self, **how: Any) -> None:
        super().__init__(highlight=False, emoji=False, **how)

    def print(self, *objects: Any, **how: Any) -> None:
        """Print texts and tables as `Console` does, with addresses in the texts."""
        base = docs_base(None, os.environ)
        super().print(*(linked(text, base) if isinstance(text, str) else text for text in objects), **how)


out = LinkingConsole()
err = LinkingConsole(stderr=True)


@dataclass
class OutputOptions(Options):
    """The options of commands that print a table."""

    as_json: AsJson = False
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.", rich_help_panel=PANEL)] = False
    wide: Annotated[bool, typer.Option("--wide", help="Every column, also on a narrow terminal.", rich_help_panel=PANEL)] = False
    target: Target = None

    def show(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], records: Any = None, expendable: Sequence[str] = ()) -> None:
        """Print a list.

        Args:
            rows: of the table and of CSV, by column.
            records: the list as JSON has it; None for `rows`.
            expendable: columns that a narrow terminal may do without, the least important last.
        """
        if self.as_json and self.as_csv:
            fail("--json and --csv: choose one", code=2)
        if self.as_json:
            self.write(msgspec.json.encode(rows if records is None else records).decode() + "\n")
        elif self.as_csv:
            self.write(_csv_of(rows, columns))
        elif self.target is None or self.target == STDOUT:
            print_table(rows, columns, expendable if out.is_terminal and not self.wide else ())
        else:
            text = io.StringIO()
            Console(file=text, width=UNBOUNDED, highlight=False).print(table_of(rows, columns))
            self.write(text.getvalue())

    def show_one(self, fields: Mapping[str, Any], record: Any = None) -> None:
        """Print one object: a line for each field, or a JSON object, or one row of CSV."""
        if self.as_json or self.as_csv:
            self.show([fields], list(fields), fields if record is None else record)
            return
        lines = [{"field": _heading(name), "value": cell(name, value)} for name, value in fields.items()]
        self.show(lines, ("field", "value"))

    @property
    def for_scripts(self) -> bool:
        """Whether the output is for a program, so that remarks for people are left out."""
        return self.as_json or self.as_csv or self.target is not None

    def write(self, text: str) -> None:
        """Print a text, or write it to the file that is named."""
        if self.target is None or self.target == STDOUT:
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        write_whole(self.target, lambda file: file.write(text.encode()))
        err.print(f"wrote {self.target}", markup=False, soft_wrap=True)


def write_whole(target: Path, work: Callable[[IO[bytes]], T]) -> T:
    """Write a file, readable by its owner only, which is there whole or not at all; returns what `work` returns.

    Ends the command when the file cannot be written. `-` is stdout.
    """
    if target == STDOUT:
        done = work(sys.stdout.buffer)
        sys.stdout.flush()
        return done
    partial = target.with_name(f".{target.name}.partial")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            done = work(file)
        partial.replace(target)
    except OSError as error:
        fail(f"{target} cannot be written: {error.strerror or error}")
    finally:
        partial.unlink(missing_ok=True)
    return done


def check_target(target: Path | None) -> Path | None:
    """Refuse a path that cannot be written, before a run of minutes and not after it; an option's callback too."""
    if target is not None and target != STDOUT and (target.is_dir() or not target.absolute().parent.is_dir()):
        fail(f"{target} cannot be written: it is a folder, or its folder does not exist", 2)
    return target


def check_plot(target: Path | None) -> Path | None:
    """Refuse a path of a plot that cannot be written, or whose ending is no format of pictures; an option's callback too."""
    if target is not None and target.suffix.lower() not in PLOTS:
        fail(f"{target}: a plot's name ends in {', '.join(PLOTS)}", 2)
    return check_target(target)


def fail(message: str, code: int = 1) -> NoReturn:
    """Print a sentence and end the command with this exit code."""
    err.print(message, markup=False, soft_wrap=True)
    raise typer.Exit(code)


def print_json(value: Any) -> None:
    """Print one line of JSON, flushed at once."""
    typer.echo(msgspec.json.encode(value).decode())


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], expendable: Sequence[str] = ()) -> None:
    """Print a table without cutting anything; on a narrow terminal without as many expendable columns as needed, the last first."""
    left_out: list[str] = []
    table = table_of(rows, columns)
    droppable = list(expendable)
    while droppable and _width(table) > out.width:
        left_out.append(droppable.pop())
        table = table_of(rows, [name for name in columns if name not in left_out])
    Console(file=out.file, width=max(_width(table), 1), highlight=False).print(table)
    if left_out:
        names = ", ".join(map(_heading, reversed(left_out)))
        err.print(f"left out for the narrow terminal: {names}; --wide shows every column", markup=False, soft_wrap=True)


def _width(table: Table) -> int:
    return Console(width=UNBOUNDED).measure(table).maximum


def table_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Table:
    """Rows as a table; a column whose name ends in `_unix` is shown as a moment, and numbers stand to the right."""
    table = Table()
    for name in columns:
        right = not name.endswith("_unix") and _all_numbers([row.get(name) for row in rows])
        # folded where it must be, never cut: ids must be copyable, also from a table that is redrawn on a narrow terminal
        table.add_column(_heading(name), overflow="fold", justify="right" if right else "left")
    for row in rows:
        table.add_row(*(Text(cell(name, row.get(name))) for name in columns))
    return table


def _heading(name: str) -> str:
    return name.removesuffix("_unix").replace("_", " ")


def _all_numbers(values: Collection[Any]) -> bool:
    return bool(values) and all(_is_number(value) for value in values)


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return value == "" or value.lstrip("$-").replace(",", "").replace(".", "").isdecimal()
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _csv_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows as CSV (RFC 4180). No cell can be taken for a formula; a moment is ISO 8601, a list has spaces between its parts."""
    from tenancy.usage_export import harmless

    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([name.removesuffix("_unix") for name in columns])
    for row in rows:
        cells = [(row.get(name), _csv_cell(name, row.get(name))) for name in columns]
        writer.writerow([harmless(text) if isinstance(value, str | list | tuple) else text for value, text in cells])
    return text.getvalue()


def _csv_cell(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return cell(name, value)


def cell(name: str, value: Any) -> str:
    """One value as text for people."""
    if value is None or value == "" or value == []:
        return ""
    if name.endswith("_unix"):
        return moment(value)
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, dict):
        return ", ".join(f"{key}={inner}" for key, inner in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def moment(unix: float) -> str:
    """Seconds since 1970 as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="seconds")
