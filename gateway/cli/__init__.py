"""The `tidegate` command. Each verb is a file of this package; this one only puts them together."""

from typing import Annotated

import typer

from gateway.cli.backends import backend_app
from gateway.cli.check import check, export_schema
from gateway.cli.demo import demo
from gateway.cli.engines import engine_app
from gateway.cli.keys import keys_app, tenant_app
from gateway.cli.loras import lora_app
from gateway.cli.serve import serve, version
from gateway.cli.simengine import simengine

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Tidegate: the front door of a self-hosted LLM fleet.")


@app.callback()
def _root(
    show_version: Annotated[bool, typer.Option("--version", help="Print the versions of Tidegate and Python.", is_eager=True)] = False,
) -> None:
    if show_version:
        version()
        raise typer.Exit


app.command()(serve)
app.command()(check)
app.command()(demo)
app.command()(simengine)
app.command("export-schema")(export_schema)
app.command()(version)
app.add_typer(backend_app, name="backend")
app.add_typer(engine_app, name="engine")
app.add_typer(engine_app, name="engines", hidden=True)
app.add_typer(keys_app, name="key")
app.add_typer(lora_app, name="lora")
app.add_typer(tenant_app, name="tenant")


def main() -> None:
    """Entry point of the console script. Exit codes: 0 done, 1 failed, 2 wrong usage."""
    app()
