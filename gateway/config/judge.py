"""Settings of ratings by callers, and of the judge (docs/reference/judge.md)."""

from typing import Annotated

from pydantic import Field, StringConstraints

from domain.strict import Strict

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


class FeedbackSettings(Strict):
    """`POST /v1/feedback`: ratings of answers, kept in SQL."""

    enabled: bool = Field(default=True, description="Whether callers can rate answers.")
    max_per_tenant: int = Field(
        default=100_000, ge=1, le=100_000_000, description="Ratings of one tenant, the judge's among them; a further one is refused."
    )
    retention_days: float = Field(default=90, gt=0, le=36_500, description="Days for which a rating is kept.")


class JudgeSettings(Strict):
    """The judge: a model of the fleet that scores answers of tenants whose policies have `judge`. One worker of all gateways on a database
    judges at a time. Its requests are in the class `batch` and begin only where nobody waits."""

    tenant: Name = Field(description="The tenant that the judge's requests are booked on: one of the operator's.")
    project: Name = Field(default="default", description="The project of that tenant; its rights and limits hold.")
    model: Annotated[str, StringConstraints(pattern=r"^[!-~]{1,256}$")] = Field(
        description="The model that judges, by its name in that tenant's policy."
    )
    tokens_per_day: int = Field(
        default=1_000_000,
        ge=1,
        le=10**12,
        description="Tokens that the judge uses in a day (UTC), prompts and answers together; what it has begun then is ended.",
    )
    max_in_flight: int = Field(default=2, ge=1, le=256, description="Answers that are judged at once.")
    max_output_tokens: int = Field(default=256, ge=16, le=32_768, description="Output tokens of one verdict; more for a thinking model.")
    structured: bool = Field(
        default=True, description="Whether engines are asked to hold verdicts to a JSON schema; false for engines that cannot."
    )
    max_answer_tokens: int = Field(default=512, ge=1, le=32_768, description="Output tokens of each answer that is made to be compared.")
    agreement_every_days: float | None = Field(
        default=None,
        gt=0,
        le=366,
        description="Days between two measurements of the judge's agreement with the labelled cases that come with Tidegate, some 30,000 "
        "tokens each; null: it is not measured.",
    )
    look_every_s: float = Field(default=5.0, ge=0.05, le=600, description="Seconds between two looks for new requests.")
