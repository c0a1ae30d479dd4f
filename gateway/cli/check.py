"""`tidegate check` and `tidegate export-schema`: the mistakes in the configuration or its summary, and its reference."""

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path, PurePath
from typing import Annotated, Any, Final, Literal, get_args
from urllib.parse import urlsplit

import msgspec
import typer
from pydantic import BaseModel

from backends.lora.digest import REMEDY, NotAnAdapter, difference, readable, readable_digest
from gateway.cli.connection import DEFAULT_CONFIG, TOKEN_VARIABLE, Config, StoreOptions
from gateway.cli.detectors import detectors_in_words, unused_detectors
from gateway.cli.policy_names import unknown_tenants
from gateway.cli.printing import OutputOptions, err, out, print_json
from gateway.cli.rights import RightsOptions
from gateway.cli.similar_questions import similar_questions
from gateway.config.guards import KINDS
from gateway.config.load import ConfigError, SecretReference, Settings, SettingsReading, read_settings
from gateway.config.pools import LoraSettings
from gateway.config.read_secrets import detector_secret, read_admin_token, read_alerts_secret, read_detector_secret, read_rollouts_secret
from gateway.config.secrets import SecretError, WeakSecret, read_reference
from gateway.docs_links import docs_base, linked
from gateway.fleet.sources import clashes_in_files, problems_in_files
from gateway.importing.plan import DOCUMENT_FILE, BadDocument, read_document
from gateway.prompt.find_tokenizer import found_tokenizer
from gateway.prompt.vocabulary import GENERAL, VocabularyError, load_vocabulary
from policies.compile import PolicySet
from policies.export import field_table, policy_schemas, schema_text, with_sections, write_schemas
from policies.load import load_policies
from policies.prompts.schema import PromptDocument
from policies.rollout.document import RolloutDocument
from policies.schema import EVERYONE, PolicyDocument
from policies.shown import meaning, prompt_in_words, tag_report
from policies.yaml.located import Located
from policies.yaml.problems import Path_, Problem, listing
from tenancy.counter_url import StoreKind
from tenancy.limits import MONEY_ALIAS, MONEY_METER

SETTINGS_SCHEMA: Final = "tidegate.schema.json"
EXAMPLE: Final = Path(__file__).resolve().parents[2] / "policies" / "examples"

UNCOUNTED: Final = "limits on tokens, units and money hold a prompt by its bytes while it runs, about four times too much"

PROVIDERS: Final = (
    *(".openai.com", ".openai.azure.com", ".services.ai.azure.com", ".anthropic.com", ".googleapis.com", ".mistral.ai", ".cohere.com"),
    *(".groq.com", ".together.xyz", ".together.ai", ".fireworks.ai", ".deepseek.com", ".openrouter.ai", ".x.ai", ".perplexity.ai"),
)
"""Ends of the host names of hosted APIs. Own machines in a cloud have other names (`….compute.amazonaws.com`)."""
BEDROCK: Final = "bedrock-runtime."
"""The beginning of the hosts of Amazon's hosted API."""

SARIF_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
RULES: Final = {"mistake": "What a start of the gateway would refuse.", "note": "What is no mistake and hardly meant."}


def check(
    config: Config = DEFAULT_CONFIG,
    form: Annotated[
        Literal["text", "json", "sarif"], typer.Option("--format", help="text for people; json, or SARIF 2.1.0 for code scanning in CI.")
    ] = "text",
) -> None:
    """Check the settings and every policy; print a summary, or every mistake with file, line, key and what to write.

    Exit codes: 0 everything loads, 1 something does not, 2 wrong usage. A shared counter store is connected to; when it does not
    answer, that is a note and no mistake. The database, where there is one, is asked for the tenants that policies name.
    """
    reading = read_settings(config)
    problems = list(reading.problems)
    policies: PolicySet | None = None
    folder = _policies_here(reading)
    if folder is not None:
        try:
            detectors = None if reading.settings is None else reading.settings.detector_names
            policies = load_policies(folder, reading.pools, reading.loras, reading.prompts_dir, detectors)
        except ConfigError as error:
            problems += error.problems
    if reading.settings is not None and reading.located is not None:
        problems += problems_in_files(reading.settings, os.environ)
        problems += clashes_in_files(reading.settings, reading.located, os.environ)
        problems += _weak_secrets(reading.settings, reading.located)
        problems += _tokenizers(reading.settings, reading.located)
        problems += _adapters(reading.settings, reading.located)
    base = docs_base(reading.docs_url, os.environ)
    ordered = sorted({_seen_from_here(problem, base) for problem in problems})
    notes = [] if ordered or reading.settings is None else [*reading.warnings, *_notes(reading.settings, policies, config.parent)]
    notes = [linked(note, base) for note in notes]
    if form != "text":
        shown = findings(ordered, notes) if form == "json" else sarif(ordered, notes, str(config))
        print_json(shown)
    elif ordered or reading.settings is None:
        _complain(ordered)
    else:
        _summarise(reading.settings, policies)
        for note in notes:
            err.print(f"note: {note}", markup=False, soft_wrap=True)
    if ordered or reading.settings is None:
        raise typer.Exit(1)


