"""The policy document as a strict model. Every field here is implemented."""

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from cache.policy import CachePolicy
from domain.strict import Strict
from guardrails.policy import GuardPolicy
from policies.caps import USUAL_CAPS, RequestCaps
from policies.conditions import ConditionError, condition
from policies.fallback import MAX_FALLBACKS, FallbackEntry
from policies.image_urls import ImageUrls
from policies.ladder import MAX_STEPS, StepField
from policies.parameters import ParametersField
from policies.prompts.allowed import AllowedPrompt
from policies.routing_choice import DEFAULT_ROUTING, RoutingField
from policies.rules import ALWAYS

EVERYONE: Final = "*"
"""The tenant name in the default policy, which governs every tenant without a policy of its own."""

MAX_MODELS: Final = 1000
"""Models of one tenant; more than any catalogue, and the bound on `GET /v1/models` and on the label sets behind it."""

MAX_OVERRIDES: Final = 1000
"""Entries of `for_project`, or of `for_model`, in one policy; as many as a tenant may have projects or models."""

MAX_RULES: Final = 200
"""Rules of one policy."""

RuleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
TenantName = Annotated[str, StringConstraints(pattern=r"^(\*|[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)$")]
ModelName = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,256}$")]
ProjectName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
PoolName = Annotated[str, StringConstraints(min_length=1, max_length=64)]

LoraName = Annotated[str, StringConstraints(min_length=1, max_length=64)]


def _checked(text: str) -> str:
    try:
        condition(text)
    except ConditionError as error:
        where = "docs/reference/policies.md says what a condition can ask about"
        raise ValueError(f"{error} ({where})" if "; " in str(error) else f"{error}; {where}") from None
    return text


class WeightedPool(Strict):
    """One of several pools that serve a model."""

    pool: PoolName = Field(description="A pool of `tidegate.yaml`.")
    weight: float = Field(
        gt=0, le=1_000_000, description="Weight of the pool: its share of the conversations, relative to the weights of the others."
    )


class ModelEntry(Strict):
    """One model a tenant may use."""

    name: ModelName = Field(description="The name callers use: 1 to 256 printable ASCII characters without spaces.")
    pool: PoolName | None = Field(default=None, description="The pool of `tidegate.yaml` that serves the model.")
    pools: list[WeightedPool] | None = Field(
        default=None,
        min_length=1,
        max_length=16,
        description="Instead of `pool`, several pools that share the model: each conversation (or end user) stays with one pool; "
        "other requests are split one by one.",
    )
    alias_of: ModelName | None = Field(
        default=None,
        description="Instead of `pool`, another model of this policy that answers; it is billed and limited under its own name.",
    )
    lora: LoraName | None = Field(default=None, description="The adapter of the pool to answer with; null for the base model.")
    fallback: list[FallbackEntry] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_FALLBACKS,
        description="Models that answer instead when this one cannot, tried in this order before the answer begins; see "
        "docs/reference/policies.md.",
    )

    @model_validator(mode="after")
    def _has_one_target(self) -> Self:
        targets = [name for name in ("pool", "pools", "alias_of") if getattr(self, name) is not None]
        if not targets:
            raise ValueError("leads nowhere; write pool, pools or alias_of")
        if len(targets) > 1:
            raise ValueError(f"has {' and '.join(targets)}; keep one of them")
        if self.alias_of is not None and self.lora is not None:
            raise ValueError("has alias_of and lora; write lora at the model it stands for")
        return self


class ResponsesPolicy(Strict):
    """Whether Responses of `/v1/responses` are stored, and for how long."""

    store: bool = Field(default=True, description="Whether a Response is stored whose request does not say so with `store`.")
    keep_days: int = Field(default=30, ge=1, le=3650, description="Days that a Response or a conversation is kept for; then it is deleted.")
    max_bytes: int = Field(
        default=256 * 1024**2,
        ge=1024**2,
        le=1024**4,
        description="Bytes that all stored Responses and conversations of the tenant take together, at most.",
    )
    max_background: int = Field(
        default=20, ge=0, le=1000, description="Responses in the background of the tenant that are under way at once, at most."
    )


class RequestLogPolicy(Strict):
    """What is kept of finished requests beside the facts of the access log, and for how long."""

    content: list[Literal["prompt", "answer"]] = Field(
        default_factory=list,
        json_schema_extra={"default": []},
        max_length=2,
        description="Texts that are kept, redacted and sealed: `prompt`, `answer`; empty for none.",
    )
    share: float = Field(default=1.0, gt=0, le=1, description="Share of the requests whose texts are kept, chosen by their ids.")
    max_bytes: int = Field(
        default=16 * 1024,
        ge=256,
        le=256 * 1024,
        description="Bytes that are kept of a prompt, and as many of an answer; the rest is cut off.",
    )
    hours: float = Field(
        default=24, gt=0, le=87_600, description="Hours for which the tenant's finished requests, and their texts, are kept."
    )


