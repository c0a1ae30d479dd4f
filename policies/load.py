"""Reads the folder of policies and the folder of prompts: every `*.yaml` in them, every mistake at once, each with file, line and key.

`PolicyFolder` is a folder that may change, `load_policies` reads one as it is now. `dangling` looks for references that lead nowhere or in
a circle (models, pools, adapters, aliases) in the data as written, so that other mistakes in the file hide none of them.
"""

import difflib
import gc
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from policies.compile import PolicySet, compiled
from policies.fallback import fallback_problems
from policies.guard_checks import guard_problems, unusable_rules
from policies.ladder import ladder_problems
from policies.prompts.allowed import Registry, allowed_problems
from policies.prompts.folder import PromptFolder
from policies.rules import rule_problems
from policies.schema import EVERYONE, PolicyDocument
from policies.yaml.folder import Mark, mark_of, visible_files
from policies.yaml.located import Located, read_yaml
from policies.yaml.problems import ConfigError, Problem
from policies.yaml.validate import checked, literal_secrets

MAX_NAMED: Final = 10
"""Names listed in a hint."""


def dangling(
    located: Located, everyone: Located | None, pools: Collection[str] | None, loras: Mapping[str, Collection[str] | None]
) -> Iterator[Problem]:
    """A problem for each dangling, doubled or circular reference of one file.

    Args:
        everyone: the file of the tenant `*`, whose models a file without `models` inherits, and whose guards every tenant has; None
            when there is none.
        pools: names of the pools; None when they are not known, so that references to pools are not checked.
        loras: adapters by pool; None for a pool whose adapters are not known, so that references to them are not checked.
    """
    names = _names(located)
    yield from _listed_twice(located)
    for i in range(_count(located.value("models"))):
        yield from _targets(located, i, pools, loras)
    yield from _aliases(located, names)
    yield from fallback_problems(located, names, suggestion)
    inherits = located.value("models") is None and everyone is not None
    known = set(_names(everyone)) if inherits and everyone is not None else set(names)
    overrides = located.value("for_model")
    for name in overrides if isinstance(overrides, dict) else ():
        if isinstance(name, str) and name not in known:
            yield located.problem(("for_model", name), f"this policy has no model {name!r}", suggestion(name, known))
    yield from rule_problems(located, dict.fromkeys(known), suggestion)
    rules = [("rules", i, "then") for i in range(_count(located.value("rules")))]
    for path in ((), *rules, *_treatments(located, "for_project"), *_treatments(located, "for_model")):
        yield from ladder_problems(located, path, known, suggestion)
    yield from guard_problems(located, everyone)


def suggestion(name: str, known: Collection[str], otherwise: str = "there are: none") -> str:
    """A hint: the known name closest to `name`, else the first known names; `otherwise` when none is known."""
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    if not known:
        return otherwise
    return f"there are: {', '.join(sorted(known)[:MAX_NAMED])}{', …' if len(known) > MAX_NAMED else ''}"


def _count(entries: object) -> int:
    return len(entries) if isinstance(entries, list) else 0


def _names(located: Located) -> dict[str, int]:
    """Index in `models` of the first entry of each name."""
    names: dict[str, int] = {}
    for i in range(_count(located.value("models"))):
        name = located.value("models", i, "name")
        if isinstance(name, str):
            names.setdefault(name, i)
    return names


def _treatments(located: Located, key: str) -> Iterator[tuple[str, str]]:
    overrides = located.value(key)
    for name in overrides if isinstance(overrides, dict) else ():
        if isinstance(name, str):
            yield key, name


def _listed_twice(located: Located) -> Iterator[Problem]:
    first = _names(located)
    for i in range(_count(located.value("models"))):
        name = located.value("models", i, "name")
        if isinstance(name, str) and first[name] != i:
            yield located.problem(("models", i, "name"), f"{name!r} is listed twice", "keep one")


