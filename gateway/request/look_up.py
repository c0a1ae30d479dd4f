"""The step of `gateway/lifecycle.py` that answers a request from the cache, lets it join an equal request, or makes it lead a flight.

It stands behind `admit`, so that a hit counts in the limits of its caller, and before anything that needs an engine, so that a hit is
served while every engine is busy, down or draining.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from cache.answers import Answer
from cache.eligible import ASKED, BROKEN, FORM, KEY, LONG, PERSONAL, PLACEHOLDERS, PURGED, USAGE, passes_by
from cache.key import Target, exact_key, input_keys, scope_of
from cache.policy import CachePolicy, SemanticPolicy
from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from domain.usage import NO_USAGE, Usage
from gateway.answers.controls import CONTROL_HEADER, CacheControls, controls_of
from gateway.answers.documents import NotKept, document_of
from gateway.answers.embeddings import KnownInputs, asking_for, inputs_of, known_reply, shares, vectors_of
from gateway.answers.flights import AskAgain, Receiver, SharedFlight, begun_by
from gateway.answers.replay import CHARS_PER_TOKEN, plain_reply, stream_events
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.reply_ids import reply_id
from gateway.request.guard_input import hear_guards, join_guards
from gateway.request.reply_headers import reply_headers
from gateway.story import Story
from guardrails.guard_set import REQUEST
from policies.compile import ModelRule

if TYPE_CHECKING:
    from gateway.answers.semantic import SemanticCache

HIT: Final = "hit-exact"
PARTIAL: Final = "hit-partial"
SIMILAR: Final = "hit-semantic"
MISS: Final = "miss"
STARTING: Final = "starting"
"""The embedder and the index of similar questions are being made ready."""
UNAVAILABLE: Final = "unavailable"
MAX_ROUNDS: Final = 2
"""Flights that a request joins in vain before it asks an engine by itself."""
MAX_VECTORS_BYTES: Final = 8 * 1024**2
"""A longer reply with embeddings is not kept, and nobody joins it once it has begun."""
WRITE_TAG: Final = ("cache", "write")
"""The tag of keys whose answers are kept where the policy says `write: trusted_keys`."""


def may_hit(ask: Ask, story: Story, deps: Deps) -> bool:
    """Whether the cache may have the answer of a request that would otherwise be refused at once for want of capacity."""
    policy = story.asked.tenant_policy
    return policy is not None and policy.cache is not None and policy.cache.exact and not _bypass(ask, policy.cache, story, deps)


async def look_up(ask: Ask, rule: ModelRule, exchange: Exchange, story: Story, deps: Deps) -> tuple[Ask, Exchange | None]:
    """Answer the request from the cache. Returns the Ask, for embeddings with the inputs alone that are not known, and the exchange to
    answer on: None when the request is answered, a flight for a request that others may join.

    Raises:
        Fault: INVALID_VALUE for cache controls that make no sense; NOT_CACHED for a request with `only-if-cached`; the refusal for want of
            capacity that was put off for the cache's sake; the fault of the flight that the request has joined; as `join_guards`.
    """
    if story.trace is not None:
        story.trace.begin("look_up", deps.clock())
    policy = story.asked.tenant_policy
    settings = None if policy is None else policy.cache
    if settings is None or not settings.exact:
        if CONTROL_HEADER in exchange.head.headers:  # the one wish that counts without a cache
            _refuse_only(controls_of(exchange.head.headers))
        return ask, exchange
    controls = controls_of(exchange.head.headers, ask.cache)
    found = story.looked_up
    if (story.guarded.judging is not None or story.guarded.noting is not None) and _asks_for_personal_data(story, deps):
        await hear_guards(story)
    reason = _bypass(ask, settings, story, deps)
    if reason or not (controls.read or controls.write):
        found.status = f"bypass:{reason or 'asked'}"
        _refuse_only(controls)
        _raise_put_off(story)
        return ask, exchange
    key = _name_answer(ask, rule, settings, controls, story, deps)
    form = (ask.stream, ask.include_usage)
    while controls.read:
        if found.inputs is not None:
            if await _vectors_given(found.inputs, settings, controls, exchange, story, deps):
                return ask, None
        else:
            kept = (
                deps.answers.find_now(key, found.owner, controls.max_age_s)
                if deps.answers.store.in_process
                else await deps.answers.find_one(key, found.owner, controls.max_age_s)
            )
            if kept is not None:
                await _give(kept, ask, settings, exchange, story, deps)
                return ask, None
        flight = deps.answers.flights.get(key)
        if flight is None or not flight.joinable or found.rounds >= MAX_ROUNDS:
            if found.resembled or found.resembling is not None or settings.semantic is None or found.inputs is not None:
                break
            similar = await _similar(ask, settings.semantic, controls, story, deps)
            if similar is not None:
                await _give(similar, ask, settings, exchange, story, deps)
                return ask, None
            continue  # an equal request may have begun meanwhile, or ended
        try:
            await _join(flight, form, settings, exchange, story, deps)
        except AskAgain:
            found.rounds += 1
        else:
            return ask, None
    _refuse_only(controls)
    _raise_put_off(story)
    found.status = MISS
    inputs = found.inputs
    if inputs is not None and inputs.is_worth_merging:
        found.merge, ask = inputs, asking_for(ask, inputs.wanted)
        story.asked.counted = story.asked.prompt = None  # they were of all inputs
        if inputs.known:
            found.status, found.saved, found.part = PARTIAL, inputs.saved, _charged(inputs.saved, settings)
    if not controls.write or not _may_write(settings, story):
        found.key = b""
        found.not_kept = KEY if controls.write else ASKED
        return ask, exchange
    if settings.semantic is not None and not controls.read and found.inputs is None:
        _question(ask, settings.semantic, story, deps)
    found.flight = begun_by(exchange, form, settings.max_answer_bytes if inputs is None else MAX_VECTORS_BYTES)
    deps.answers.flights.setdefault(key, found.flight)
    return ask, found.flight


def _question(ask: Ask, settings: SemanticPolicy, story: Story, deps: Deps) -> "SemanticCache | None":
    """Write down the question that a request asks, or why it is not looked up among similar ones; returns where to look."""
    found, source = story.looked_up, deps.answers.semantic
    semantic = None if source is None else source.ready()
    if semantic is None:
        found.resembled = STARTING if source is not None and not source.why else UNAVAILABLE
        return None
    assert found.scope is not None
    assert found.target is not None
    looked = semantic.asked(ask, found.scope, found.target, settings)
    if isinstance(looked, str):
        found.resembled = looked
        return None
    found.resembling = looked
    return semantic


async def _similar(ask: Ask, settings: SemanticPolicy, controls: CacheControls, story: Story, deps: Deps) -> Answer | None:
    """The answer of a similar question; None, and written down why, where there is none."""
    found, semantic = story.looked_up, _question(ask, settings, story, deps)
    if semantic is None or found.resembling is None:
        return None
    similar = await semantic.look(found.resembling, found.owner, controls.max_age_s)
    found.resembled = found.resembling.said
    if similar is not None:
        found.similarity = found.resembling.similarity
    return similar


async def _vectors_given(
    inputs: KnownInputs, settings: CachePolicy, controls: CacheControls, exchange: Exchange, story: Story, deps: Deps
) -> bool:
    """Look the inputs up, and send their vectors where all are known."""
    inputs.found = await deps.answers.find(inputs.keys, story.looked_up.owner, controls.max_age_s)
    if len(inputs.known) < len(inputs.keys):
        return False
    await join_guards(story)
    _give_vectors(inputs, settings, exchange, story, deps)
    return True


def _bypass(ask: Ask, settings: CachePolicy, story: Story, deps: Deps) -> str:
    """Why the cache neither answers the request nor keeps its answer; empty where it may."""
    if story.asked.dealt is not None or story.asked.dealt_prompt is not None:
        return "rollout"
    if story.guarded.placeholders is not None:
        return PLACEHOLDERS
    if _has_personal_data(story, deps):
        return PERSONAL
    return passes_by(ask, settings)


def _has_personal_data(story: Story, deps: Deps) -> bool:
    """Whether a guard rule has found personal data so far, in the request or in its answer."""
    guards, finders = story.asked.guards, story.guarded.finders
    return guards is not None and bool(finders) and not finders.isdisjoint(guards.personal(deps.personal_detectors))


def _asks_for_personal_data(story: Story, deps: Deps) -> bool:
    """Whether a detector that is asked about the request looks for personal data; the cache waits for its answer."""
    guards = story.asked.guards
    if guards is None or not deps.personal_detectors:
        return False
    personal = guards.personal(deps.personal_detectors)
    return any(rule.id in personal for direction in REQUEST for rule in guards.detectors(direction))


def _name_answer(ask: Ask, rule: ModelRule, settings: CachePolicy, controls: CacheControls, story: Story, deps: Deps) -> bytes:
    """The key of the request; writes it down, and to whom the answer belongs and how long it is kept."""
    asked, found = story.asked, story.looked_up
    assert asked.caller is not None
    pool = deps.live.fleet.pools[rule.pool]
    adapter = deps.loras.adapter(pool.name, rule.lora) if rule.lora else None
    found.namespace = controls.namespace
    found.owner = f"group:{settings.group}" if settings.group is not None else asked.caller.tenant
    found.ttl_s = settings.ttl_s if controls.ttl_s is None else min(settings.ttl_s, controls.ttl_s)
    scope = scope_of(settings.scope, asked.caller, asked.user, settings.group or "", controls.namespace)
    found.purges = deps.answers.purges.get(found.owner, 0)
    digest = "" if adapter is None else adapter.digest or adapter.served
    guards = "" if asked.guards is None else asked.guards.version
    target = Target(ask.endpoint.path, rule.name, pool.model, pool.revision, digest, guards)
    if ask.endpoint is Endpoint.EMBEDDINGS:
        inputs = inputs_of(ask)
        found.inputs = KnownInputs(inputs, input_keys(scope, target, ask, inputs), [None] * len(inputs))
    found.scope, found.target = scope, target
    found.key = exact_key(scope, target, ask)
    return found.key


def _may_write(settings: CachePolicy, story: Story) -> bool:
    caller = story.asked.caller
    return settings.write == "any_key" or (caller is not None and WRITE_TAG in caller.tags)


def _refuse_only(controls: CacheControls) -> None:
    if controls.only:
        raise Fault(Kind.NOT_CACHED, "No kept answer for this request, and it allows no other (cache-control: only-if-cached).")


def _raise_put_off(story: Story) -> None:
    refused, story.placed.put_off = story.placed.put_off, None
    if refused is not None:
        story.looked_up.put_off = refused
        raise refused


# --- a hit ------------------------------------------------------------------------------------------------------------


def _charged(usage: Usage, settings: CachePolicy) -> Usage:
    """The part of a kept answer's usage that the policy charges for a hit."""
    part = settings.hit_price
    return NO_USAGE if not part else Usage(round(usage.prompt_tokens * part), round(usage.completion_tokens * part))