class JudgePolicy(Strict):
    """Which answers the judge looks at (docs/reference/judge.md). It sees the redacted texts of the request log alone, so `request_log` has
    to keep prompts and answers."""

    share: float = Field(default=0.05, gt=0, le=1, description="Share of the requests whose answers are scored, chosen by their ids.")
    pair_share: float = Field(
        default=0.05,
        gt=0,
        le=1,
        description="Of the requests to a pool under a rollout that asks for the metric `judged`: the share for which both arms are asked "
        "and their answers compared.",
    )
    rubric: Annotated[str, StringConstraints(max_length=4000)] = Field(
        default="", description="What makes an answer good, in words for a model; empty for the usual rubric."
    )


class Treatment(Strict):
    """How requests are treated. What is not written is inherited, so that defaults are those of the outermost level. `guards` alone add to
    those of outer levels, and never take their place."""

    routing: RoutingField = Field(
        default=DEFAULT_ROUTING,
        description="How a backend of the pool is chosen: the name of a policy of docs/explanation/routing.md, or `{policy: NAME, …}`.",
    )
    priority: float = Field(
        default=0.0, ge=-1, le=1, description="Priority of the requests in routing policies that weigh requests against each other."
    )
    class_: Literal["critical", "interactive", "default", "batch"] = Field(
        default="default",
        alias="class",
        description="Priority class: the order in which requests are served when not all can be, and which requests are refused last "
        "(see docs/explanation/overload.md). Rights and requests can only lower it.",
    )
    ttft_slo_s: float | None = Field(
        default=None,
        gt=0,
        le=3600,
        description="Promised time to the first token (service-level objective), in seconds; null for none. Routing takes it into account.",
    )
    tpot_slo_s: float | None = Field(
        default=None,
        gt=0,
        le=60,
        description="Promised mean time between two tokens of an answer (service-level objective), in seconds; null for none. "
        "`predicted_latency` avoids backends that will be slower while others will not.",
    )
    max_wait_s: float | None = Field(
        default=None,
        ge=0,
        le=86_400,
        description="Longest wait in the queue for capacity on an engine; a request that would have to wait longer is refused at "
        "once; 0: requests never wait. Null: by priority class, see docs/explanation/overload.md.",
    )
    deadline_s: float | None = Field(
        default=None,
        gt=0,
        le=86_400,
        description="Seconds from the request's last byte until its answer must be complete: the request waits no longer for an "
        "engine, and an answer that runs is ended then and charged as far as it came. Null for none.",
    )
    degrade: list[StepField] = Field(
        default_factory=list,
        json_schema_extra={"default": []},
        max_length=MAX_STEPS,
        description="Degradation ladder: steps that are applied in this order before a request waits long or is refused for overload: "
        "`{trim_output_tokens: 256}`, `{model: NAME}`, each with `after_s`; `queue`, `refuse`, `cache_only`. See "
        "docs/explanation/overload.md.",
    )
    parameters: ParametersField | None = Field(
        default=None,
        description="Parameters that requests may set, and defaults of parameters they do not set; inherited as a whole, null for no "
        "rules.",
    )
    caps: RequestCaps = Field(
        default=USUAL_CAPS,
        description="The most of each thing that one request may hold; inherited as a whole.",
    )
    image_urls: ImageUrls | None = Field(
        default=None,
        description="Hosts from which the gateway fetches images that chats name by `http` or `https` URL; inherited as a whole. Null: "
        "such URLs are refused. See docs/reference/policies.md.",
    )
    cache: CachePolicy | None = Field(
        default=None,
        description="Whether and how answers are cached; inherited as a whole. Null: never. See docs/reference/cache.md.",
    )
    responses: ResponsesPolicy | None = Field(
        default=None,
        description="Whether Responses of `/v1/responses` are stored, so that they can be continued and read, and conversations are "
        "kept; inherited as a whole. Null: never, whatever a request asks for. See docs/reference/responses-state.md.",
    )
    request_log: RequestLogPolicy | None = Field(
        default=None,
        description="Which texts of finished requests are kept in the request log, and for how long requests are; inherited as a whole. "
        "Null: no texts, and requests for as long as the settings say. See docs/reference/request-log.md.",
    )
    judge: JudgePolicy | None = Field(
        default=None,
        description="Whether the judge looks at answers, and by which rubric; inherited as a whole. Null: never. See "
        "docs/reference/judge.md.",
    )
    guards: GuardPolicy | None = Field(
        default=None,
        description="Guard rules. They add up over the levels: those of outer levels apply too, whatever is written here. Null: no "
        "further ones. See docs/reference/guards.md.",
    )
    expose_headers: bool = Field(
        default=False,
        description="Whether replies carry `x-tidegate-*` headers. The headers name backends: leave them off for callers you do not trust.",
    )
    show_prices: bool = Field(
        default=False,
        description="Whether the model list tells callers the prices of models (`pricing`, in dollars per token).",
    )
    choose_arm: bool = Field(
        default=False,
        description="Whether requests may choose the arm of a rollout or an experiment with the header `x-tidegate-rollout: canary` "
        "or `baseline`, for testers; see docs/reference/rollouts.md.",
    )
    end_revoked: bool = Field(
        default=False,
        description="Whether running answers end, within 30 seconds, when their key is revoked, disabled or expired, or its project or "
        "tenant is disabled; what was generated is charged. By default they run to their end.",
    )
    max_output_tokens: int = Field(
        default=4096,
        ge=1,
        le=1_000_000,
        description="Output tokens per choice that are assumed of a request that sets no cap of its own. Where a limit counts output, "
        "they are the request's cap, sent to the engine too.",
    )
    output_reservation: Literal["strict", "statistical"] = Field(
        default="strict",
        description="How much output limits reserve for a running request: `strict`, all it may generate, so that no limit is "
        "exceeded; `statistical`, 1.2 times the 95th percentile of the tenant's answers of that model, so that more "
        "requests run at once and a few long answers can exceed a limit (see docs/reference/limits.md).",
    )


