"""`cache` of a policy file: whether answers are kept and given again, to which callers, and for how long."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from domain.strict import Strict

MAX_TTL_S: Final = 30 * 86_400
GroupName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


class CachePolicy(Strict):
    """How answers of a tenant's requests are cached."""

    exact: bool = Field(default=True, description="Whether a request that is equal to an earlier one gets the earlier answer.")
    ttl_s: float = Field(default=3600.0, ge=1, le=MAX_TTL_S, description="How long an answer is kept, in seconds.")
    scope: Literal["project", "tenant", "user", "group"] = Field(
        default="project",
        description="The callers that share answers: those of one project, of the whole tenant, one end user of a project, or of all "
        "tenants whose policies name the same `group`.",
    )
    group: GroupName | None = Field(
        default=None, description="With `scope: group`, the sharing group. Every tenant in it can find out what the others have asked."
    )
    sampled: bool = Field(
        default=False,
        description="Whether requests with a temperature above 0, or without one, are answered from the cache: their answer would "
        "otherwise be another one each time.",
    )
    tools: bool = Field(default=False, description="Whether requests with tools, and answers that call tools, are cached.")
    embeddings: bool = Field(default=True, description="Whether embeddings are cached, each input by itself.")
    max_answer_bytes: int = Field(
        default=256 * 1024, ge=1024, le=8 * 1024**2, description="An answer of more bytes is not kept; for embeddings, one vector."
    )
    hit_price: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="What a hit costs, as a part of the tokens and the money that the answer cost when it was made. A hit always counts "
        "as one request.",
    )
    pace_tokens_s: float | None = Field(
        default=None, gt=0, le=10_000, description="How fast a streamed hit is sent, in tokens per second; null: at once."
    )
    write: Literal["any_key", "trusted_keys"] = Field(
        default="any_key",
        description="The keys whose answers are kept: `any_key`, or `trusted_keys`, those with the tag `cache=write`. Others only read.",
    )

    @model_validator(mode="after")
    def _names_its_group(self) -> Self:
        if (self.scope == "group") != (self.group is not None):
            raise ValueError("has scope: group without group" if self.group is None else "has a group; write scope: group as well")
        return self
