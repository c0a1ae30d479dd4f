"""Policy folders as `tidegate policy` reads them: loads, checks and explains them without a gateway."""

import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import typer

from domain.ask import Endpoint
from domain.faults import Fault
from domain.identity import Caller, KeyId, ProjectId, TenantId
from gateway.cli.policy_names import unknown_tenants
from gateway.cli.printing import err, fail, out
from gateway.cli.similar_questions import similar_questions
from gateway.config.load import load_settings
from gateway.http.openai import check_caps, interpret
from gateway.http.openai.prompts import PROMPT_HEADER, with_prompt
from gateway.http.translations import TRANSLATED, Translations
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
from policies.shown import meaning, prompt_in_words, tag_report, treatment
from policies.yaml.problems import ConfigError, Problem, listing
from tenancy.rights import EVERYTHING

MAX_REQUEST_BYTES: Final = 8 * 1024 * 1024


class Question(NamedTuple):
    """A request that `tidegate policy explain` is asked about."""

    request: Path
    """Holds its JSON body."""
    tenant: str
    project: str
    endpoint: str
    """The path it would be sent to."""
    headers: list[str]
    """`name: value`."""
    at_unix: float


def check_folder(folder: Path | None, config: Path) -> None:
    """Print what a folder of policies has; ends the command where it does not load."""
    policies = read_policies(folder, config)
    out.print(f"ok, {len(policies.policies())} policies, digest {policies.digest}", markup=False)
    reserved, sentences = tag_report(policies)
    if reserved:
        out.print(f"key tags that rules read, and that only owners and admins set: {', '.join(reserved)}", markup=False, soft_wrap=True)
    notes = (*map(str, policies.warnings), *map(str, _unknown_tenants(policies, config)), *similar_questions(policies, None))
    for sentence in (*notes, *sentences):
        err.print(f"note: {sentence}", markup=False, soft_wrap=True)


def explained(question: Question, policies: PolicySet) -> list[str]:
    """What the policies say of a request, in lines; ends the command where they would refuse it."""
    tenant, request = question.tenant, question.request
    headers = dict(map(_header, question.headers))
    prompts = policies.prompts_for(tenant)
    policy, prompt = policies.for_tenant(tenant), None
    caps, links = (USUAL_CAPS, False) if policy is None else (policy.widest_caps, policy.may_fetch_images)
    try:
        endpoint, body = Translations(b"", time.time, lambda: "0").chat_of(question.endpoint, _body(request))
        ask = interpret(endpoint, body, headers.get(PROMPT_HEADER), caps=caps, links=links)
        key = sticky_key(ask, ask.user, str(request))
        if ask.template is not None:
            ask, prompt = with_prompt(ask, prompts, key)
    except ValueError:
        fail(f"--endpoint: one of {', '.join([*(member.path for member in Endpoint), *sorted(TRANSLATED)])}", code=2)
    except Fault as fault:
        fail(f"{request}: the request would be refused: {fault.message}")
    caller = Caller(TenantId(tenant), ProjectId(question.project), KeyId(""))
    request_facts = Asked(ask, caller, ask.user, headers, question.at_unix)
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
    lines += [f"  {line}" for line in guards_in_words(treated.guards, question.project, match.model.name, match.rule)]
    if treated.guards is not None:
        applying = ", ".join(rule.id for rule in guards.rules) if guards is not None else "none"
        bound = f"; at most {guards.held_bytes} bytes of an answer are held for them" if guards is not None else ""
        lines.append(f"guard rules that apply to this request: {applying}{bound}")
    return lines


def texts(folder: Path) -> dict[str, str]:
    """The files of a policy folder by name; ends the command where there are none."""
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


def compiled(files: dict[str, str], where: str) -> PolicySet:
    """The policies of these texts, whatever pools there are; `where` they are from, for messages."""
    with tempfile.TemporaryDirectory() as name:
        for file, text in files.items():
            (Path(name) / file).write_text(text, encoding="utf-8")
        try:
            return load_policies(Path(name), None)
        except ConfigError as error:
            fail(f"the policies of {where} have mistakes:\n{str(error).replace(name, where)}")


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
