"""The last directory in a sealed file, for a start of the gateway during an outage of its database."""

import os
from pathlib import Path
from typing import Final

import structlog

from domain.clock import WallClock
from tenancy.accounts import Contents
from tenancy.keys import Pepper
from tenancy.sealed import NotSealed, SealedDirectory, seal, unseal

log = structlog.get_logger("tidegate.directory")

MAX_AGE_S: Final = 86_400.0
"""The age in seconds beyond which a file is not used: a caller that lost access a day ago must not get it back."""
MAX_BYTES: Final = 256 * 1024 * 1024
"""A hundred thousand keys take about 30 MB."""


class DirectoryFile:
    """The sealed file, readable by its owner alone. Every worker writes the directory that it read; all read the same one.

    Args:
        path: the file; its folder has to outlive the process.
        pepper: the key of the seal.
        wall: seconds since the epoch.
    """

    def __init__(self, path: Path, pepper: Pepper, wall: WallClock) -> None:
        self._path = path
        self._pepper = pepper
        self._wall = wall
        self._complained = False

    def save(self, contents: Contents, at_unix: float) -> None:
        """Write the file, completely or not at all. A failure is only logged, once, because the file may never be needed."""
        # one temporary file per process: several workers write the same directory at once
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}.partial")
        try:
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(seal(SealedDirectory(at_unix, contents), self._pepper))
            partial.replace(self._path)
        except OSError as error:
            if not self._complained:
                log.warning("the directory cannot be kept for a start without the database", file=str(self._path), reason=error.strerror)
            self._complained = True
            return
        self._complained = False

    def load(self) -> SealedDirectory | None:
        """The saved directory; None when there is no file, it is older than `MAX_AGE_S`, or it is sealed with another pepper."""
        try:
            with open(self._path, "rb") as file:
                saved = unseal(file.read(MAX_BYTES), self._pepper)
        except FileNotFoundError:
            return None
        except (OSError, NotSealed) as error:
            log.warning("the kept directory cannot be used", file=str(self._path), reason=str(error))
            return None
        age_s = self._wall() - saved.at_unix
        if age_s > MAX_AGE_S:
            log.warning("the kept directory is too old", file=str(self._path), age_s=round(age_s), at_most_s=MAX_AGE_S)
            return None
        return saved
