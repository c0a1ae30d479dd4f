"""The answer cache: what it did for each tenant, and purges, of which every gateway on the database hears."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field, StringConstraints
from starlette.responses import Response

from cache.eligible import NOT_KEPT, SIMILAR_REASONS
from cache.policy import GroupName
from cache.ports import Selection
from cache.semantic.ports import IndexFigures
from domain.cache_purges import CachePurge
from domain.strict import Strict
from gateway.admin.call import AdminCall, Done, Entropy, Transactions, answer
from gateway.admin.describe import POST_ERRORS, READ_ERRORS, Asking, Name, Posting
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import AdminProblem, not_found
from gateway.answers.cache import AuditedHits, cache_secret, digest_of_user
from gateway.answers.controls import NAMESPACE_PATTERN
from gateway.process.snapshots import WorkerSnapshot
from gateway.telemetry.families import (
    CACHE_BYPASSED,
    CACHE_BYPASSES,
    CACHE_NOT_KEPT,
    CACHE_RESULTS,
    CACHE_SAVED,
    CACHE_SAVED_COST,
    CACHE_SIMILAR,
    LOOKED_UP,
    Family,
)
from tenancy.money import dollars_of

router = APIRouter(route_class=GuardedRoute, tags=["Cache"])

MAX_BEFORE_UNIX: Final = 1e11
NO_INDEX: Final = IndexFigures(kind="")


class TenantCacheShown(BaseModel):
    """What the cache did for one tenant since the workers started."""

    tenant: str = Field(description="`_other` stands for tenants beyond the bound on labels of metrics.")
    hits: int
    partial_hits: int = Field(description="Requests for embeddings of which some inputs were known.")
    semantic_hits: int = Field(description="Requests that got the answer of a similar question.")
    misses: int
    bypassed: dict[str, int] = Field(description="Requests that passed by the cache, by reason.")
    not_kept: dict[str, int] = Field(description="Misses whose answers were not kept, by reason (docs/reference/cache.md).")
    not_similar: dict[str, int] = Field(description="Why similar questions gave no answer (docs/reference/cache.md).")
    saved_prompt_tokens: int
    saved_completion_tokens: int
    saved_usd: str = Field(description="What the hits would have cost more at an engine, in dollars.")


class CacheStoreShown(BaseModel):
    """Where one worker keeps answers."""

    worker: int
    kind: str = Field(description="`memory`, or `shared` for `cache.store`.")
    entries: int = Field(description="Answers in memory.")
    bytes: int
    evicted: int = Field(description="Answers that had to make room.")
    away: int = Field(description="Look-ups that were misses because the shared store was away or slow.")
    lost: int = Field(description="Answers that the shared store could not keep.")
    refused: int = Field(description="Entries of the shared store that were damaged, or sealed with another pepper.")


class SimilarShown(BaseModel):
    """The similar questions of one worker."""

    worker: int
    state: str = Field(description="`unused` while no request has asked for them, `starting`, `ready`, or why they cannot be had.")
    kind: str = Field(description="`memory`, or `postgres` for `cache.semantic.index`; empty unless `ready`.")
    questions: int = Field(description="Questions in memory.")
    bytes: int
    evicted: int = Field(description="Questions that had to make room.")
    away: int = Field(description="Look-ups that were misses because the shared index was away or slow.")
    lost: int = Field(description="Questions that the index could not keep.")


class AuditedHitsShown(BaseModel):
    """How many answers to similar questions are wrong, estimated from audits: a part of what would be hits is asked for all the same, and
    the engine's fresh answer compared with the kept one. Only `decision: verified` has audits; older ones count less."""

    owner: str = Field(description="The tenant, or `group:` and the sharing group.")
    allowed: float = Field(description="Wrong answers per hit that the policy allows (`wrong_per_hit`).")
    audits: float
    wrong: float
    wrong_rate: float = Field(description="Wrong answers per hit: the share of audits that were wrong.")
    lower: float = Field(description="Bounds in which the rate lies with 95 % confidence (Wilson).")
    upper: float
    stopped: bool = Field(description="Whether hits are off for some of the owner's questions, because too many audits were wrong.")


class CacheShown(BaseModel):
    """The cache."""

    tenants: list[TenantCacheShown]
    workers: list[CacheStoreShown] = Field(description="Not for tenant-admins.")
    similar: list[SimilarShown] = Field(description="Not for tenant-admins.")
    audited: list[AuditedHitsShown] = Field(description="Of the workers' similar questions; empty before there are audits.")


class OwnedAnswers(Strict):
    """Answers of one tenant or sharing group."""

    tenant: Name | None = Field(default=None, description="The tenant whose answers they are; this or `group`.")
    group: GroupName | None = Field(default=None, description="The sharing group whose answers they are.")

    def owner(self, call: AdminCall) -> str:
        """The owner as the cache names it. Raises AdminProblem 400 unless one is named, 404 for what the caller must not see."""
        if (self.tenant is None) is (self.group is None):
            raise AdminProblem(400, "invalid_value", "Write 'tenant' or 'group', and not both.", "tenant")
        if self.group is not None and call.tenant is not None:
            raise not_found()
        return f"group:{self.group}" if self.tenant is None else call.own(self.tenant)