def _notes(settings: Settings, policies: PolicySet | None, folder: Path) -> list[str]:
    """What is no mistake and hardly meant, or cannot be looked at from here."""
    warned = [] if policies is None else [*policies.warnings, *unknown_tenants(policies, settings)]
    return [
        *_missing_secrets(settings),
        *_uncounted(settings),
        *_counters(settings),
        *_kept_answers(settings),
        *_shared_engines(settings),
        *_hosted(settings),
        *(str(_seen_from_here(problem, "")) for problem in warned),  # every note is linked later
        *_beyond_the_ceiling(settings, policies),
        *([] if policies is None else similar_questions(policies, settings)),
        *([] if policies is None else unused_detectors(settings, policies)),
        *([] if policies is None else tag_report(policies)[1]),
        *_older_money(folder),
    ]


def _policies_here(reading: SettingsReading) -> Path | None:
    """The policy folder that can be checked on this machine, or None.

    Where the database owns the policies, that is this machine's copy of them, else the folder that the first start would store.
    """
    settings = reading.settings
    written = reading.policies_dir
    if settings is None or settings.policies_from == "files":
        return written if written is not None and (settings is not None or written.is_dir()) else None
    return next((folder for folder in (settings.policies_dir, settings.policies_folder) if folder.is_dir()), None)


def _complain(ordered: list[Problem]) -> None:
    err.print(listing(ordered), markup=False, soft_wrap=True)
    err.print(f"{len(ordered)} problem{'s' * (len(ordered) > 1)}", markup=False)


def _seen_from_here(problem: Problem, base: str) -> Problem:
    """The problem with its file relative to the current folder, which terminals and editors jump to, and pages below `base`."""
    file, current_folder = Path(problem.file), Path.cwd()
    name = str(file.relative_to(current_folder)) if file.is_absolute() and file.is_relative_to(current_folder) else problem.file
    return Problem(name, problem.line, problem.column, problem.path, linked(problem.message, base), linked(problem.hint, base))


def findings(problems: Sequence[Problem], notes: Sequence[str]) -> dict[str, Any]:
    """`{"ok", "problems": [{"file", "line", "column", "path", "message", "hint"}], "notes": [text]}`."""
    return {"ok": not problems, "problems": msgspec.to_builtins(list(problems)), "notes": list(notes)}


def sarif(problems: Sequence[Problem], notes: Sequence[str], settings: str) -> dict[str, Any]:
    """The report as a SARIF log of one run.

    Args:
        settings: the settings file, where notes are shown: they concern no line.
    """
    results = []
    for problem in problems:
        # SARIF shows every result in a file: a mistake in an environment variable is shown in the settings, which it overrides
        file, sentence = (problem.file, _sentence(problem)) if problem.line else (settings, f"{problem.file}: {_sentence(problem)}")
        region = {"startLine": max(1, problem.line), "startColumn": max(1, problem.column)}
        results.append(_result("mistake", "error", sentence, file, region))
    results += [_result("note", "note", note, settings, {"startLine": 1}) for note in notes]
    driver = {
        "name": "tidegate check",
        "version": version("tidegate"),
        "rules": [{"id": name, "shortDescription": {"text": text}} for name, text in RULES.items()],
    }
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _sentence(problem: Problem) -> str:
    parts = filter(None, (problem.path, problem.message))
    return ": ".join(parts) + (f"; {problem.hint}" if problem.hint else "")


def _result(rule: str, level: str, text: str, file: str, region: dict[str, int]) -> dict[str, Any]:
    place = {"artifactLocation": {"uri": PurePath(file).as_posix()}, "region": region}
    return {"ruleId": rule, "level": level, "message": {"text": text}, "locations": [{"physicalLocation": place}]}


