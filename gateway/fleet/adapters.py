"""Adapters that operators register over the admin API, beside those of the settings.

- `AdapterRegistry` checks a registration in the admin process, and refuses it with a sentence that gives the reason and the remedy.
- `RegisteredAdapters` follows the registrations in a worker: the store's change counter is read every two seconds, the rows only when it
  moved. While the database is away the last registrations stay in force. They are saved in the run directory too, so that a worker that
  starts during the outage has them; like the rest of that folder they end with the gateway.

A pool takes registrations only where its settings have `lora_folder`, and only for adapters below that folder: whoever may register
adapters cannot make engines read other files.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
import structlog
from pydantic import AfterValidator, Field, StringConstraints

from backends.lora.digest import DigestCheck
from backends.lora.residency import Adapter
from domain.adapters import AdaptersFull, AdapterStore, AdapterTaken, RegisteredAdapter
from domain.clock import WallClock
from domain.strict import Strict
from gateway.config.pools import LoraName, Name, PoolSettings, checked_engine_path
from gateway.fleet.registry import FleetRefusal

log = structlog.get_logger("tidegate.adapters")

DIGEST_WITHIN_S: Final = 8.0
"""The longest wait for the reading of an adapter's files at its registration: some GB from a quick disk, within the patience of the command
line. A longer reading goes on, so that a later attempt succeeds."""
READ_WITHIN_S: Final = 10.0
"""The longest wait for the store: a database that accepts connections and does not answer counts as an outage."""
KEPT_FILE: Final = "registered-adapters.json"
MAX_KEPT_BYTES: Final = 8 * 1024 * 1024
"""A thousand adapters with the longest paths take 4.4 MB."""


def _checked_digest(digest: str) -> str:
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise ValueError("is no SHA-256 in 64 lower-case hexadecimal digits; `tidegate lora digest FOLDER` prints it")
    return digest


class AdapterRegistration(Strict):
    """The description of an adapter that is to be registered."""

    pool: Name = Field(description="The pool whose engines load the adapter.")
    name: LoraName = Field(description="Name of the adapter in policies and grants; letters, digits and inner `.`, `_`, `-`.")
    digest: Annotated[str, StringConstraints(max_length=256), AfterValidator(_checked_digest)] = Field(
        description="SHA-256 of the adapter's files, as `tidegate lora digest FOLDER` prints it."
    )
    path: Annotated[str, StringConstraints(max_length=4096), AfterValidator(checked_engine_path)] = Field(
        description="The adapter's folder on the engines' machines, below the pool's `lora_folder`."
    )


class AdapterRegistry:
    """Operators' changes of the registered adapters. They are written to the store that a call is given, which takes part in a
    transaction.

    Args:
        pools: the pools of the settings.
        wall: the time of a registration.
    """

    def __init__(self, pools: Sequence[PoolSettings], wall: WallClock) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._wall = wall
        self._files = DigestCheck()

    async def checked(self, wanted: AdapterRegistration) -> RegisteredAdapter:
        """The adapter that would be registered. Reads the adapter's files where this machine has them, so it is called before a
        transaction is open. Raises FleetRefusal."""
        pool = self._pools.get(wanted.pool)
        if pool is None:
            known = ", ".join(self._pools)[:500]
            raise FleetRefusal(400, "unknown_pool", f"pool: there is no pool {wanted.pool!r}; there are: {known}.")
        if pool.lora_folder is None:
            message = f"pool: pool {wanted.pool!r} takes no registrations; set its lora_folder, or write the adapter to tidegate.yaml."
            raise FleetRefusal(409, "registration_off", message)
        if wanted.name in {lora.name for lora in pool.loras}:
            message = f"name: pool {wanted.pool!r} has an adapter {wanted.name!r} in tidegate.yaml; choose another name."
            raise FleetRefusal(409, "adapter_exists", message)
        if bases := sorted(one.name for one in self._pools.values() if one.model == wanted.name):
            message = f"name: {wanted.name!r} is the base model of pool {bases[0]!r}; choose another name."
            raise FleetRefusal(409, "adapter_exists", message)
        if refusal := await asyncio.to_thread(_outside, wanted.path, pool.lora_folder):
            raise FleetRefusal(400, "path_not_allowed", f"path: {refusal}.")
        differs = await self._files.mismatch(Adapter(wanted.name, wanted.digest, wanted.path), DIGEST_WITHIN_S)
        if differs:
            raise FleetRefusal(409, "digest_differs", f"digest: {differs}.")
        return RegisteredAdapter(wanted.pool, wanted.name, wanted.digest, wanted.path)

    async def register(self, adapter: RegisteredAdapter, store: AdapterStore) -> None:
        """Add an adapter. Raises FleetRefusal."""
        try:
            await store.add(adapter, self._wall())
        except AdapterTaken as error:
            message = f"name: {error}; choose another name, or delete that one first."
            raise FleetRefusal(409, "adapter_exists", message) from None
        except AdaptersFull as error:
            raise FleetRefusal(409, "too_many_adapters", f"{error}.") from None

    async def remove(self, pool: str, name: str, store: AdapterStore) -> None:
        """Remove a registered adapter. Raises FleetRefusal."""
        if await store.remove(pool, name):
            return
        settings = self._pools.get(pool)
        if settings is not None and name in {lora.name for lora in settings.loras}:
            raise FleetRefusal(409, "not_registered", f"The adapter {name!r} belongs to tidegate.yaml; take it out there.")
        raise FleetRefusal(404, "adapter_not_found", f"Pool {pool!r} has no registered adapter {name!r}; `tidegate lora list` shows them.")


def _outside(path: str, folder: str) -> str:
    """Why a path may not be registered in a pool with this `lora_folder`; empty when it may. Links can be followed only where this machine
    has the files too."""
    if not _below(path, folder):
        return f"{path!r} is not below {folder!r}, the lora_folder of the pool"
    real = os.path.realpath(path)
    return "" if _below(real, os.path.realpath(folder)) else f"{path!r} is a link to {real!r}, which is not below {folder!r}"


def _below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


class _KeptAdapters(msgspec.Struct, frozen=True):
    """The registrations as a file holds them."""

    adapters: list[RegisteredAdapter]


class RegisteredAdapters:
    """The registrations as one worker follows them.

    Args:
        store: the store.
        run_dir: where the last registrations are saved.
        take: called with all registered adapters, by pool and name, at the start and whenever they changed.
    """

    def __init__(self, store: AdapterStore, run_dir: Path, take: Callable[[Mapping[str, Mapping[str, Adapter]]], None]) -> None:
        self._store = store
        self._file = run_dir / KEPT_FILE
        self._take = take
        self._version = -1
        self._away = False

    async def first(self) -> None:
        """Read the registrations to start with: the store's, or during an outage those that another worker saved."""
        await self.look()
        if self._version < 0 and (kept := await asyncio.to_thread(self._kept)) is not None:
            self._take(_by_pool(kept))

    async def look(self) -> None:
        """Read the counter once, and the rows when it moved. An outage changes nothing; its begin and end are logged."""
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                version = await self._store.version()
                if version == self._version:
                    self._back()
                    return
                adapters = await self._store.load()
        except Exception as error:  # noqa: BLE001 - drivers raise their own; whatever it is, the last registrations stay in force
            if not self._away:
                reason = f"{type(error).__name__}: {error}"[:200]
                log.warning("registered adapters cannot be read; the last ones stay in force", reason=reason)
            self._away = True
            return
        self._version = version
        self._back()
        self._take(_by_pool(adapters))
        if adapters or self._file.exists():  # most gateways never have any
            await asyncio.to_thread(self._keep, adapters)

    def _back(self) -> None:
        if self._away:
            log.info("registered adapters can be read again")
        self._away = False

    def _keep(self, adapters: list[RegisteredAdapter]) -> None:
        # one temporary file per process: several workers write the same answer at once
        partial = self._file.with_name(f".{KEPT_FILE}.{os.getpid()}.partial")
        try:
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(_KeptAdapters(adapters)))
            partial.replace(self._file)
        except OSError as error:
            log.warning("registered adapters cannot be kept", reason=str(error.strerror))

    def _kept(self) -> list[RegisteredAdapter] | None:
        try:
            with open(self._file, "rb") as file:
                return msgspec.json.decode(file.read(MAX_KEPT_BYTES), type=_KeptAdapters).adapters
        except (OSError, msgspec.DecodeError):
            return None


def adapters_of(pools: Sequence[PoolSettings]) -> list[RegisteredAdapter]:
    """The adapters of the settings, in the form of registered ones."""
    return [RegisteredAdapter(pool.name, lora.name, lora.digest, lora.path) for pool in pools for lora in pool.loras]


def _by_pool(adapters: Sequence[RegisteredAdapter]) -> dict[str, dict[str, Adapter]]:
    by_pool: dict[str, dict[str, Adapter]] = {}
    for one in adapters:
        by_pool.setdefault(one.pool, {})[one.name] = Adapter(one.name, one.digest, one.path)
    return by_pool
