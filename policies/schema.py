"""The policy document as a strict model. Every field here works; what does not exist yet has no key."""

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from domain.strict import Strict

EVERYONE: Final = "*"
"""The tenant of the policy for everyone without one of their own."""

MAX_MODELS: Final = 1000
"""Models of one tenant; more than any catalogue, and what bounds `GET /v1/models` and the label sets behind it."""

TenantName = Annotated[str, StringConstraints(pattern=r"^(\*|[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)$")]
ModelName = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,256}$")]
PoolName = Annotated[str, StringConstraints(min_length=1, max_length=64)]

LoraName = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class ModelEntry(Strict):
    """One model a tenant may use."""

    name: ModelName = Field(description="The name callers use: 1 to 256 printable ASCII characters without spaces.")
    pool: PoolName = Field(description="The pool of `tidegate.yaml` that serves it.")
    lora: LoraName | None = Field(default=None, description="The adapter of that pool to answer with; null for the model as it is.")


class PolicyDocument(Strict):
    """One policy file."""

    tenant: TenantName = Field(
        description='The tenant it governs (lower-case letters, digits, inner dashes), or "*" for everyone without a policy of their own.'
    )
    models: list[ModelEntry] = Field(
        default=[], max_length=MAX_MODELS, description="The models that exist for this tenant; to it, all others do not."
    )
    routing: Literal["least_load"] = Field(default="least_load", description="How a backend is chosen within a pool.")
    expose_headers: bool = Field(
        default=False,
        description="Whether replies carry `x-tidegate-*` headers. They name backends, so leave it off for callers you do not trust.",
    )
    max_output_tokens: int = Field(
        default=4096,
        ge=1,
        le=1_000_000,
        description="Output tokens held for a request that sets no cap of its own. It is an estimate and not sent to the engine.",
    )