def _summarise(settings: Settings, policies: PolicySet | None) -> None:
    scheme = "https" if settings.data.tls else "http"
    lines = [
        f"data {scheme}://{settings.data.bind}, admin http://{settings.admin.bind}, workers {settings.workers}",
        f"counters: {settings.counter_url.shown()}",
    ]
    for pool in settings.pools:
        count = len(pool.backends)
        discover = pool.discover
        discovery = "" if discover is None else f", more from {f'file {discover.file}' if discover.file else f'DNS {discover.dns}'}"
        about = f"pool {pool.name}: {pool.model}, revision {pool.revision}, {pool.dialect}"
        lines.append(f"{about}, {count} backend{'s' * (count != 1)}{discovery}")
        lines += [f"  {backend.id} {backend.url}" for backend in pool.backends]
        lines += [f"  adapter {lora.name}, {lora.digest[:12]}, {lora.path}{_unchecked(lora)}" for lora in pool.loras]
    lines += detectors_in_words(settings, policies)
    lines += [f"tokens of {entry.issuer} for {', '.join(entry.audiences)}" for entry in settings.auth.jwt]
    if settings.auth.console is not None:
        lines.append(f"sign-in to the console at {settings.auth.console.issuer}, back to {settings.auth.console.redirect_url}")
    for policy in policies.policies() if policies is not None else ():
        scope = "every other tenant" if policy.tenant == EVERYONE else f"tenant {policy.tenant}"
        models = ", ".join(meaning(name, rule) for name, rule in sorted(policy.models.items()))
        prompts = ", ".join(prompt_in_words(prompt) for _, prompt in sorted(policy.prompts.items()))
        lines.append(f"{scope}: {models or 'no model'}" + (f"; prompts {prompts}" if prompts else ""))
    if policies is not None and policies.for_tenant(EVERYONE) is None:
        lines.append("every other tenant: no policy, so no model")
    of = "" if settings.policies_from == "files" else " of the database"
    verdict = f"ok, policies{of}, not known here" if policies is None else f"ok, policies{of} {policies.digest}"
    for line in [*lines, verdict]:
        out.print(line, markup=False, soft_wrap=True)


def _missing_secrets(settings: Settings) -> list[str]:
    """Notes on references whose secrets cannot be read here. They are no mistakes: a build machine that checks files has no secrets."""
    references: dict[str, SecretReference | None] = {
        "secrets.pepper": settings.secrets.pepper,
        "secrets.former_pepper": settings.secrets.former_pepper,
        "secrets.admin_token": settings.secrets.admin_token,
        "auth.console.client_secret": None if settings.auth.console is None else settings.auth.console.client_secret,
        "rollouts.webhook.secret": None if settings.rollouts.webhook is None else settings.rollouts.webhook.secret,
        "alerts.webhook.secret": None if settings.alerts.webhook is None else settings.alerts.webhook.secret,
    }
    references |= {f"pools[{i}].api_key": pool.api_key for i, pool in enumerate(settings.pools)}
    for name, exporter in settings.traces.exporters.items() if settings.traces is not None else ():
        references |= {f"traces.exporters.{name}.headers.{header}": reference for header, reference in exporter.headers.items()}
    if settings.request_log.otlp is not None:
        references |= {f"request_log.otlp.headers.{header}": found for header, found in settings.request_log.otlp.headers.items()}
    references |= dict(detector_secret(settings, name) for name in settings.guards.detectors)
    notes = []
    for path, reference in references.items():
        try:
            if reference is not None:
                read_reference(reference, settings.base_dir, os.environ)
        except SecretError as error:
            notes.append(f"{path}: {error}")
    if settings.secrets.admin_token is None and os.environ.get(TOKEN_VARIABLE):
        notes.append(f"{TOKEN_VARIABLE} is set here, but secrets.admin_token is not: this gateway's admin port takes no changes")
    return notes


def _counters(settings: Settings) -> list[str]:
    """Notes on why the counter store cannot be used from here. They are no mistakes: the store may run elsewhere, or later."""
    if settings.counter_url.kind is StoreKind.MEMORY:
        return []
    # imported only here, because the module imports every adapter
    from gateway.wiring.limits import counters_answer

    why = asyncio.run(counters_answer(settings))
    return [] if why is None else [f"stores.counters: {why}"]


def _kept_answers(settings: Settings) -> list[str]:
    """Notes on why the shared store of answers cannot be used from here."""
    if settings.cache.store is None:
        return []
    from gateway.wiring.answers import shared_store_answer  # as above

    why = asyncio.run(shared_store_answer(settings))
    return [] if why is None else [f"cache.store: {why}"]


