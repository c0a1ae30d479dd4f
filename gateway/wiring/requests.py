"""Builds the adapters that live as long as the process: from checked configuration to the collaborators of a request's steps.

`deps_for` builds the collaborators, `queues_for` the queue of each pool, `fleet_of` the empty pools, `vocabularies_for` the tokenizers.
Adapters that come and go with backends are built by `gateway/wiring/fleet.py`.
"""

import asyncio
import hashlib
import hmac
import random
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf

import structlog

from backends.attempt import RetryBudget
from backends.dialects import DIALECTS, with_efforts
from backends.hedge import Hedge
from backends.lora.digest import DigestCheck
from backends.lora.loader import LoadDone, LoraLoader, PoolAdapters
from backends.lora.residency import Adapter
from backends.ports import Upstream
from domain.clock import Clock, Rng
from gateway.answers.cache import AnswerCache
from gateway.auth.jwt import JwtVerifier
from gateway.background.runs import BackgroundRuns
from gateway.config.load import Settings
from gateway.config.pools import PoolSettings
from gateway.deps import Deps, Live, Watch, request_ids
from gateway.files.service import FileService
from gateway.guards.remembered import RememberedVerdicts
from gateway.http.edge.timeouts import RealtimeBounds, Timeouts
from gateway.http.openai.models import Abilities
from gateway.ledger.writer import UsageWriter
from gateway.placement.decisions import Decisions
from gateway.placement.pool_state import PoolDefaults, PoolStates
from gateway.placement.salts import Salts
from gateway.placement.shared_dispatches import SharedDispatches
from gateway.placement.shared_load import SharedLoad
from gateway.prompt.count import PromptCounts
from gateway.prompt.reader import Prompts
from gateway.prompt.vocabulary import Vocabulary, VocabularyError, load_vocabulary
from gateway.queue.capacity import everything
from gateway.queue.pool_queue import PoolQueue, PoolQueues
from gateway.queue.preempt import Preemption
from gateway.queue.waking import Waking
from gateway.record import Record
from gateway.request.feedback import FeedbackService
from gateway.request.holds import OpenHolds
from gateway.request.lora import adapters_in_use
from gateway.request.own_key import OwnSpend
from gateway.request_log.capture import Captures
from gateway.telemetry.answer_samples import AnswerSamples
from gateway.telemetry.metrics import Metrics
from gateway.wiring.answers import answers_in_memory
from gateway.wiring.guards import GuardDetectors, personal_detectors
from gateway.wiring.semantic import SemanticOnDemand
from gateway.wiring.traces import tracing_for
from guardrails.policy import Direction
from guardrails.rules.language import Language
from guardrails.verdict import GuardVerdict
from policies.compile import PolicySet
from routing.disaggregation import HandoverTerms
from routing.fleet import Fleet, Pool
from routing.output_length import OutputLengths
from routing.prefix.chain import generation
from routing.rates import Rates
from routing.room import HEADROOM
from routing.schedule import Route
from tenancy.conversations import ConversationStore
from tenancy.directory import Directory
from tenancy.estimate import OutputQuantiles
from tenancy.keys import Pepper
from tenancy.ports import Counters
from tenancy.responses import ResponseStore
from tenancy.stores.memory import MemoryCounters, SteadyWall, up_time
from tenancy.usage import SpendReader

__all__ = [
    "VocabularyError",
    "deps_for",
    "fleet_of",
    "vocabularies_for",
]


