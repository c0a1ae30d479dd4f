"""The last good answer of each source of backends, saved in the run directory: a worker that starts while a file has a mistake, or
DNS is down, serves with the backends that the other workers serve with. Ends with the gateway, as the run directory does.
"""

import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
import structlog

from domain.clock import WallClock
from domain.membership import Member, MemberSource

log = structlog.get_logger("tidegate.discovery")

MAX_BYTES: Final = 4 * 1024 * 1024
"""A thousand members with the longest URLs take 3 MB."""


class Kept(msgspec.Struct, frozen=True):
    """One answer of a source, and when it was given."""

    at_unix: float
    members: list[Member]


class LastGood:
    """The saved answers. Every worker saves what it reads; all workers read the same files."""

    def __init__(self, run_dir: Path, wall: WallClock) -> None:
        self._run_dir = run_dir
        self._wall = wall

    def save(self, source: MemberSource, members: Sequence[Member]) -> None:
        """Save an answer; a failure to write is only logged, because the saved answer may never be needed."""
        try:
            name = file_of(source)
            # one temporary file per process: several workers write the same answer at once
            partial = self._run_dir / f".{name}.{os.getpid()}.partial"
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(Kept(self._wall(), list(members))))
            partial.replace(self._run_dir / name)
        except OSError as error:
            log.warning("last answer cannot be kept", source=source.name, reason=str(error.strerror))

    def load(self, source: MemberSource) -> tuple[list[Member], float] | None:
        """The saved answer and its age in seconds; None when there is none, or it is older than the source allows."""
        try:
            with open(self._run_dir / file_of(source), "rb") as file:
                answer = msgspec.json.decode(file.read(MAX_BYTES), type=Kept)
        except (OSError, msgspec.DecodeError):
            return None
        age_s = max(0.0, self._wall() - answer.at_unix)
        return (answer.members, age_s) if age_s <= source.keep_s else None


def file_of(source: MemberSource) -> str:
    """The name of the source's file in the run directory."""
    return f"kept-{sha256(f'{source.owner} {source.pool} {source.name}'.encode()).hexdigest()[:16]}.json"
