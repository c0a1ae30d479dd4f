"""The interfaces of a routing decision: what a policy implements and returns, and the lookups that the gateway hands in.

`RoutingRequest` is all that routing one request depends on: the gateway makes it from an Ask, the simulator from a trace line. `Match` and
`Adapters` are lookups of cached prefixes and LoRA adapters, `Candidates` the eligible backends with them, `Policy` and `Scores` what
decides.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from domain.clock import Rng
from domain.strict import Strict
from routing.load import LoadTable
from routing.load_order import LoadOrder


class RoutingRequest(msgspec.Struct, frozen=True, gc=False):
    """One request as the router sees it. Token counts are estimates where the served model's tokenizer is not configured."""

    prompt_tokens: int
    chain: Sequence[int] = ()
    """Prefix hashes, one for each whole block of the prompt, each standing for the prompt up to its block's end."""
    block_tokens: int = 64
    """Tokens per element of `chain`."""
    output_tokens: int = 256
    """Median of the expected output tokens, all sequences together."""
    output_tokens_p90: int = 1024
    """90th percentile of them."""
    session: int = 0
    """Keyed hash of the conversation that the request belongs to; 0 when the caller named none."""
    tenant: str = ""
    priority: float = 0.0
    """-1 to 1, higher is more important (tenant policy)."""
    lora: str = ""
    """The adapter as engines name it; empty for the base model."""
    ttft_slo_s: float | None = None
    """Seconds to the first token that the tenant's policy promises; None: no promise."""
    exact: bool = True
    """Whether `prompt_tokens` was counted and not estimated: an estimate alone never refuses a prompt that may fit."""
    one_prompt: bool = True
    """Whether `prompt_tokens` is one prompt; of several prompts only each one has to fit into a context."""
    tpot_slo_s: float | None = None
    """Seconds per output token that the tenant's policy promises; None: no promise."""
    region: str = ""
    """The caller's region, by the same names as the backends' `region`; empty: not known."""
    by_tokens: bool = True
    """Whether `chain` is over the token ids that engines cache, so that their KV events tell of its blocks. Not so for prompts with images
    and where no tokenizer is configured: these chains are over bytes."""


Column = Sequence[float]
"""One value per candidate backend."""


class Match(Protocol):
    """The prefix match of one prompt; counts are leading blocks of the request's chain."""

    @property
    def blocks(self) -> Mapping[str, float]:
        """Blocks that each backend holds, by backend id; without the backends that hold nothing."""
        ...

    @property
    def common(self) -> float:
        """Blocks that nearly every backend holds."""
        ...


class Unmatched(NamedTuple):
    """The match when there is no prefix index: no backend holds anything."""

    blocks: Mapping[str, float] = MappingProxyType({})
    common: float = 0.0


UNMATCHED: Final = Unmatched()


class Adapters(NamedTuple):
    """Where a request's LoRA adapter is loaded, or can be."""

    there: Collection[str]
    """Ids of the backends that have the adapter, are loading it, or have requests that wait for it."""
    unable: Mapping[str, str]
    """Backends that cannot load it, by id, each with the reason; it begins with `routing.room.NO_SLOT` where requests for other adapters
    use every slot."""
    load_s: float = 1.0
    """Seconds that a load usually takes."""


class Held(Enum):
    """What a request does whose best backend has enough unbegun prompts of this process for now (`LoadTable.set_hold`)."""

    WAIT = "wait"
    """The request waits in the gateway until that backend has room or another one is better."""
    ELSEWHERE = "elsewhere"
    """It goes to the best backend with room: it has not much time left to wait."""
    SEND = "send"
    """It is sent there all the same: it may not wait."""


class Circumstances(NamedTuple):
    """The inputs of one decision besides the request, the fleet and its load: looked up anew for every decision."""

    now: float
    """Monotonic seconds."""
    match: Match = UNMATCHED
    """How much of the prompt each backend holds."""
    holder: str = ""
    """Id of the backend that had the conversation's last turn; empty when there is none."""
    adapters: Adapters | None = None
    """Where the request's LoRA adapter is loaded, or can be; None for the base model."""
    shut: Mapping[str, str] = MappingProxyType({})
    """Ejected backends by id, each with the reason: they have failed other requests, and are used only when no other is eligible."""
    part: float = 1.0
    """Share of each backend's capacity that this request may use; the rest is reserved for other tenants."""
    held: Held = Held.WAIT
    """What the request does where its best backend has enough to do for now."""
    paused: str = ""
    """Why no backend of the pool takes a request now, though some are up; empty when they do."""