class RuleThen(Treatment):
    """The overrides of a rule that matches."""

    model: ModelName | None = Field(
        default=None,
        description="The model of this policy that answers instead, where the caller may use it; otherwise the next rule is tried.",
    )

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("changes nothing; write what is otherwise, or remove the rule")
        return self


class RuleEntry(Strict):
    """One rule."""

    name: RuleName = Field(description="Name of the rule in the access log and in `tidegate explain`.")
    models: list[ModelName] = Field(
        default_factory=list,
        json_schema_extra={"default": []},
        max_length=MAX_MODELS,
        description="The rule applies to requests for these models; empty for all.",
    )
    if_: Annotated[str, AfterValidator(_checked)] = Field(
        default=ALWAYS,
        alias="if",
        description="The rule applies to requests for which this CEL expression is true; docs/reference/policies.md lists its variables.",
    )
    share: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="The rule applies to this share of the conversations (else of the end users, else of the single requests).",
    )
    then: RuleThen = Field(description="Fields of this policy from `routing` on that the rule changes, and `model`.")


MAX_PROMPTS: Final = 1000
"""Prompts of one tenant; a pattern counts as one."""


class PolicyDocument(Treatment):
    """One policy file."""

    tenant: TenantName = Field(
        description='The tenant that the policy governs (lower-case letters, digits, inner dashes), or "*" for every tenant without a '
        "policy of its own, and for fields that other policies leave out."
    )
    models: list[ModelEntry] = Field(
        default_factory=list,
        json_schema_extra={"default": []},
        max_length=MAX_MODELS,
        description='The models that exist for this tenant; other models do not exist for it. Left out: the models of "*".',
    )
    for_project: dict[ProjectName, Treatment] = Field(
        default_factory=dict,
        json_schema_extra={"default": {}},
        max_length=MAX_OVERRIDES,
        description="Overrides for requests of a project, by the project's name: any of the fields from `routing` on.",
    )
    for_model: dict[ModelName, Treatment] = Field(
        default_factory=dict,
        json_schema_extra={"default": {}},
        max_length=MAX_OVERRIDES,
        description="Overrides for requests for a model, by its name in `models`; they are applied after `for_project`.",
    )
    rules: list[RuleEntry] = Field(
        default_factory=list,
        json_schema_extra={"default": []},
        max_length=MAX_RULES,
        description="Overrides for requests that match a rule; the first rule that matches counts, and is applied after `for_project` "
        'and `for_model`. Left out: the rules of "*".',
    )
    prompts: list[AllowedPrompt] = Field(
        default=[],
        max_length=MAX_PROMPTS,
        description="The prompts that exist for this tenant: ids, of which the highest version counts, patterns with `*`, or `{id, "
        'version}` and `{id, versions}` (see docs/reference/prompts.md). Left out: the prompts of "*".',
    )
