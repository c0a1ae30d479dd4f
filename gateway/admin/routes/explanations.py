"""Routing decisions: why a request went to its backend, and where a supposed one would go now.

An explanation names the backends of any tenant's requests, and contains no prompt.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Path
from pydantic import BaseModel, Field
from starlette.responses import Response

from domain.ask import Endpoint
from domain.strict import Strict
from gateway.admin.call import answer
from gateway.admin.describe import READ_ERRORS, Asking, errors
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import AdminProblem
from gateway.placement.decisions import Explained
from gateway.placement.explain import Would

if TYPE_CHECKING:
    EndpointPath = str
else:  # mypy knows no Literal of values that are worked out
    EndpointPath = Literal[tuple(endpoint.path for endpoint in Endpoint)]

router = APIRouter(route_class=GuardedRoute, tags=["Requests"])

RequestId = Annotated[str, Path(pattern=r"^[A-Za-z0-9._:-]{1,64}$", description="As in `x-request-id` or the access log.")]


class ContenderShown(BaseModel):
    """One backend of the pool."""

    backend: str
    cost: float | None = Field(description="In the policy's own unit, the least wins; null for one that could not be taken.")
    held_tokens: float = Field(description="Tokens of the prompt that its cache holds, as far as is known.")
    terms: dict[str, float] = Field(description="What the cost is made of.")
    lost: str = Field(description="Why it was not taken; empty for the one that was.")


class ExplanationShown(BaseModel):
    """One decision."""

    request_id: str
    at_unix: float
    tenant: str
    model: str
    pool: str
    policy: str
    chosen: str = Field(description="Empty when nobody could serve.")
    prompt_tokens: int
    output_tokens: int = Field(description="Expected: the median.")
    output_tokens_p90: int
    contenders: list[ContenderShown]
    lora: str
    session: bool
    chain_blocks: int = Field(description="Blocks of the prompt that were looked up in the index.")
    why: str = Field(description="What decided among those that cost nearly the same; empty when the least cost did.")
    served_by: str = Field(description="The backend tried last, where it was another one.")
    split: str = Field(description="Whether two backends share it, and why; empty where that was no question.")
    queued: str = Field(
        description="How its wait for room ended: `served`, or why it was not; `waiting` while it waits, empty when it did not."
    )
    queued_s: float = Field(description="How long it waited.")
    queued_ahead: int = Field(description="Tokens that were to be served before it when its wait began.")
    asked_model: str = Field(
        description="The model that it asked for, where `model` answers instead, as an alias or a ladder says; else empty."
    )
    steps: list[str] = Field(description="Of its tenant's degradation ladder, those that it went down: `trim_output_tokens`, `model=NAME`.")
    passed_over: list[str] = Field(description="Those that were due and not taken, and why.")
    rule: str = Field(description="The rule of its tenant's policy that it came under; empty for none.")
    rollout: str = Field(description="The rollout or experiment that dealt it out, and the arm: `v2: canary`; empty for none.")
    fell_back: list[str] = Field(description="The models before `model` that could not answer, and how each failed: `big: overloaded`.")


class Supposed(Strict):
    """A request that nobody sends."""

    tenant: str = Field(min_length=1, max_length=63, description="Whose policy places it, and whose prefixes count.")
    project: str = Field(default="default", min_length=1, max_length=63, description="The tenant's project whose request it is.")
    endpoint: EndpointPath = "/v1/chat/completions"
    request: dict[str, Any] = Field(description="The body as a caller would send it.")


@router.get(
    "/requests/{request_id}/explanation", response_model=ExplanationShown, responses=READ_ERRORS, summary="Why a request went where it went"
)
async def explanation(call: Asking, request_id: RequestId) -> Response:
    """Show the decision about one of the last requests."""
    explained = await call.parts.explaining.of(request_id)
    if explained is None:
        raise AdminProblem(404, "not_found", "No worker remembers a decision about that request; each keeps its last 1,000.")
    return answer(200, _shown(explained))


@router.post(
    "/requests/explanation",
    response_model=ExplanationShown,
    responses=errors(400, 401, 403, 413, 415, 422, 503),
    summary="Where a request would go now",
)
async def supposed(call: Asking, body: Supposed) -> Response:
    """Place a request without sending it; nothing is changed, counted or remembered."""
    supposition = Would(body.tenant, body.endpoint, msgspec.json.encode(body.request), body.project)
    outcome = await call.parts.explaining.would(supposition)
    if outcome is None:
        raise AdminProblem(503, "no_worker", "No worker answers. Try again.")
    if outcome.explained is None:
        refusal = outcome.refusal
        assert refusal is not None
        raise AdminProblem(400, "refused", refusal.message, refusal.param or None)
    return answer(200, _shown(outcome.explained))


def _shown(explained: Explained) -> dict[str, Any]:
    shown = msgspec.structs.asdict(explained)
    shown["contenders"] = [msgspec.structs.asdict(contender) for contender in explained.contenders]
    return shown
