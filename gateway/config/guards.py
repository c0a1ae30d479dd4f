"""`guards` of `tidegate.yaml`: the detectors that rules of policies may ask, and the memory of what they said.

Each kind of detector is a class here, an adapter in `guardrails/detectors/` and a line in `gateway/wiring/guards.py`.
"""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from domain.strict import Strict
from gateway.config.addresses import checked_hook_url
from gateway.config.secrets import SecretReference
from guardrails.policy import DetectorName

MAX_DETECTORS: Final = 100

PoolName = Annotated[str, StringConstraints(min_length=1, max_length=63)]
ServiceUrl = Annotated[str, StringConstraints(max_length=2048), AfterValidator(checked_hook_url)]
Model = Annotated[str, StringConstraints(min_length=1, max_length=256)]


_TIMEOUT: Final = (
    "How long a rule waits for the detector, in milliseconds, waiting for a place included. Later than that the detector is away, and the "
    "rule's `on_error` says what happens."
)
_AT_ONCE: Final = "Calls to the detector at the same time, of each worker."
_OF_TENANT: Final = "Those of them for texts of one tenant."
_MAX_CHARS: Final = "Characters that the detector is sent at a time. A longer text is cut into windows, at most 64."


class DetectorTerms(Strict):
    """What every detector has: how long, how often and how much it is asked."""

    timeout_ms: float = Field(default=150.0, ge=1, le=60_000, description=_TIMEOUT)
    at_once: int = Field(default=32, ge=1, le=1024, description=_AT_ONCE)
    at_once_per_tenant: int = Field(default=8, ge=1, le=1024, description=_OF_TENANT)
    max_chars: int = Field(default=8000, ge=100, le=1_000_000, description=_MAX_CHARS)
    overlap_chars: int = Field(
        default=200, ge=0, le=10_000, description="Characters that two neighbouring windows share, so that what lies across a cut is found."
    )
    remember_s: float = Field(
        default=300.0,
        ge=0,
        le=86_400,
        description="Seconds for which the result of a text is remembered, for its tenant alone; 0 for not at all. Results are remembered, "
        "texts are not.",
    )

    @model_validator(mode="after")
    def _has_windows(self) -> Self:
        if self.overlap_chars >= self.max_chars:
            raise ValueError(f"has overlap_chars: {self.overlap_chars}; it must be less than max_chars: {self.max_chars}")
        return self


class GuardModelSettings(DetectorTerms):
    """A guard model that the fleet itself serves."""

    kind: Literal["guard_model"] = Field(description="`guard_model`: a guard model of the fleet, asked through chat completions.")
    pool: PoolName = Field(description="The pool whose engines serve the model.")
    form: Literal["llama_guard", "qwen_guard", "shield_gemma"] = Field(
        description="What the model is asked and how it answers: `llama_guard` (Llama Guard 3 and 4), `qwen_guard` (Qwen3Guard), "
        "`shield_gemma` (ShieldGemma, one question for each of its four harms)."
    )
    prompt: Literal["template", "written"] = Field(
        default="template",
        description="`template` sends the text as a conversation, of which the model's own chat template makes its task; `written` writes "
        "the whole task into one message, for a model that has no such template.",
    )


class ServiceTerms(DetectorTerms):
    """What every detector behind a URL has."""

    private: bool = Field(
        default=False,
        description="Whether the service is in your own network or on this machine. Without it, addresses that are not public are refused, "
        "and so is `http://`; with it and `http://`, addresses that are public are.",
    )


def _sent_safely(url: str | None, private: bool) -> None:
    if url is not None and not url.startswith("https:") and not private:
        raise ValueError("has a url by which texts travel unencrypted; write https://, or private: true for a service in your own network")


