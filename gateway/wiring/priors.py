"""The assumed speeds of pools' engines where they were profiled: from the file that the pool names, else from the registry of models.

The registry is read here for them, so this is also where a starting worker says what is wrong with the revisions that pools are pinned to.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from domain.model_revisions import ModelRevisionStore, RevisionMissing
from gateway.config.load import Settings
from gateway.config.pools import PoolSettings
from routing.profile import EngineProfile, read_profile
from routing.rates import Rates

log = structlog.get_logger("tidegate.fleet")

READ_WITHIN_S: Final = 5.0
"""The longest wait of a starting worker for the registry; without an answer it assumes what it would without a profile."""


async def priors_for(settings: Settings, models: ModelRevisionStore) -> Mapping[str, Rates]:
    """The rates of the pools that were profiled, by pool; read when a worker starts, because engines are measured as they serve.

    What the registry says against the revision that a pool is pinned to is logged; the pool serves all the same.
    """
    rates: dict[str, Rates] = {}
    registry = _Registry(models)
    for pool in settings.pools:
        kept = "" if pool.pinned is None else await registry.profile_of(pool, pool.pinned.digest)
        if pool.profile is not None or kept:
            profile = await _read(pool, settings.base_dir, kept)
            if profile is not None:
                rates[pool.name] = profile.prior
                log.info("profile", pool=pool.name, source=pool.profile or pool.reference, measured_unix=profile.measured_unix)
    return rates


class _Registry:
    """What the registry of models says of the revisions that pools are pinned to. Once it did not answer in time, it is asked no more."""

    def __init__(self, models: ModelRevisionStore) -> None:
        self._models = models
        self._silent = False

    async def profile_of(self, pool: PoolSettings, digest: str) -> str:
        """The profile of the revision that the pool is pinned to with this digest; empty where the registry has none of these weights."""
        model, _, revision = pool.reference.rpartition("@")
        about = {"pool": pool.name, "revision": pool.reference}
        try:
            if self._silent:
                raise TimeoutError
            async with asyncio.timeout(READ_WITHIN_S):
                found = await self._models.get(model, revision)
        except RevisionMissing:
            log.warning("the registry of models lacks the revision that a pool is pinned to", **about)
            return ""
        except Exception as error:  # noqa: BLE001 - drivers raise their own; whatever it is, the pool serves without a profile
            self._silent = isinstance(error, TimeoutError)
            reason = f"{type(error).__name__}: {error}"[:200]
            log.warning("the registry of models cannot be asked for the revision that a pool is pinned to", **about, reason=reason)
            return ""
        if found.retired_unix is not None:
            log.warning("a pool is pinned to a revision that is retired", **about, retired_unix=found.retired_unix)
        if found.digest != digest:
            log.warning(
                "a pool is pinned to a revision with another digest than the registry has", **about, pinned=digest, has=found.digest
            )
            return ""
        return found.profile


async def _read(pool: PoolSettings, folder: Path, kept: str) -> EngineProfile | None:
    """The profile in the pool's own file, else the one that the registry keeps."""
    try:
        return read_profile(kept if pool.profile is None else await asyncio.to_thread((folder / pool.profile).read_bytes))
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the file, the pool serves without a profile
        log.warning("no profile", pool=pool.name, reason=f"{type(error).__name__}: {error}"[:200])
    return None
