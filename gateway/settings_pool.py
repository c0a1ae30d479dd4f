"""The settings of one pool: its model, its engines' dialect, and its backends."""

from typing import Literal

from pydantic import Field, model_validator

from domain.strict import Strict
from gateway.settings_backend import BackendSettings, Hardware, Name
from gateway.settings_discover import DiscoverSettings
from gateway.settings_limit import LimitSettings
from gateway.settings_lora import LoraSettings
from gateway.settings_secret import SecretReference
from routing.disaggregation import DisaggregationSettings


class HedgeSettings(Strict):
    """Hedging: which requests may be sent to a second engine."""

    max_prompt_tokens: int = Field(default=512, ge=1, le=8192, description="Longest prompt that is computed twice.")


class PoolSettings(Strict):
    """Backends that serve one model revision."""

    name: Name = Field(description="What policies call it; letters, digits and inner `.`, `_`, `-`.")
    model: str = Field(min_length=1, max_length=256, description="The name the engines serve the model under.")
    revision: str = Field(
        default="1", min_length=1, max_length=64, pattern=r"^[\x21-\x7e]+$", description="Which revision of the model this is."
    )
    dialect: Literal["vllm", "sglang", "trtllm", "tgi", "triton", "dynamo", "llamacpp", "openai"] = Field(
        default="vllm", description="How the engines speak; for other OpenAI-compatible servers `openai`."
    )
    api_key: SecretReference | None = Field(
        default=None, description="The key the engines ask for, if they do: {file: path} or {env: NAME}."
    )
    tokenizer: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="What prompts are counted with for limits: the served model's folder or `tokenizer.json` (exact), or `o200k_base` or "
        "`cl100k_base` (half as much again as those count); null to take their bytes. Needs the extra `tokens`.",
    )
    image_tokens: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Most prompt tokens that the engines make of one image, its markers included; limits hold that many for each "
        "image of a chat. Null takes the bytes of the whole request.",
    )
    context_tokens: int | None = Field(
        default=None,
        ge=1,
        le=100_000_000,
        description="Tokens of prompt and answer together that the engines take; output is capped by it. Backends may say otherwise.",
    )
    engine_priority: bool = Field(
        default=False,
        description="Whether the engines order their own queues by priority (docs/engines.md says what to start them with); requests then "
        "carry their class in the engines' numbers.",
    )
    hardware: Hardware | None = Field(
        default=None,
        description="What its engines are taken to be as fast as until they are measured: GPU and size of the model; null: `h100-8b`.",
    )
    limit: LimitSettings = Field(default=LimitSettings(), description="What each of its engines may be given at a time is found online.")
    loras: list[LoraSettings] = Field(default=[], max_length=1000, description="Adapters of the model that policies may give to tenants.")
    max_loras: int = Field(
        default=1, ge=1, le=1000, description="Adapters each engine holds at once, those it was started with included; see docs/lora.md."
    )
    backends: list[BackendSettings] = Field(
        default=[], max_length=1000, description="The engines. An empty list is filled by `discover`, or over the admin port."
    )
    disaggregation: DisaggregationSettings | None = Field(
        default=None,
        description="For engines that share requests by their `role`: what handing a prompt's KV over costs. Dialects `vllm` and `sglang`.",
    )
    hedge: HedgeSettings | None = Field(
        default=None,
        description="Send short streamed requests to a second engine when the first does not begin in time, 2 % of them at most; "
        "`{}` for the defaults.",
    )
    discover: DiscoverSettings | None = Field(default=None, description="Where further engines are found: {file: …} or {dns: …}.")

    @model_validator(mode="after")
    def _filled(self) -> "PoolSettings":
        if "backends" not in self.model_fields_set and self.discover is None:
            raise ValueError("has no backends; list them, or write discover, or backends: [] to fill it over the admin port")
        return self