class Purge(OwnedAnswers):
    """The answers to remove: those that meet every condition that is set."""

    model: str = Field(default="", max_length=256, description="Only answers of this model, by its public name.")
    namespace: Annotated[str, StringConstraints(pattern=f"^({NAMESPACE_PATTERN})?$")] = Field(
        default="", description="Only answers of this namespace."
    )
    user: str = Field(default="", max_length=512, description="Only answers to this end user, by the label in `user` of its requests.")
    before_unix: float | None = Field(
        default=None, ge=0, le=MAX_BEFORE_UNIX, description="Only answers kept before this time; null for all that are there."
    )


class PurgeAccepted(BaseModel):
    """The purge is written down; every gateway does it within 5 s."""

    number: int
    owner: str


class EntriesQuery(OwnedAnswers):
    """The entries to list: those that meet every condition that is set."""

    model: str = Field(default="", max_length=256, description="Only answers of this model, by its public name.")
    namespace: Annotated[str, StringConstraints(pattern=f"^({NAMESPACE_PATTERN})?$")] = Field(
        default="", description="Only answers of this namespace."
    )
    before_unix: float | None = Field(
        default=None, strict=False, ge=0, le=MAX_BEFORE_UNIX, description="Only answers kept before this time."
    )
    limit: int = Field(default=100, strict=False, ge=1, le=1000, description="Entries at most.")


class EntryShown(BaseModel):
    """A kept answer without its content."""

    key: str = Field(description="The key in hexadecimal digits.")
    model: str
    namespace: str
    bytes: int = Field(description="In a worker's memory; in a shared store, those of the compressed answer.")
    kept_unix: float
    expires_unix: float
    writer: str = Field(description="The id of the API key whose request the answer was made for.")


class EntriesShown(BaseModel):
    """Kept answers, those kept last first."""

    entries: list[EntryShown]


class ContentShown(BaseModel):
    """A kept answer with its content."""

    key: str
    model: str
    namespace: str
    kept_unix: float
    expires_unix: float
    writer: str
    prompt_tokens: int
    completion_tokens: int
    document: Any = Field(description="The reply as it was kept; of embeddings, the vector.")


@router.get("/cache", response_model=CacheShown, responses=READ_ERRORS, summary="What the answer cache did")
async def show(call: Asking) -> Response:
    """Show hits, misses and savings of each tenant since the workers started, and where answers are kept."""
    gateway = call.parts.gateway
    workers = await gateway.workers() if gateway is not None else []
    tenants = _by_tenant(workers)
    shown = [one for name, one in sorted(tenants.items()) if call.tenant is None or name == call.tenant]
    stores = [
        CacheStoreShown(worker=worker.index, **msgspec.structs.asdict(worker.answers))
        for worker in workers
        if worker.answers is not None and call.tenant is None
    ]
    similar = [
        SimilarShown(worker=worker.index, state=worker.similar.state, **msgspec.structs.asdict(worker.similar.index or NO_INDEX))
        for worker in workers
        if worker.similar is not None and call.tenant is None
    ]
    audited = [_audited(one) for one in await call.parts.kept.audited() if call.tenant is None or one.owner == call.tenant]
    return answer(200, CacheShown(tenants=shown, workers=stores, similar=similar, audited=audited).model_dump())


@router.post("/cache/purge", status_code=202, response_model=PurgeAccepted, responses=POST_ERRORS, summary="Remove kept answers")
async def purge(call: Posting, wanted: Purge) -> Response:
    """Remove kept answers of a tenant or a sharing group on every gateway of the database within 5 s. Answers that are under way meanwhile
    are not kept. While a shared store is away, the purge waits for it. The end user's label is not written down. The stored Responses of
    a tenant's end user go too, at once, where neither `model` nor `namespace` is set."""
    owner = wanted.owner(call)
    digest = digest_of_user(cache_secret(call.parts.pepper), wanted.user) if wanted.user else ""
    row = CachePurge(owner=owner, model=wanted.model, namespace=wanted.namespace, user=digest, before_unix=wanted.before_unix)

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        if wanted.tenant is not None:
            await books.directory.tenants.get(call.tenant, call.own(wanted.tenant))
        number = await books.purges.add(row, call.parts.wall())
        shown, after = {"number": number, "owner": owner}, msgspec.structs.asdict(row)
        if wanted.tenant is not None and digest and not (wanted.model or wanted.namespace):
            digests = [
                digest_of_user(cache_secret(pepper), wanted.user) for pepper in (call.parts.pepper, call.parts.former_pepper) if pepper
            ]
            after["responses"] = await books.responses.erase(call.own(wanted.tenant), digests, wanted.before_unix)
        return Done(202, "cache.purge", f"cache/{owner}", shown, tenant=wanted.tenant or "", after=after)

    return await call.change(work)


