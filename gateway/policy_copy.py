"""Policies of the database as a folder on this machine: workers read folders, and what was written there last outlives an outage.

Every version is written into a folder of its own, whole, before a link is moved to it; who reads through the link finds one version or
the other. `PolicyWatch` follows it like any other folder. The folder's name has the version and a mark of what it is: another database, or
the same one put back from a backup, has other policies by the same number.
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
from gateway.settings_stores import CURRENT
from policies.compile import PolicySet
from policies.load import load_policies
from policies.problems import ConfigError, Problem

log = structlog.get_logger("tidegate.policies")

LOOK_S: Final = 1.0
WITHIN_S: Final = 10.0
"""Longest time for what the database is asked in one look: a connection that neither answers nor ends is one to a database that is away."""
MAKING: Final = ".making-"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,94}\.yaml")
MAX_CHARS: Final = 8 * 1024 * 1024
"""Of all files together."""


def check_names(files: Mapping[str, str]) -> list[Problem]:
    """What is wrong with the names and the sizes."""
    found = [
        Problem(name[:100], 1, 1, "", "is no name of a policy file", "use letters, digits, `.`, `_` and `-`, and end with .yaml")
        for name in files
        if not NAME.fullmatch(name)
    ]
    if sum(map(len, files.values())) > MAX_CHARS:
        found.append(Problem("all files", 1, 1, "", f"have more than {MAX_CHARS:,} characters", "keep them as files"))
    return found


def compiled_from(
    files: Mapping[str, str], pools: Collection[str], loras: Mapping[str, Collection[str]], prompts: Path | None = None
) -> PolicySet:
    """What files mean that are nowhere yet, beside a folder of prompts. Raises ConfigError, with the places in them by their names."""
    if problems := check_names(files):
        raise ConfigError(problems)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
        try:
            return load_policies(folder, pools, loras, prompts)
        except ConfigError as error:
            raise ConfigError([_placed(problem, folder) for problem in error.problems]) from None


def _placed(problem: Problem, folder: Path) -> Problem:
    def shown(text: str) -> str:
        return text.replace(f"{folder}{os.sep}", "").replace(str(folder), "the policies")

    return Problem(shown(problem.file), problem.line, problem.column, problem.path, shown(problem.message), shown(problem.hint))


def texts_of(folder: Path) -> dict[str, str]:
    """The policy files of a folder.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: a file is no text.
        ConfigError: a file is called as if it were one and would be left out, its tenant governed by everyone's policy.
    """
    there = sorted(file for file in folder.iterdir() if not file.name.startswith("."))
    if astray := [Problem(str(file), 1, 1, "", "would not be read", "call it *.yaml") for file in there if file.suffix == ".yml"]:
        raise ConfigError(astray)
    return {file.name: file.read_text(encoding="utf-8") for file in there if file.suffix == ".yaml"}


class PolicyCopy:
    """See the module.

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
        """The version that is read here; 0 for none."""
        try:
            return int(self._read.removeprefix("v").partition("-")[0])
        except ValueError:
            return 0

    @property
    def _read(self) -> str:
        """The folder that the link leads to; empty for none, also where it leads nowhere."""
        link = self._folder / CURRENT
        try:
            return os.readlink(link) if link.is_dir() else ""
        except OSError:
            return ""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Bring the folder to the newest version; what cannot be asked or written leaves it as it is."""
        try:
            await self.follow()
        except Exception as error:  # noqa: BLE001 - drivers raise their own; whatever it is, the last version stays in force
            if not self._away:
                log.warning("policies of the database cannot be had, the last ones stay", reason=f"{type(error).__name__}: {error}"[:200])
            self._away = True
        else:
            if self._away:
                log.info("policies of the database can be had again")
            self._away = False

    async def follow(self) -> int:
        """The same; raises what the database and the disk do. Returns the version that is read here."""
        async with self._looking:
            async with asyncio.timeout(WITHIN_S):
                newest = await self._versions.newest(None, 1)
                files = await self._versions.files(newest[0].version) if newest and _folder_of(newest[0]) != self._read else None
            if files is not None:
                await asyncio.to_thread(self._write, newest[0], files)
            return self.version

    def _write(self, version: PolicyVersion, files: Mapping[str, str]) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        before, name = self._read, _folder_of(version)
        if not (self._folder / name).is_dir():  # else a process that starts has just made it
            self._make(self._folder / name, files)
        link = self._folder / f".{CURRENT}-{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            link.unlink()
        link.symlink_to(name)
        link.replace(self._folder / CURRENT)
        log.info("policies of the database written", version=version.version, before=before, files=len(files))
        for other in self._folder.glob("v*"):
            if other.name not in (name, before):
                shutil.rmtree(other, ignore_errors=True)

    def _make(self, folder: Path, files: Mapping[str, str]) -> None:
        """A version's folder, whole and on disk, or none."""
        made = Path(tempfile.mkdtemp(prefix=MAKING, dir=self._folder))
        try:
            for name, text in files.items():
                if NAME.fullmatch(name):  # what a database holds is not trusted to be a name
                    with (made / name).open("w", encoding="utf-8") as file:
                        file.write(text)
                        file.flush()
                        os.fsync(file.fileno())  # after a crash the link must not lead to files without their text
            try:
                made.rename(folder)
            except OSError:
                if not folder.is_dir():  # another process was quicker
                    raise
        finally:
            shutil.rmtree(made, ignore_errors=True)


def _folder_of(version: PolicyVersion) -> str:
    mark = sha256(f"{version.digest} {version.author} {version.at_unix!r}".encode()).hexdigest()
    return f"v{version.version}-{mark[:12]}"
