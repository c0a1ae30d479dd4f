"""Reads the policy folder: every `*.yaml` in it, every mistake at once, each with file, line and key."""

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec

from policies.compile import PolicySet, compiled
from policies.literal_secrets import literal_secrets
from policies.located_yaml import Located, read_yaml
from policies.problems import ConfigError, Problem
from policies.schema import PolicyDocument
from policies.validated import checked

MAX_FILES: Final = 10_000
"""Tenants with a policy of their own. All of them are read at every start, so a folder with more is a mistake or needs a store."""

MAX_NAMED: Final = 10
"""Pools or adapters named in a hint."""


def load_policies(folder: Path, pools: Collection[str] | None, loras: Mapping[str, Collection[str]] | None = None) -> PolicySet:
    """The policies of a folder (its own files, no subfolders).

    Args:
        folder: with one `*.yaml` per tenant; names beginning with a dot are left out, as editors write them.
        pools: the pools there are; None where that is not known, so that only the policies themselves are checked.
        loras: the adapters there are, by pool; pools without any may be left out.

    Raises:
        ConfigError: with every problem of every file: unknown keys, dangling pools, names given twice, no file at all.
    """
    try:
        there = sorted(file for file in folder.iterdir() if not file.name.startswith("."))
    except OSError as error:
        raise ConfigError([Problem(str(folder), 1, 1, "", f"cannot be read: {error.strerror}", "create it with one policy")]) from None
    files = [file for file in there if file.suffix == ".yaml"]
    if not files or len(files) > MAX_FILES:
        what, hint = (
            ("has no *.yaml file", "write at least one policy") if not files else (f"has more than {MAX_FILES} files", "merge some")
        )
        raise ConfigError([Problem(str(folder), 1, 1, "", what, hint)])
    # left out silently, its tenant would be governed by everyone's policy
    problems = [Problem(str(file), 1, 1, "", "would not be read", "call it *.yaml") for file in there if file.suffix == ".yml"]
    documents: list[PolicyDocument] = []
    tenants: dict[str, str] = {}
    for file in files:
        try:
            located = read_yaml(file, None)
        except ConfigError as error:
            problems += error.problems
            continue
        located = msgspec.structs.replace(located, problems=(*located.problems, *literal_secrets(located)))
        document, found = checked(PolicyDocument, located)
        problems += [*found, *_doubled_tenant(located, tenants), *_model_problems(located, pools, loras or {})]
        if document is not None:
            documents.append(document)
    if problems:
        raise ConfigError(problems)
    return compiled(documents)


def _doubled_tenant(located: Located, tenants: dict[str, str]) -> list[Problem]:
    tenant = located.value("tenant")
    if not isinstance(tenant, str):
        return []
    first = tenants.setdefault(tenant, located.file)
    if first == located.file:
        return []
    return [located.problem(("tenant",), f"{tenant!r} has a policy already", f"keep this one or {first}")]


def _model_problems(located: Located, pools: Collection[str] | None, loras: Mapping[str, Collection[str]]) -> list[Problem]:
    """Names given twice, and pools and adapters that do not exist; looks at what was written, so that other mistakes hide none of these."""
    problems = []
    names: set[str] = set()
    entries = located.value("models")
    for i in range(len(entries) if isinstance(entries, list) else 0):
        name, pool = located.value("models", i, "name"), located.value("models", i, "pool")
        if isinstance(name, str):
            if name in names:
                problems.append(located.problem(("models", i, "name"), f"{name!r} is listed twice", "keep one"))
            names.add(name)
        if isinstance(pool, str) and pools is not None and pool not in pools:
            problems.append(located.problem(("models", i, "pool"), f"there is no pool {pool!r}", _meant(pool, pools)))
        lora, known = located.value("models", i, "lora"), loras.get(pool, ()) if isinstance(pool, str) else ()
        if isinstance(lora, str) and pools is not None and pool in pools and lora not in known:
            hint = _meant(lora, known, "write it under loras of that pool")
            problems.append(located.problem(("models", i, "lora"), f"the pool {pool!r} has no adapter {lora!r}", hint))
    return problems


def _meant(name: str, known: Collection[str], otherwise: str = "there are: none") -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    if not known:
        return otherwise
    return f"there are: {', '.join(sorted(known)[:MAX_NAMED])}{', …' if len(known) > MAX_NAMED else ''}"
