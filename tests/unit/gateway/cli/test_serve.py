"""`tidegate serve`: what decides on the form of its log before anything is logged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from gateway.cli import app
from gateway.cli.serve import LogForm, log_form
from tests.command_line import Commands

SETTINGS = """
data: {bind: "127.0.0.1:0"}
admin: {bind: "127.0.0.1:0"}
workers: 1
stores: {counters: "memory://"}
pools: [{name: chat, model: sim, backends: [{id: e0, url: "http://127.0.0.1:9"}]}]
"""


@pytest.mark.parametrize(
    ("option", "variable", "terminal", "form"),
    [
        (None, "", False, "json"),
        (None, "", True, "console"),
        (None, "json", True, "json"),
        (None, "console", False, "console"),
        ("json", "console", True, "json"),
        ("console", "json", False, "console"),
        ("json", "pretty", True, "json"),
    ],
)
def test_the_option_decides_then_the_variable_then_the_terminal(option: LogForm | None, variable: str, terminal: bool, form: str) -> None:
    assert log_form(option, variable, terminal=terminal) == form


@pytest.mark.parametrize("variable", ["pretty", "JSON", " json", "0"])
def test_a_variable_that_names_no_form_is_refused(variable: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        log_form(None, variable, terminal=False)
    done = Commands().invoke(app, ["serve"], env={"TIDEGATE_LOG_FORMAT": variable})
    assert (done.exit_code, f"TIDEGATE_LOG_FORMAT: {variable!r} is no form of the log; write json or console" in done.output) == (1, True)


def logged(home: Path, *arguments: str, terminal: bool, **variables: str) -> str:
    """What a start that ends before it takes addresses writes on stderr: a warning about an unknown variable at least."""
    reader, writer = os.openpty() if terminal else os.pipe()
    command = [sys.executable, "-m", "gateway", "serve", "--rehearse", *arguments]
    environment = {**os.environ, "TIDEGATE__NOPE__X": "1", **variables}
    with open(reader, "rb", closefd=True, buffering=0) as read_end:
        process = subprocess.Popen(command, cwd=home, stdout=subprocess.DEVNULL, stderr=writer, env=environment)
        os.close(writer)
        written = b""
        while True:
            try:
                data = read_end.read(65_536)
            except OSError:  # a terminal whose other end is closed
                break
            if not data:
                break
            written += data
        assert process.wait(60) == 0, written
    return written.decode()


@pytest.mark.slow
def test_a_start_writes_for_people_on_a_terminal_and_for_programs_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "tidegate.yaml").write_text(SETTINGS)
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "all.yaml").write_text("tenant: '*'\nmodels: [{name: sim, pool: chat}]\n")
    assert json.loads(logged(tmp_path, terminal=False).splitlines()[0])["event"] == "unknown variable"
    assert json.loads(logged(tmp_path, terminal=True, TIDEGATE_LOG_FORMAT="json").splitlines()[0])["level"] == "warning"
    for people in (
        logged(tmp_path, terminal=True),
        logged(tmp_path, "--log-format", "console", terminal=False, TIDEGATE_LOG_FORMAT="json"),
    ):
        first = people.splitlines()[0]
        assert "unknown variable" in first
        assert not first.startswith("{")
