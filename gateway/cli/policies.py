"""`tidegate policy …`: checks, compares and explains policy files, and changes the policies of a running gateway.

`check`, `diff` and `explain` read folders and need no gateway; `reload` asks a gateway to read its folder now. `apply`, `history`,
`rollback` and `fetch` change and show the policies of a gateway whose database owns them, over its admin API.
"""

import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from domain.ask import Endpoint
from domain.faults import Fault
from domain.identity import Caller, KeyId, ProjectId, TenantId
from gateway.cli.admin_client import API, AdminClient, Yes
from gateway.cli.connection import DEFAULT_CONFIG, Config, GatewayOptions
from gateway.cli.durations import unix_of
from gateway.cli.explain import CHAT
from gateway.cli.groups import CommandGroup
from gateway.cli.policy_names import unknown_tenants
from gateway.cli.printing import OutputOptions, err, fail, out
from gateway.cli.similar_questions import similar_questions
from gateway.config.load import load_settings
from gateway.http.openai import check_caps, interpret
from gateway.http.openai.prompts import PROMPT_HEADER, with_prompt
from gateway.request.guards_asked import applying_guards
from gateway.request.permissions import sticky_key
from gateway.request.policy_match import Asked, explain_rules, match_policy
from gateway.sync.policy_copy import check_names, texts_of
from policies.caps import USUAL_CAPS
from policies.compile import PolicySet
from policies.fallback import CONDITIONS
from policies.guards_shown import guards_in_words
from policies.load import load_policies
from policies.parameters import with_prompt_defaults
from policies.shown import differences, meaning, prompt_in_words, tag_report, treatment
from policies.yaml.problems import ConfigError, Problem, listing
from tenancy.rights import EVERYTHING

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
    files = _texts(folder)
    client = gateway.api()
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


policy_app = CommandGroup("What policy files say, and the policies of a running gateway.")

MAX_REQUEST_BYTES: Final = 8 * 1024 * 1024


@policy_app.command("check")
def check(
    folder: Annotated[Path | None, typer.Argument(help="The policy folder; default: that of the settings.")] = None,
    config: Config = DEFAULT_CONFIG,
) -> None:
    """Read a policy folder, and the folder of prompts beside it, and print every mistake with file, line, key and what to write. Without
    a settings file, whether pools and adapters exist is left open. Exit codes: 0 it loads, 1 it does not.
    """
    policies = read_policies(folder, config)
    out.print(f"ok, {len(policies.policies())} policies, digest {policies.digest}", markup=False)
    reserved, sentences = tag_report(policies)
    if reserved:
        out.print(f"key tags that rules read, and that only owners and admins set: {', '.join(reserved)}", markup=False, soft_wrap=True)
    notes = (*map(str, policies.warnings), *map(str, _unknown_tenants(policies, config)), *similar_questions(policies, None))
    for sentence in (*notes, *sentences):
        err.print(f"note: {sentence}", markup=False, soft_wrap=True)


