"""The sources of backends that are read while the gateway runs, and what this gateway keeps on disk about them.

- `FileSource`: `pools[].discover.file`, a YAML file of backends, read again whenever it changes. It is checked like `tidegate.yaml`, with
  file, line, key and what to write; a file with a mistake is as good as none, so the last good one stays in force.
- `RegisteredSource`: the backends that operators registered. The store's change counter is read often, the rows only when it moved.
- `LastGood`: the last good answer of each source, saved in the run directory: a worker that starts while a file has a mistake, or DNS is
  down, serves with the backends that the other workers serve with. It ends with the gateway, as the run directory does.
- `read_orders`, `order_drain`, `end_drain`: the backends that an operator has drained at this gateway. The admin process writes the list,
  every worker reads it. It lies in the run directory, so the drains hold for all workers, also for workers started later, and end with the
  gateway. Drains of registered backends are not here: they are stored with the registration, for every gateway on the database.

`gateway/fleet/membership.py` merges what the sources answer.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Final

import msgspec
import structlog
from pydantic import Field

from domain.clock import WallClock
from domain.membership import Member, MemberSource, MemberStore, SourceError, merged
from domain.strict import Strict
from gateway.config.load import Settings
from gateway.config.pools import BackendSettings
from gateway.process.worker_link import publish
from policies.yaml.located import Located, read_yaml
from policies.yaml.problems import ConfigError, Path_, Problem
from policies.yaml.validate import checked, literal_secrets

log = structlog.get_logger("tidegate.discovery")

MAX_LAST_GOOD_BYTES: Final = 4 * 1024 * 1024
"""A thousand members with the longest URLs take 3 MB."""


class LastGoodAnswer(msgspec.Struct, frozen=True):
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
                file.write(msgspec.json.encode(LastGoodAnswer(self._wall(), list(members))))
            partial.replace(self._run_dir / name)
        except OSError as error:
            log.warning("last answer cannot be kept", source=source.name, reason=str(error.strerror))

    def load(self, source: MemberSource) -> tuple[list[Member], float] | None:
        """The saved answer and its age in seconds; None when there is none, or it is older than the source allows."""
        try:
            with open(self._run_dir / file_of(source), "rb") as file:
                answer = msgspec.json.decode(file.read(MAX_LAST_GOOD_BYTES), type=LastGoodAnswer)
        except (OSError, msgspec.DecodeError):
            return None
        age_s = max(0.0, self._wall() - answer.at_unix)
        return (answer.members, age_s) if age_s <= source.keep_s else None


def file_of(source: MemberSource) -> str:
    """The name of the source's file in the run directory."""
    return f"kept-{sha256(f'{source.owner} {source.pool} {source.name}'.encode()).hexdigest()[:16]}.json"


DRAINS_FILE: Final = "drains.json"
MAX_ORDERS_BYTES: Final = 1024 * 1024
"""A thousand ids of 64 characters take 90 KB."""


class DrainOrders(msgspec.Struct, frozen=True):
    """Grace in seconds by backend id."""

    drained: dict[str, float] = {}


class OrdersUnreadable(Exception):
    """The file of drains exists and cannot be read; the message names the file and the reason."""


def read_orders(run_dir: Path) -> Mapping[str, float]:
    """The active drains: grace in seconds by backend id; empty when there is no file. Raises OrdersUnreadable."""
    try:
        with open(run_dir / DRAINS_FILE, "rb") as file:
            return msgspec.json.decode(file.read(MAX_ORDERS_BYTES), type=DrainOrders).drained
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise OrdersUnreadable(f"{run_dir / DRAINS_FILE}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OrdersUnreadable(f"{run_dir / DRAINS_FILE}: {error}") from None


def order_drain(run_dir: Path, backend_id: str, grace_s: float) -> None:
    """Drain a backend at this gateway. Raises OSError when the file cannot be written, OrdersUnreadable when earlier drains would be
    lost."""
    publish(run_dir, DRAINS_FILE, DrainOrders({**read_orders(run_dir), backend_id: grace_s}))


def end_drain(run_dir: Path, backend_id: str) -> bool:
    """End the drain of a backend; False when it was not drained at this gateway. Raises as `order_drain` does."""
    orders = dict(read_orders(run_dir))
    if orders.pop(backend_id, None) is None:
        return False
    publish(run_dir, DRAINS_FILE, DrainOrders(orders))
    return True


STORE_LOOK_EVERY_S: Final = 2.0
"""Seconds between two reads of the counter: every worker of every gateway sees a registration within 5 s (two reads and a load), as
with keys."""


class RegisteredSource:
    """The registered backends of the database as a source of members."""

    name = "admin API"
    owner: Final = "registered"
    pool = ""
    every_s = STORE_LOOK_EVERY_S
    keep_s = inf

    def __init__(self, store: MemberStore) -> None:
        self._store = store
        self._version = -1
        self._last: Sequence[Member] = ()

    async def read(self) -> Sequence[Member]:
        """Read the counter, and load the rows when it moved. Raises SourceError."""
        try:
            version = await self._store.version()
            if version != self._version:
                self._last = await self._store.load()
                self._version = version
        except Exception as error:  # noqa: BLE001 - drivers raise their own; whatever it is, the last answer stays in force
            raise SourceError(f"the database cannot be read ({type(error).__name__}: {error})"[:200]) from None
        return self._last


FILE_LOOK_EVERY_S: Final = 1.0
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
    every_s = FILE_LOOK_EVERY_S
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
