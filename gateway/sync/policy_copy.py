"""Copies the policies of the database into a folder on this machine: workers read folders, and the last copy outlives an outage.

Every version is written completely into a folder of its own before a link is moved to it, so a reader through the link finds one version
or the other. `PolicyWatch` follows the link like any other folder. The folder's name has the version and a hash of its identity: another
database, or the same one restored from a backup, has different policies under the same number.
"""

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

import structlog

from domain.policy_versions import PolicyVersion, PolicyVersions
from gateway.config.settings import CURRENT_COPY
from policies.compile import PolicySet
from policies.load import load_policies
from policies.yaml.problems import ConfigError, Problem

log = structlog.get_logger("tidegate.policies")

LOOK_S: Final = 1.0
"""Seconds between two polls of the database."""
WITHIN_S: Final = 10.0
"""Time limit for the queries of one poll: a connection that neither answers nor ends counts as an outage."""
MAKING: Final = ".making-"
"""The beginning of the name of a folder that is not complete yet."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,94}\.yaml")
"""The names of policy files in the database."""
MAX_CHARS: Final = 8 * 1024 * 1024
"""The characters of all files together."""


def check_names(files: Mapping[str, str]) -> list[Problem]:
    """Problems with the names and the sizes of files."""
    problems = [
        Problem(name[:100], 1, 1, "", "is no name of a policy file", "use letters, digits, `.`, `_` and `-`, and end with .yaml")
        for name in files
        if not NAME.fullmatch(name)
    ]
    if sum(map(len, files.values())) > MAX_CHARS:
        problems.append(Problem("all files", 1, 1, "", f"have more than {MAX_CHARS:,} characters", "keep them as files"))
    return problems


def compiled_from(
    files: Mapping[str, str],
    pools: Collection[str],
    loras: Mapping[str, Collection[str] | None],
    prompts: Path | None = None,
    detectors: Collection[str] | None = None,
) -> PolicySet:
    """The policies of files that are not on disk yet, compiled with a folder of prompts. Raises ConfigError, which names places by the
    files' names."""
    if problems := check_names(files):
        raise ConfigError(problems)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
        try:
            return load_policies(folder, pools, loras, prompts, detectors)
        except ConfigError as error:
            raise ConfigError([_placed(problem, folder) for problem in error.problems]) from None


def _placed(problem: Problem, folder: Path) -> Problem:
    def shown(text: str) -> str:
        return text.replace(f"{folder}{os.sep}", "").replace(str(folder), "the policies")

    return Problem(shown(problem.file), problem.line, problem.column, problem.path, shown(problem.message), shown(problem.hint))


def texts_of(folder: Path) -> dict[str, str]:
    """The policy files of a folder.

    Raises:
        OSError: the folder cannot be read.
        UnicodeDecodeError: a file is no text.
        ConfigError: a file ends with .yml and would be left out, so that its tenant would be governed by everyone's policy.
    """
    files = sorted(file for file in folder.iterdir() if not file.name.startswith("."))
    if misnamed := [Problem(str(file), 1, 1, "", "would not be read", "call it *.yaml") for file in files if file.suffix == ".yml"]:
        raise ConfigError(misnamed)
    return {file.name: file.read_text(encoding="utf-8") for file in files if file.suffix == ".yaml"}


class PolicyCopy:
    """Keeps the folder at the newest version of the database; one per gateway.

    Args:
        folder: holds the versions and the link; made when it is not there.
    """

    def __init__(self, folder: Path, versions: PolicyVersions) -> None:
        self._folder = folder
        self._versions = versions
        self._away = False
        self._looking = asyncio.Lock()

    @property
    def version(self) -> int:
        """The version that the link leads to; 0 for none."""
        try:
            return int(self._current.removeprefix("v").partition("-")[0])
        except ValueError:
            return 0

    @property
    def _current(self) -> str:
        """The name of the folder that the link leads to; empty for no link and for a dangling one."""
        link = self._folder / CURRENT_COPY
        try:
            return os.readlink(link) if link.is_dir() else ""
        except OSError:
            return ""

    async def run(self) -> None:
        """Poll the database until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Bring the folder to the newest version; a failure leaves it as it is, and is logged once."""
        try:
            await self.follow()
        except Exception as error:  # noqa: BLE001 - drivers raise their own errors; whatever it is, the last version stays active
            if not self._away:
                log.warning("policies of the database cannot be had, the last ones stay", reason=f"{type(error).__name__}: {error}"[:200])
            self._away = True
        else:
            if self._away:
                log.info("policies of the database can be had again")
            self._away = False

    async def follow(self) -> int:
        """Bring the folder to the newest version, and return its number. Raises the errors of the database and the disk."""
        async with self._looking:
            async with asyncio.timeout(WITHIN_S):
                newest = await self._versions.newest(None, 1)
                files = await self._versions.files(newest[0].version) if newest and _folder_of(newest[0]) != self._current else None
            if files is not None:
                await asyncio.to_thread(self._write, newest[0], files)
            return self.version

    def _write(self, version: PolicyVersion, files: Mapping[str, str]) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        before = self._current
        name = _folder_of(version)
        if not (self._folder / name).is_dir():  # else a process that starts has made it meanwhile
            self._make(self._folder / name, files)
        link = self._folder / f".{CURRENT_COPY}-{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            link.unlink()
        link.symlink_to(name)
        link.replace(self._folder / CURRENT_COPY)
        log.info("policies of the database written", version=version.version, before=before, files=len(files))
        for folder in self._folder.glob("v*"):
            if folder.name not in (name, before):
                shutil.rmtree(folder, ignore_errors=True)

    def _make(self, folder: Path, files: Mapping[str, str]) -> None:
        """Make a version's folder, completely and durably, or not at all."""
        partial = Path(tempfile.mkdtemp(prefix=MAKING, dir=self._folder))
        try:
            for name, text in files.items():
                if NAME.fullmatch(name):  # names from the database are not trusted to be file names
                    with (partial / name).open("w", encoding="utf-8") as file:
                        file.write(text)
                        file.flush()
                        os.fsync(file.fileno())  # after a crash the link must not lead to files without their text
            try:
                partial.rename(folder)
            except OSError:
                if not folder.is_dir():  # another process was quicker
                    raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _folder_of(version: PolicyVersion) -> str:
    mark = sha256(f"{version.digest} {version.author} {version.at_unix!r}".encode()).hexdigest()
    return f"v{version.version}-{mark[:12]}"
