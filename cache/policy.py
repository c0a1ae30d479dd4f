"""`cache` of a policy file: whether answers are kept and given again, to which callers, and for how long."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from domain.strict import Strict

MAX_TTL_S: Final = 30 * 86_400
GroupName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


Words = Annotated[list[Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]], Field(max_length=1000)]


class NeverPolicy(Strict):
    """Words in a question that keep it out: its answer is another one at another time, or for another user."""

    time: Words | None = Field(
        default=None, description="Words and phrases that make an answer age, such as `today` or `weather`; left out, the default list."
    )
    personal: Words | None = Field(
        default=None,
        description="Words and phrases that make an answer one user's own, such as `my balance`; left out, the default list.",
    )


class SemanticPolicy(Strict):
    """Answers to questions that are not equal to an earlier one and ask the same. Some of them are wrong; the reference says how many."""

    decision: Literal["verified", "threshold"] = Field(
        default="verified",
        description="How the nearest kept question is judged: `verified` learns for each from fresh answers how similar a question has to "
        "be, and asks the engine until it knows; `threshold` takes every similarity from `threshold` on.",
    )
    wrong_per_hit: float = Field(
        default=0.01,
        ge=0.001,
        le=0.2,
        description="Of the answers given to similar questions, the part that may be wrong, for `verified`.",
    )
    threshold: float | None = Field(
        default=None, ge=0.5, le=1, description="The least similarity (a cosine) for `threshold`; what it lets through is not checked."
    )
    never: NeverPolicy = Field(default=NeverPolicy(), description="Words that keep a question out; a list replaces the default one.")

    @model_validator(mode="after")
    def _names_its_threshold(self) -> Self:
        if (self.decision == "threshold") != (self.threshold is not None):
            raise ValueError(
                "has decision: threshold without threshold"
                if self.threshold is None
                else "has a threshold; write decision: threshold as well, or leave it out"
            )
        return self


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

    semantic: SemanticPolicy | None = Field(
        default=None, description="Whether questions that only resemble an earlier one get its answer; left out: none does."
    )

    @model_validator(mode="after")
    def _has_what_it_builds_on(self) -> Self:
        if self.semantic is not None and not self.exact:
            raise ValueError("has semantic with exact: false; similar questions share the entries of equal ones, so leave exact: true")
        return self

    @model_validator(mode="after")
    def _names_its_group(self) -> Self:
        if (self.scope == "group") != (self.group is not None):
            raise ValueError("has scope: group without group" if self.group is None else "has a group; write scope: group as well")
        return self