@policy_app.command("diff")
def diff(
    before: Annotated[Path, typer.Argument(help="A policy folder.")],
    after: Annotated[Path, typer.Argument(help="The one that is to take its place.")],
    config: Config = DEFAULT_CONFIG,
) -> None:
    """Print what changes for whom: models, treatment, rules. Comments, order and other ways to write the same are no change.

    Exit codes: 0 nothing changes, 1 something does, 2 one of them does not load.
    """
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
    policies = read_policies(folder, config)
    headers = dict(map(_header, header or []))
    prompts = policies.prompts_for(tenant)
    policy, prompt = policies.for_tenant(tenant), None
    caps, links = (USUAL_CAPS, False) if policy is None else (policy.widest_caps, policy.may_fetch_images)
    try:
        ask = interpret(Endpoint(endpoint), _body(request), headers.get(PROMPT_HEADER), caps=caps, links=links)
        key = sticky_key(ask, ask.user, str(request))
        if ask.template is not None:
            ask, prompt = with_prompt(ask, prompts, key)
    except ValueError:
        fail(f"--endpoint: one of {', '.join(member.path for member in Endpoint)}", code=2)
    except Fault as fault:
        fail(f"{request}: the request would be refused: {fault.message}")
    caller = Caller(TenantId(tenant), ProjectId(project), KeyId(""))
    request_facts = Asked(ask, caller, ask.user, headers, time.time() if at is None else unix_of("--at", at))
    match = match_policy(policies, request_facts, EVERYTHING, key)
    if match is None or policy is None:
        listed = ", ".join(sorted(policy.models)) if policy is not None and policy.models else "none"
        fail(f"the policy for {tenant} has no model {ask.model[:64]!r}; there are: {listed}")
    whose = tenant if policy.tenant == tenant else "everyone"
    lines = [f"the policy for {whose}, digest {policies.digest}", meaning(ask.model, policy.models[ask.model])]
    treated = match.policy
    try:
        check_caps(ask, treated.caps)
        guards = applying_guards(treated, match.model.name, match.rule, ask, caller, headers)
    except Fault as fault:
        fail(f"{request}: the request would be refused: {fault.message}")
    if prompt is not None:
        lines.append(f"prompt {prompt.name} of {prompt_in_words(prompts[prompt.id])}")
        treated = msgspec.structs.replace(treated, parameters=with_prompt_defaults(prompt.parameters, treated.parameters))
    for rule, why in explain_rules(policy, request_facts, key):
        lines.append(f"rule {rule.name}: {why or ('it counts' if rule.name == match.rule else 'it would match, and another counts')}")
    lines.append(f"answered by {match.model.name} on pool {match.model.pool}" + (f" with {match.model.lora}" if match.model.lora else ""))
    for fallback in match.model.fallback:
        instead = policy.models[fallback.model].shared(key)
        lines.append(f"else, on {', '.join(on for on in CONDITIONS if on in fallback.on)}, by {instead.name} on pool {instead.pool}")
    lines += [f"  {name}: {value}" for name, value in treatment(treated).items()]
    lines += [f"  {line}" for line in guards_in_words(treated.guards, project, match.model.name, match.rule)]
    if treated.guards is not None:
        applying = ", ".join(rule.id for rule in guards.rules) if guards is not None else "none"
        bound = f"; at most {guards.held_bytes} bytes of an answer are held for them" if guards is not None else ""
        lines.append(f"guard rules that apply to this request: {applying}{bound}")
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)


@policy_app.command("reload")
def reload(gateway: GatewayOptions) -> None:
    """Have every worker read the policy folder now, and not within two seconds of its change.

    A folder with mistakes changes nothing; they are printed, and the exit code is 1.
    """
    print_in_force(gateway.api().post(f"{API}/policies/reload"))


def print_in_force(outcome: dict[str, Any]) -> None:
    """Print the answer to a reload of the policies, with what is active and hardly meant."""
    out.print(f"policies {outcome['digest']} in force in {outcome['workers']} worker{'s' * (outcome['workers'] != 1)}", markup=False)
    for warning in outcome["warnings"]:
        err.print(f"warning: {warning}", markup=False, soft_wrap=True)


add_versions(policy_app)


def read_policies(folder: Path | None, config: Path, code: int = 1) -> PolicySet:
    """The policies of a folder, else those of the settings; ends the command with `code` where they do not load."""
    try:
        if not config.exists() and folder is not None:
            return load_policies(folder, None, prompts=beside(folder))
        settings = load_settings(config)
        if folder is None:
            return load_policies(settings.policies_dir, *settings.policy_targets, settings.prompts_dir, settings.detector_names)
        return load_policies(folder, *settings.policy_targets, beside(folder) or settings.prompts_dir, settings.detector_names)
    except ConfigError as error:
        err.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(code) from None


def _unknown_tenants(policies: PolicySet, config: Path) -> list[Problem]:
    """Notes on policies of tenants that do not exist, where a settings file names the database."""
    return unknown_tenants(policies, load_settings(config)) if config.exists() else []


def beside(folder: Path) -> Path | None:
    """The folder `prompts` beside a folder of policies; None where there is none."""
    prompts = folder.resolve().parent / "prompts"
    return prompts if prompts.is_dir() else None


def _body(request: Path) -> bytes:
    try:
        with request.open("rb") as file:
            body = file.read(MAX_REQUEST_BYTES + 1)
    except OSError as error:
        fail(f"{request} cannot be read: {error.strerror}", code=2)
    if len(body) > MAX_REQUEST_BYTES:
        fail(f"{request} is over {MAX_REQUEST_BYTES} bytes", code=2)
    return body


def _header(written: str) -> tuple[bytes, bytes]:
    name, colon, value = written.partition(":")
    if not colon or not name.strip():
        fail(f"--header {written!r}: write name: value", code=2)
    return name.strip().lower().encode("latin-1", "replace"), value.strip().encode("latin-1", "replace")
