"""The assembly of commands: what `--help` costs and says, bundles of options, and flags."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer

from gateway.cli import ENTRIES, app
from gateway.cli.groups import CommandGroup, Options, loaded
from tests.command_line import Commands

HEAVY = (
    "pydantic",
    "sqlalchemy",
    "fastapi",
    "yaml",
    "structlog",
    "asyncio",
    "msgspec",
    "aiosqlite",
    "alembic",
    "jinja2",
    "uvicorn",
    "httpx",
)
OURS = ("gateway", "policies", "tenancy", "routing", "backends", "domain")
ALLOWED = {"gateway", "gateway.cli", "gateway.cli.groups"}


def test_the_help_text_imports_typer_and_rich_and_no_command() -> None:
    script = (
        "import sys, json\nfrom gateway.cli import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    imported = set(json.loads(lines[-1]))
    assert {name for name in imported if name.partition(".")[0] in HEAVY} == set()
    assert {
        name for name in imported if name.partition(".")[0] in ("gateway", "policies", "tenancy", "routing", "backends", "domain")
    } == ALLOWED
    assert all(f" {name} " in done.stdout for name in ENTRIES)


def test_commands_for_a_gateway_elsewhere_import_neither_the_settings_nor_a_database(tmp_path: Path) -> None:
    """Importing those takes ten times as long as the command's own work: every step of a script would wait for it."""
    (tmp_path / "tidegate.yaml").write_text("secrets: {admin_token: {file: token}}\n")
    (tmp_path / "token").write_text("t" * 43)
    groups = ["audit", "backend", "cache", "explain", "key", "limit", "policy", "reload", "rollout", "status", "stop", "tenant", "usage"]
    script = (
        "import sys, json\nfrom gateway.cli import ENTRIES\nfrom gateway.cli.groups import loaded\n"
        "from gateway.cli.connection import GatewayOptions\n"
        f"for name in {groups}:\n    loaded(name, ENTRIES[name])\n"
        "GatewayOptions().api()\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    imported = set(json.loads(done.stdout.splitlines()[-1]))
    assert imported & {"gateway.config.settings", "policies.schema", "sqlalchemy", "fastapi", "structlog", "uvloop"} == set()


HELP_OF_TYPER = """
import sys, json, typer
app = typer.Typer()
app.command()(lambda: None)
app.command("other")(lambda: None)
try:
    app(['--help'])
except SystemExit as end:
    assert end.code == 0
"""
"""The least that any help text of Typer and Rich takes."""


def work_of(script: str) -> tuple[int, int]:
    """The modules that a script loads, and the bytes of their code: figures that no load of the machine changes, in place of a time."""
    count = (
        "seen = [m for m in list(sys.modules.values()) if getattr(m, '__file__', None)]\n"
        "import os\nprint(json.dumps([len(seen), sum(os.path.getsize(m.__file__) for m in seen)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script + count], capture_output=True, text=True, check=True)
    modules, size = json.loads(done.stdout.splitlines()[-1])
    return modules, size


def test_the_help_text_takes_at_most_twice_what_typer_and_rich_take() -> None:
    ours = "import sys, json\nfrom gateway.cli import app\ntry:\n    app(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
    (modules, size), (least_modules, least_size) = work_of(ours), work_of(HELP_OF_TYPER)
    assert least_modules > 100, "Typer and Rich were loaded"
    assert modules <= 2 * least_modules
    assert size <= 2 * least_size


@pytest.mark.parametrize("name", ENTRIES)
def test_every_entry_of_the_root_is_what_its_line_says(name: str) -> None:
    command = loaded(name, ENTRIES[name])
    own = " ".join((command.help or "").split())
    about = ENTRIES[name].about
    assert about.endswith(".")
    if hasattr(command, "commands"):
        assert own == about
        assert command.commands
    else:
        assert own
    shown = Commands(env={"COLUMNS": "100"}).invoke(app, [name, "-h"])
    assert (shown.exit_code, "Usage:" in shown.stdout) == (0, True)


def test_a_mistyped_command_is_answered_with_the_nearest() -> None:
    done = Commands().invoke(app, ["tennant", "list"])
    assert (done.exit_code, "Did you mean 'tenant'" in done.stderr) == (2, True)


@pytest.mark.parametrize("words", [["--version"], ["version"]])
def test_the_version_is_a_command_and_an_option_that_stands_alone(words: list[str]) -> None:
    done = Commands().invoke(app, words)
    assert (done.exit_code, done.stdout.startswith("tidegate ")) == (0, True)


def test_flags_have_no_type_and_options_have_one() -> None:
    for group, command in (("key", "list"), ("serve", None), ("rollout", "list")):
        shown = Commands(env={"COLUMNS": "120"}).invoke(app, [group, *([command] if command else []), "--help"])
        assert "<bool>" not in shown.stdout
        assert "<path>" in shown.stdout


@dataclass
class Pair(Options):
    left: Annotated[int, typer.Option(help="One.")]
    right: Annotated[int, typer.Option("--other", help="Two.")] = 5

    def close(self) -> None:
        typer.echo("closed")


def test_a_bundle_is_one_option_per_field_and_is_closed_when_the_command_ends() -> None:
    group = CommandGroup("Tests.")

    @group.command("add")
    def add(name: str, pair: Pair) -> None:
        typer.echo(f"{name} {pair.left + pair.right}")
        if name == "bad":
            raise typer.Exit(3)

    @group.command("other")
    def other() -> None:
        """Do nothing."""

    done = Commands().invoke(group, ["add", "x", "--left", "2"])
    assert (done.exit_code, done.stdout) == (0, "x 7\nclosed\n")
    done = Commands().invoke(group, ["add", "bad", "--left", "2", "--other", "1"])
    assert (done.exit_code, done.stdout) == (3, "bad 3\nclosed\n")
    assert Commands().invoke(group, ["add", "x"]).exit_code == 2