def _note_hit(usage: Usage, age_s: float, settings: CachePolicy, story: Story) -> None:
    found = story.looked_up
    found.status = HIT if found.similarity is None else SIMILAR
    found.resembled = ""  # an equal request may have ended while similar questions were looked at
    found.age_s, found.saved, found.hit = age_s, usage, _charged(usage, settings)
    story.settled.status = 200


def _give_vectors(inputs: KnownInputs, settings: CachePolicy, exchange: Exchange, story: Story, deps: Deps) -> None:
    """Send kept vectors."""
    _note_hit(inputs.saved, max([deps.answers.age_s(answer) for answer in inputs.known]), settings, story)
    exchange.reply(200, reply_headers(exchange, story, None, deps, stream=False), known_reply(inputs, story.asked.model))


async def _give(answer: Answer, ask: Ask, settings: CachePolicy, exchange: Exchange, story: Story, deps: Deps) -> None:
    """Send a kept answer. Raises Fault: a detector refuses the request."""
    await join_guards(story)
    _note_hit(answer.usage, deps.answers.age_s(answer), settings, story)
    own = reply_id(ask.endpoint, story.own_id)
    created = int(deps.wall())
    if not ask.stream:
        headers = reply_headers(exchange, story, None, deps, stream=False)
        exchange.reply(200, headers, plain_reply(answer.document, own, created, answer.usage))
        return
    events = stream_events(ask.endpoint, answer.document, own, created, answer.usage, include_usage=ask.include_usage)
    if settings.pace_tokens_s is None:
        exchange.start(reply_headers(exchange, story, None, deps, stream=True))
        exchange.write(b"".join([event for _, event in events]))
        exchange.end()
    else:
        await _give_paced(events, settings.pace_tokens_s * CHARS_PER_TOKEN, settings, exchange, story, deps)


