"""The `tidegate` command. Each command group is a file of this package; this file only lists them.

A command is imported when it is called (`gateway.cli.groups.LazyRoot`), so that `tidegate --help` costs what Typer and Rich cost.
"""

import sys
from importlib.metadata import version as installed
from typing import Annotated, Final

import typer

from gateway.cli.groups import HELP_NAMES, LazyRoot, RootEntry

ENTRIES: Final[dict[str, RootEntry]] = {
    "serve": RootEntry("gateway.cli.serve:serve", "Serve: data port, admin port, worker processes."),
    "check": RootEntry("gateway.cli.check:check", "Check the settings and every policy, and print a summary or every mistake."),
    "demo": RootEntry("gateway.cli.demo:demo", "Start engines and a gateway, ask two questions, and print why each engine was chosen."),
    "explain": RootEntry("gateway.cli.explain:explain", "Print why a request went to its backend, or where a request would go now."),
    "status": RootEntry("gateway.cli.running:status", "Print how the gateway stands, and everything that needs a look."),
    "reload": RootEntry("gateway.cli.running:reload", "Take up the settings file and the policies, or new code."),
    "stop": RootEntry("gateway.cli.running:stop", "End the gateway, once its running requests are done."),
    "simengine": RootEntry("gateway.cli.simengine:simengine", "Run a simulated engine."),
    "plan": RootEntry("gateway.cli.plan:plan", "Find how many engines meet latency objectives for a trace, and what they cost."),
    "simulate": RootEntry("gateway.cli.simulate:simulate", "Replay a trace against a modelled fleet under several routing policies."),
    "top": RootEntry("gateway.cli.top:top", "Show the fleet and the tenants, live in a terminal."),
    "version": RootEntry("gateway.cli:version", "Print the versions of Tidegate and Python."),
    "export-schema": RootEntry("gateway.cli.check:export_schema", "Write the JSON schemas, and the tables of the reference pages."),
    "export-dashboards": RootEntry(
        "gateway.cli.dashboards:export_dashboards", "Write the dashboards for Grafana and the alerts for Prometheus."
    ),
    "export-charts": RootEntry("gateway.cli.charts:export_charts", "Write the files that the Helm charts carry."),
    "audit": RootEntry("gateway.cli.audit:audit_app", "The audit: who changed what."),
    "backend": RootEntry("gateway.cli.backends:backend_app", "Backends of a running gateway."),
    "backup": RootEntry("gateway.cli.backup:backup_app", "Backups of the database and of usage that is not in it yet."),
    "cache": RootEntry("gateway.cli.cache:cache_app", "The answer cache: what it did, what it keeps, and what it is to forget."),
    "engine": RootEntry("gateway.cli.engines:engine_app", "Launch configurations of engines: show, start, compare, size."),
    "feedback": RootEntry("gateway.cli.feedback:feedback_app", "Ratings of answers, by callers and by the judge."),
    "guard": RootEntry("gateway.cli.guards:guard_app", "Guard rules: tried on texts, and what they did."),
    "import": RootEntry("gateway.cli.importing:import_app", "Take over the configuration of another gateway."),
    "judge": RootEntry("gateway.cli.judge:judge_app", "The judge: how far a model agrees with labelled answers."),
    "key": RootEntry("gateway.cli.keys:keys_app", "API keys."),
    "limit": RootEntry("gateway.cli.limits:limit_app", "Limits: what may be used by whom."),
    "logs": RootEntry("gateway.cli.logs:logs_app", "Finished requests: watch them, find them, and where the time of one went."),
    "lora": RootEntry("gateway.cli.loras:lora_app", "Adapters: what they are pinned by, and where they are."),
    "model": RootEntry("gateway.cli.models:model_app", "The registry of models: revisions, their digests, and what was measured."),
    "org": RootEntry("gateway.cli.accounts:org_app", "Organisations: tenants that are limited and billed together."),
    "policy": RootEntry("gateway.cli.policies:policy_app", "What policy files say, and the policies of a running gateway."),
    "price": RootEntry("gateway.cli.limits:price_app", "Prices: what tokens cost, from a moment on."),
    "project": RootEntry("gateway.cli.accounts:project_app", "Projects of a tenant."),
    "prompt": RootEntry("gateway.cli.prompts:prompt_app", "The prompts that there are, and what they say."),
    "queue": RootEntry("gateway.cli.queues:queue_app", "The queues: who waits, what the next request would meet, and what was refused."),
    "rollout": RootEntry("gateway.cli.rollouts:rollout_app", "Rollouts of what is new from pool to pool, and experiments."),
    "scaling": RootEntry("gateway.cli.scaling:scaling", "Print how many backends each pool should have, and why."),
    "tenant": RootEntry("gateway.cli.accounts:tenant_app", "Tenants: accounts whose data is isolated from each other."),
    "usage": RootEntry("gateway.cli.usage:usage_app", "What was used, and what it cost."),
}


class _Root(LazyRoot):
    entries = ENTRIES


app = typer.Typer(
    cls=_Root,
    no_args_is_help=True,
    add_completion=True,
    help="Tidegate: the front door of a self-hosted LLM fleet.",
    context_settings=dict(HELP_NAMES),
)


def version() -> None:
    """Print the versions of Tidegate and Python."""
    typer.echo(f"tidegate {installed('tidegate')} (Python {sys.version.split()[0]})")


def _version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def _root(
    # eager and a callback: the option stands without a command
    _show_version: Annotated[
        bool, typer.Option("--version", help="Print the versions of Tidegate and Python.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of the console script. Exit codes: 0 done, 1 failed, 2 wrong usage."""
    app()
