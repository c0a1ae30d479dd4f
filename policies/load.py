"""Reads the policy folder and that of the prompts: every `*.yaml` in them, every mistake at once, each with file, line and key."""

import gc
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from policies.compile import PolicySet, compiled
from policies.dangling import dangling
from policies.literal_secrets import literal_secrets
from policies.located_yaml import Located, read_yaml
from policies.marks import Mark, mark_of, visible_files
from policies.problems import ConfigError, Problem
from policies.prompts.allowed import Registry, allowed_problems
from policies.prompts.folder import PromptFolder
from policies.schema import EVERYONE, PolicyDocument
from policies.validated import checked

MAX_FILES: Final = 10_000
"""Tenants with a policy of their own. All of them are read at every start, so a folder with more is a mistake or needs a store."""


class _Read(msgspec.Struct, frozen=True):
    mark: Mark
    located: Located | None
    document: PolicyDocument | None
    problems: tuple[Problem, ...]


class PolicyFolder:
    """A folder of policies that may change. What was read of a file stays for as long as the file stays.

    Args:
        folder: with one `*.yaml` per tenant, its own files, no subfolders; names beginning with a dot are left out, as editors write them.
        pools: the pools there are; None where that is not known, so that only the policies themselves are checked.
        loras: the adapters there are, by pool; pools without any may be left out.
        prompts: the folder of prompts, which need not be there; None where it is not known, so that policies may name any.
    """

    def __init__(
        self,
        folder: Path,
        pools: Collection[str] | None,
        loras: Mapping[str, Collection[str]] | None = None,
        prompts: Path | None = None,
    ) -> None:
        self._folder = folder
        self._pools = pools
        self._loras = loras or {}
        self._prompts = None if prompts is None else PromptFolder(prompts)
        self._read: dict[Path, _Read] = {}

    def marks(self) -> dict[str, Mark]:
        """What is there now, by name; different as soon as anything changed. Empty when the folder cannot be read."""
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
            there = visible_files(self._folder)
            marks = {file: mark_of(file) for file in there if file.suffix == ".yaml"}
        except OSError as error:
            said = f"cannot be read: {error.strerror}"
            raise ConfigError([Problem(str(self._folder), 1, 1, "", said, "create it with one policy")]) from None
        if not marks or len(marks) > MAX_FILES:
            what, hint = (
                ("has no *.yaml file", "write at least one policy") if not marks else (f"has more than {MAX_FILES} files", "merge some")
            )
            raise ConfigError([Problem(str(self._folder), 1, 1, "", what, hint)])
        before = self._read
        # left out silently, its tenant would be governed by everyone's policy
        problems = [Problem(str(file), 1, 1, "", "would not be read", "call it *.yaml") for file in there if file.suffix == ".yml"]
        with _nothing_collected():
            self._read = {
                file: before[file] if file in before and before[file].mark == mark else _read(file, mark) for file, mark in marks.items()
            }
            prompts, found = (None, []) if self._prompts is None else self._prompts.read()
            return self._joined(problems + found, prompts)

    def _joined(self, problems: list[Problem], prompts: Registry | None) -> PolicySet:
        tenants: dict[str, str] = {}
        everyone = next((one.located for one in self._read.values() if one.located and one.located.value("tenant") == EVERYONE), None)
        for one in self._read.values():
            problems += one.problems
            if one.located is not None:
                problems += _doubled_tenant(one.located, tenants)
                problems += dangling(one.located, everyone, self._pools, self._loras)
                problems += [] if prompts is None else allowed_problems(one.located, prompts)
        if problems:
            raise ConfigError(problems)
        return compiled((one.document for one in self._read.values() if one.document is not None), prompts or {})


def load_policies(
    folder: Path, pools: Collection[str] | None, loras: Mapping[str, Collection[str]] | None = None, prompts: Path | None = None
) -> PolicySet:
    """The policies of a folder, once; see `PolicyFolder`. Raises ConfigError."""
    return PolicyFolder(folder, pools, loras, prompts).read()


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """All that is read is kept, so looking through it for what is not would find nothing, and take as long as reading it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _read(file: Path, mark: Mark) -> _Read:
    try:
        located = read_yaml(file, None)
    except ConfigError as error:
        return _Read(mark, None, None, tuple(error.problems))
    located = msgspec.structs.replace(located, problems=(*located.problems, *literal_secrets(located)))
    document, problems = checked(PolicyDocument, located)
    return _Read(mark, located, document, tuple(problems))


def _doubled_tenant(located: Located, tenants: dict[str, str]) -> list[Problem]:
    tenant = located.value("tenant")
    if not isinstance(tenant, str):
        return []
    first = tenants.setdefault(tenant, located.file)
    if first == located.file:
        return []
    return [located.problem(("tenant",), f"{tenant!r} has a policy already", f"keep this one or {first}")]
