"""The settings of one backend, wherever it is written down: in `tidegate.yaml` or in a file of its own."""

from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from domain.membership import KvEvents, Member, Owner
from domain.strict import Strict
from gateway.addresses import checked_engine_url, checked_events_endpoint

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$")]


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


class BackendSettings(Strict):
    """One engine endpoint; one data-parallel rank counts as one."""

    id: Name = Field(description="Its name in metrics, logs and headers; unique in the whole fleet.")
    url: str = Field(description="Where it listens: `http(s)://host[:port][/prefix]`, without `/v1`.")
    kv_events: KvEventsSettings | None = Field(
        default=None, description="Where the engine publishes its KV events; without it, what it holds is not known."
    )

    @field_validator("url")
    @classmethod
    def _safe(cls, url: str) -> str:
        return checked_engine_url(url)

    def member(self, pool: str, owner: Owner) -> Member:
        """The same as a member of the fleet."""
        told = self.kv_events
        events = None if told is None else KvEvents(told.endpoint, told.replay, told.bind)
        return Member(pool, self.id, self.url, owner, kv_events=events)
