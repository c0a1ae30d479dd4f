"""Settings of ratings by callers, and of the judge (docs/reference/judge.md)."""

from pydantic import Field

from domain.strict import Strict


class FeedbackSettings(Strict):
    """`POST /v1/feedback`: ratings of answers, kept in SQL."""

    enabled: bool = Field(default=True, description="Whether callers can rate answers.")
    max_per_tenant: int = Field(
        default=100_000, ge=1, le=100_000_000, description="Ratings of one tenant, the judge's among them; a further one is refused."
    )
    retention_days: float = Field(default=90, gt=0, le=36_500, description="Days for which a rating is kept.")
