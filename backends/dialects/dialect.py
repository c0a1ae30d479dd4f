"""The description of one kind of engine: paths, fields, signals, adapters, priorities, disaggregation."""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Literal

import msgspec

from backends.dialects.errors import CallerMistake
from backends.dialects.fields import Fields
from backends.dialects.handover import Handover
from backends.load_reports import Decode
from backends.signals import Signals
from domain.ask import MESSAGES_IN_FRONT, Ask, Endpoint
from domain.faults import Fault, Kind
from domain.priority import Class


class ErrorShape(Enum):
    """The layout of an error reply's body; `errors` reads every layout from every engine."""

    OBJECT = '{"error": {…}}'
    FLAT = '{"message": …}'
    TEXT = '{"error": "…"}'
    DETAIL = '{"detail": …}'


class Isolation(msgspec.Struct, frozen=True):
    """The request field that tells an engine which prefixes may share cache blocks."""

    field: str
    """The field's name; its value goes into the blocks' hashes."""
    endpoints: frozenset[Endpoint]
    """The endpoints that take the field; on others tenants share the prefix cache, whose timing can reveal another tenant's prompts."""


class Priority(msgspec.Struct, frozen=True):
    """The request field for an engine's priority. Callers can never set it (`controls`)."""

    field: str
    """The field's name; dots lead into objects."""
    sooner: Literal["lower", "higher"]
    """Whether lower or higher numbers are served first."""
    needs: str
    """The flag that the engine must be started with."""
    share: bool = False
    """Whether its numbers are between 0 and 1, with 0.5 as the default; otherwise they are whole numbers, with 0 as the default."""
    endpoints: frozenset[Endpoint] = frozenset(endpoint for endpoint in Endpoint if endpoint.generates)
    """The endpoints that take the field. Embeddings do not need it: they take one step and do not queue for a slot."""

    def written(self) -> tuple[bytes, ...]:
        """The JSON member for each `Class`, in their order; the default class has the engine's own default number."""
        first, *inner = self.field.split(".")
        members = []
        for traffic_class in Class:
            steps = traffic_class - Class.DEFAULT if self.sooner == "lower" else Class.DEFAULT - traffic_class
            value: object = (5 + 2 * steps) / 10 if self.share else steps
            for name in reversed(inner):
                value = {name: value}
            members.append(msgspec.json.encode({first: value})[1:-1])
        return tuple(members)


class LoraCalls(msgspec.Struct, frozen=True):
    """The calls that load and unload adapters on a running engine: two POSTs with a small JSON object each."""

    load_path: str
    unload_path: str
    name_field: str
    """Field of the adapter's name, in both calls."""
    path_field: str
    """Field of the load call for the path of the weights on the engine's machine."""


class Dialect(msgspec.Struct, frozen=True):
    """One kind of engine. Paths are below the backend's URL."""

    name: str
    known_from: str
    """The release and the source that this description was made from."""
    health_path: str
    """Answers 200 when the process is up; it says little about whether tokens come."""
    models_path: str
    answers_as_listed: bool
    """Whether replies name a model of the model list, so that another name means another model behind the port."""
    isolation: Isolation | None
    signals_path: str | None
    """The path of its load metrics; None when it has none."""
    read_signals: Callable[[bytes, float], Signals] | None
    """Reads the reply of `signals_path`, and the time of reading (monotonic seconds), into Signals. Raises ValueError for another reply."""
    priority: Priority | None
    lora_model: str | None
    """The model name that requests an adapter, with `{base}` and `{adapter}`; None when no model name does."""
    lora: LoraCalls | None
    """The calls that load and unload adapters at run time; None when the engine has none, or only on another port."""
    errors: frozenset[ErrorShape]
    """The layouts of its error replies."""
    fields: Fields
    drains: str
    """The effect of SIGTERM on requests in flight, and the flag that changes it; empty when unknown."""
    proven: bool
    """Whether the dialect was run against the real engine, not only against recordings and documentation."""
    signals_reader: Callable[[], Callable[[bytes, float], Signals]] | None = None
    """Makes a `read_signals` for the replies of one engine, which is quicker from the second reply on; None where nothing is gained."""

    read_report: Decode | None = None
    """Decodes one report of the load that the engine pushes over ZeroMQ; None when it pushes none."""

    mistakes: tuple[CallerMistake, ...] = ()
    """Mistakes of callers that its engines answer with a status of 500 and more."""

    usage_of_each_choice: bool = False
    """Whether it reports the usage of each choice by itself: of a stream one report for each, of a plain reply that of the first alone."""

    ids_from_requests: bool = False
    """Whether it makes the `id` of a reply from the request's `x-request-id`, with the endpoint's prefix in front."""

    disaggregation: Handover | None = None
    """Disaggregated prefill and decode on two of its engines; None when they cannot, or when another component than a gateway directs
    it."""

    realtime: bool = False
    """Whether its engines have a WebSocket for speech in vLLM's dialect at `Endpoint.REALTIME`."""

    continues: Mapping[str, bool] | None = None
    """The members of a chat with which its engines go on with the last message, which is the model's own; None where they cannot."""

    routes: Mapping[Endpoint, str | None] = {}
    """The paths of endpoints that its engines serve elsewhere than the gateway; None where they serve no such endpoint, or another API
    under its path. `Fields.takes` says it, too, of engines with a closed list of fields."""

    pools_messages: bool = False
    """Whether endpoints that generate nothing take messages in place of the input."""

    tokenizes: tuple[str, ...] = ("prompt", "messages", "content")
    """The fields of which its tokenizer's endpoint takes one."""

    def path_of(self, ask: Ask) -> str:
        """The path of a request that generates nothing.

        Raises:
            Fault: UNSUPPORTED_PARAMETER where its engines have no such endpoint, or would not read the prompt there.
        """
        path, takes = self.routes.get(ask.endpoint, ask.endpoint.path), self.fields.takes
        absent = not self.realtime if ask.endpoint.duplex else takes is not None and ask.endpoint not in takes
        if path is None or absent:
            raise Fault(Kind.UNSUPPORTED_PARAMETER, "The engine serving this model does not have this endpoint.", param="model")
        if ask.endpoint is Endpoint.TOKENIZE:
            if ask.prompt_field not in self.tokenizes:
                raise _sent_instead(ask.prompt_field, self.tokenizes, "or")
        elif not self.pools_messages and ask.fields.startswith(MESSAGES_IN_FRONT):
            raise _sent_instead("messages", ask.endpoint.prompt_fields)
        return path

    def salts(self, endpoint: Endpoint) -> bool:
        """Whether requests to this endpoint carry the tenant's salt."""
        return self.isolation is not None and endpoint in self.isolation.endpoints


def _sent_instead(field: str, others: tuple[str, ...], word: str = "and") -> Fault:
    """The refusal of a prompt in a field that an engine does not read."""
    instead = f" {word} ".join(f"'{other}'" for other in others)
    message = f"The parameter '{field}' is not supported by the engine serving this model: send {instead}."
    return Fault(Kind.UNSUPPORTED_PARAMETER, message, param=field)
