"""Routing decisions: why a request went to its backend, and where a supposed one would go now.

An explanation names the backends of any tenant's requests, and contains no prompt.
"""

import contextlib
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from domain.ask import Endpoint
from domain.identity import ProjectId, TenantId
from domain.strict import Strict
from gateway.admin.call import AdminCall, answer
from gateway.admin.describe import READ_ERRORS, Asking, errors
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import AdminProblem
from gateway.http.translations import TRANSLATED
from gateway.placement.decisions import Explained
from gateway.placement.explain import Would
from tenancy.accounts import DEFAULT_PROJECT
from tenancy.journal import JournalAway

if TYPE_CHECKING:
    EndpointPath = str
else:  # mypy knows no Literal of values that are worked out
    EndpointPath = Literal[(*(endpoint.path for endpoint in Endpoint), *sorted(TRANSLATED))]

UNNAMED_TENANT: Final = "default"
"""The tenant of a supposed request whose caller names none, as `tidegate explain --file` sends it."""

router = APIRouter(route_class=GuardedRoute, tags=["Requests"])

RequestId = Annotated[
    str, Path(pattern=r"^[A-Za-z0-9._:-]{1,64}$", description="The request id in `x-tidegate-request-id` or the access log.")
]
OfTenant = Annotated[
    str,
    Query(max_length=63, description="The request's tenant. With it, the id may also be the caller's own, of `x-request-id`."),
]


class ContenderShown(BaseModel):
    """One backend of the pool."""

    backend: str
    cost: float | None = Field(description="Cost in the policy's own unit; the lowest wins. Null for a backend that was not eligible.")
    held_tokens: float = Field(description="Tokens of the prompt that the backend's cache holds, as far as is known.")
    terms: dict[str, float] = Field(description="The terms of the cost.")
    lost: str = Field(description="Why the backend was not chosen; empty for the chosen one.")
    waiting: float | None = Field(description="Requests that waited at the backend then; null where they were not looked at.")
    first_token_s: float | None = Field(
        description="Seconds to the first token that the policy expected there; null where the policy estimates none."
    )


class EndedShown(BaseModel):
    """How a request ended."""

    outcome: str = Field(description="`ok`, or the [kind of fault](faults.md).")
    status: int
    duration_s: float
    queue_s: float
    first_token_s: float | None = Field(description="Null without an event, as in an answer that is not streamed.")
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class ExplanationShown(BaseModel):
    """One decision."""

    request_id: str
    at_unix: float
    tenant: str
    model: str
    pool: str
    policy: str
    chosen: str = Field(description="The chosen backend; empty when no backend could serve.")
    prompt_tokens: int
    output_tokens: int = Field(description="Expected output tokens: the median.")
    output_tokens_p90: int
    contenders: list[ContenderShown]
    lora: str
    session: bool
    chain_blocks: int = Field(description="Blocks of the prompt that were looked up in the prefix index.")
    why: str = Field(description="The tie-break among backends of nearly the same cost; empty when the lowest cost decided.")
    served_by: str = Field(description="The backend tried last, where it is not the chosen one.")
    split: str = Field(
        description="Whether the request was split between a prefill and a decode backend, and why; empty where disaggregation was "
        "not considered."
    )
    queued: str = Field(
        description="How the request's wait in the queue ended: `served`, or why it was not served; `waiting` while it waits, empty "
        "when it did not wait."
    )
    queued_s: float = Field(description="How long the request waited.")
    queued_ahead: int = Field(description="Tokens of the requests ahead in the queue when the wait began.")
    asked_model: str = Field(
        description="The requested model, where an alias or a degradation ladder made `model` answer instead; else empty."
    )
    steps: list[str] = Field(description="Steps of the tenant's degradation ladder that were applied: `trim_output_tokens`, `model=NAME`.")
    passed_over: list[str] = Field(description="Steps that were due and not applied, and why.")
    rule: str = Field(description="The matching rule of the tenant's policy; empty for none.")
    rollout: str = Field(description="The rollout or experiment that assigned the request, and the arm: `v2: canary`; empty for none.")
    fell_back: list[str] = Field(description="The models before `model` that could not answer, and how each failed: `big: overloaded`.")
    exact: bool = Field(description="Whether `prompt_tokens` was counted; otherwise it was estimated from the length of the text.")
    unit: str = Field(description="Unit of the costs, in words; empty where they have none.")
    reason: str = Field(description="The decision in one line, for people.")
    caller_request_id: str = Field(description="The caller's own `x-request-id`; empty where it sent none.")
    cache: str = Field(
        description="What the answer cache did, once the request has ended: `hit-exact`, `miss`, …; empty without one. A request that it "
        "answered has no `pool`, `policy` and backends."
    )
    cache_age_s: float = Field(description="Of a hit, the age of the answer in seconds.")
    guards: str = Field(
        description="What guard rules said, once the request has ended: the word, the rule that refused, the findings by rule, kind, mode "
        "and direction; empty without rules. A request that they refused has no `pool`, `policy` and backends."
    )
    ended: EndedShown | None = Field(
        description="How it ended; null while it runs, for one that is not sent, and where its worker ended first."
    )


