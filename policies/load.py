"""Reads the policy folder: every `*.yaml` in it, every mistake at once, each with file, line and key."""

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from policies.compile import PolicySet, compiled
from policies.located_yaml import ConfigError, Located, Problem, read_yaml, validated
from policies.schema import PolicyDocument

MAX_FILES: Final = 10_000


def load_policies(folder: Path, pools: Collection[str], environ: Mapping[str, str] | None = None) -> PolicySet:
    """The policies of a folder, checked against the pools there are.

    Raises:
        ConfigError: with every problem of every file: unknown keys, dangling pools, names given twice, no file at all.
    """
    files = sorted(folder.glob("*.yaml"))
    if not files or len(files) > MAX_FILES:
        what = "has no *.yaml file; write at least one policy" if not files else f"has more than {MAX_FILES} files"
        raise ConfigError([Problem(str(folder), 1, 1, "", what)])
    problems: list[Problem] = []
    read: list[tuple[Located, PolicyDocument]] = []
    for file in files:
        try:
            located = read_yaml(file, environ or {})
            read.append((located, validated(PolicyDocument, located)))
        except ConfigError as error:
            problems += error.problems
    seen: dict[str, str] = {}
    for located, document in read:
        problems += _dangling(located, document, pools)
        first = seen.setdefault(document.tenant, located.file)
        if first != located.file:
            problems.append(located.problem(("tenant",), f"{document.tenant!r} has a policy already, in {first}; keep one"))
    if problems:
        raise ConfigError(problems)
    return compiled(document for _, document in read)


def _dangling(located: Located, document: PolicyDocument, pools: Collection[str]) -> list[Problem]:
    problems = []
    names: set[str] = set()
    for i, entry in enumerate(document.models):
        if entry.name in names:
            problems.append(located.problem(("models", i, "name"), f"{entry.name!r} is listed twice; keep one"))
        names.add(entry.name)
        if entry.pool not in pools:
            near = difflib.get_close_matches(entry.pool, pools, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(pools))}"
            problems.append(located.problem(("models", i, "pool"), f"there is no pool {entry.pool!r}; {hint}"))
    return problems
