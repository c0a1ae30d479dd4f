"""The collaborators of the lifecycle's steps, bundled once per worker by `gateway/wiring/requests.py`."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from backends.attempt import RetryBudget
from backends.breaker import Breakers
from backends.contact import LostContacts
from backends.dialects import Dialect
from backends.health import Health
from backends.hedge import Hedge
from backends.kv.blocks import KvState
from backends.load_reports import PushState
from backends.lora.loader import LoraLoader
from backends.poison import PoisonSuspects
from backends.ports import Upstream
from backends.signals import PrefillRate, Signals
from domain.clock import Clock, Rng, WallClock
from domain.faults import Fault, Kind
from domain.identity import TenantId
from gateway.answers.cache import AnswerCache
from gateway.answers.flights import Receiver
from gateway.auth.jwt import JwtVerifier
from gateway.background.runs import BackgroundRuns
from gateway.guards.remembered import RememberedVerdicts
from gateway.http.edge.prefill_leg import PrefillLeg
from gateway.http.edge.relay import ReplyRelay
from gateway.http.edge.timeouts import RealtimeBounds, Timeouts
from gateway.http.image_fetch import ImageFetcher
from gateway.http.openai.models import Abilities
from gateway.placement.decisions import Decisions
from gateway.placement.pool_state import PoolStates
from gateway.placement.salts import Salts
from gateway.placement.shared_dispatches import SharedDispatches
from gateway.placement.shared_load import SharedLoad
from gateway.prompt.count import PromptCounts
from gateway.prompt.reader import Prompts
from gateway.queue.pool_queue import PoolQueues
from gateway.record import Record
from gateway.request.holds import OpenHolds
from gateway.request.own_key import OwnSpend
from gateway.request.trace_notes import Tracing
from gateway.telemetry.answer_samples import AnswerSamples
from guardrails.policy import Direction
from guardrails.ports import Detector
from guardrails.verdict import GuardVerdict
from policies.compile import PolicySet
from policies.rollout.in_force import NOTHING, ActiveRollouts
from routing.disaggregation import HandoverTerms
from routing.fleet import Fleet
from routing.output_length import OutputLengths
from routing.schedule import Route
from tenancy.conversations import ConversationStore
from tenancy.directory import Directory
from tenancy.estimate import OutputQuantiles
from tenancy.ports import Counters
from tenancy.responses import ResponseStore

if TYPE_CHECKING:
    from gateway.files.service import FileService
    from gateway.http.edge.session import RealtimeSession
    from gateway.request.feedback import FeedbackService
    from gateway.request_log.capture import Captures


class Live:
    """The snapshots in force. Each is immutable and replaced whole; a request reads each of them at most once."""

    __slots__ = (
        "breakers",
        "contacts",
        "contexts",
        "directory",
        "endpoints",
        "fleet",
        "health",
        "kv",
        "names",
        "policies",
        "prefill",
        "pushes",
        "rollouts",
        "signals",
        "suspects",
        "unproven",
    )

    def __init__(self, directory: Directory, policies: PolicySet, fleet: Fleet) -> None:
        self.directory = directory
        self.policies = policies
        self.fleet = fleet
        self.rollouts: ActiveRollouts = NOTHING
        self.health: dict[str, Health] = {}
        """The health of each backend as this worker sees it, by backend id."""
        self.breakers = Breakers()
        """Whether backends have failed too many requests lately."""
        self.contacts = LostContacts()
        """The backends that could not be reached lately."""
        self.suspects = PoisonSuspects()
        """Requests that were under way on engines that died."""
        self.endpoints: dict[str, str] = {}
        """Where each backend listens, as `address:port`, by backend id; empty for one that is known by a host name alone."""
        self.names: dict[str, frozenset[str]] = {}
        """The models each backend listed last, by backend id."""
        self.unproven: dict[str, str] = {}
        """Why backends that are in use do not prove the revision that their pool is pinned to, by backend id."""
        self.contexts: dict[str, int] = {}
        """The longest prompt and answer together that each backend said it takes, in tokens, by backend id."""
        self.signals: dict[str, Signals] = {}
        """The signals that each backend last reported, read or pushed, by backend id."""
        self.prefill: dict[str, PrefillRate] = {}
        """How fast each backend prefills, by backend id."""
        self.kv: dict[str, KvState] = {}
        """The KV cache state of each backend that publishes KV events, by backend id."""
        self.pushes: dict[str, PushState] = {}
        """The state of each backend's load push, by backend id."""


