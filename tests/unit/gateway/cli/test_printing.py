"""What commands print: cells for people, tables that cut nothing, JSON and CSV, and files."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from gateway.cli import printing
from gateway.cli.printing import OutputOptions, cell, moment, table_of, write_whole

LIMIT = "project:acme/a-project-with-a-long-name:concurrent_requests:now"
ROWS = [{"id": LIMIT, "cost": "$1,234,567.890123456", "label": "[red]=1+1", "created_unix": 1_800_000_000, "models": ["a", "b"]}]
COLUMNS = ("id", "cost", "label", "created_unix", "models")


def terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> io.StringIO:
    """Make stdout a terminal of this width."""
    file = io.StringIO()
    monkeypatch.setattr(file, "isatty", lambda: True)
    monkeypatch.setattr(printing, "out", Console(file=file, width=width, highlight=False, color_system=None, force_terminal=True))
    return file


def test_cells_are_for_people() -> None:
    assert moment(1_800_000_000.4) == "2027-01-15T08:00:00+00:00"
    assert cell("expires_unix", 1_800_000_000) == "2027-01-15T08:00:00+00:00"
    values = (None, "", [], True, False, 0, ["a", "b"], {"team": "x"})
    assert [cell("x", value) for value in values] == ["", "", "", "yes", "", "0", "a, b", "team=x"]


def test_a_finding_between_colons_is_no_emoji() -> None:
    written = io.StringIO()
    console = printing.LinkingConsole(file=written, width=80)
    console.print("guard rules: changed; found people:email:redact:input=1", markup=False, soft_wrap=True)
    assert written.getvalue() == "guard rules: changed; found people:email:redact:input=1\n"


def test_an_id_is_whole_in_a_table_that_is_redrawn_on_a_narrow_terminal() -> None:
    written = io.StringIO()
    narrow = Console(width=60, file=written)
    narrow.print(
        table_of([{"id": LIMIT, "amount": 5, "used": 1, "held": 1, "remaining": 3}], ("id", "amount", "used", "held", "remaining"))
    )
    cells = [line.split("│")[1].strip() for line in written.getvalue().splitlines() if line.count("│") > 4]
    assert "".join(cells) == LIMIT


def test_in_a_pipe_nothing_is_cut_or_folded(capsys: pytest.CaptureFixture[str]) -> None:
    OutputOptions().show(ROWS, COLUMNS, expendable=("models", "label"))
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [part.strip() for part in row.split("│")[1:-1]] == [LIMIT, "$1,234,567.890123456", "[red]=1+1", moment(1_800_000_000), "a, b"]


def test_a_narrow_terminal_loses_whole_columns_and_says_which(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file = terminal(monkeypatch, 120)
    OutputOptions().show(ROWS, COLUMNS, expendable=("created_unix", "models", "label"))
    (row,) = [line for line in file.getvalue().splitlines() if LIMIT in line]
    assert "$1,234,567.890123456" in row
    assert "[red]" not in row
    assert "left out for the narrow terminal: models, label; --wide" in capsys.readouterr().err
    OutputOptions(wide=True).show(ROWS, COLUMNS, expendable=("created_unix", "models", "label"))
    assert "[red]=1+1" in file.getvalue()


def test_a_terminal_that_is_too_narrow_for_what_must_be_there_still_gets_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    file = terminal(monkeypatch, 20)
    OutputOptions().show(ROWS, COLUMNS, expendable=("label",))
    assert LIMIT in file.getvalue()


def test_csv_is_for_programs_and_no_cell_is_a_formula(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    OutputOptions(as_csv=True).show([{**ROWS[0], "label": "=1+1", "cost": -5}], COLUMNS)
    assert capsysbinary.readouterr().out == f"id,cost,label,created,models\r\n{LIMIT},-5,'=1+1,{moment(1_800_000_000)},a b\r\n".encode()


def test_one_form_at_a_time() -> None:
    with pytest.raises(typer.Exit):
        OutputOptions(as_json=True, as_csv=True).show(ROWS, COLUMNS)


@pytest.mark.parametrize("options", [{"as_json": True}, {"as_csv": True}, {}])
def test_a_file_has_what_stdout_would_have(tmp_path: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    OutputOptions(**options, target=Path("-")).show(ROWS, COLUMNS)
    shown = capsys.readouterr().out
    assert LIMIT in shown
    OutputOptions(**options, target=tmp_path / "file").show(ROWS, COLUMNS)
    assert (tmp_path / "file").read_bytes().decode() == shown
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_json_is_the_record_and_not_the_row(capsys: pytest.CaptureFixture[str]) -> None:
    OutputOptions(as_json=True).show(ROWS, COLUMNS, [{"id": 1}])
    assert json.loads(capsys.readouterr().out) == [{"id": 1}]
    OutputOptions(as_json=True).show_one({"id": "x"}, {"id": 2})
    assert json.loads(capsys.readouterr().out) == {"id": 2}


def test_a_file_that_fails_half_way_is_not_there(tmp_path: Path) -> None:
    def work(file: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(typer.Exit):
        write_whole(tmp_path / "file", work)
    assert list(tmp_path.iterdir()) == []
