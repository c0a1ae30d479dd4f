"""`tidegate simengine`: the simulated engine, to try policies on without a GPU."""

from typing import Annotated

import typer


def simengine(
    arguments: Annotated[list[str] | None, typer.Argument(help="Options of the simulated engine; see docs/reference/simengine.md.")] = None,
) -> None:
    """Run a simulated engine (options after `--`, for instance `tidegate simengine -- --port 9001 --model m`)."""
    from backends.simengine.__main__ import main

    raise typer.Exit(main(arguments or []))
