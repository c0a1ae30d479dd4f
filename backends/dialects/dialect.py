"""What is known of a kind of engine."""

from collections.abc import Callable
from enum import Enum
from typing import Literal

import msgspec

from backends.dialects.fields import Fields
from backends.dialects.handover import Handover
from backends.load_reports import Decode
from backends.signals import Signals
from domain.ask import Endpoint
from domain.priority import Class


class Shape(Enum):
    """How a refusal's body is laid out; `errors` reads all of them, whichever engine they come from."""

    OBJECT = '{"error": {…}}'
    FLAT = '{"message": …}'
    TEXT = '{"error": "…"}'
    DETAIL = '{"detail": …}'


class Isolation(msgspec.Struct, frozen=True):
    """How an engine is told which prefixes may share cache blocks."""

    field: str
    """Its value goes into the blocks' hashes."""
    endpoints: frozenset[Endpoint]
    """Where the engine takes it; elsewhere tenants share the prefix cache, and its timing can tell one what another sent."""


class Priority(msgspec.Struct, frozen=True):
    """How an engine is told what to do first. Callers can never say it (`controls`)."""

    field: str
    """Dots lead into objects."""
    sooner: Literal["lower", "higher"]
    needs: str
    """What the engine has to be started with."""
    share: bool = False
    """Whether its numbers are shares between 0 and 1, with a half for who says none; else whole numbers, and 0."""
    endpoints: frozenset[Endpoint] = frozenset(endpoint for endpoint in Endpoint if endpoint.generates)
    """Where the engine takes it. Embeddings have no place in an engine's queue to lose: they are one step."""

    def written(self) -> tuple[bytes, ...]:
        """The member of the request's object for each `Class`, in their order; the default class has the number that a request without
        any has."""
        first, *inner = self.field.split(".")
        members = []
        for one in Class:
            steps = one - Class.DEFAULT if self.sooner == "lower" else Class.DEFAULT - one
            value: object = (5 + 2 * steps) / 10 if self.share else steps
            for name in reversed(inner):
                value = {name: value}
            members.append(msgspec.json.encode({first: value})[1:-1])
        return tuple(members)


class LoraCalls(msgspec.Struct, frozen=True):
    """How adapters are loaded into and taken out of a running engine: two POSTs with a small JSON object each."""

    load_path: str
    unload_path: str
    name_field: str
    """Field of the adapter's name, in both calls."""
    path_field: str
    """Field of the load call for where the engine finds the weights."""


class Dialect(msgspec.Struct, frozen=True):
    """One kind of engine. Paths are below the backend's URL."""

    name: str
    known_from: str
    """Release and source of what stands here."""
    health_path: str
    """Answers 200 when the process is up; it says little about whether tokens come."""
    models_path: str
    answers_as_listed: bool
    """Whether replies name a model of the model list, so that another name means another model behind the port."""
    isolation: Isolation | None
    signals_path: str | None
    """Where it reports its load; None when it reports none."""
    read_signals: Callable[[bytes, float], Signals] | None
    """What was read there, and when (monotonic seconds), as Signals. Raises ValueError when it is something else."""
    priority: Priority | None
    lora_model: str | None
    """The model name that asks for an adapter, of `{base}` and `{adapter}`; None when no name does."""
    lora: LoraCalls | None
    """How adapters are loaded and unloaded at run time; None when the engine cannot, or only over another port."""
    errors: frozenset[Shape]
    """Shapes its refusals come in."""
    fields: Fields
    drains: str
    """What SIGTERM does to requests in flight, and the flag that changes it; empty when nobody has looked."""
    proven: bool
    """Whether it was run against the real engine, not only against recordings and documentation."""
    read_report: Decode | None = None
    """One report of the load that it pushes over ZeroMQ; None when it pushes none."""

    disaggregation: Handover | None = None
    """How two of its engines share a request; None when they cannot, or are told by another part than a gateway."""

    def salts(self, endpoint: Endpoint) -> bool:
        """Whether requests to this endpoint carry the tenant's salt."""
        return self.isolation is not None and endpoint in self.isolation.endpoints