Watched: TypeAlias = "ReplyRelay | PrefillLeg | Receiver | RealtimeSession"


class Watch:
    """Relays and prefill legs under way, checked together a few times a second: no request pays for a timer of its own."""

    __slots__ = ("watched",)

    def __init__(self) -> None:
        self.watched: dict[Watched, None] = {}
        """In the order in which they came, so that a run can be repeated: `watched[relay] = None` watches a relay until it is over. Bounded
        by the connections there may be."""

    def forget(self, relay: Watched) -> None:
        """Stop watching a relay that is over; one that still waits for its engine's last bytes stays."""
        if relay.over:
            self.watched.pop(relay, None)

    def sweep(self, now: float, log_defect: Callable[[BaseException, str], None]) -> None:
        """Enforce deadlines and send heartbeats. A relay that raises is ended with a 500 or an error event; the others go on."""
        for relay in list(self.watched):
            if now >= relay.look_at:
                try:
                    relay.check(now)
                except Exception as error:  # noqa: BLE001 - one bad relay must not take the deadlines of all others with it
                    log_defect(error, "sweep")
                    relay.end_with(Fault(Kind.INTERNAL, "Something failed on our side. Try again; if it stays, quote the request id."))
                if relay.over:
                    self.watched.pop(relay, None)

    def last_events(self) -> dict[str, float]:
        """By backend id: when the backend last sent an event of an answer to a request that is in flight."""
        last: dict[str, float] = {}
        for relay in self.watched:
            at = relay.last_event_at
            if at is not None and at > last.get(relay.backend, 0.0):
                last[relay.backend] = at
        return last

    def relays(self) -> list[Watched]:
        """Every relay under way."""
        return list(self.watched)


ID_RANDOM_HEX: Final = 24
"""Random digits of an id, 96 bits: nobody guesses another request's id, and no two requests share one."""
ID_BLOCK: Final = 64
"""Ids whose random digits are drawn at once: one call of the system for many requests."""


