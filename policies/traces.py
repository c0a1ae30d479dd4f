"""What a policy says of traces: which of a tenant's requests are told to the exporters of `traces` in tidegate.yaml."""

from pydantic import Field

from domain.strict import Strict


class TracePolicy(Strict):
    """Which requests are traced. What is null is as the settings say."""

    enabled: bool = Field(
        default=True,
        description="Whether the requests are traced at all. Without it no exporter gets them, failed or slow, and engines get the "
        "caller's own `traceparent`.",
    )
    ratio: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Share of the requests that are traced whatever becomes of them, where the caller's `traceparent` does not decide.",
    )
    slow_s: float | None = Field(default=None, gt=0, le=86_400, description="Requests that take longer in all are always traced; seconds.")
    slow_ttft_s: float | None = Field(
        default=None, gt=0, le=86_400, description="Requests whose first token comes later are always traced; seconds."
    )
