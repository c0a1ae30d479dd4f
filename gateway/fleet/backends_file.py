"""`pools[].discover.file`: backends in a YAML file of their own, read again whenever it changes.

Checked like `tidegate.yaml`, with file, line, key and what to write; a file with a mistake is as good as none, so the last
good one stays in force.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Final

import msgspec
from pydantic import Field

from domain.membership import Member, SourceError, merged
from domain.strict import Strict
from gateway.settings import Settings
from gateway.settings_backend import BackendSettings
from policies.literal_secrets import literal_secrets
from policies.located_yaml import Located, read_yaml
from policies.problems import ConfigError, Path_, Problem
from policies.validated import checked

LOOK_EVERY_S: Final = 1.0
"""How often the file's identity is checked; a check costs one stat."""


class BackendsDocument(Strict):
    """A whole backends file."""

    backends: list[BackendSettings] = Field(max_length=1000, description="The engines; an empty list drains all of them.")


def read_backends(path: Path, environ: Mapping[str, str]) -> list[BackendSettings]:
    """Read and check a backends file.

    Raises:
        ConfigError: every mistake found, with file, line, key and what to write instead.
    """
    return _read(path, environ)[1].backends


def _read(path: Path, environ: Mapping[str, str]) -> tuple[Located, BackendsDocument]:
    located = read_yaml(path, environ)
    located = msgspec.structs.replace(located, problems=(*located.problems, *literal_secrets(located)))
    document, problems = checked(BackendsDocument, located)
    problems += _doubled(located)
    if document is None or problems:
        raise ConfigError(problems)
    return located, document


def _doubled(located: Located) -> list[Problem]:
    entries = located.value("backends")
    seen: set[str] = set()
    problems = []
    for i in range(len(entries) if isinstance(entries, list) else 0):
        name = located.value("backends", i, "id")
        if isinstance(name, str) and name in seen:
            problems.append(located.problem(("backends", i, "id"), f"{name!r} is listed twice", "ids are unique in the whole fleet"))
        elif isinstance(name, str):
            seen.add(name)
    return problems


def backends_files(settings: Settings) -> dict[str, Path]:
    """The file of each pool that has one, by pool."""
    return {p.name: settings.base_dir / p.discover.file for p in settings.pools if p.discover is not None and p.discover.file is not None}


def problems_in_files(settings: Settings, environ: Mapping[str, str]) -> list[Problem]:
    """Every mistake in every backends file, for the checks before a start."""
    problems: list[Problem] = []
    for path in backends_files(settings).values():
        try:
            read_backends(path, environ)
        except ConfigError as error:
            problems += error.problems
    return problems


def clashes_in_files(settings: Settings, located: Located, environ: Mapping[str, str]) -> list[Problem]:
    """Problems with backends that are listed twice, in `tidegate.yaml` and the backends files together.

    The gateway starts in spite of them, because a file may change at any time: the first entry counts. Files with mistakes are
    skipped.

    Args:
        located: `tidegate.yaml` as written.
    """
    places: list[tuple[Member, Located, Path_]] = [
        (backend.member(pool.name, "static"), located, ("pools", i, "backends", j))
        for i, pool in enumerate(settings.pools)
        for j, backend in enumerate(pool.backends)
    ]
    for name, path in backends_files(settings).items():
        try:
            written, document = _read(path, environ)
        except ConfigError:
            continue
        places += [(b.member(name, FileSource.owner), written, ("backends", j)) for j, b in enumerate(document.backends)]
    # keyed by identity: two entries may be equal
    at = {id(member): (file, key) for member, file, key in places}
    problems = []
    for clash in merged([member for member, _, _ in places], {pool.name for pool in settings.pools})[1]:
        file, key = at[id(clash.member)]
        problems.append(file.problem(key, clash.why))
    return problems


class FileSource:
    """A backends file as a source of members; read again when its identity (inode, mtime, size) changes."""

    owner: Final = "file"
    every_s = LOOK_EVERY_S
    keep_s = inf

    def __init__(self, pool: str, path: Path, environ: Mapping[str, str]) -> None:
        self.name = f"file {path.name}"
        self.pool = pool
        self._path = path
        self._environ = environ
        self._seen: tuple[int, ...] | None = None
        self._last: Sequence[Member] | SourceError = SourceError("not read yet")

    async def read(self) -> Sequence[Member]:
        """Read the file in a thread, because a file server may be slow. Raises SourceError."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> Sequence[Member]:
        try:
            stat = os.stat(self._path)
        except OSError as error:
            self._seen = None
            raise SourceError(f"{self._path} cannot be read ({error.strerror}); create it, or remove discover.file") from None
        identity = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if identity != self._seen:
            # the identity was taken before the content: a change during the reading is noticed at the next check
            self._last = self._parsed()
            self._seen = identity
        if isinstance(self._last, SourceError):
            raise self._last
        return self._last

    def _parsed(self) -> Sequence[Member] | SourceError:
        try:
            return [b.member(self.pool, self.owner) for b in read_backends(self._path, self._environ)]
        except ConfigError as error:
            return SourceError(str(error))
