"""The `tidegate` command. Each command group is a file of this package; this file only assembles them."""

from typing import Annotated

import typer

from gateway.cli.accounts import add_tenant_commands, org_app, project_app
from gateway.cli.audit import audit_app
from gateway.cli.backends import backend_app
from gateway.cli.check import check, export_schema
from gateway.cli.demo import demo
from gateway.cli.engines import engine_app
from gateway.cli.explain import explain
from gateway.cli.importing import import_app
from gateway.cli.key_changes import add_key_commands
from gateway.cli.keys import keys_app, tenant_app
from gateway.cli.limits import limit_app, price_app
from gateway.cli.loras import lora_app
from gateway.cli.policies import policy_app
from gateway.cli.prompts import prompt_app
from gateway.cli.rollouts import rollout_app
from gateway.cli.serve import serve, version
from gateway.cli.simengine import simengine
from gateway.cli.simulate import simulate
from gateway.cli.usage import usage_app

app = typer.Typer(no_args_is_help=True, add_completion=True, help="Tidegate: the front door of a self-hosted LLM fleet.")


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
app.command()(explain)
app.command()(simengine)
app.command()(simulate)
app.command("export-schema")(export_schema)
app.command()(version)
add_key_commands(keys_app)
add_tenant_commands(tenant_app)
app.add_typer(audit_app, name="audit")
app.add_typer(backend_app, name="backend")
app.add_typer(engine_app, name="engine")
app.add_typer(engine_app, name="engines", hidden=True)
app.add_typer(import_app, name="import")
app.add_typer(keys_app, name="key")
app.add_typer(limit_app, name="limit")
app.add_typer(lora_app, name="lora")
app.add_typer(org_app, name="org")
app.add_typer(policy_app, name="policy")
app.add_typer(price_app, name="price")
app.add_typer(project_app, name="project")
app.add_typer(prompt_app, name="prompt")
app.add_typer(rollout_app, name="rollout")
app.add_typer(tenant_app, name="tenant")
app.add_typer(usage_app, name="usage")


def main() -> None:
    """Entry point of the console script. Exit codes: 0 done, 1 failed, 2 wrong usage."""
    app()
