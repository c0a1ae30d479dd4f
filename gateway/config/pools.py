"""The settings of one pool: its model, its engines' dialect, its backends, and where they are discovered.

`PoolSettings` is the whole pool. `BackendSettings` is one backend, whether `tidegate.yaml` or a discovery file lists it, with the endpoints
of its KV events (`KvEventsSettings`) and of its load push (`LoadPushSettings`). `checked_networks` is about the networks that discovered
backends may be in. `ConcurrencyLimitSettings`, `LoraSettings`, `HedgeSettings` and `ThinkingAsEffortSettings` are the sections `limit`,
`loras`, `hedge` and `thinking_as_effort`. Checks across these fields are in `gateway/config/checks.py`.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from backends.concurrency_limit import LimitBounds
from backends.dialects import DIALECTS
from backends.dialects.thinking import Efforts
from backends.load_reports import MAX_RANKS
from backends.lora.residency import DIGEST_CHARS
from backends.reach import networks_of
from domain.membership import KvEvents, LoadPush, Member, Owner, Role, Traits
from domain.model_revisions import PROOF_DIGITS, Pinned
from domain.strict import Strict
from gateway.config.addresses import checked_engine_url, checked_events_endpoint, checked_load_endpoint, split_address
from gateway.config.discover import DiscoverSettings
from gateway.config.secrets import File, SecretReference
from routing.disaggregation import DisaggregationSettings
from routing.room import HEADROOM
from routing.scaling import RoleScaleSettings, ScaleSettings
from tenancy.isolation import PREFIX

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$")]
Region = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$")]
Hardware = Literal["h100-8b", "h100-70b-tp4", "rtx-pro-6000-8b", "rtx-4090-8b", "cpu-135m"]
"""The keys of `routing.rates.PRIORS`."""


class KvEventsSettings(Strict):
    """Where an engine publishes what its prefix cache stores and removes. Prompts pass there in clear: keep it secret."""

    endpoint: str = Field(description="Where the engine publishes its KV events: `tcp://host:port` or `ipc:///path`.")
    replay: str | None = Field(
        default=None,
        description="Where the engine answers replay requests; without it, one lost batch makes the events untrusted until the "
        "engine's cache is cleared.",
    )
    bind: bool = Field(
        default=False, description="Whether the gateway listens at the endpoint, for an engine that connects to it; with one worker only."
    )

    @field_validator("endpoint", "replay")
    @classmethod
    def _safe(cls, endpoint: str | None) -> str | None:
        return None if endpoint is None else checked_events_endpoint(endpoint)


class LoadPushSettings(Strict):
    """Where an engine pushes its load (SGLang's `--load-publish-endpoint`); the load of all its ranks is one load."""

    endpoint: str = Field(max_length=256, description="Where the engine's first data-parallel rank publishes its load: `tcp://host:port`.")
    ranks: int = Field(default=1, ge=1, le=MAX_RANKS, description="Number of ranks that publish, on consecutive ports.")

    @field_validator("endpoint")
    @classmethod
    def _safe(cls, endpoint: str) -> str:
        return checked_load_endpoint(endpoint)

    @model_validator(mode="after")
    def _ports(self) -> Self:
        last = split_address(self.endpoint[6:])[1] + self.ranks - 1
        if last > 65_535:
            raise ValueError(f"the last rank's port would be {last:,}; write fewer ranks, or the port of the first one")
        return self

    def value(self) -> LoadPush:
        """The endpoints as a value of the domain."""
        return LoadPush(self.endpoint, self.ranks)


class BackendSettings(Strict):
    """One engine endpoint; one data-parallel rank counts as one."""

    id: Name = Field(description="Name of the backend in metrics, logs and headers; unique in the whole fleet.")
    url: str = Field(description="Base URL of the engine: `http(s)://host[:port][/prefix]`, without `/v1`.")
    kv_events: KvEventsSettings | None = Field(
        default=None, description="Where the engine publishes its KV events; without it, the content of the engine's cache is not known."
    )

    load_push: LoadPushSettings | None = Field(
        default=None, description="Where the engine pushes its load; without it, the load is polled only. Dialect `sglang` only."
    )

    role: Role = Field(
        default="both",
        description="`both` serves requests whole, `prefill` computes prompts for decode engines, `decode` generates from the KV that "
        "it receives; see docs/explanation/disaggregation.md.",
    )
    bootstrap_port: int | None = Field(
        default=None,
        ge=1,
        le=65_535,
        description="Port on the URL's host where decode engines ask a `prefill` engine for KV. Dialect `sglang` only.",
    )

    max_in_flight: int | None = Field(
        default=None,
        ge=1,
        le=65_535,
        description="Requests that each worker may have in flight on this backend; further ones go to other backends, or wait. Null: "
        "no cap.",
    )
    context_tokens: int | None = Field(
        default=None, ge=1, le=100_000_000, description="Longest prompt and answer together that the backend takes; null: the pool's value."
    )
    price: float = Field(
        default=0.0, ge=0, le=1e6, description="Price of a token on this backend, relative to the pool's others; for the `weighted` policy."
    )
    region: Region = Field(default="", description="Region or zone of the backend, in the words of `routing.region`.")
    hardware: Hardware | None = Field(
        default=None,
        description="GPU and size of the model: the speed that is assumed until the backend is measured. Null: the pool's value.",
    )
    usd_per_hour: float | None = Field(
        default=None, gt=0, le=1e6, description="Price of an hour of the engine, in dollars, with all its GPUs. Null: the pool's value."
    )

    @field_validator("url")
    @classmethod
    def _safe(cls, url: str) -> str:
        return checked_engine_url(url)

    def member(self, pool: str, owner: Owner) -> Member:
        """The backend as a member of the fleet."""
        kv = self.kv_events
        events = None if kv is None else KvEvents(kv.endpoint, kv.replay, kv.bind)
        push = None if self.load_push is None else self.load_push.value()
        return Member(
            pool,
            self.id,
            self.url,
            owner,
            kv_events=events,
            load_push=push,
            role=self.role,
            bootstrap_port=self.bootstrap_port,
            traits=Traits(
                self.max_in_flight or 0, self.context_tokens or 0, self.price, self.region, self.hardware or "", self.usd_per_hour or 0.0
            ),
        )


class ConcurrencyLimitSettings(Strict):
    """The adaptive concurrency limit of each engine of the pool, over all gateways together; see docs/explanation/overload.md."""

    enabled: bool = Field(
        default=True,
        description="Whether concurrency limits are measured and enforced; without them only `hold_s` keeps requests from waiting in "
        "the engines.",
    )
    min_requests: int = Field(default=1, ge=1, le=65_535, description="Lower bound of an engine's limit on requests in flight.")
    max_requests: int = Field(default=4096, ge=1, le=65_535, description="Upper bound of an engine's limit on requests in flight.")
    token_gap_s: float | None = Field(
        default=None,
        gt=0,
        le=60,
        description="Mean time between two tokens of an answer that an engine should not exceed. Null: 0.1 s, or four times as long "
        "as on an empty engine, whichever is longer.",
    )

    kept_free: float = Field(
        default=HEADROOM,
        ge=0,
        le=0.9,
        description="Share of the engines' limits that is kept free for tenants with few requests in flight. Up to 0.05 of the pool's "
        "slots are left free by tenants with much in flight, at any time; what is above 0.05, of each engine, by tenants with far more "
        "in flight than the others, while another tenant was active in the last 30 s. 0 reserves nothing.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.kept_free > HEADROOM and not self.enabled:
            raise ValueError("kept_free is a share of the limits that are found, and enabled: false finds none; leave one of the two out")
        if self.min_requests > self.max_requests:
            raise ValueError(f"min_requests is {self.min_requests:,} and max_requests {self.max_requests:,}; the first is the smaller one")
        return self

    def bounds(self) -> LimitBounds | None:
        """The bounds as the limiter takes them; None where the limit is off."""
        return LimitBounds(self.min_requests, self.max_requests, gap_s=self.token_gap_s) if self.enabled else None


def _no_salt(name: str) -> str:
    if name.startswith(PREFIX):
        raise ValueError(f"begins with {PREFIX!r}, as cache salts do, which engines could mix up; give it another name")
    return name


LoraName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$"), AfterValidator(_no_salt)]


def checked_engine_path(path: str) -> str:
    """The path itself, if it is the absolute path of a folder as engines on Linux read it, written without detours.

    Raises:
        ValueError: it is none.
    """
    root, *names = path.removesuffix("/").split("/")
    if root or not names or not {"", ".", ".."}.isdisjoint(names) or not path.isprintable():
        raise ValueError("is no absolute path without `.`, `..` and doubled slashes; write it as /adapters/support-bot")
    return path


class LoraSettings(Strict):
    """One adapter."""

    name: LoraName = Field(description="Name of the adapter in policies; letters, digits and inner `.`, `_`, `-`.")
    digest: str = Field(
        pattern=r"^[0-9a-f]{64}$",
        description="SHA-256 of the adapter's files, as `tidegate lora digest FOLDER` prints it. Engines know the adapter as `name@` "
        f"and the first {DIGEST_CHARS} digits, so other content is another adapter.",
    )
    path: str = Field(
        min_length=1,
        max_length=4096,
        description="Path of the adapter on the engines' machines. Where this machine can read an adapter there "
        "too, the adapter is loaded only if its files have the digest.",
    )


def checked_networks(texts: list[str]) -> list[str]:
    """The texts themselves, if each is a network as address/bits.

    Raises:
        ValueError: one of them is no network.
    """
    for text in texts:
        try:
            networks_of([text])
        except ValueError:
            raise ValueError(
                f"has {text[:64]!r}, which is no network; write address/bits without host bits, for instance 10.0.0.0/8"
            ) from None
    return texts


class HedgeSettings(Strict):
    """Hedging: which requests may be sent to a second engine."""

    max_prompt_tokens: int = Field(default=512, ge=1, le=8192, description="Longest prompt of a hedged request.")


class ThinkingAsEffortSettings(Strict):
    """The `reasoning_effort` that is sent in place of the switch for thinking."""

    enabled: Literal["minimal", "low", "medium", "high"] = Field(description="Sent for `enable_thinking: true` without an effort.")
    disabled: Literal["none", "minimal", "low", "medium"] = Field(
        description='Sent for `enable_thinking: false` and for `reasoning_effort: "none"`: the least effort that the model has.'
    )


class PinnedSettings(Strict):
    """The registered revision that the engines of the pool must prove to serve; see docs/reference/models.md."""

    model: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="The model's name in the registry; null: the pool's `model`, without a digest at its end. The revision is the pool's.",
    )
    digest: str = Field(
        pattern=r"^sha256:[0-9a-f]{64}$", description="The digest of the revision's manifest, as `tidegate model digest PATH` prints it."
    )
    unproven: Literal["refuse", "admit"] = Field(
        default="refuse",
        description="What becomes of an engine none of whose served names ends with the digest (`@sha256-` and its first "
        f"{PROOF_DIGITS} digits): `refuse` keeps it down, `admit` uses it and says so as the reason of its state.",
    )


class EngineTlsSettings(Strict):
    """TLS towards the engines of a pool. The files are read again when they change, without a restart."""

    ca: File | None = Field(
        default=None,
        description="PEM file with the CAs of the engines' certificates, relative to the settings file. Null: the system's CAs.",
    )
    certificate: File | None = Field(
        default=None,
        description="PEM file with the chain of the client certificate that the gateway shows to the engines (mTLS), relative to the "
        "settings file. Null: it shows none.",
    )
    private_key: File | None = Field(
        default=None, description="PEM file with the client certificate's private key, not encrypted, relative to the settings file."
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.certificate is None) != (self.private_key is None):
            raise ValueError("has one of certificate and private_key; write both, or none where the engines demand no client certificate")
        if self.ca is None and self.certificate is None:
            raise ValueError("names no file; write ca, or certificate and private_key, or leave tls out for the system's CAs")
        return self


class PoolSettings(Strict):
    """Backends that serve one model revision."""

    name: Name = Field(description="Name of the pool in policies; letters, digits and inner `.`, `_`, `-`.")
    model: str = Field(min_length=1, max_length=256, description="The name under which the engines serve the model.")
    revision: str = Field(default="1", min_length=1, max_length=64, pattern=r"^[\x21-\x7e]+$", description="Revision of the model.")
    pinned: PinnedSettings | None = Field(
        default=None, description="The revision of the registry that the engines must prove to serve; null: any engine that serves `model`."
    )
    dialect: Literal["vllm", "sglang", "trtllm", "tgi", "triton", "dynamo", "llamacpp", "openai"] = Field(
        default="vllm", description="The engines' dialect, the kind of engine; for other OpenAI-compatible servers `openai`."
    )
    api_key: SecretReference | None = Field(
        default=None, description="The API key that the engines require, if any: {file: path} or {env: NAME}."
    )
    tls: EngineTlsSettings | None = Field(
        default=None,
        description="TLS towards engines with `https` URLs: their CAs, and the gateway's client certificate. Null: the system's CAs and no "
        "client certificate.",
    )
    tokenizer: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="Tokenizer that counts prompts for limits: the served model's folder or `tokenizer.json` (exact), or `o200k_base` "
        "or `cl100k_base` (1.5 times the count of that vocabulary); null to count a prompt's bytes, also where `tidegate "
        "check` finds a tokenizer on this machine. Needs the extra `tokens`.",
    )
    image_tokens: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Most prompt tokens that the engines make of one image, its markers included; limits reserve that many for each "
        "image of a chat. Null reserves 16,384 for each, the most that published models make of one.",
    )
    context_tokens: int | None = Field(
        default=None,
        ge=1,
        le=100_000_000,
        description="Longest prompt and answer together that the engines take, in tokens; output is capped by it. A backend may have "
        "its own value.",
    )
    kind: Literal["chat", "completion", "embedding", "rerank"] = Field(
        default="chat", description="What the model is for, as the model list tells callers (`type`); nothing is refused for it."
    )
    modalities: list[Literal["text", "image", "audio", "video"]] | None = Field(
        default=None,
        min_length=1,
        max_length=4,
        description="Kinds of content that the model takes, as the model list tells callers; null for text, and images where "
        "`image_tokens` is set.",
    )
    thinking_as_effort: ThinkingAsEffortSettings | None = Field(
        default=None,
        description="For a model whose chat template reads `reasoning_effort` and no switch, such as gpt-oss (`{enabled: medium, disabled: "
        "low}`): callers' `enable_thinking` and `thinking` go to its engines as that effort. Null: the template has a switch "
        "(docs/reference/engines.md).",
    )
    engine_priority: bool = Field(
        default=False,
        description="Whether the engines order their own queues by priority (docs/reference/engines.md says how to start them for it); "
        "requests then carry their priority class as the engine's number.",
    )
    hardware: Hardware | None = Field(
        default=None,
        description="GPU and size of the model: the speed that is assumed of the pool's engines until they are measured; null: `h100-8b`.",
    )
    profile: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="A file of `tidegate engine profile --out`, relative to the settings file: the measured speed of the pool's engines, "
        "which is assumed in place of `hardware` until they serve. Null: the profile that the registry has of the pinned revision.",
    )
    usd_per_hour: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="Price of an hour of each engine of the pool, in dollars, with all its GPUs: metrics compare what a token costs with "
        "its list price (docs/reference/metrics.md). Null: unknown. A backend may have its own value.",
    )
    step_tokens: int = Field(
        default=2048,
        ge=16,
        le=1_000_000,
        description="Most tokens that the engines compute in one step: `--max-num-batched-tokens` of vLLM, `--chunked-prefill-size` of "
        "SGLang. Routing predicts from it how many steps a prompt takes.",
    )
    hold_s: float = Field(
        default=0.6,
        ge=0,
        le=60,
        description="Seconds of uncached prompts that may wait in an engine before requests for it wait in the gateway instead, where the "
        "shortest of a tenant goes first; the processes of the gateway share them. 0 for no bound.",
    )
    limit: ConcurrencyLimitSettings = Field(
        default=ConcurrencyLimitSettings(), description="The concurrency limit of each engine, measured while it serves."
    )
    loras: list[LoraSettings] = Field(default=[], max_length=1000, description="Adapters of the model that policies may grant to tenants.")
    lora_folder: Annotated[str, StringConstraints(max_length=4096), AfterValidator(checked_engine_path)] | None = Field(
        default=None,
        description="A folder on the engines' machines: adapters below it may be registered over the admin API while the gateway runs "
        "(docs/reference/lora.md), and policies may name adapters that `loras` lacks. Null: the adapters of `loras` alone.",
    )
    max_loras: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="Adapters that each engine holds at once, including adapters it was started with; see docs/reference/lora.md.",
    )
    backends: list[BackendSettings] = Field(
        default=[], max_length=1000, description="The engines. An empty list is filled by `discover`, or over the admin port."
    )
    disaggregation: DisaggregationSettings | None = Field(
        default=None,
        description="For pools of prefill and decode engines (`role`): what the transfer of a prompt's KV costs. Dialects `vllm` and "
        "`sglang`.",
    )
    hedge: HedgeSettings | None = Field(
        default=None,
        description="Send short streamed requests to a second engine when the first does not begin in time, at most 2 % of them; `{}` "
        "for the defaults.",
    )
    continue_streams: bool = Field(
        default=False,
        description="When an engine is lost in the middle of a streamed answer that is plain text (one choice, no tools, no structure, no "
        "log-probabilities), another engine of the pool goes on with the text so far, at most twice. Dialects `vllm`, `sglang` and "
        "`llamacpp`.",
    )
    discover: DiscoverSettings | None = Field(
        default=None, description="Source of further backends: {file: …}, {dns: …} or {kubernetes: …}."
    )
    scale: ScaleSettings | None = Field(
        default=None, description="Recommend how many backends the pool should have; `{}` for the defaults."
    )
    scale_roles: dict[Role, RoleScaleSettings] = Field(
        default={},
        description="The same by role, in place of `scale`, for pools with `disaggregation`: `{prefill: {…}, decode: {…}}`.",
    )

    @property
    def reference(self) -> str:
        """The revision that the pool is pinned to, as the registry of models names it."""
        named = self.pinned.model if self.pinned is not None else None
        return f"{named or self.model.partition('@sha256-')[0]}@{self.revision}"

    @property
    def pin(self) -> Pinned | None:
        """The revision that the engines must prove, as a value of the domain; None for any."""
        pinned = self.pinned
        return None if pinned is None else Pinned(self.reference, pinned.digest, pinned.unproven == "admit")

    @property
    def efforts(self) -> Efforts | None:
        """The efforts that the pool's engines get in place of the switch for thinking."""
        written = self.thinking_as_effort
        return Efforts(written.enabled, written.disabled) if written is not None else None

    @model_validator(mode="after")
    def _filled(self) -> "PoolSettings":
        if "backends" not in self.model_fields_set and self.discover is None:
            raise ValueError("has no backends; list them, or write discover, or backends: [] to fill it over the admin port")
        return self

    @model_validator(mode="after")
    def _scales(self) -> "PoolSettings":
        found = ["discovered"] * (self.disaggregation is not None and self.discover is not None)
        halves = " and ".join(sorted({backend.role for backend in self.backends} - {"both"}) or found)
        if self.scale is not None and self.scale_roles:
            raise ValueError("scale_roles: stands beside scale; keep scale_roles, with both: {…} for engines that serve whole requests")
        if self.scale is not None and halves:
            raise ValueError(f"scale: is for engines that serve whole requests, as {halves} engines may not; write scale_roles")
        if self.scale_roles and self.disaggregation is None:
            raise ValueError("scale_roles: needs disaggregation, without which engines have no roles; write scale")
        return self

    @model_validator(mode="after")
    def _continues(self) -> "PoolSettings":
        if not self.continue_streams:
            return self
        able = [name for name, dialect in DIALECTS.items() if dialect.continues is not None]
        if self.dialect not in able:
            instead = ", ".join(able)
            raise ValueError(f"continue_streams: engines of dialect {self.dialect} cannot go on with an answer; these can: {instead}")
        for other in ("hedge", "disaggregation"):
            if getattr(self, other) is not None:
                raise ValueError(f"continue_streams and {other} are for different pools: remove one of them")
        return self


def pinned_of(pools: Sequence[PoolSettings]) -> dict[str, dict[str, str]]:
    """The pools that are pinned to a revision of the registry of models, each with its digest, by the revision's reference."""
    pinned: dict[str, dict[str, str]] = {}
    for pool in pools:
        if pool.pinned is not None:
            pinned.setdefault(pool.reference, {})[pool.name] = pool.pinned.digest
    return pinned
