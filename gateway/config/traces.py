"""`traces` of `tidegate.yaml`: which requests are traced, and the OTLP receivers that get their spans."""

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from domain.strict import Strict
from gateway.config.addresses import checked_otlp_url
from gateway.config.listeners import Seconds
from gateway.config.secrets import SecretReference

MAX_EXPORTERS: Final = 20

ExporterName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$")]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")]
OtlpUrl = Annotated[str, StringConstraints(max_length=2048), AfterValidator(checked_otlp_url)]
TenantNames = Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=63)]], Field(max_length=10_000)]
Attribute = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class OtlpTarget(Strict):
    """One OTLP receiver (http/protobuf)."""

    endpoint: OtlpUrl = Field(description="Its whole URL: `http(s)://host[:port]/path`, as `http://collector:4318/v1/traces`.")
    headers: dict[HeaderName, SecretReference] = Field(
        default={}, max_length=20, description="Further headers by name, each as a reference to a secret; for credentials."
    )
    timeout_s: Seconds = Field(default=10.0, description="How long one post may take.")
    compression: Literal["gzip", "none"] = Field(default="gzip", description="How posts are compressed.")
    max_pending: int = Field(
        default=4096,
        ge=16,
        le=1_000_000,
        description="Requests that wait to be sent, in each process that sends, some 4 KB each; what does not fit is dropped.",
    )


class ReceiverSettings(OtlpTarget):
    """One OTLP receiver of traces."""

    tenants: TenantNames | None = Field(
        default=None, min_length=1, description="The tenants whose requests it gets, and no others; null for all tenants."
    )
    except_tenants: TenantNames = Field(default=[], description="Tenants whose requests it does not get.")
    internals: bool | None = Field(
        default=None,
        description="Whether spans name backends, pools, addresses and the causes of failures that are meant for operators. Null: not for "
        "a receiver with `tenants`.",
    )

    @model_validator(mode="after")
    def _has_tenants(self) -> Self:
        if self.tenants is not None and self.except_tenants:
            raise ValueError("has tenants and except_tenants; keep one of them")
        return self

    @property
    def names_internals(self) -> bool:
        """Whether spans name what is inside the deployment."""
        return self.tenants is None if self.internals is None else self.internals


class TraceSettings(Strict):
    """Traces of requests (OpenTelemetry); see docs/reference/traces.md. The policy of a tenant can change `ratio`, `slow_s` and
    `slow_ttft_s`, and exclude the tenant."""

    exporters: dict[ExporterName, ReceiverSettings] = Field(
        min_length=1, max_length=MAX_EXPORTERS, description="The OTLP receivers, by a name for metrics and the log. Their fields are below."
    )
    ratio: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Share of the requests that are traced whatever becomes of them. Requests that failed, were slow or missed a service "
        "level are always traced.",
    )
    slow_s: float = Field(default=60.0, gt=0, le=86_400, description="A request that takes longer in all is slow; seconds.")
    slow_ttft_s: float = Field(default=5.0, gt=0, le=86_400, description="A request whose first token comes later is slow; seconds.")
    callers_flag: bool = Field(
        default=True,
        description="Whether the sampled flag of a caller's `traceparent` decides instead of `ratio`. Switch it off where callers are "
        "strangers: each could have all of its requests traced.",
    )
    engine_spans: Literal["sampled", "always"] = Field(
        default="sampled",
        description="Which requests engines are told to record: `sampled`, those that are traced whatever becomes of them; `always`, every "
        "one, so that slow and failed requests have their engine's spans, and the receiver gets those of all others, too.",
    )
    resource: dict[Attribute, Attribute] = Field(
        default={},
        max_length=50,
        description="Further attributes of the resource, as `deployment.environment.name`; `service.name` is `tidegate` without them.",
    )