class Supposed(Strict):
    """A request that nobody sends."""

    tenant: str = Field(min_length=1, max_length=63, description="The tenant whose policy and cached prefixes count.")
    project: str = Field(default="default", min_length=1, max_length=63, description="The tenant's project that the request belongs to.")
    endpoint: EndpointPath = "/v1/chat/completions"
    request: dict[str, Any] = Field(description="The body as a caller would send it.")


@router.get(
    "/requests/{request_id}/explanation", response_model=ExplanationShown, responses=READ_ERRORS, summary="Why a request went where it went"
)
async def explanation(call: Asking, request_id: RequestId, tenant: OfTenant = "") -> Response:
    """Show the decision about a request."""
    explained = await call.parts.explaining.of(request_id, tenant)
    if explained is None:
        hint = "" if tenant else " An id that the caller chose is found with its tenant."
        message = f"No decision about that request is kept: it is too old, or it was refused before it was placed.{hint}"
        raise AdminProblem(404, "not_found", message)
    return answer(200, _shown(explained))


@router.post(
    "/requests/explanation",
    response_model=ExplanationShown,
    responses=errors(400, 401, 403, 404, 413, 415, 422, 503),
    summary="Where a request would go now",
)
async def supposed(call: Asking, body: Supposed) -> Response:
    """Place a request without sending it; nothing is changed, counted or remembered."""
    await _require_accounts(call, body)
    supposition = Would(body.tenant, body.endpoint, msgspec.json.encode(body.request), body.project)
    outcome = await call.parts.explaining.would(supposition)
    if outcome is None:
        raise AdminProblem(503, "no_worker", "No worker answers. Try again.")
    if outcome.explained is None:
        refusal = outcome.refusal
        assert refusal is not None
        raise AdminProblem(400, "refused", refusal.message, refusal.param or None)
    return answer(200, _shown(outcome.explained))


async def _require_accounts(call: AdminCall, body: Supposed) -> None:
    """Raises NotFound for a tenant or a project that the directory does not have. The names that stand in for those left out, `default`,
    need not exist; and while the database is away, a request is placed as workers place it."""
    with contextlib.suppress(JournalAway):
        async with call.parts.reading() as directory:
            if body.tenant != UNNAMED_TENANT:
                await directory.tenants.get(None, TenantId(body.tenant))
            if body.project != DEFAULT_PROJECT:
                await directory.projects.get(None, TenantId(body.tenant), ProjectId(body.project))


def _shown(explained: Explained) -> dict[str, Any]:
    shown = msgspec.structs.asdict(explained)
    shown["contenders"] = [msgspec.structs.asdict(contender) for contender in explained.contenders]
    shown["ended"] = None if explained.ended is None else msgspec.structs.asdict(explained.ended)
    return shown