def queues_for(
    settings: Settings,
    live: Live,
    pool_states: PoolStates,
    watch: Watch,
    clock: Clock,
    *,
    loop: asyncio.AbstractEventLoop,
    rng: Rng,
    log_defect: Callable[[BaseException, str], None],
) -> PoolQueues:
    """One queue for each pool."""
    bounds = settings.queue.bounds.shared_by(settings.workers)
    gives_way = settings.queue.gives_way

    may_sleep = {pool.name: pool.scale.to_zero for pool in settings.pools if pool.scale is not None and pool.scale.to_zero is not None}

    def waking_of(pool: str) -> Waking | None:
        written = may_sleep.get(pool)
        return None if written is None else Waking(written, written.bounds.shared_by(settings.workers), clock, rng)

    def queue_of(pool: str) -> PoolQueue:
        pool_state = pool_states[pool]
        load_table = pool_state.load_table
        tenant_shares = pool_state.tenant_shares
        make_room = None
        shares = tenant_shares if tenant_shares.reserved_share else None
        if gives_way is not None or shares is not None:
            make_room = Preemption(pool, gives_way, load_table, pool_states.limits, watch.relays, clock, shares=shares).make_room
        return PoolQueue(
            pool,
            bounds,
            load_table,
            lambda: live.fleet.pools[pool],
            clock=clock,
            loop=loop,
            rng=rng,
            log_defect=log_defect,
            make_room=make_room,
            part_of=(lambda tenant: tenant_shares.usable_share(tenant, clock())) if tenant_shares.reserved_share > HEADROOM else everything,
            held_back=lambda tenant: live.directory.several_tenants and pool_state.held_back(tenant, live.fleet.pools[pool]),
            holds_more=tenant_shares.above_share,
            unreached=live.contacts.none_left,
            waking=waking_of(pool),
        )

    return PoolQueues({pool.name: queue_of(pool.name) for pool in settings.pools})


log = structlog.get_logger("tidegate.directory")


def fleet_of(settings: Settings) -> Fleet:
    """The configured pools, still empty: `gateway.fleet.roster` adds backends."""
    return Fleet(
        pools={
            pool.name: Pool(
                name=pool.name,
                model=pool.model,
                revision=pool.revision,
                dialect=pool.dialect,
                backends=(),
            )
            for pool in settings.pools
        }
    )


def answer_samples_for(settings: Settings, metrics: Metrics) -> AnswerSamples:
    """What is judged of answers for metrics. Raises ValueError: languages are to be counted, and the package for it is not installed."""
    share = settings.metrics.language_share
    language = Language("metrics", ()).language if share else None
    return AnswerSamples(
        share,
        language,
        random.Random(secrets.randbits(64)),
        count_language=metrics.count_language,
        count_surprisal=metrics.count_surprisal,
        count_not_judged=metrics.count_not_judged,
    )


