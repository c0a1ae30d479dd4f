"""The `limit` section of a pool: the bounds of its engines' adaptive concurrency limits."""

from typing import Self

from pydantic import Field, model_validator

from backends.concurrency_limit import LimitBounds
from domain.strict import Strict


class LimitSettings(Strict):
    """The adaptive concurrency limit of each engine of the pool, over all gateways together; see docs/overload.md."""

    enabled: bool = Field(default=True, description="Whether limits are found and kept; without them requests wait in the engines.")
    min_requests: int = Field(default=1, ge=1, le=65_535, description="Requests that an engine is always given.")
    max_requests: int = Field(default=4096, ge=1, le=65_535, description="Requests beyond which nothing is tried.")
    token_gap_s: float | None = Field(
        default=None,
        gt=0,
        le=60,
        description="Seconds between two tokens of an answer, on average, that an engine is not to exceed. Null: a tenth of a second, or "
        "four times as long as on an empty engine, whichever is longer.",
    )

    kept_free: float = Field(
        default=0.0,
        ge=0,
        le=0.9,
        description="Share of what an engine bears which tenants with much more in flight than the others leave free for "
        "them, while others were there in the last 30 s. 0 keeps nothing.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.kept_free and not self.enabled:
            raise ValueError("kept_free is a share of the limits that are found, and enabled: false finds none; leave one of the two out")
        if self.min_requests > self.max_requests:
            raise ValueError(f"min_requests is {self.min_requests:,} and max_requests {self.max_requests:,}; the first is the smaller one")
        return self

    def bounds(self) -> LimitBounds | None:
        """The bounds as the limiter takes them; None where the limit is off."""
        return LimitBounds(self.min_requests, self.max_requests, gap_s=self.token_gap_s) if self.enabled else None
