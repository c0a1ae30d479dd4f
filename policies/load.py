"""Reads the folder of policies and the folder of prompts: every `*.yaml` in them, every mistake at once, each with file, line and key."""

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
        loras: all adapters by pool; pools without adapters may be left out.
        prompts: the folder of prompts, which need not exist; None when it is not known, so that policies may name any prompt.
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
                file: cached[file] if file in cached and cached[file].mark == mark else _read(file, mark) for file, mark in marks.items()
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
        return compiled((file.document for file in self._files.values() if file.document is not None), prompts or {})


def load_policies(
    folder: Path, pools: Collection[str] | None, loras: Mapping[str, Collection[str]] | None = None, prompts: Path | None = None
) -> PolicySet:
    """The policies of a folder as they are now; arguments as for `PolicyFolder`. Raises ConfigError."""
    return PolicyFolder(folder, pools, loras, prompts).read()


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


def _read(file: Path, mark: Mark) -> _PolicyFile:
    try:
        located = read_yaml(file, None)
    except ConfigError as error:
        return _PolicyFile(mark, None, None, tuple(error.problems))
    located = msgspec.structs.replace(located, problems=(*located.problems, *literal_secrets(located)))
    document, problems = checked(PolicyDocument, located)
    return _PolicyFile(mark, located, document, tuple(problems))


def _doubled_tenant(located: Located, tenants: dict[str, str]) -> list[Problem]:
    tenant = located.value("tenant")
    if not isinstance(tenant, str):
        return []
    first = tenants.setdefault(tenant, located.file)
    if first == located.file:
        return []
    return [located.problem(("tenant",), f"{tenant!r} has a policy already", f"keep this one or {first}")]
