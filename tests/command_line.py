"""Runs commands in the process of the test."""

import functools
from typing import Any

from click import Command
from click.testing import CliRunner, Result
from typer import Typer
from typer.main import get_command

__all__ = ["Commands", "Result"]


@functools.cache
def command(app: Typer) -> Command:
    """The command line, built once: that takes three times as long as a command."""
    return get_command(app)


class Commands(CliRunner):
    """Typer's runner, but for the command line that is built once."""

    def invoke(self, app: Typer, args: Any = None, **named: Any) -> Result:  # type: ignore[override]  # as Typer's runner has it
        """Run a command and keep what it prints."""
        return super().invoke(command(app), args, **named)