def _weak_secrets(settings: Settings, located: Located) -> list[Problem]:
    """Problems of secrets that can be read here and that a start would refuse."""
    readers: dict[Path_, Callable[[Settings], object]] = {
        ("secrets", "admin_token"): read_admin_token,
        ("rollouts", "webhook", "secret"): read_rollouts_secret,
        ("alerts", "webhook", "secret"): read_alerts_secret,
    }
    for name in settings.guards.detectors:
        readers["guards", "detectors", name, "secret"] = partial(read_detector_secret, name=name)
    problems = []
    for path, reader in readers.items():
        try:
            reader(settings)
        except WeakSecret as error:
            problems.append(located.problem(path, str(error).removeprefix(f"{'.'.join(map(str, path))} ")))
        except SecretError:
            pass  # not readable here: `_missing_secrets` notes it
    return problems


def _tokenizers(settings: Settings, located: Located) -> list[Problem]:
    """Problems of tokenizers that a start would fail on."""
    problems = []
    for at, pool in enumerate(settings.pools):
        if pool.tokenizer is not None:
            try:
                load_vocabulary(pool.tokenizer, settings.base_dir, time.strftime)
            except VocabularyError as error:
                hint = f"name the served model's folder or tokenizer.json, or one of {', '.join(GENERAL)}"
                problems.append(located.problem(("pools", at, "tokenizer"), str(error).removeprefix("tokenizer "), hint))
    return problems


def _adapters(settings: Settings, located: Located) -> list[Problem]:
    """Adapters that this machine can read and that have another digest than the settings say: no engine would be told to load them."""
    problems = []
    for i, pool in enumerate(settings.pools):
        for j, lora in enumerate(pool.loras):
            try:
                digest = readable_digest(lora.path)
            except NotAnAdapter as error:
                problems.append(located.problem(("pools", i, "loras", j, "path"), str(error), "name the adapter's own folder"))
            else:
                if digest is not None and (differs := difference(lora.path, digest, lora.digest)):
                    problems.append(located.problem(("pools", i, "loras", j, "digest"), differs, f"{REMEDY}: {digest}"))
    return problems


def _unchecked(lora: LoraSettings) -> str:
    return "" if readable(lora.path) else " (not readable here, so its digest is not checked)"


def _uncounted(settings: Settings) -> list[str]:
    """Notes on pools without a tokenizer, with the remedy. They are no mistakes: only limits on tokens, units or money depend on one."""
    found: dict[str, list[str]] = defaultdict(list)
    missing = []
    for pool in settings.pools:
        if pool.tokenizer is None:
            folder = found_tokenizer(pool.model, pool.revision, os.environ, Path.home())
            if folder is None:
                missing.append(pool.name)
            else:
                found[str(folder)].append(pool.name)
    notes = [
        f"{_which(names)} no tokenizer: {UNCOUNTED}; if {folder} has the files that the engines serve, write tokenizer: {folder}"
        + _unloadable(folder, settings)
        for folder, names in found.items()
    ]
    if missing:
        remedy = (
            "copy the model's tokenizer.json and tokenizer_config.json here and name their folder with tokenizer: FOLDER "
            "(tidegate engine check looks where the engines say that theirs is)"
        )
        general = f"or write tokenizer: {GENERAL[0]}, which is near for most models; both need pip install 'tidegate[tokens]'"
        notes.append(f"{_which(missing)} no tokenizer: {UNCOUNTED}; {remedy}, {general}")
    return notes


def _which(pools: Sequence[str]) -> str:
    return f"pool {pools[0]} has" if len(pools) == 1 else f"pools {', '.join(pools)} have"


def _unloadable(folder: str, settings: Settings) -> str:
    try:
        load_vocabulary(folder, settings.base_dir, time.strftime)
    except VocabularyError as error:
        return f" ({error})"
    return ""


def _shared_engines(settings: Settings) -> list[str]:
    """Notes on engines that several pools name: each pool's load, limit and breaker know only the pool's own requests."""
    pools = defaultdict(list)
    for pool in settings.pools:
        for url in dict.fromkeys(backend.url for backend in pool.backends):
            pools[url].append(pool.name)
    return [
        f"{url} is in the pools {', '.join(names)}: each of them takes the engine's whole capacity for its own; "
        "give one engine one pool, and its adapters as `loras`"
        for url, names in pools.items()
        if len(names) > 1
    ]


def _hosted(settings: Settings) -> list[str]:
    """Notes on pools at hosted providers, which no suite covers and whose load nobody reports."""
    notes = []
    for pool in settings.pools:
        hosts = {urlsplit(backend.url).hostname or "" for backend in pool.backends}
        hosted = sorted(host for host in hosts if f".{host}".endswith(PROVIDERS) or host.startswith(BEDROCK))
        if hosted:
            why = "Tidegate is for self-hosted engines, and a pool at a hosted provider is not supported; see docs/reference/engines.md"
            notes.append(f"pool {pool.name} is at {', '.join(hosted)}: {why}")
    return notes