async def _give_paced(
    events: Iterator[tuple[int, bytes]], chars_s: float, settings: CachePolicy, exchange: Exchange, story: Story, deps: Deps
) -> None:
    """Send the events of a kept answer at the pace of the policy.

    Raises:
        Fault: the caller left, read too slowly, or the deadline passed.
    """
    headers = partial(reply_headers, exchange, story, None, deps, stream=True)
    with _receiver(exchange, story, (True, False), headers, deps) as receiver:
        receiver.listen()
        for chars, event in events:
            if chars:
                await asyncio.wait({receiver.outcome}, timeout=chars / chars_s)
            if receiver.over:
                break
            receiver.write(event)
        else:
            receiver.end()
        await receiver.outcome


@contextlib.contextmanager
def _receiver(exchange: Exchange, story: Story, form: tuple[bool, bool], headers: Callable[[], bytes], deps: Deps) -> Iterator[Receiver]:
    """The caller's connection as a receiver, which the worker's sweep watches meanwhile."""
    receiver = Receiver(exchange, story, form, headers, slow_reader_s=deps.timeouts.slow_reader_s, clock=deps.clock, loop=deps.loop)
    deps.watch.watched[receiver] = None
    try:
        yield receiver
    finally:
        receiver.outcome.cancel()
        deps.watch.watched.pop(receiver, None)