class Candidates(NamedTuple):
    """The eligible backends of one decision, as filters, scorers and policies see them beside the load table. Columns have one value per
    eligible backend, in the order of `rows`."""

    rows: Sequence[int]
    """Rows of the eligible backends in the load table; at least one."""
    matched: Column
    """Tokens of the prompt that each holds, as far as its index is trusted; at most the prompt less one token."""
    common: float = 0.0
    """Tokens of the prompt that nearly every backend holds: a match no longer than this distinguishes none."""
    lora_s: Column = ()
    """Seconds until the adapter is loaded there, 0 where it is; empty for the base model."""
    sticky: int = -1
    """Position in `rows` of the backend that had the session's last turn, or -1."""
    shares: Column = ()
    """Share of its usual load that each may take during slow start (`routing.warmth`); empty when no backend is warming up."""
    now: float = 0.0
    """When the decision is made, monotonic seconds."""
    fill: float | None = None
    """Mean share of the KV caches that is in use or promised, over the pool's backends that are up; None: the candidates are all of them,
    and the policy computes it."""
    busy: float | None = None
    """Share of the pool's backends with prompts to compute, where not all of them are candidates."""
    drawn: int | None = None
    """Position of the backend that the request explores, -1 for none; None: it was not drawn yet whether it explores."""
    slack: float = 0.0
    """How much less than the least cost here a backend may cost that is not among the candidates."""


class Scores(NamedTuple):
    """The result of a policy: a cost per eligible backend."""

    cost: Column
    """One value per eligible backend; the least wins."""
    terms: Sequence[tuple[float, ...]]
    """The parts of each backend's cost, in the order of the policy's `terms`."""
    margin: float = 0.0
    """Costs within this of the least count as equal; in the unit of `cost`."""
    barred: Mapping[int, str] = {}
    """Positions that the policy excludes, each with the reason."""


def by_backend(*columns: Column) -> list[tuple[float, ...]]:
    """`Scores.terms` of columns that have one value per backend."""
    return list(zip(*columns, strict=True))


class Memory(Protocol):
    """A policy's memory of its own decisions; most policies have none."""

    def placed(self, request: RoutingRequest, backend_id: str, uncached_tokens: float, now: float) -> None:
        """Record that the request was sent to this backend."""
        ...


Beyond = Callable[[RoutingRequest, Candidates, LoadTable, LoadOrder, Any, tuple[float, float]], tuple[float, float]]
"""(request, candidates, load table, order, params, (most tokens, least adapter seconds)) -> (weight, seconds): every backend that is up and
not among the candidates costs at least weight * its key in the order + seconds, in the scale of the candidates' scores, if it holds at most
so many tokens of the prompt and needs at least so many seconds to load the adapter."""

Score = Callable[[RoutingRequest, Candidates, LoadTable, Any, Any, Rng], Scores]
"""(request, candidates, load table, params, memory or None, rng) -> Scores. Changes no state but that of `rng`."""


class Policy(NamedTuple):
    """One routing policy: a file in `policies/` and a line in `registry.py`."""

    score: Score
    params: type[Strict]
    """The parameters that a policy file may set; every field has a default."""
    terms: tuple[str, ...]
    memory: Callable[[Any], Memory] | None = None
    """Makes the policy's memory from its params."""
    blind: bool = False
    """The policy ignores prefix matches, so a prompt need not be tokenized for it."""
    unit: str = ""
    """Unit of the costs, in words; empty for a number without unit."""
    first_token_s: Callable[[Any, Sequence[float]], float | None] | None = None
    """From the params and one backend's terms: the seconds to the first token that the policy expects there, or None where its params
    leave them out. The policy has no such function where it does not estimate them."""
    beyond: Beyond | None = None
    """A lower bound for the backends that are left out in a large pool (`routing.short_list`); None: all are scored in any pool."""
    in_seconds: bool = False
    """The costs are seconds, so that nearly equal costs can be recognised: among those, stage C prefers the session's backend, then the
    best match, then the fewest requests, and explores. For other policies the least cost wins, and ties are drawn at random."""


class Nothing(Strict):
    """Parameters of a policy that has none."""
