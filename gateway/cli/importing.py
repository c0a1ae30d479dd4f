"""`tidegate import …`: converts another gateway's configuration to Tidegate's, and lists every part that could not be carried over."""

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from gateway.cli import import_apply
from gateway.cli.groups import CommandGroup
from gateway.cli.printing import fail, out
from gateway.config.load import ConfigError, read_settings
from gateway.importing.litellm import carry_models
from gateway.importing.litellm_people import carry_keys, carry_teams
from gateway.importing.litellm_sections import carry_sections
from gateway.importing.plan import DOCUMENT_FILE, SETTINGS_FILE, TOKEN_FILE, ImportPlan, files_of, write
from policies.load import load_policies
from policies.yaml.located import MAX_FILE_BYTES, Located, parse_yaml, read_yaml
from policies.yaml.problems import Problem, listing

import_app = CommandGroup("Take over the configuration of another gateway.")

STAND_IN: Final = "http://127.0.0.1:1"
"""Value of environment variables while the written files are checked; they stand for addresses of engines."""


import_app.command("apply")(import_apply.apply)


@import_app.command("litellm")
def litellm(
    config: Annotated[Path, typer.Argument(help="The proxy's config.yaml.")],
    folder: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the files go; none of them may be there yet.")],
    teams: Annotated[Path | None, typer.Option(help="What the proxy's GET /team/list answered, as a JSON file.")] = None,
    keys: Annotated[
        Path | None, typer.Option(help="What its GET /key/list?return_full_object=true answered, as a JSON file; needs --teams.")
    ] = None,
) -> None:
    """Turn a LiteLLM proxy's configuration into tidegate.yaml, policies and tidegate-import.json; print what could not be carried.

    Exit codes: 0 all of it was carried, 1 something was left, 2 the input cannot be read or the output not written. No secret is
    printed or written.
    """
    plan = ImportPlan()
    try:
        source = _sound(read_yaml(config, None))
        carry_models(source, plan)
        carry_sections(source, plan)
        tenants = carry_teams(_listed(teams, "teams"), plan) if teams else {}
        if keys is not None:
            carry_keys(_listed(keys, "keys"), plan, tenants)
    except ConfigError as error:
        fail(listing(error.problems), code=2)
    if "model_list" not in source.data:
        fail(f"{config} has no model_list; is it a LiteLLM proxy's configuration?", code=2)
    if plan.pools:
        _write(plan, config, folder)
    for remark in sorted(set(plan.notes)):
        out.print(f"note: {remark}", markup=False, soft_wrap=True)
    for remark in sorted(set(plan.left)):
        out.print(f"left: {remark}", markup=False, soft_wrap=True)
    counts = (
        f"{len(plan.pools)} pools, {len(plan.models)} models, {len(plan.limits)} limits, {len(plan.prices)} prices, {len(plan.keys)} keys"
        + (f", {len(plan.guards)} guard rules" if plan.guards else "")
    )
    out.print(
        f"carried: {counts}; left: {len(set(plan.left))}" if plan.pools else "no model could be carried; nothing was written", markup=False
    )
    raise typer.Exit(1 if plan.left or not plan.pools else 0)


def _write(plan: ImportPlan, config: Path, folder: Path) -> None:
    try:
        write(files_of(plan, config.name), folder)
    except FileExistsError as error:
        fail(f"would overwrite {error}; name another folder with --out", code=2)
    except OSError as error:
        fail(f"{folder} cannot be written: {error.strerror}", code=2)
    names = {name for pool in plan.pools for name in _variables(pool)}
    names |= {url[2:].partition("}")[0] for detector in plan.detectors.values() if (url := str(detector.get("url"))).startswith("${")}
    reading = read_settings(folder / SETTINGS_FILE, dict.fromkeys(names, STAND_IN))
    problems = list(reading.problems)
    if reading.settings is not None:
        try:
            settings = reading.settings
            load_policies(settings.policies_dir, *settings.policy_targets, settings.prompts_dir, settings.detector_names)
        except ConfigError as error:
            problems += error.problems
    if problems:
        fail(f"the files are written, but they do not load; please mend them:\n{listing(problems)}", code=2)
    for line in (
        f"wrote {folder / SETTINGS_FILE}, its policies and {folder / DOCUMENT_FILE}",
        *(f"needs the variable {name}" for name in sorted(names)),
        f"needs the file {folder / TOKEN_FILE}, the admin token: (umask 077; openssl rand -hex 32 > {folder / TOKEN_FILE})",
    ):
        out.print(line, markup=False, soft_wrap=True)


def _variables(pool: dict[str, object]) -> list[str]:
    """Names of the environment variables that stand for addresses of engines."""
    backends = pool["backends"]
    urls = [backend["url"] for backend in backends] if isinstance(backends, list) else []
    return [url[2:-1] for url in urls if url.startswith("${")]


def _listed(path: Path, name: str) -> Located:
    """A JSON file with a list, alone or under `name`, read as YAML (of which JSON is a subset) for the line of every value."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError([Problem(str(path), 1, 1, "", f"cannot be read: {error.strerror}")]) from None
    bare = raw.lstrip().startswith(b"[")
    return _sound(parse_yaml(b'{"%b": %b}' % (name.encode(), raw) if bare else raw, os.fspath(path), None))


def _sound(located: Located) -> Located:
    if located.problems:
        raise ConfigError(located.problems)
    return located
