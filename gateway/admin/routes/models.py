"""The registry of models: which revisions there are, where their weights lie, what was measured of them. docs/reference/models.md."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Path, Query
from pydantic import AfterValidator, BaseModel, Field, StringConstraints
from starlette.responses import Response

from backends.launch.weights import MAX_REFERENCE_CHARS, weights_place
from domain.model_revisions import ModelRevision, ParallelLayout, RevisionMissing, proof_of
from domain.strict import Strict
from gateway.admin.call import Done, Entropy, Transactions, answer
from gateway.admin.describe import (
    POST_ERRORS,
    READ_ERRORS,
    Asking,
    Names,
    PageQuery,
    Posting,
    decode_cursor,
    page_of,
)
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import AdminProblem, not_found
from routing.profile import EngineProfile, profile_text

router = APIRouter(route_class=GuardedRoute, tags=["Models"])

NAME: Final = r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,254}[A-Za-z0-9])?$"
REVISION: Final = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$"

Reference = Annotated[str, Path(max_length=321, description="`MODEL@REVISION`.")]
Ways = Annotated[int, Field(ge=1, le=1024)]


def _checked_weights(text: str) -> str:
    weights_place(text)
    return text


Weights = Annotated[str, StringConstraints(min_length=1, max_length=MAX_REFERENCE_CHARS), AfterValidator(_checked_weights)]


class LayoutBody(Strict):
    """Over how many GPUs an engine spreads the model."""

    tensor: Ways = 1
    pipeline: Ways = 1
    data: Ways = 1
    expert: Ways = 1


class NewRevision(Strict):
    """A revision to register."""

    model: Annotated[str, StringConstraints(pattern=NAME)] = Field(description="Its name: letters, digits and inner `.`, `_`, `-`, `/`.")
    revision: Annotated[str, StringConstraints(pattern=REVISION)] = Field(description="The name of the revision, as pools write it.")
    weights: Weights = Field(
        description="Where the weights lie: `/folder`, `pvc://claim/folder`, `s3://`, `gs://` or `az://` bucket/folder, "
        "`https://host/file`, or `oci://registry/name:tag`."
    )
    digest: Annotated[str, StringConstraints(pattern="^sha256:[0-9a-f]{64}$")] = Field(
        description="The digest of the manifest, as `tidegate model digest PATH` prints it."
    )
    architecture: str = Field(default="", max_length=128, description="As the model's configuration names it.")
    precision: str = Field(default="", max_length=64, description="Type of the weights, as `bfloat16` or `fp8`.")
    layout: LayoutBody = Field(default=LayoutBody(), description="Tensor, pipeline, data and expert parallelism.")
    tokenizer: Weights | None = Field(default=None, description="Where the tokenizer lies; null for beside the weights.")
    context_tokens: int = Field(default=0, ge=0, le=100_000_000, description="Longest prompt and answer together, in tokens; 0: unknown.")
    adapters: Names = Field(default_factory=list, description="Names of adapters that go with the revision.")
    launch: str = Field(default="", max_length=256, description="The launch configuration that it is served with.")


class RevisionShown(BaseModel):
    """A revision."""

    reference: str = Field(description="`MODEL@REVISION`, the name under which everything refers to it.")
    model: str
    revision: str
    weights: str
    digest: str
    proof: str = Field(description="What the served name of an engine ends with that proves the digest.")
    architecture: str
    precision: str
    layout: LayoutBody
    tokenizer: str | None
    context_tokens: int
    adapters: list[str]
    launch: str
    registered_by: str
    registered_unix: float
    retired_unix: float | None
    pools: list[str] = Field(description="The pools of the settings that are pinned to it.")
    disagreeing_pools: list[str] = Field(description="Those of them whose settings say another digest than the registry.")
    profile: dict[str, Any] | None = Field(description="What `tidegate engine profile` measured; null before.")


class RevisionPage(BaseModel):
    """Revisions by model and name."""

    items: list[RevisionShown]
    next_cursor: str | None


class RevisionQuery(PageQuery):
    """The revisions to show."""

    model: str = Field(default="", max_length=256, description="Only revisions of this model.")


@router.get("/model-revisions", response_model=RevisionPage, responses=READ_ERRORS, summary="List revisions of models")
async def list_all(call: Asking, query: Annotated[RevisionQuery, Query()]) -> Response:
    """Show the registry, retired revisions included."""
    after = decode_cursor(query.cursor, tuple[str, str])
    async with call.parts.models() as store:
        records = await store.page(query.model, after, query.limit + 1)
    pinned = call.parts.pinned
    return answer(200, page_of(records, query.limit, lambda record: _shown(record, pinned), lambda one: (one.model, one.revision)))


@router.post("/model-revisions", status_code=201, response_model=RevisionShown, responses=POST_ERRORS, summary="Register a revision")
async def register(call: Posting, body: NewRevision) -> Response:
    """Register a revision of a model. It is never changed: other weights are another revision."""
    values = body.model_dump(exclude={"layout", "tokenizer", "adapters"})
    revision = ModelRevision(
        **values,
        layout=ParallelLayout(**body.layout.model_dump()),
        tokenizer=body.tokenizer or "",
        adapters=tuple(body.adapters),
        registered_by=call.principal.actor,
        registered_unix=call.parts.wall(),
    )

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        await books.models.add(revision)
        shown = _shown(revision, call.parts.pinned)
        return Done(201, "model.register", f"model/{revision.reference}", shown, after=shown)

    return await call.change(work)


@router.get("/model-revisions/{reference:path}", response_model=RevisionShown, responses=READ_ERRORS, summary="Show a revision")
async def get(call: Asking, reference: Reference) -> Response:
    """Show one revision of a model."""
    model, revision = _named(reference)
    async with call.parts.models() as store:
        try:
            record = await store.get(model, revision)
        except RevisionMissing:
            raise not_found() from None
    return answer(200, _shown(record, call.parts.pinned))


@router.post("/model-revisions/{reference:path}/retire", response_model=RevisionShown, responses=POST_ERRORS, summary="Retire a revision")
async def retire(call: Posting, reference: Reference) -> Response:
    """Mark a revision as no longer to be served; refused while a pool of the settings is pinned to it. It stays in the registry."""
    model, revision = _named(reference)
    if pools := call.parts.pinned.get(reference):
        raise AdminProblem(
            409, "in_use", f"{reference} is in use: pool {', '.join(pools)[:300]} is pinned to it; pin the pool to another revision first."
        )

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        before = await _found(books, model, revision)
        after = await books.models.retire(model, revision, call.parts.wall())
        shown = _shown(after, call.parts.pinned)
        return Done(
            200,
            "model.retire",
            f"model/{reference}",
            shown,
            before={"retired_unix": before.retired_unix},
            after={"retired_unix": after.retired_unix},
        )

    return await call.change(work)


@router.post("/model-revisions/{reference:path}/profile", response_model=RevisionShown, responses=POST_ERRORS, summary="Keep a profile")
async def keep_profile(call: Posting, reference: Reference, body: dict[str, Any]) -> Response:
    """Keep what `tidegate engine profile` measured of an engine that serves the revision; a newer profile replaces it."""
    model, revision = _named(reference)
    try:
        profile = msgspec.convert(body, EngineProfile)
    except (msgspec.ValidationError, ValueError) as error:
        raise AdminProblem(400, "invalid_value", f"This is no profile of an engine: {str(error)[:300]}.", "body") from None

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        await _found(books, model, revision)
        after = await books.models.keep_profile(model, revision, profile_text(profile))
        shown = _shown(after, call.parts.pinned)
        return Done(200, "model.profile", f"model/{reference}", shown, after={"rates": msgspec.to_builtins(profile.rates)})

    return await call.change(work)


async def _found(books: Transactions, model: str, revision: str) -> ModelRevision:
    try:
        return await books.models.get(model, revision)
    except RevisionMissing:
        raise not_found() from None


def _named(reference: str) -> tuple[str, str]:
    model, at, revision = reference.rpartition("@")
    if not at:
        raise AdminProblem(404, "not_found", f"{reference[:128]!a} names no revision; write MODEL@REVISION.", "reference")
    return model, revision


def _shown(record: ModelRevision, pinned: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    digests = pinned.get(record.reference, {})
    shown = msgspec.to_builtins(record)
    shown["tokenizer"] = record.tokenizer or None
    shown["profile"] = msgspec.json.decode(record.profile) if record.profile else None
    shown["pools"] = list(digests)
    shown["disagreeing_pools"] = [pool for pool, digest in digests.items() if digest != record.digest]
    return {"reference": record.reference, **shown, "proof": proof_of(record.digest)}
