"""`tidegate policy apply|history|rollback|fetch`: the policies of a gateway whose database owns them, over its admin API."""

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.admin_client import ADMIN, API, AdminClient, AdminUrl, TokenFile, Yes, api
from gateway.cli.printing import fail, moment, out
from gateway.policy_copy import check_names, texts_of
from policies.compile import PolicySet
from policies.load import load_policies
from policies.problems import ConfigError, listing
from policies.shown import differences

Note = Annotated[str, typer.Option("--note", "-m", help="Why, for those who read the history.")]


def add_versions(policy_app: typer.Typer) -> None:
    """Add the commands of this module to `tidegate policy`."""
    policy_app.command("apply")(apply)
    policy_app.command("history")(history)
    policy_app.command("rollback")(rollback)
    policy_app.command("fetch")(fetch)


def apply(
    folder: Annotated[Path, typer.Argument(help="A policy folder: it becomes all of the policies.")],
    admin: AdminUrl = ADMIN,
    token_file: TokenFile = None,
    note: Note = "",
    yes: Yes = False,
) -> None:
    """Print what a folder changes, ask, and put it into the database as a new version: in force on every gateway within seconds.

    Exit codes: 0 done, or nothing to do; 1 refused: mistakes in it, or somebody else was first; nothing is changed then.
    """
    files = _texts(folder)
    client = api(admin, token_file)
    current = client.read(f"{API}/policies")
    if current["files"] == files:
        out.print(f"version {current['version']} is the same; nothing to do", markup=False)
        return
    for line in differences(_compiled(current["files"], "the database"), _compiled(files, str(folder))):
        out.print(line, markup=False, soft_wrap=True)
    if not yes and not typer.confirm(f"Put this into the database after version {current['version']}?"):
        raise typer.Exit(1)
    version = client.post(f"{API}/policies", {"files": files, "note": note, "after": current["version"]})
    _report(client, version)


def history(admin: AdminUrl = ADMIN, token_file: TokenFile = None) -> None:
    """Print the versions that the database keeps, newest first."""
    for version in api(admin, token_file).items(f"{API}/policies/versions"):
        note = f"  {version['note']}" if version["note"] else ""
        changed = f"{version['version']:>6}  {moment(version['at_unix'])}  {version['digest']}"
        line = f"{changed}  {version['file_count']} files  {version['author']}{note}"
        out.print(line, markup=False, soft_wrap=True)


def rollback(
    version: Annotated[int, typer.Argument(help="The version whose files are to be in force again.")],
    admin: AdminUrl = ADMIN,
    token_file: TokenFile = None,
    note: Note = "",
) -> None:
    """Make a new version with the files of an old one. Refused where they no longer fit the gateway's pools."""
    client = api(admin, token_file)
    _report(client, client.post(f"{API}/policies/rollback", {"version": version, "note": note}))


def fetch(
    folder: Annotated[Path, typer.Argument(help="Where the files go; made, or empty.")],
    version: Annotated[int | None, typer.Option(help="Which version; default: the newest.")] = None,
    admin: AdminUrl = ADMIN,
    token_file: TokenFile = None,
) -> None:
    """Write a version's files into a folder, to be edited and applied, or compared by `tidegate policy diff`."""
    fetched = api(admin, token_file).read(f"{API}/policies" + (f"/versions/{version}" if version is not None else ""))
    if problems := check_names(fetched["files"]):
        fail(listing(problems))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            fail(f"{folder} is not empty; name a new folder")
        for name, text in fetched["files"].items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{folder} cannot be written: {error.strerror}")
    out.print(f"version {fetched['version']}: {len(fetched['files'])} files in {folder}", markup=False)


def _report(client: AdminClient, version: dict[str, Any]) -> None:
    out.print(f"version {version['version']}, digest {version['digest']}", markup=False)
    outcome = client.post(f"{API}/policies/reload")
    out.print(f"policies {outcome['digest']} in force in {outcome['workers']} worker{'s' * (outcome['workers'] != 1)}", markup=False)


def _texts(folder: Path) -> dict[str, str]:
    try:
        files = texts_of(folder)
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{folder} cannot be read: {error}", code=2)
    except ConfigError as error:
        fail(listing(error.problems))
    if not files:
        fail(f"{folder} has no *.yaml file", code=2)
    if problems := check_names(files):
        fail(listing(problems))
    return files


def _compiled(files: dict[str, str], where: str) -> PolicySet:
    with tempfile.TemporaryDirectory() as name:
        for file, text in files.items():
            (Path(name) / file).write_text(text, encoding="utf-8")
        try:
            return load_policies(Path(name), None)
        except ConfigError as error:
            fail(f"the policies of {where} have mistakes:\n{str(error).replace(name, where)}")