def deps_for(
    settings: Settings,
    policies: PolicySet,
    directory: Directory,
    pepper: Pepper,
    *,
    counters: Counters | None = None,
    tokens: JwtVerifier | None = None,
    observe: Callable[[Record], None],
    log_defect: Callable[[BaseException, str], None],
    observe_load: Callable[[LoadDone], None] = lambda _: None,
    usage: UsageWriter | None = None,
    spend: SpendReader | None = None,
    count_destination: Callable[[str], None] = lambda outcome: None,
    observe_decision: Callable[[Route, float], None] | None = None,
    count_prefix: Callable[[str, str, float, int], None] = lambda pool, backend, predicted, actual: None,
    count_first_token: Callable[[str, str, float, float], None] = lambda pool, backend, predicted_s, actual_s: None,
    answer_samples: AnswerSamples | None = None,
    late_findings: Callable[[str, Direction, GuardVerdict], None] = lambda tenant, direction, verdict: None,
    guessed: Mapping[str, Vocabulary] | None = None,
    answers: AnswerCache | None = None,
    detectors: GuardDetectors | None = None,
    files: FileService | None = None,
    responses: ResponseStore | None = None,
    background: BackgroundRuns | None = None,
    conversations: ConversationStore | None = None,
    feedback: FeedbackService | None = None,
    captures: Captures | None = None,
    priors: Mapping[str, Rates] | None = None,
) -> Deps:
    """The collaborators of a worker's requests. Must be called inside the worker's running loop.

    Args:
        answer_samples: which answers are judged for metrics; None for none.
        guessed: the tokenizers that were found for pools that name none (`gateway/wiring/guessed_tokenizers.py`); they lower no hold.
        answers: the answer cache, where it is not one in memory.
        detectors: built here; for a caller that prepares and closes them.
        responses: where Responses are stored; None for nowhere.
        background: the Responses in the background of this worker; None for none.
        conversations: where conversations are kept; None for nowhere.
        feedback: keeps ratings; None for none.
        captures: keeps the texts of requests; None for none.
        priors: the speeds that were measured of pools' engines; None for none.
    """
    loop = asyncio.get_running_loop()
    live = Live(directory, policies, fleet_of(settings))
    upstreams: dict[str, Upstream] = {}
    vocabularies = vocabularies_for(settings)
    executor = ThreadPoolExecutor(1, "tokens")
    images = {pool.name: pool.image_tokens for pool in settings.pools if pool.image_tokens}
    counts = PromptCounts(vocabularies, executor, loop, images)
    pool_defaults = {
        pool.name: PoolDefaults(
            pool.context_tokens or 0,
            "profiled" if pool.name in (priors or {}) else pool.hardware or "",
            pool.limit.bounds(),
            pool.limit.kept_free,
            pool.hold_s or inf,
            pool.step_tokens,
            (priors or {}).get(pool.name),
        )
        for pool in settings.pools
    }
    # derived, so that one secret configures both and neither reveals the other
    salt_secret = hmac.new(pepper.secret, b"tidegate cache salt v1", hashlib.sha256).digest()
    pool_states = PoolStates(pool_defaults, settings.routing.index_blocks, int(generation(salt_secret), 16))
    routing = settings.routing
    several = settings.workers > 1 or settings.tells_hosts
    rng = random.Random(secrets.randbits(64))
    watch = Watch()
    detectors = GuardDetectors() if detectors is None else detectors
    deps = Deps(
        live=live,
        clock=time.monotonic,
        wall=time.time,
        rng=rng,
        loop=loop,
        new_id=request_ids(secrets.token_hex, time.time),
        pool_states=pool_states,
        shared_dispatches=SharedDispatches(pool_states, time.monotonic, routing.share_bytes_per_s)
        if several and routing.share_dispatches
        else None,
        shared_load=SharedLoad(pool_states, time.monotonic) if several else None,
        queues=queues_for(settings, live, pool_states, watch, time.monotonic, loop=loop, rng=rng, log_defect=log_defect),
        decisions=Decisions(),
        budget=RetryBudget(settings.workers),
        counters=counters if counters is not None else MemoryCounters(SteadyWall(time.time, up_time)),
        own_spend=OwnSpend(spend, time.monotonic, time.time),
        holds=OpenHolds(time.monotonic, usage.opened, usage.dropped) if usage is not None else OpenHolds(time.monotonic),
        upstreams=upstreams,
        loras=_lora_loader(settings, live, upstreams, observe_load),
        dialects={pool.name: with_efforts(DIALECTS[pool.dialect], pool.efforts) for pool in settings.pools},
        priorities={
            pool.name: numbering.written()
            for pool in settings.pools
            if pool.engine_priority and (numbering := DIALECTS[pool.dialect].priority)
        },
        timeouts=_timeouts(settings),
        realtime=_realtime(settings),
        watch=watch,
        observe=observe,
        log_defect=log_defect,
        salt_secret=salt_secret,
        unpredictable=random.SystemRandom(),
        salts=Salts(salt_secret),
        remembered=RememberedVerdicts(salt_secret),
        started_unix=int(time.time()),
        cors_origins=frozenset(settings.data.cors_origins),
        prompt_counts=counts,
        prompts=Prompts(vocabularies, executor, loop, images, guessed=guessed),
        lengths=OutputLengths(),
        count_destination=count_destination,
        observe_decision=observe_decision,
        count_prefix=count_prefix,
        count_first_token=count_first_token,
        answer_samples=answer_samples,
        late_findings=late_findings,
        ledger_full=(lambda: usage.full) if usage is not None else (lambda: False),
        outputs=OutputQuantiles(),
        context_tokens={pool.name: pool.context_tokens for pool in settings.pools if pool.context_tokens},
        abilities={pool.name: _abilities(pool) for pool in settings.pools},
        sharing=_sharing(settings),
        hedges={pool.name: Hedge(pool.hedge.max_prompt_tokens, settings.workers) for pool in settings.pools if pool.hedge is not None},
        continuing=frozenset(pool.name for pool in settings.pools if pool.continue_streams),
        region=settings.routing.region,
        docs_url=settings.public_docs,
        tokens=tokens,
        answers=answers if answers is not None else answers_in_memory(settings, pepper),
        detectors=detectors,
        personal_detectors=personal_detectors(settings),
        files=files,
        responses=responses,
        background=background,
        conversations=conversations,
        tracing=tracing_for(settings),
        feedback=feedback,
        captures=captures,
    )
    detectors.build(settings, deps)
    deps.answers.semantic = SemanticOnDemand(settings, deps)
    return deps