@router.get("/cache/entries", response_model=EntriesShown, responses=READ_ERRORS, summary="List kept answers")
async def entries(call: Asking, query: Annotated[EntriesQuery, Query()]) -> Response:
    """List kept answers of a tenant or a sharing group without their content, as the workers of this gateway have them. Of more than
    `limit`, the list has those that were used last; from a shared store, those whose time ends last. It looks through 20,000 at most."""
    owner = await _existing(call, query)
    selection = Selection(owner=owner, model=query.model, namespace=query.namespace, before=query.before_unix)
    found = await call.parts.kept.entries(selection, query.limit)
    if found is None:
        raise AdminProblem(503, "no_worker", "No worker can list answers: none is ready, or the shared store is away. Try again.")
    shown = [
        EntryShown(
            key=entry.key,
            model=entry.model,
            namespace=entry.namespace,
            bytes=entry.bytes,
            kept_unix=entry.kept_at,
            expires_unix=entry.expires_at,
            writer=entry.writer,
        )
        for entry in found
    ]
    return answer(200, EntriesShown(entries=shown).model_dump())


@router.get("/cache/entries/{key}", response_model=ContentShown, responses=READ_ERRORS, summary="Show a kept answer with its content")
async def content(
    call: Asking,
    key: Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="The key from the list of kept answers.")],
    query: Annotated[OwnedAnswers, Query()],
) -> Response:
    """Show the content of a kept answer, which callers received. Only for owners, and for admins of the answer's own tenant."""
    owner = await _existing(call, query)
    found = await call.parts.kept.content(owner, bytes.fromhex(key))
    if found is None:
        raise not_found()
    shown = {
        "key": key,
        "model": found.model,
        "namespace": found.namespace,
        "kept_unix": found.kept_at,
        "expires_unix": found.expires_at,
        "writer": found.writer,
        "prompt_tokens": found.usage.prompt_tokens,
        "completion_tokens": found.usage.completion_tokens,
        "document": msgspec.Raw(found.document),
    }
    return answer(200, shown)


async def _existing(call: AdminCall, wanted: OwnedAnswers) -> str:
    """The owner, whose tenant exists. Raises AdminProblem as `OwnedAnswers.owner`."""
    owner = wanted.owner(call)
    if wanted.tenant is not None:
        async with call.parts.reading() as directory:
            await directory.tenants.get(call.tenant, call.own(wanted.tenant))
    return owner


def _audited(one: AuditedHits) -> AuditedHitsShown:
    proof = one.proof
    return AuditedHitsShown(
        owner=one.owner,
        allowed=one.allowed,
        audits=round(proof.audits, 2),
        wrong=round(proof.wrong, 2),
        wrong_rate=round(proof.wrong / proof.audits, 5),
        lower=round(proof.lower, 5),
        upper=round(proof.upper, 5),
        stopped=proof.stopped,
    )


def _by_tenant(workers: Iterable[WorkerSnapshot]) -> Mapping[str, TenantCacheShown]:
    results = _sums(workers, LOOKED_UP)
    families = (CACHE_BYPASSED, CACHE_NOT_KEPT, CACHE_SIMILAR, CACHE_SAVED, CACHE_SAVED_COST)
    bypassed, not_kept, similar, saved, costs = (_sums(workers, family) for family in families)
    shown = {}
    for tenant in {*results, *bypassed}:
        by_result = dict(zip(CACHE_RESULTS, results.get(tenant, [0.0] * len(CACHE_RESULTS)), strict=True))
        prompt, completion = saved.get(tenant, (0.0, 0.0))
        shown[tenant] = TenantCacheShown(
            tenant=tenant,
            hits=int(by_result["hit-exact"]),
            partial_hits=int(by_result["hit-partial"]),
            semantic_hits=int(by_result["hit-semantic"]),
            misses=int(by_result["miss"]),
            bypassed=_by_reason(CACHE_BYPASSES, bypassed.get(tenant, ())),
            not_kept=_by_reason(NOT_KEPT, not_kept.get(tenant, ())),
            not_similar=_by_reason(SIMILAR_REASONS, similar.get(tenant, ())),
            saved_prompt_tokens=int(prompt),
            saved_completion_tokens=int(completion),
            saved_usd=dollars_of(int(costs.get(tenant, (0.0,))[0])),
        )
    return shown


def _by_reason(reasons: Sequence[str], counts: Sequence[float]) -> dict[str, int]:
    """The reasons that occurred, with their counts."""
    return {reason: int(count) for reason, count in zip(reasons, counts, strict=False) if count}


def _sums(workers: Iterable[WorkerSnapshot], family: Family) -> dict[str, list[float]]:
    """The cells of a family by tenant, over all workers."""
    sums: dict[str, list[float]] = {}
    for worker in workers:
        for labels, cell in worker.metrics.families.get(family.name, ()) if worker.metrics is not None else ():
            into = sums.setdefault(labels[0], [0.0] * len(cell))
            for at, value in enumerate(cell):
                into[at] += value
    return sums
