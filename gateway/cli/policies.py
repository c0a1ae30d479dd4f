"""`tidegate policy …`: checks, compares and explains policy files, and changes the policies of a running gateway.

`check`, `diff` and `explain` read folders and need no gateway; `reload` asks a gateway to read its folder now. `apply`, `history`,
`rollback` and `fetch` change and show the policies of a gateway whose database owns them, over its admin API.
"""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.admin_client import API, AdminClient, Yes
from gateway.cli.connection import DEFAULT_CONFIG, Config, GatewayOptions
from gateway.cli.durations import unix_of
from gateway.cli.explain import CHAT
from gateway.cli.groups import CommandGroup
from gateway.cli.printing import OutputOptions, fail, out
from gateway.cli.running import print_in_force

Note = Annotated[str, typer.Option("--note", "-m", help="Why, for those who read the history.")]


def add_versions(policy_app: typer.Typer) -> None:
    """Add the commands of this module to `tidegate policy`."""
    policy_app.command("apply")(apply)
    policy_app.command("history")(history)
    policy_app.command("rollback")(rollback)
    policy_app.command("fetch")(fetch)


def apply(
    folder: Annotated[Path, typer.Argument(help="A policy folder: it becomes all of the policies.")],
    gateway: GatewayOptions,
    note: Note = "",
    yes: Yes = False,
) -> None:
    """Print what a folder changes, ask, and put it into the database as a new version: in force on every gateway within seconds.

    Exit codes: 0 done, or nothing to do; 1 refused: mistakes in it, or somebody else was first; nothing is changed then.
    """
    from gateway.cli.policy_files import compiled, texts
    from policies.shown import differences

    files = texts(folder)
    client = gateway.api()
    current = client.read(f"{API}/policies")
    if current["files"] == files:
        out.print(f"version {current['version']} is the same; nothing to do", markup=False)
        return
    for line in differences(compiled(current["files"], "the database"), compiled(files, str(folder))):
        out.print(line, markup=False, soft_wrap=True)
    if not yes and not typer.confirm(f"Put this into the database after version {current['version']}?"):
        raise typer.Exit(1)
    version = client.post(f"{API}/policies", {"files": files, "note": note, "after": current["version"]})
    _report(client, version)


def history(gateway: GatewayOptions, output: OutputOptions) -> None:
    """Print the versions that the database keeps, newest first."""
    versions = gateway.api().items(f"{API}/policies/versions")
    output.show(versions, ("version", "at_unix", "digest", "file_count", "author", "note"), expendable=("file_count", "author", "digest"))


def rollback(
    version: Annotated[int, typer.Argument(help="The version whose files are to be in force again.")],
    gateway: GatewayOptions,
    note: Note = "",
) -> None:
    """Make a new version with the files of an old one. Refused where they no longer fit the gateway's pools."""
    client = gateway.api()
    _report(client, client.post(f"{API}/policies/rollback", {"version": version, "note": note}))


def fetch(
    folder: Annotated[Path, typer.Argument(help="Where the files go; made, or empty.")],
    gateway: GatewayOptions,
    version: Annotated[int | None, typer.Option(help="Which version; default: the newest.")] = None,
) -> None:
    """Write a version's files into a folder, to be edited and applied, or compared by `tidegate policy diff`."""
    from gateway.sync.policy_copy import check_names
    from policies.yaml.problems import listing

    fetched = gateway.api().read(f"{API}/policies" + (f"/versions/{version}" if version is not None else ""))
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
    print_in_force(client.post(f"{API}/policies/reload"))


policy_app = CommandGroup("What policy files say, and the policies of a running gateway.")


@policy_app.command("check")
def check(
    folder: Annotated[Path | None, typer.Argument(help="The policy folder; default: that of the settings.")] = None,
    config: Config = DEFAULT_CONFIG,
) -> None:
    """Read a policy folder, and the folder of prompts beside it, and print every mistake with file, line, key and what to write. Without
    a settings file, whether pools and adapters exist is left open. Exit codes: 0 it loads, 1 it does not.
    """
    # imported only here, as in every command that asks no gateway
    from gateway.cli.policy_files import check_folder

    check_folder(folder, config)


@policy_app.command("diff")
def diff(
    before: Annotated[Path, typer.Argument(help="A policy folder.")],
    after: Annotated[Path, typer.Argument(help="The one that is to take its place.")],
    config: Config = DEFAULT_CONFIG,
) -> None:
    """Print what changes for whom: models, treatment, rules. Comments, order and other ways to write the same are no change.

    Exit codes: 0 nothing changes, 1 something does, 2 one of them does not load.
    """
    from gateway.cli.policy_files import read_policies
    from policies.shown import differences

    changes = list(differences(read_policies(before, config, code=2), read_policies(after, config, code=2)))
    for line in changes:
        out.print(line, markup=False, soft_wrap=True)
    if changes:
        raise typer.Exit(1)


@policy_app.command("explain")
def explain(
    request: Annotated[Path, typer.Argument(help="A request's JSON body.")],
    tenant: Annotated[str, typer.Option(help="The tenant whose request it is.")],
    project: Annotated[str, typer.Option(help="The tenant's project.")] = "default",
    endpoint: Annotated[str, typer.Option(help="The path it would be sent to.")] = CHAT,
    header: Annotated[list[str] | None, typer.Option(help="`name: value`; again for further ones.")] = None,
    at: Annotated[str | None, typer.Option(metavar="MOMENT", help="When, as 2026-01-31T10:00:00Z; default: now.")] = None,
    folder: Annotated[Path | None, typer.Option(help="The policy folder; default: that of the settings.")] = None,
    config: Config = DEFAULT_CONFIG,
) -> None:
    """Print what the policy files say of a request: which model and pool, which rule and why not the others, how it is treated.

    Nothing is sent; rights and limits of keys are not in policy files. `tidegate explain --file` asks a running gateway for the backend.
    """
    from gateway.cli.policy_files import Question, explained, read_policies

    moment = time.time() if at is None else unix_of("--at", at)
    question = Question(request, tenant, project, endpoint, header or [], moment)
    for line in explained(question, read_policies(folder, config)):
        out.print(line, markup=False, soft_wrap=True)


@policy_app.command("reload")
def reload(gateway: GatewayOptions) -> None:
    """Have every worker read the policy folder now, and not within two seconds of its change.

    A folder with mistakes changes nothing; they are printed, and the exit code is 1.
    """
    print_in_force(gateway.api().post(f"{API}/policies/reload"))


add_versions(policy_app)
