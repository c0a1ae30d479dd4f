"""`tidegate check` and `tidegate export-schema`: what the configuration says, and what is wrong with it."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gateway.settings import ConfigError, Settings, load_settings
from policies.load import load_policies
from policies.schema import PolicyDocument

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def check(config: Annotated[Path, typer.Option("--config", "-c", help="The settings file.")] = Path("tidegate.yaml")) -> None:
    """Check the settings and every policy; print a summary, or every mistake with file, line and key."""
    problems = []
    pools: list[str] | None = None
    try:
        settings = load_settings(config)
        pools = [pool.name for pool in settings.pools]
    except ConfigError as error:
        problems += error.problems
    if pools is not None:
        try:
            policies = load_policies(settings.policies_dir, pools)
        except ConfigError as error:
            problems += error.problems
    if problems:
        for problem in problems:
            err.print(str(problem), markup=False, soft_wrap=True)
        err.print(f"{len(problems)} problem{'s' * (len(problems) > 1)}", markup=False)
        raise typer.Exit(1)
    for pool in settings.pools:
        out.print(f"pool {pool.name}: {pool.model} revision {pool.revision}, {pool.dialect}, {len(pool.backends)} backends", markup=False)
    for policy in policies.policies():
        who = "every other tenant" if policy.tenant == "*" else f"tenant {policy.tenant}"
        out.print(f"{who}: {', '.join(sorted(policy.models)) or 'no model'}", markup=False)
    out.print(f"ok, policies {policies.digest}", markup=False)


def schemas() -> dict[str, str]:
    """The JSON schemas for editors, by file name."""
    models = {"tidegate.schema.json": Settings, "policy.schema.json": PolicyDocument}
    return {name: json.dumps(model.model_json_schema(), indent=2, sort_keys=True) + "\n" for name, model in models.items()}


def export_schema(folder: Annotated[Path, typer.Option(help="Where to write them.")] = Path("docs/schema")) -> None:
    """Write the JSON schemas of the settings and of policies."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        (folder / name).write_text(text)
        out.print(f"wrote {folder / name}", markup=False)