def _abilities(pool: PoolSettings) -> Abilities:
    modalities = pool.modalities or (["text", "image"] if pool.image_tokens else ["text"])
    return Abilities(pool.kind, tuple(dict.fromkeys(modalities)))


def _sharing(settings: Settings) -> dict[str, HandoverTerms]:
    terms = {}
    for pool in settings.pools:
        protocol = DIALECTS[pool.dialect].disaggregation
        if pool.disaggregation is not None and protocol is not None:
            terms[pool.name] = pool.disaggregation.terms(pairs_whole=protocol.pairs_whole)
    return terms


def _lora_loader(settings: Settings, live: Live, upstreams: Mapping[str, Upstream], observe_load: Callable[[LoadDone], None]) -> LoraLoader:
    stands = {
        pool.name: PoolAdapters(
            {lora.name: Adapter(lora.name, lora.digest, lora.path) for lora in pool.loras}, pool.max_loras, DIALECTS[pool.dialect]
        )
        for pool in settings.pools
        if pool.loras or pool.lora_folder is not None
    }
    busy = partial(adapters_in_use, live, time.monotonic)
    check = DigestCheck().mismatch
    return LoraLoader(stands, upstreams, busy, time.monotonic, settings.engines.lora_load_s, observe_load, check=check)


def vocabularies_for(settings: Settings) -> dict[str, Vocabulary]:
    """The tokenizers of the pools that name one. Raises VocabularyError."""
    vocabularies: dict[str, Vocabulary] = {}
    for at, pool in enumerate(settings.pools):
        if pool.tokenizer is not None:
            try:
                vocabularies[pool.name] = load_vocabulary(pool.tokenizer, settings.base_dir, time.strftime, pool.efforts)
            except VocabularyError as error:
                raise VocabularyError(f"pools[{at}].tokenizer: {error}") from None
    return vocabularies


def _realtime(settings: Settings) -> RealtimeBounds:
    bounds = settings.data.realtime
    return RealtimeBounds(bounds.max_message_bytes, bounds.max_session_s, bounds.idle_s, bounds.ping_s, settings.data.limits.slow_reader_s)


def _timeouts(settings: Settings) -> Timeouts:
    engines = settings.engines
    return Timeouts(
        first_token_base_s=engines.first_token_base_s,
        first_token_tokens_per_s=engines.first_token_tokens_per_s,
        first_token_cap_s=engines.first_token_cap_s,
        token_gap_s=engines.token_gap_s,
        plain_timeout_s=engines.plain_timeout_s,
        heartbeat_s=engines.heartbeat_s,
        slow_reader_s=settings.data.limits.slow_reader_s,
    )