def request_ids(token_hex: Callable[[int], str], wall: WallClock) -> Callable[[], str]:
    """Makes the gateway's own ids, `req-<second>-<random>`. They tell nothing about other requests, and cannot be guessed.

    The second in front, of the wall clock in hexadecimal, keeps rows of the ledger in order and says where to look for a request.

    Args:
        token_hex: as `secrets.token_hex`: so many random bytes as hexadecimal digits.
    """

    def ids() -> Iterator[str]:
        while True:
            digits = token_hex(ID_BLOCK * ID_RANDOM_HEX // 2)
            for at in range(0, ID_BLOCK * ID_RANDOM_HEX, ID_RANDOM_HEX):
                yield f"req-{int(wall()):08x}-{digits[at : at + ID_RANDOM_HEX]}"

    return ids().__next__


@dataclass(frozen=True, slots=True)
class Deps:
    """The dependencies that a request may use."""

    live: Live
    clock: Clock
    wall: WallClock
    rng: Rng
    unpredictable: Rng
    """Draws what nobody may guess: the tags of placeholders."""
    loop: asyncio.AbstractEventLoop
    new_id: Callable[[], str]
    """Makes the gateway's own id of a request."""
    pool_states: PoolStates
    """The state of each pool that placement needs; kept with the fleet."""
    queues: PoolQueues
    """The requests that wait for capacity, by pool."""
    decisions: Decisions
    budget: RetryBudget
    counters: Counters
    own_spend: OwnSpend
    """What callers are told of their spending."""
    holds: OpenHolds
    upstreams: dict[str, Upstream]
    """The ways to those backends that may get new requests, kept by `gateway.fleet.roster`; draining ones are not in it."""
    loras: LoraLoader
    dialects: Mapping[str, Dialect]
    priorities: Mapping[str, tuple[bytes, ...]]
    """The members of a body that tell the engine a request's class, by pool name, where engines are set up for it."""
    timeouts: Timeouts
    watch: Watch
    observe: Callable[[Record], None]
    count_destination: Callable[[str], None]
    """Called for a request whose head names engines, with what became of that: one of `telemetry.families.DESTINATION_OUTCOMES`."""
    observe_decision: Callable[[Route, float], None] | None
    """Called once per decision with the seconds it took, reading its prompt included; None where nothing measures decisions."""
    ledger_full: Callable[[], bool]
    """Whether usage cannot be made durable now."""
    count_prefix: Callable[[str, str, float, int], None]
    """Called with pool, backend, the tokens of a prompt that the index said it holds, and the tokens that the engine then said it had."""
    count_first_token: Callable[[str, str, float, float], None]
    """Called with pool, backend, the seconds to the first token that routing predicted when it sent a request, and the seconds that it
    took."""
    answer_samples: AnswerSamples | None
    """Which answers are judged for metrics; None for none."""
    log_defect: Callable[[BaseException, str], None]
    salt_secret: bytes
    salts: Salts
    started_unix: int
    """When this worker started, seconds since the epoch; the `created` of the models it lists."""
    prompt_counts: PromptCounts
    """Counts prompts for reservations, for pools that have a tokenizer."""
    prompts: Prompts
    """Reads prompts for placement."""
    lengths: OutputLengths
    """How long answers are expected to get, for placement."""
    outputs: OutputQuantiles
    """How long answers usually get, for statistical reservations."""
    context_tokens: Mapping[str, int]
    """Tokens that a pool's engines take, by pool name, where the settings say it."""
    abilities: Mapping[str, Abilities]
    """What each pool's model is for and takes, by pool name; for the model list."""
    sharing: Mapping[str, HandoverTerms]
    """The cost of splitting a request between two backends, by pool name, where engines are set up for it."""
    hedges: Mapping[str, Hedge] = field(default_factory=dict)
    """When short requests are sent to a second backend, by pool name, where the settings say so."""
    continuing: frozenset[str] = frozenset()
    """The pools whose engines go on with the streams of others (`continue_streams`)."""
    region: str = ""
    """Where this gateway stands."""
    docs_url: str = ""
    """The address that pages in messages to callers are below; empty for their paths."""
    answers: AnswerCache = field(default_factory=AnswerCache)
    """Answers of earlier requests, and the equal requests under way."""
    responses: ResponseStore | None = None
    """Stored Responses; None where none are stored."""
    background: BackgroundRuns | None = None
    """The Responses in the background; None where there are none."""
    conversations: ConversationStore | None = None
    """Conversations of the Conversations API; None where none are kept."""
    full_of_responses: dict[TenantId, float] = field(default_factory=dict)
    """Until when no Response of a tenant is stored, which had no room for one (`gateway.request.response_state`)."""
    images: ImageFetcher = field(default_factory=ImageFetcher)
    """Fetches images that chats name by URL, where policies allow it."""
    remembered: RememberedVerdicts = field(default_factory=lambda: RememberedVerdicts(b""))
    """What guard rules said of texts before."""
    detectors: Mapping[str, Detector] = field(default_factory=dict)
    """The detectors of guard rules, by name."""
    noting: set[asyncio.Task[None]] = field(default_factory=set)
    """Detectors that look at requests which do not wait for them."""
    personal_detectors: frozenset[str] = frozenset()
    """The names of the detectors that look for personal data."""
    late_findings: Callable[[str, Direction, GuardVerdict], None] = lambda _tenant, _direction, _verdict: None
    """Called with the tenant and what detectors found in a request or an answer that was over by then."""
    captures: "Captures | None" = None
    """Keeps the texts of requests whose policies say so; None where no request log is kept."""
    files: "FileService | None" = None
    """The files and batches of callers; None where this gateway keeps none."""
    feedback: "FeedbackService | None" = None
    """Keeps ratings of answers; None where none are kept."""
    cors_origins: frozenset[str] = frozenset()
    tokens: JwtVerifier | None = None
    """Where tokens are accepted; None when keys alone are."""
    shared_dispatches: SharedDispatches | None = None
    """Tells the other workers of this host what is sent where; None where there are none."""
    shared_load: SharedLoad | None = None
    """Tells the other workers of this host what is in flight; None where there are none."""
    realtime: RealtimeBounds = field(default_factory=RealtimeBounds)
    """The bounds of realtime sessions."""
    tracing: Tracing | None = None
    """Opens the traces of requests; None where nothing is traced."""
    shadows: dict[str, set[asyncio.Task[None]]] = field(default_factory=dict)
    """Copies under way to canaries, by rollout (`gateway.rollouts.shadow`)."""

    def names_inside(self) -> frozenset[str]:
        """The names of the deployment that no sentence of an engine may tell: models and adapters of every pool, and backends. Collected
        for each refusal anew; refusals are rare, and names change."""
        names = {name for pool in self.live.fleet.pools.values() for name in (pool.model, *(backend.id for backend in pool.backends))}
        names.update(*self.live.names.values())
        for pool_adapters in self.loras.pool_adapters.values():
            for adapter in pool_adapters.adapters.values():
                names.update((adapter.name, adapter.served))
        return frozenset(names)