def _targets(located: Located, i: int, pools: Collection[str] | None, loras: Mapping[str, Collection[str] | None]) -> Iterator[Problem]:
    if pools is None:
        return
    at = ("models", i)
    places = [(*at, "pools", j, "pool") for j in range(_count(located.value(*at, "pools")))]
    lora = located.value(*at, "lora")
    seen: set[str] = set()
    for path in ((*at, "pool"), *places):
        pool = located.value(*path)
        if not isinstance(pool, str):
            continue
        if pool not in pools:
            yield located.problem(path, f"there is no pool {pool!r}", suggestion(pool, pools))
        elif isinstance(lora, str) and (adapters := loras.get(pool, ())) is not None and lora not in adapters:
            hint = suggestion(lora, adapters, "write it under loras of that pool")
            yield located.problem((*at, "lora"), f"the pool {pool!r} has no adapter {lora!r}", hint)
        elif pool in seen:
            yield located.problem(path, f"{pool!r} is listed twice", "keep one, with the weight of both")
        seen.add(pool)


def _aliases(located: Located, names: Mapping[str, int]) -> Iterator[Problem]:
    """Aliases of unknown models, and circles of aliases; each circle is reported once, where it is written first."""
    checked: set[str] = set()
    for name, i in names.items():
        at = ("models", i, "alias_of")
        to = located.value(*at)
        if isinstance(to, str) and to not in names:
            yield located.problem(at, f"this policy has no model {to!r}", suggestion(to, [model for model in names if model != name]))
        walked = [name]
        while isinstance(to, str) and to in names and to not in walked and to not in checked:
            walked.append(to)
            to = located.value("models", names[to], "alias_of")
        if isinstance(to, str) and to in walked:
            circle = " -> ".join((*walked[walked.index(to) :], to))
            yield located.problem(at, f"leads back to itself: {circle}", "let one of them name a pool")
        checked.update(walked)


MAX_FILES: Final = 10_000
"""Tenants with a policy of their own. All of them are read at every start, so a folder with more is a mistake or needs a store."""


class _PolicyFile(msgspec.Struct, frozen=True):
    mark: Mark
    located: Located | None
    document: PolicyDocument | None
    problems: tuple[Problem, ...]


class PolicyFolder:
    """A folder of policies that may change. The parsed content of a file is cached while the file is unchanged.

    Args:
        folder: with one `*.yaml` per tenant, its own files, no subfolders; names that begin with a dot (editors' files) are left out.
        pools: names of all pools; None when they are not known, so that references to pools are not checked.
        loras: all adapters by pool, as for `dangling`; pools without adapters may be left out.
        prompts: the folder of prompts, which need not exist; None when it is not known, so that policies may name any prompt.
        detectors: names of the detectors that guard rules may ask; None when they are not known, so that rules may name any.
    """

    def __init__(
        self,
        folder: Path,
        pools: Collection[str] | None,
        loras: Mapping[str, Collection[str] | None] | None = None,
        prompts: Path | None = None,
        detectors: Collection[str] | None = None,
    ) -> None:
        self._folder = folder
        self._pools = pools
        self._loras = loras or {}
        self._prompts = None if prompts is None else PromptFolder(prompts)
        self._detectors = detectors
        self._files: dict[Path, _PolicyFile] = {}

    def marks(self) -> dict[str, Mark]:
        """The change mark of every file by name; differs as soon as a file changed. Empty when the folder cannot be read."""
        try:
            marks = {file.name: mark_of(file) for file in visible_files(self._folder)}
        except OSError:
            return {}
        return marks if self._prompts is None else marks | self._prompts.marks()

    def read(self) -> PolicySet:
        """The policies as they are now.

        Raises:
            ConfigError: with every problem of every file: unknown keys, dangling pools, names given twice, no file at all.
        """
        try:
            visible = visible_files(self._folder)
            marks = {file: mark_of(file) for file in visible if file.suffix == ".yaml"}
        except OSError as error:
            message = f"cannot be read: {error.strerror}"
            raise ConfigError([Problem(str(self._folder), 1, 1, "", message, "create it with one policy")]) from None
        if not marks or len(marks) > MAX_FILES:
            message, hint = (
                ("has no *.yaml file", "write at least one policy") if not marks else (f"has more than {MAX_FILES} files", "merge some")
            )
            raise ConfigError([Problem(str(self._folder), 1, 1, "", message, hint)])
        cached = self._files
        # were a *.yml file left out silently, the default policy would govern its tenant
        problems = [Problem(str(file), 1, 1, "", "would not be read", "call it *.yaml") for file in visible if file.suffix == ".yml"]
        with _garbage_collector_off():
            self._files = {
                file: cached[file] if file in cached and cached[file].mark == mark else _read(file, mark, self._detectors)
                for file, mark in marks.items()
            }
            prompts, prompt_problems = (None, []) if self._prompts is None else self._prompts.read()
            return self._joined(problems + prompt_problems, prompts)

    def _joined(self, problems: list[Problem], prompts: Registry | None) -> PolicySet:
        tenants: dict[str, str] = {}
        everyone = next((file.located for file in self._files.values() if file.located and file.located.value("tenant") == EVERYONE), None)
        for file in self._files.values():
            problems += file.problems
            if file.located is not None:
                problems += _doubled_tenant(file.located, tenants)
                problems += dangling(file.located, everyone, self._pools, self._loras)
                problems += [] if prompts is None else allowed_problems(file.located, prompts)
        if problems:
            raise ConfigError(problems)
        policies = compiled((file.document for file in self._files.values() if file.document is not None), prompts or {})
        places = {file.document.tenant: file.located for file in self._files.values() if file.document is not None and file.located}
        return msgspec.structs.replace(policies, warnings=tuple(_without_models(policies, places)), places=MappingProxyType(places))