def _beyond_the_ceiling(settings: Settings, policies: PolicySet | None) -> list[str]:
    """Notes on policies that allow larger bodies than the settings let any policy allow."""
    limits, notes = settings.data.limits, []
    for policy in policies.policies() if policies is not None else ():
        most = max((size for size in policy.body_caps if size is not None), default=0)
        if most > max(limits.largest_body_bytes, limits.max_body_bytes):
            whose = "every other tenant" if policy.tenant == EVERYONE else f"tenant {policy.tenant}"
            bound = f"data.limits.largest_body_bytes allows {limits.largest_body_bytes}"
            notes.append(
                f"the policy of {whose} allows bodies of {most} bytes (caps.body_bytes) and {bound}; raise the setting, or lower the cap"
            )
    return notes


def _older_money(folder: Path) -> list[str]:
    """Notes on the import file beside the settings, where it names the meter of money by its older name. It is read all the same."""
    path = folder / DOCUMENT_FILE
    if not path.is_file():
        return []
    try:
        document = read_document(path)
    except BadDocument as error:
        return [str(error)]
    meters = [limit.meter for limit in document.limits]
    meters += [limit.meter for key in document.keys for limit in key.limits]
    count = meters.count(MONEY_ALIAS)
    if not count:
        return []
    which = f"{count} limit{'s' * (count > 1)}"
    return [f'{path}: {which} on {MONEY_ALIAS}, the older name, in nano-dollars; write {MONEY_METER} and dollars as text, as "12.50"']


def schemas() -> dict[str, str]:
    """The JSON schemas for editors, text by file name."""
    return {SETTINGS_SCHEMA: schema_text(Settings), **policy_schemas()}


def reference_sections() -> dict[str, str]:
    """The generated parts of docs/reference/configuration.md."""
    return {
        "settings": field_table(Settings),
        "policy": field_table(PolicyDocument),
        "rollout": field_table(RolloutDocument),
        "prompt": field_table(PromptDocument),
        "detectors": "\n".join(_kind_table(kind) for kind in KINDS),
        "example settings": _fenced((EXAMPLE / "settings-complete.yaml").read_text(encoding="utf-8")),
        "example policy": _fenced((EXAMPLE / "acme.yaml").read_text(encoding="utf-8")),
    }


def _kind_table(kind: type[BaseModel]) -> str:
    (name,) = get_args(kind.model_fields["kind"].annotation)
    return f"#### `{name}`\n\n{field_table(kind)}"


def command_sections() -> dict[str, str]:
    """The generated parts of docs/reference/cli.md."""
    from gateway.cli import ENTRIES
    from gateway.cli.reference import command_reference, shared_options

    return {
        "gateway options": shared_options(StoreOptions),
        "output options": shared_options(OutputOptions),
        "rights options": shared_options(RightsOptions),
        "commands": command_reference(ENTRIES),
    }


def write_terminal_files(folder: Path) -> list[Path]:
    """Write the manual pages and the shell completion, and return their paths."""
    from gateway.cli import ENTRIES
    from gateway.cli.man_pages import terminal_files

    written = []
    for name, text in terminal_files(ENTRIES).items():
        target = folder / name
        target.parent.mkdir(exist_ok=True)
        target.write_text(text, encoding="utf-8")
        written.append(target)
    return written


def _fenced(text: str) -> str:
    return f"```yaml\n{text}```\n"


def export_schema(
    folder: Annotated[Path, typer.Option(help="Where the schemas go.")] = Path("docs/schema"),
    reference: Annotated[Path, typer.Option(help="The page of settings, whose tables are made anew where it exists.")] = Path(
        "docs/reference/configuration.md"
    ),
    commands: Annotated[Path, typer.Option(help="The page of commands, likewise.")] = Path("docs/reference/cli.md"),
    terminal: Annotated[Path, typer.Option(help="The folder of manual pages and shell completion, likewise.")] = Path("docs/terminal"),
) -> None:
    """Write the JSON schemas of settings, policies and rollouts, the tables of the reference pages, and the manual pages."""
    written = write_schemas(folder, schemas())
    for page, sections in ((reference, reference_sections), (commands, command_sections)):
        if page.is_file():
            page.write_text(with_sections(page.read_text(encoding="utf-8"), sections()), encoding="utf-8")
            written.append(page)
    if terminal.is_dir():
        written += write_terminal_files(terminal)
    for file in written:
        out.print(f"wrote {file}", markup=False, soft_wrap=True)
