"""The last directory in a sealed file, which a gateway starts with while its database is away."""

import os
from pathlib import Path
from typing import Final

import structlog

from domain.clock import WallClock
from tenancy.accounts import Contents
from tenancy.keys import Pepper
from tenancy.sealed import Kept, NotSealed, seal, unseal

log = structlog.get_logger("tidegate.directory")

MAX_AGE_S: Final = 86_400.0
"""An older file is not used: who lost access a day ago must not have it again."""
MAX_BYTES: Final = 256 * 1024 * 1024
"""A hundred thousand keys take about 30 MB."""


class DirectoryFile:
    """Every worker writes what it read, and they read the same. Its owner alone can read it.

    Args:
        path: of the file; its folder has to outlive the process.
        pepper: what it is sealed with.
        wall: seconds since the epoch.
    """

    def __init__(self, path: Path, pepper: Pepper, wall: WallClock) -> None:
        self._path = path
        self._pepper = pepper
        self._wall = wall
        self._complained = False

    def save(self, contents: Contents, at_unix: float) -> None:
        """Write it, whole or not at all. Where it cannot be written this is logged once, since it may never be needed."""
        # of its own for each process: several write the same at once
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}.partial")
        try:
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(seal(Kept(at_unix, contents), self._pepper))
            partial.replace(self._path)
        except OSError as error:
            if not self._complained:
                log.warning("the directory cannot be kept for a start without the database", file=str(self._path), reason=error.strerror)
            self._complained = True
            return
        self._complained = False

    def load(self) -> Kept | None:
        """What was kept; None when there is nothing, it is older than a day, or it is not ours."""
        try:
            with open(self._path, "rb") as file:
                kept = unseal(file.read(MAX_BYTES), self._pepper)
        except FileNotFoundError:
            return None
        except (OSError, NotSealed) as error:
            log.warning("the kept directory cannot be used", file=str(self._path), reason=str(error))
            return None
        age_s = self._wall() - kept.at_unix
        if age_s > MAX_AGE_S:
            log.warning("the kept directory is too old", file=str(self._path), age_s=round(age_s), at_most_s=MAX_AGE_S)
            return None
        return kept