def load_policies(
    folder: Path,
    pools: Collection[str] | None,
    loras: Mapping[str, Collection[str] | None] | None = None,
    prompts: Path | None = None,
    detectors: Collection[str] | None = None,
) -> PolicySet:
    """The policies of a folder as they are now; arguments as for `PolicyFolder`. Raises ConfigError."""
    return PolicyFolder(folder, pools, loras, prompts, detectors).read()


@contextmanager
def _garbage_collector_off() -> Iterator[None]:
    """Turns the cyclic garbage collector off: reading keeps all that it makes, so a collection would free nothing and take as long."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _read(file: Path, mark: Mark, detectors: Collection[str] | None) -> _PolicyFile:
    try:
        located = read_yaml(file, None)
    except ConfigError as error:
        return _PolicyFile(mark, None, None, tuple(error.problems))
    located = msgspec.structs.replace(located, problems=(*located.problems, *literal_secrets(located)))
    document, problems = checked(PolicyDocument, located)
    if document is not None:
        problems += unusable_rules(document, located, detectors, suggestion)
    return _PolicyFile(mark, located, document, tuple(problems))


def _without_models(policies: PolicySet, places: Mapping[str, Located]) -> Iterator[Problem]:
    """A warning for each policy that allows no model. It closes a tenant, which may be meant, so it is no mistake."""
    for policy in policies.policies():
        if not policy.models:
            located = places[policy.tenant]
            at = "models" if located.value("models") is not None else "tenant"
            everyone = policy.tenant == EVERYONE
            whose = "every other tenant" if everyone else f"tenant {policy.tenant}"
            inherited = "" if everyone or located.value("models") is not None else ", and there is no policy with models for '*' to inherit"
            message = f"the policy of {whose} has no model{inherited}, so every request is refused"
            hint = "list models, or leave it so to close them" if everyone else "list models, or leave it so to close the tenant"
            yield located.problem((at,), message, hint)


def _doubled_tenant(located: Located, tenants: dict[str, str]) -> list[Problem]:
    tenant = located.value("tenant")
    if not isinstance(tenant, str):
        return []
    first = tenants.setdefault(tenant, located.file)
    if first == located.file:
        return []
    return [located.problem(("tenant",), f"{tenant!r} has a policy already", f"keep this one or {first}")]