async def _join(flight: SharedFlight, form: tuple[bool, bool], settings: CachePolicy, exchange: Exchange, story: Story, deps: Deps) -> None:
    """Stream along with an equal request that is under way.

    Raises:
        AskAgain: the flight ended without an answer for this request.
        Fault: the fault of its engine, or of this request's own caller.
    """
    await join_guards(story)
    headers = partial(_joined_headers, settings, exchange, story, deps, form)
    with _receiver(exchange, story, form, headers, deps) as receiver:
        try:
            receiver.follow(flight)
            await receiver.outcome
        finally:
            flight.left(receiver)
    _note_hit(NO_USAGE, 0.0, settings, story)


def _joined_headers(settings: CachePolicy, exchange: Exchange, story: Story, deps: Deps, form: tuple[bool, bool]) -> bytes:
    _note_hit(NO_USAGE, 0.0, settings, story)
    return reply_headers(exchange, story, None, deps, stream=form[0])


# --- the end of a miss ------------------------------------------------------------------------------------------------


async def keep(ask: Ask, story: Story, deps: Deps) -> None:
    """Keep the answer that a flight has brought, before those who wait for it in another form look it up."""
    found = story.looked_up
    flight, policy = found.flight, story.asked.tenant_policy
    if flight is None or policy is None or policy.cache is None:
        return
    if story.trace is not None:
        story.trace.begin("keep", deps.clock())
    try:
        documents = _documents(flight, ask, policy.cache, story, deps)
    except NotKept as refused:
        found.not_kept = refused.reason
        return
    caller = story.asked.caller
    answers = [
        deps.answers.answer(
            key,
            found.owner,
            document,
            of_it,
            model=story.asked.model,
            ttl_s=found.ttl_s,
            namespace=found.namespace,
            writer="" if caller is None else caller.key_id,
            user=story.asked.user,
        )
        for key, document, of_it in documents
    ]
    await deps.answers.store.put(answers)
    source = deps.answers.semantic
    if found.resembling is not None and source is not None and (semantic := source.ready()) is not None:
        semantic.learn(found.resembling, answers[0])


def _documents(flight: SharedFlight, ask: Ask, settings: CachePolicy, story: Story, deps: Deps) -> list[tuple[bytes, bytes, Usage]]:
    """Key, document and usage of what a flight has brought; at least one. Raises NotKept."""
    found, usage = story.looked_up, story.attempt.usage
    if flight.too_long:
        raise NotKept(LONG)
    if not flight.whole:
        raise NotKept(BROKEN)
    if usage is None or story.attempt.reported:
        raise NotKept(USAGE)
    if deps.answers.purges.get(found.owner, 0) != found.purges:
        raise NotKept(PURGED)
    if _has_personal_data(story, deps):
        raise NotKept(PERSONAL)
    if found.inputs is None:
        return [(found.key, document_of(ask.endpoint, flight.recorded(), stream=ask.stream, tools=settings.tools), usage)]
    if not (documents := _vectors(found.inputs, flight.recorded(), usage, settings)):
        raise NotKept(LONG)
    return documents


def _vectors(inputs: KnownInputs, reply: bytes, usage: Usage, settings: CachePolicy) -> list[tuple[bytes, bytes, Usage]]:
    """Key, vector and usage of each input that an engine was asked for, without vectors that are too long. Raises NotKept."""
    vectors = vectors_of(reply, len(inputs.inputs))
    if vectors is None:
        raise NotKept(FORM)
    asked_for = inputs.wanted if inputs.is_worth_merging else inputs.inputs
    place = {one: at for at, one in enumerate(inputs.inputs)}
    found = zip(asked_for, shares(usage.prompt_tokens, asked_for), strict=True)
    return [
        (inputs.keys[place[one]], vectors[place[one]], Usage(share, 0))
        for one, share in found
        if len(vectors[place[one]]) <= settings.max_answer_bytes
    ]


def land(story: Story, deps: Deps, error: Exception | None) -> None:
    """End the flight that the request leads, if it leads one: no further request joins it."""
    flight, story.looked_up.flight = story.looked_up.flight, None
    if flight is None:
        return
    if deps.answers.flights.get(story.looked_up.key) is flight:
        del deps.answers.flights[story.looked_up.key]
    flight.over(error)