class ModerationsSettings(ServiceTerms):
    """A moderations endpoint in OpenAI's form."""

    kind: Literal["moderations"] = Field(description="`moderations`: an endpoint in the form of OpenAI's `/v1/moderations`.")
    url: ServiceUrl | None = Field(
        default=None, description="URL of the endpoint, with its path: `https://api.example.com/v1/moderations`. Texts are sent there."
    )
    pool: PoolName | None = Field(default=None, description="Instead of `url`, a pool whose engines have `/v1/moderations`.")
    api_key: SecretReference | None = Field(default=None, description="Key of the endpoint at `url`, sent as a bearer token.")
    model: Model | None = Field(
        default=None, description="The moderation model; null for the endpoint's own choice, and for that of the pool."
    )

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        if (self.url is None) == (self.pool is None):
            raise ValueError("names no endpoint, or two; write either url: https://…/v1/moderations or pool: NAME")
        if self.pool is not None and self.api_key is not None:
            raise ValueError("has a pool and an api_key; write the key at the pool")
        _sent_safely(self.url, self.private)
        return self


class GuardWebhookSettings(ServiceTerms):
    """A classifier of your own behind a URL."""

    kind: Literal["webhook"] = Field(description="`webhook`: a classifier of your own; see docs/reference/guards.md for its messages.")
    url: ServiceUrl = Field(description="URL that receives each text as a signed JSON object (POST): `https://host[:port]/path`.")
    secret: SecretReference = Field(description="Key of the signature on every message (HMAC-SHA256); at least 24 characters.")
    timeout_ms: float = Field(default=300.0, ge=1, le=60_000, description=_TIMEOUT)
    at_once: int = Field(default=16, ge=1, le=1024, description=_AT_ONCE)
    at_once_per_tenant: int = Field(default=2, ge=1, le=1024, description=_OF_TENANT)
    max_chars: int = Field(default=100_000, ge=100, le=1_000_000, description=_MAX_CHARS)

    @model_validator(mode="after")
    def _is_sent_safely(self) -> Self:
        _sent_safely(self.url, self.private)
        return self


class PresidioSettings(ServiceTerms):
    """Presidio's analyzer as a service."""

    kind: Literal["presidio"] = Field(description="`presidio`: Presidio's analyzer, a service beside the gateway.")
    url: ServiceUrl = Field(description="URL of the analyzer, with its path: `http://127.0.0.1:5002/analyze` and `private: true`.")
    api_key: SecretReference | None = Field(default=None, description="Key that a proxy in front of the service wants as a bearer token.")
    language: Annotated[str, StringConstraints(pattern=r"^[a-z]{2}$")] = Field(
        default="en", description="Language of the texts, two letters; the service needs a model for it."
    )
    entities: list[Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]{0,63}$")]] = Field(
        default=[], max_length=100, description="Entities to look for, such as `PERSON`; empty for all that the service knows."
    )
    min_score: float = Field(default=0.5, ge=0, le=1, description="The score from which the service finds an entity.")
    timeout_ms: float = Field(default=300.0, ge=1, le=60_000, description=_TIMEOUT)

    @model_validator(mode="after")
    def _is_sent_safely(self) -> Self:
        _sent_safely(self.url, self.private)
        return self


DetectorSettings = Annotated[
    GuardModelSettings | ModerationsSettings | GuardWebhookSettings | PresidioSettings, Field(discriminator="kind")
]

KINDS: Final[tuple[type[Any], ...]] = (GuardModelSettings, ModerationsSettings, GuardWebhookSettings, PresidioSettings)
"""Every kind of detector, in the order of the reference."""


class GuardSettings(Strict):
    """What guard rules of policies may ask."""

    detectors: dict[DetectorName, DetectorSettings] = Field(
        default={},
        max_length=MAX_DETECTORS,
        description="Classifiers that rules of the kind `detector` name: lower-case letters, digits, `-` and `_`. Their fields are below.",
    )
    remembered_bytes: int = Field(
        default=32 * 1024**2,
        ge=0,
        le=16 * 1024**3,
        description="Memory for results of detectors, of all workers together; 0 remembers none.",
    )
