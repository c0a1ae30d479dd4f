"""Builds the detectors of a worker, once: those of pools are asked over the Upstream port, those behind a URL with `CheckedPost`."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from domain.ask import Endpoint
from domain.clock import WallClock
from gateway.config.guards import DetectorSettings, GuardModelSettings, GuardWebhookSettings, ModerationsSettings, PresidioSettings
from gateway.config.load import Settings
from gateway.config.read_secrets import read_detector_secret
from gateway.deps import Deps
from gateway.http.checked_post import CheckedPost
from gateway.signed_webhook import SIGNATURE, signature
from gateway.wiring.pool_calls import PoolCalls
from guardrails.detectors.asking import Post
from guardrails.detectors.bounded import BoundedDetector, DetectorFigures, Terms
from guardrails.detectors.breaker import DetectorBreaker
from guardrails.detectors.guard_model import GuardModel
from guardrails.detectors.moderations import Moderations
from guardrails.detectors.presidio import Presidio
from guardrails.detectors.results import Results
from guardrails.detectors.webhook import Webhook
from guardrails.ports import Detector

MODERATIONS_PATH: Final = "/v1/moderations"
ENDING_S: Final = 0.5
"""Beside the detector's own bound, which ends the wait first."""

MEANING: Final = "tidegate detectors 1"
"""Part of each version; a change of what a detector is asked, or of how its answers are read, changes it."""


def personal_detectors(settings: Settings) -> frozenset[str]:
    """The names of the detectors that look for personal data."""
    return frozenset(name for name, wanted in settings.guards.detectors.items() if isinstance(wanted, PresidioSettings))


class GuardDetectors(Mapping[str, Detector]):
    """The detectors of one worker by their names in the settings; empty until they are built."""

    def __init__(self) -> None:
        self._made: dict[str, BoundedDetector] = {}
        self._services: list[CheckedPost] = []

    def __getitem__(self, name: str) -> Detector:
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    def build(self, settings: Settings, deps: Deps) -> None:
        """Make every detector of the settings. Opens no connection.

        Raises:
            SecretError: a secret is missing or too weak.
        """
        guards = settings.guards
        results = Results(guards.remembered_bytes // settings.workers)
        for name, wanted in guards.detectors.items():
            pool = next((pool for pool in settings.pools if pool.name == getattr(wanted, "pool", None)), None)
            model = "" if pool is None else f"{pool.model}@{pool.revision}"
            detector = self._adapter(wanted, read_detector_secret(settings, name), "" if pool is None else pool.model, deps)
            terms = _terms(name, wanted, model)
            self._made[name] = BoundedDetector(detector, terms, results, DetectorBreaker(deps.rng), deps.clock, deps.loop.call_later)

    async def prepare(self) -> None:
        """Make the clients of services ready, so that no question waits for an import."""
        for service in self._services:
            await service.prepare()

    async def close(self) -> None:
        """End every question under way and close the connections."""
        for made in self._made.values():
            await made.close()
        for service in self._services:
            await service.close()

    def figures(self) -> dict[str, DetectorFigures]:
        """How each detector stands, by its name."""
        return {name: made.figures() for name, made in self._made.items()}

    def _adapter(self, wanted: DetectorSettings, secret: str | None, model: str, deps: Deps) -> Detector:
        within_s = wanted.timeout_ms / 1000 + ENDING_S
        if isinstance(wanted, GuardModelSettings):
            chat = PoolCalls(deps, wanted.pool, Endpoint.CHAT.path, within_s).post
            return GuardModel(model, wanted.form, chat, written=wanted.prompt == "written")
        if isinstance(wanted, ModerationsSettings):
            if wanted.pool is not None:
                return Moderations(PoolCalls(deps, wanted.pool, MODERATIONS_PATH, within_s).post, wanted.model or model)
            return Moderations(self._service(str(wanted.url), _bearer(secret), wanted, deps), wanted.model)
        if isinstance(wanted, GuardWebhookSettings):
            return Webhook(self._service(wanted.url, _signed(str(secret).encode(), deps.wall), wanted, deps))
        post = self._service(wanted.url, _bearer(secret), wanted, deps)
        return Presidio(post, wanted.language, wanted.entities, wanted.min_score)

    def _service(
        self,
        url: str,
        headers: Callable[[bytes], Mapping[str, str]],
        wanted: ModerationsSettings | GuardWebhookSettings | PresidioSettings,
        deps: Deps,
    ) -> Post:
        service = CheckedPost(url, headers, deps.clock, private=wanted.private, connections=wanted.at_once)
        self._services.append(service)
        return service.post


def _bearer(secret: str | None) -> Callable[[bytes], Mapping[str, str]]:
    headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
    return lambda _body: headers


def _signed(secret: bytes, wall: WallClock) -> Callable[[bytes], Mapping[str, str]]:
    return lambda body: {SIGNATURE: signature(secret, int(wall()), body)}


def _terms(name: str, wanted: DetectorSettings, model: str) -> Terms:
    """The bounds of a detector; its version changes with its name, its settings, and with the model and revision of its pool."""
    written = json.dumps([MEANING, name, wanted.model_dump(mode="json"), model], sort_keys=True, separators=(",", ":"))
    return Terms(
        version=hashlib.sha256(written.encode()).hexdigest(),
        timeout_s=wanted.timeout_ms / 1000,
        at_once=wanted.at_once,
        at_once_of_tenant=wanted.at_once_per_tenant,
        max_chars=wanted.max_chars,
        overlap_chars=wanted.overlap_chars,
        remember_s=wanted.remember_s,
    )
