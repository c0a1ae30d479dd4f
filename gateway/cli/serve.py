"""`tidegate serve`."""

import os
import sys
from pathlib import Path
from typing import Annotated, Final, Literal, cast, get_args

import structlog
import typer
from rich.console import Console

from gateway.config.load import read_settings
from gateway.docs_links import docs_base, linked
from gateway.fleet.sources import problems_in_files
from gateway.telemetry.logs import configure_logs, write_for_people
from policies.load import load_policies
from policies.yaml.located import ConfigError

FORM_VARIABLE: Final = "TIDEGATE_LOG_FORMAT"
LogForm = Literal["json", "console"]
"""Lines for programs, or for people."""

console = Console(stderr=True, highlight=False, emoji=False)


def serve(
    config: Annotated[Path, typer.Option("--config", "-c", help="The settings file.")] = Path("tidegate.yaml"),
    run_dir: Annotated[
        Path | None, typer.Option(help="Where worker sockets and ready.json go; default: a private temporary folder.")
    ] = None,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Do everything a start does before it takes addresses, then end.")] = False,
    new_pepper: Annotated[
        bool, typer.Option("--new-pepper", help="Start though the pepper verifies none of the database's keys; each has to be rotated.")
    ] = False,
    log_format: Annotated[
        LogForm | None,
        typer.Option(help=f"Lines on stderr for programs or for people; default: {FORM_VARIABLE}, else console on a terminal, else json."),
    ] = None,
) -> None:
    """Serve: data port, admin port, worker processes. Ends on SIGTERM after draining; SIGHUP restarts all processes but the first one by
    one, SIGUSR2 that one as well, with new code."""
    form = log_form(log_format, os.environ.get(FORM_VARIABLE, ""), terminal=sys.stderr.isatty())
    reading = read_settings(config, os.environ)
    try:
        settings = reading.settings
        if settings is None:
            raise ConfigError(reading.problems)
        if settings.policies_from == "files":
            load_policies(settings.policies_dir, *settings.policy_targets, settings.prompts_dir, settings.detector_names)
        if problems := problems_in_files(settings, os.environ):
            raise ConfigError(problems)
    except ConfigError as error:
        console.print(linked(str(error), docs_base(reading.docs_url, os.environ)), markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    write_for_people(form == "console")
    from gateway.process.launch import launch

    if reading.warnings:
        configure_logs(settings.log.level, role="supervisor")
        for warning in reading.warnings:
            structlog.get_logger("tidegate.config").warning("unknown variable", reason=warning)
    raise typer.Exit(launch(config, settings, run_dir, rehearse=rehearse, new_pepper=new_pepper))


def log_form(option: LogForm | None, variable: str, *, terminal: bool) -> LogForm:
    """The form of the process log: the option's, else that of the variable `TIDEGATE_LOG_FORMAT`, else by where stderr goes.

    Args:
        variable: the variable's value; empty where it is not set.
        terminal: whether stderr is a terminal.

    Raises:
        typer.Exit: the variable is needed, and names no form; what to write is printed.
    """
    if option is not None:
        return option
    if not variable:
        return "console" if terminal else "json"
    for form in get_args(LogForm):
        if variable == form:
            return cast("LogForm", form)
    console.print(f"{FORM_VARIABLE}: {variable[:64]!r} is no form of the log; write json or console", markup=False, soft_wrap=True)
    raise typer.Exit(1)
