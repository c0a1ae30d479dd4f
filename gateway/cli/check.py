"""`tidegate check` and `tidegate export-schema`: what the configuration says, what is wrong with it, and its reference."""

import os
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from gateway.fleet.backends_file import problems_in_files
from gateway.secrets import SecretError, read_reference
from gateway.settings import ConfigError, SecretReference, Settings, read_settings
from policies.compile import ModelRule, PolicySet
from policies.export import field_table, policy_schemas, schema_text, with_sections, write_schemas
from policies.load import load_policies
from policies.problems import Problem, listing
from policies.schema import EVERYONE, PolicyDocument

SETTINGS_SCHEMA: Final = "tidegate.schema.json"
EXAMPLE: Final = Path(__file__).resolve().parents[2] / "policies" / "examples"

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def check(config: Annotated[Path, typer.Option("--config", "-c", help="The settings file.")] = Path("tidegate.yaml")) -> None:
    """Check the settings and every policy; print a summary, or every mistake with file, line, key and what to write.

    Exit codes: 0 everything loads, 1 something does not, 2 wrong usage. Nothing is connected to.
    """
    reading = read_settings(config)
    problems = list(reading.problems)
    policies: PolicySet | None = None
    if reading.policies_dir is not None and (reading.settings is not None or reading.policies_dir.is_dir()):
        try:
            policies = load_policies(reading.policies_dir, reading.pools, reading.loras)
        except ConfigError as error:
            problems += error.problems
    if reading.settings is not None:
        problems += problems_in_files(reading.settings, os.environ)
    if problems or reading.settings is None or policies is None:
        _complain(problems)
        raise typer.Exit(1)
    _summarise(reading.settings, policies)
    for note in _missing_secrets(reading.settings):
        err.print(f"note: {note}", markup=False, soft_wrap=True)


def _complain(problems: list[Problem]) -> None:
    ordered = sorted({_seen_from_here(problem) for problem in problems})
    err.print(listing(ordered), markup=False, soft_wrap=True)
    err.print(f"{len(ordered)} problem{'s' * (len(ordered) > 1)}", markup=False)


def _seen_from_here(problem: Problem) -> Problem:
    """The problem with its file as somebody in this folder would write it, so that terminals and editors can jump to it."""
    file = Path(problem.file)
    here = Path.cwd()
    if not file.is_absolute() or not file.is_relative_to(here):
        return problem
    return Problem(str(file.relative_to(here)), problem.line, problem.column, problem.path, problem.message, problem.hint)


def _summarise(settings: Settings, policies: PolicySet) -> None:
    scheme = "https" if settings.data.tls else "http"
    lines = [f"data {scheme}://{settings.data.bind}, admin http://{settings.admin.bind}, workers {settings.workers}"]
    for pool in settings.pools:
        count, more = len(pool.backends), pool.discover
        found = "" if more is None else f", more from {f'file {more.file}' if more.file else f'DNS {more.dns}'}"
        about = f"pool {pool.name}: {pool.model}, revision {pool.revision}, {pool.dialect}"
        lines.append(f"{about}, {count} backend{'s' * (count != 1)}{found}")
        lines += [f"  {backend.id} {backend.url}" for backend in pool.backends]
        lines += [f"  adapter {lora.name}, {lora.digest[:12]}, {lora.path}" for lora in pool.loras]
    for policy in policies.policies():
        who = "every other tenant" if policy.tenant == EVERYONE else f"tenant {policy.tenant}"
        models = ", ".join(_meaning(rule) for _, rule in sorted(policy.models.items()))
        lines.append(f"{who}: {models or 'no model'}")
    if policies.for_tenant(EVERYONE) is None:
        lines.append("every other tenant: no policy, so no model")
    for line in [*lines, f"ok, policies {policies.digest}"]:
        out.print(line, markup=False, soft_wrap=True)


def _meaning(rule: ModelRule) -> str:
    return f"{rule.name} -> {rule.pool}" + (f" with {rule.lora}" if rule.lora else "")


def _missing_secrets(settings: Settings) -> list[str]:
    """References that lead nowhere from here. No mistakes of the files: a build machine that checks them has no secrets."""
    references: dict[str, SecretReference | None] = {
        "secrets.pepper": settings.secrets.pepper,
        "secrets.admin_token": settings.secrets.admin_token,
    }
    references |= {f"pools[{i}].api_key": pool.api_key for i, pool in enumerate(settings.pools)}
    notes = []
    for path, reference in references.items():
        try:
            if reference is not None:
                read_reference(reference, settings.base_dir, os.environ)
        except SecretError as error:
            notes.append(f"{path}: {error}")
    return notes


def schemas() -> dict[str, str]:
    """The JSON schemas for editors, text by file name."""
    return {SETTINGS_SCHEMA: schema_text(Settings), **policy_schemas()}


def reference_sections() -> dict[str, str]:
    """The generated parts of docs/configuration.md."""
    return {
        "settings": field_table(Settings),
        "policy": field_table(PolicyDocument),
        "example settings": _fenced((EXAMPLE / "settings-complete.yaml").read_text(encoding="utf-8")),
        "example policy": _fenced((EXAMPLE / "acme.yaml").read_text(encoding="utf-8")),
    }


def _fenced(text: str) -> str:
    return f"```yaml\n{text}```\n"


def export_schema(
    folder: Annotated[Path, typer.Option(help="Where the schemas go.")] = Path("docs/schema"),
    reference: Annotated[Path, typer.Option(help="The page whose tables are made anew, where it exists.")] = Path("docs/configuration.md"),
) -> None:
    """Write the JSON schemas of settings and policies, and the tables of the configuration reference."""
    written = write_schemas(folder, schemas())
    if reference.is_file():
        reference.write_text(with_sections(reference.read_text(encoding="utf-8"), reference_sections()), encoding="utf-8")
        written.append(reference)
    for file in written:
        out.print(f"wrote {file}", markup=False, soft_wrap=True)
