"""Builds the similar questions of a worker when a request first asks for them: most gateways never load an embedder."""

import asyncio
import functools
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from cache.ports import Selection
from domain.ask import Endpoint
from gateway.answers.cache import AuditedHits, SimilarState
from gateway.config.cache import SemanticSettings
from gateway.config.load import Settings
from gateway.deps import Deps
from gateway.wiring.pool_calls import PoolCalls

if TYPE_CHECKING:
    from cache.embedders.packaged import PackagedModel
    from cache.semantic.agreement import Judge
    from cache.semantic.ports import Embedder, QuestionIndex
    from gateway.answers.semantic import SemanticCache

AGAIN_S: Final = 30.0
"""After what could not be made ready, the next try comes no sooner."""
JUDGE_S: Final = 60.0
PATIENT_S: Final = 10.0
"""For vectors that no request waits for."""
ENDING_S: Final = 0.5
"""Beside the embedder's own bound, which ends the wait first."""

log = structlog.get_logger("tidegate.cache")


class SemanticOnDemand:
    """The similar questions of one worker (`gateway.answers.cache.SemanticSource`)."""

    def __init__(self, settings: Settings, deps: Deps) -> None:
        self.why = ""
        self._settings = settings
        self._deps = deps
        self._made: SemanticCache | None = None
        self._making: asyncio.Task[None] | None = None
        self._tried_at = -AGAIN_S

    def ready(self) -> "SemanticCache | None":
        made = self._made
        if made is None and self._making is None and self._deps.clock() - self._tried_at >= AGAIN_S:
            self._tried_at = self._deps.clock()
            self._making = self._deps.loop.create_task(self._make())
        return made

    def state(self) -> SimilarState:
        if self._made is not None:
            return SimilarState("ready", self._made.index.figures())
        return SimilarState(self.why or ("unused" if self._making is None else "starting"))

    def audited(self) -> list[AuditedHits]:
        """What audits say of the hits of each owner; nothing before there are any."""
        return [] if self._made is None else self._made.audited()

    async def purge(self, selection: Selection) -> int:
        """Remove questions of this worker. A shared index is asked even by a worker that has not looked anything up yet."""
        if self._made is None and self._settings.cache.semantic.index is not None:
            index = await index_for(self._settings)
            try:
                return await index.purge(selection)
            finally:
                await index.close()
        return 0 if self._made is None else await self._made.purge(selection)

    async def _make(self) -> None:
        try:
            self._made = await semantic_for(self._settings, self._deps)
            self.why = ""
            log.info("similar questions are looked up", embedder=self._made.embedder.version, index=self._made.index.figures().kind)
        except Exception as error:  # noqa: BLE001 - drivers and packages raise their own; the cache goes on without similar questions
            self.why = str(error)[:300] or type(error).__name__
            log.warning("similar questions cannot be looked up", reason=self.why, again_in_s=AGAIN_S)
        finally:
            self._making = None

    async def close(self) -> None:
        """End what is being made, and connections."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)
        if self._made is not None:
            await self._made.close()


async def semantic_for(settings: Settings, deps: Deps) -> "SemanticCache":
    """The similar questions of the settings. Raises what an embedder's package or a shared index raises where it cannot be used."""
    index = await index_for(settings)
    try:
        embedder, patient = await embedders_for(settings.cache.semantic, deps)
        from gateway.answers.semantic import SemanticCache

        return SemanticCache(
            embedder,
            index,
            patient=patient,
            judge=judge_for(settings.cache.semantic, deps),
            find=deps.answers.find_one,
            rng=deps.rng,
            wall=deps.wall,
            log_defect=deps.log_defect,
        )
    except BaseException:
        await index.close()
        raise


async def embedders_for(settings: SemanticSettings, deps: Deps) -> "tuple[Embedder, Embedder]":
    """The embedder that the settings name, for look-ups and for what is learned behind replies: that of the package, or a pool's engines.

    Raises:
        PackageUnusable: the extra is missing, or is another version than expected.
    """
    timeout_s, pool = settings.wait_ms / 1000, settings.embedder_pool
    if pool is None:
        made = patient = await asyncio.to_thread(_packaged, timeout_s)
    else:
        made, patient = _of_pool(pool, timeout_s, deps), _of_pool(pool, PATIENT_S, deps)
    from cache.embedders.remembered import RememberedVectors

    return RememberedVectors(made), patient


def _packaged(timeout_s: float) -> "Embedder":
    from cache.embedders.batched import BatchedEmbedder

    return BatchedEmbedder(_packaged_model(), timeout_s)


@functools.cache
def _packaged_model() -> "PackagedModel":
    """The model of the package, which all gateways of a process share: it never changes, and takes 32 MB."""
    from cache.embedders.packaged import PackagedModel

    return PackagedModel()


def _of_pool(name: str, timeout_s: float, deps: Deps) -> "Embedder":
    from cache.embedders.engine import EngineEmbedder

    pool = deps.live.fleet.pools[name]
    post = PoolCalls(deps, name, Endpoint.EMBEDDINGS.path, timeout_s + ENDING_S).post
    model = f"{pool.model}@{pool.revision}" if pool.revision else pool.model
    return EngineEmbedder(model, post, deps.clock, timeout_s=timeout_s)


def judge_for(settings: SemanticSettings, deps: Deps) -> "Judge | None":
    """The judge that the settings name."""
    if settings.judge_pool is None:
        return None
    from cache.semantic.agreement import ChatJudge

    name = settings.judge_pool
    post = PoolCalls(deps, name, Endpoint.CHAT.path, JUDGE_S).post

    async def chat(body: dict[str, Any]) -> dict[str, Any]:
        asked = {"model": deps.live.fleet.pools[name].model, **body}
        status, reply = await post(msgspec.json.encode(asked))
        if status != 200:
            raise OSError(f"the judge answered with status {status}")
        return msgspec.json.decode(reply, type=dict[str, Any])

    return ChatJudge(chat, settings.judge_per_hour, deps.clock)


async def index_for(settings: Settings) -> "QuestionIndex":
    """The index that the settings name. Raises QuestionsUnusable where a shared one lacks something, such as the extension."""
    wanted = settings.cache.semantic
    if wanted.index is None:
        from cache.semantic.index import MemoryQuestions

        return MemoryQuestions(wanted.memory_bytes // settings.workers, wanted.questions_per_owner)
    from cache.stores.pgvector import PostgresQuestions, QuestionsAway

    shared = PostgresQuestions(wanted.index, time.monotonic, wanted.questions_per_owner, wanted.wait_ms / 1000)
    try:
        await shared.start()
    except QuestionsAway as error:
        log.warning("the index of similar questions is away", reason=str(error)[:300])  # it is tried again by itself
    except BaseException:
        await shared.close()
        raise
    return shared
