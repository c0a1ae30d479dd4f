"""The settings of one backend, whether `tidegate.yaml` or a discovery file lists it."""

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from backends.load_reports import MAX_RANKS
from domain.membership import KvEvents, LoadPush, Member, Owner, Role, Traits
from domain.strict import Strict
from gateway.addresses import checked_engine_url, checked_events_endpoint, checked_load_endpoint, split_address

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$")]
Region = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$")]
Hardware = Literal["h100-8b", "h100-70b-tp4", "rtx-pro-6000-8b", "rtx-4090-8b"]
"""The keys of `routing.load.PRIORS`."""


class KvEventsSettings(Strict):
    """Where an engine publishes what its prefix cache stores and removes. Prompts pass there in clear: keep it secret."""

    endpoint: str = Field(description="Where it publishes: `tcp://host:port` or `ipc:///path`.")
    replay: str | None = Field(
        default=None, description="Where it answers replay requests; without it, a single lost batch ends trust until its cache is cleared."
    )
    bind: bool = Field(default=False, description="Listen at the endpoint, for an engine that connects to it; with one worker only.")

    @field_validator("endpoint", "replay")
    @classmethod
    def _safe(cls, endpoint: str | None) -> str | None:
        return None if endpoint is None else checked_events_endpoint(endpoint)


class LoadPushSettings(Strict):
    """Where an engine pushes its load (SGLang's `--load-publish-endpoint`); the load of all its ranks is one load."""

    endpoint: str = Field(max_length=256, description="Where its first data-parallel rank publishes: `tcp://host:port`.")
    ranks: int = Field(default=1, ge=1, le=MAX_RANKS, description="How many ranks publish, each at the port after the one before.")

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

    id: Name = Field(description="Its name in metrics, logs and headers; unique in the whole fleet.")
    url: str = Field(description="Where it listens: `http(s)://host[:port][/prefix]`, without `/v1`.")
    kv_events: KvEventsSettings | None = Field(
        default=None, description="Where the engine publishes its KV events; without it, what it holds is not known."
    )

    load_push: LoadPushSettings | None = Field(
        default=None, description="Where the engine pushes its load; without it, polls alone say it. Dialect `sglang` only."
    )

    role: Role = Field(
        default="both",
        description="`both` serves requests whole, `prefill` computes prompts for others, `decode` generates from what it is handed; "
        "see docs/disaggregation.md.",
    )
    bootstrap_port: int | None = Field(
        default=None,
        ge=1,
        le=65_535,
        description="Where decoding engines ask a `prefill` engine for KV, on the URL's host. Dialect `sglang` only.",
    )

    max_in_flight: int | None = Field(
        default=None,
        ge=1,
        le=65_535,
        description="Requests that each worker may have there at a time; more go to others, or wait. Null: no cap.",
    )
    context_tokens: int | None = Field(
        default=None, ge=1, le=100_000_000, description="Tokens of prompt and answer together that it takes; null: what the pool says."
    )
    price: float = Field(
        default=0.0, ge=0, le=1e6, description="What a token costs there, relative to the pool's others; for the `weighted` policy."
    )
    region: Region = Field(default="", description="Where it stands, in the words of `routing.region`; for the `weighted` policy.")
    hardware: Hardware | None = Field(
        default=None,
        description="What it is taken to be as fast as until it is measured: GPU and size of the model. Null: what the pool says.",
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
            traits=Traits(self.max_in_flight or 0, self.context_tokens or 0, self.price, self.region, self.hardware or ""),
        )
