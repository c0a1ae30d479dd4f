"""`tidegate policy …`: checks, compares and explains policy files, and changes the policies of a running gateway."""

import time
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from domain.ask import Endpoint
from domain.faults import Fault
from domain.identity import Caller, KeyId, ProjectId, TenantId
from gateway.admission import sticky_key
from gateway.cli.admin_client import ADMIN, API, AdminUrl, TokenFile, api
from gateway.cli.explain import CHAT
from gateway.cli.policy_versions import add_versions
from gateway.cli.printing import err, fail, out
from gateway.http.openai import interpret
from gateway.http.openai.prompts import PROMPT_HEADER, with_prompt
from gateway.ruling import Asked, explain_rules, match_policy
from gateway.settings import load_settings
from policies.compile import PolicySet
from policies.fallback import CONDITIONS
from policies.load import load_policies
from policies.parameters import with_prompt_defaults
from policies.problems import ConfigError
from policies.shown import differences, meaning, prompt_in_words, treatment
from tenancy.rights import EVERYTHING

policy_app = typer.Typer(no_args_is_help=True, help="What policy files say, and the policies of a running gateway.")

MAX_REQUEST_BYTES: Final = 8 * 1024 * 1024
SETTINGS: Final = Path("tidegate.yaml")

Config = Annotated[Path, typer.Option("--config", "-c", help="The settings file, for the pools and adapters that there are.")]


@policy_app.command("check")
def check(
    folder: Annotated[Path | None, typer.Argument(help="The policy folder; default: that of the settings.")] = None,
    config: Config = SETTINGS,
) -> None:
    """Read a policy folder, and the folder of prompts beside it, and print every mistake with file, line, key and what to write. Without
    a settings file, whether pools and adapters exist is left open. Exit codes: 0 it loads, 1 it does not.
    """
    policies = _read(folder, config)
    out.print(f"ok, {len(policies.policies())} policies, digest {policies.digest}", markup=False)


@policy_app.command("diff")
def diff(
    before: Annotated[Path, typer.Argument(help="A policy folder.")],
    after: Annotated[Path, typer.Argument(help="The one that is to take its place.")],
    config: Config = SETTINGS,
) -> None:
    """Print what changes for whom: models, treatment, rules. Comments, order and other ways to write the same are no change.

    Exit codes: 0 nothing changes, 1 something does, 2 one of them does not load.
    """
    changes = list(differences(_read(before, config, code=2), _read(after, config, code=2)))
    for line in changes:
        out.print(line, markup=False, soft_wrap=True)
    if changes:
        raise typer.Exit(1)


@policy_app.command("explain")
def explain(
    request: Annotated[Path, typer.Argument(help="A request's JSON body.")],
    tenant: Annotated[str, typer.Option("--as", help="Whose request it is.")],
    project: Annotated[str, typer.Option(help="The tenant's project.")] = "default",
    endpoint: Annotated[str, typer.Option(help="The path it would be sent to.")] = CHAT,
    header: Annotated[list[str] | None, typer.Option(help="`name: value`; again for further ones.")] = None,
    at_unix: Annotated[float | None, typer.Option(help="When, in seconds since the epoch; default: now.")] = None,
    folder: Annotated[Path | None, typer.Option(help="The policy folder; default: that of the settings.")] = None,
    config: Config = SETTINGS,
) -> None:
    """Print what the policy files say of a request: which model and pool, which rule and why not the others, how it is treated.

    Nothing is sent; rights and limits of keys are not in policy files. `tidegate explain --file` asks a running gateway for the backend.
    """
    policies = _read(folder, config)
    headers = dict(map(_header, header or []))
    prompts = policies.prompts_for(tenant)
    prompt = None
    try:
        ask = interpret(Endpoint(endpoint), _body(request), headers.get(PROMPT_HEADER))
        key = sticky_key(ask, ask.user, str(request))
        if ask.template is not None:
            ask, prompt = with_prompt(ask, prompts, key)
    except ValueError:
        fail(f"--endpoint: one of {', '.join(member.path for member in Endpoint)}", code=2)
    except Fault as fault:
        fail(f"{request}: the request would be refused: {fault.message}")
    caller = Caller(TenantId(tenant), ProjectId(project), KeyId(""))
    request_facts = Asked(ask, caller, ask.user, headers, time.time() if at_unix is None else at_unix)
    match = match_policy(policies, request_facts, EVERYTHING, key)
    policy = policies.for_tenant(tenant)
    if match is None or policy is None:
        listed = ", ".join(sorted(policy.models)) if policy is not None and policy.models else "none"
        fail(f"the policy for {tenant} has no model {ask.model[:64]!r}; there are: {listed}")
    whose = tenant if policy.tenant == tenant else "everyone"
    lines = [f"the policy for {whose}, digest {policies.digest}", meaning(ask.model, policy.models[ask.model])]
    treated = match.policy
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
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)


@policy_app.command("reload")
def reload(admin: AdminUrl = ADMIN, token_file: TokenFile = None) -> None:
    """Have every worker read the policy folder now, and not within two seconds of its change.

    A folder with mistakes changes nothing; they are printed, and the exit code is 1.
    """
    outcome = api(admin, token_file).post(f"{API}/policies/reload")
    out.print(f"policies {outcome['digest']} in force in {outcome['workers']} worker{'s' * (outcome['workers'] != 1)}", markup=False)


add_versions(policy_app)


def _read(folder: Path | None, config: Path, code: int = 1) -> PolicySet:
    try:
        if not config.exists() and folder is not None:
            return load_policies(folder, None, prompts=beside(folder))
        settings = load_settings(config)
        if folder is None:
            return load_policies(settings.policies_dir, *settings.policy_targets, settings.prompts_dir)
        return load_policies(folder, *settings.policy_targets, beside(folder) or settings.prompts_dir)
    except ConfigError as error:
        err.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(code) from None


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
