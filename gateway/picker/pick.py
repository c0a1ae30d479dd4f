"""The pick of one request: which engine it is to go to, and its load there until its answer is over.

The way is that of any other request as far as it is about routing: the body is checked, the model found in the tenant's policy, the prompt
tokenized and looked up, and `routing.schedule.place` asked, with what this worker and the others have in flight. What needs the gateway
between caller and engine is left out: keys, limits, guard rules, the queue, the answer cache, fallbacks to other models, retries.
"""

from collections.abc import Callable, Collection, Mapping
from ipaddress import ip_address
from typing import Final, Protocol

import msgspec

from backends.dialects import model_asked
from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from domain.identity import Caller, KeyId, ProjectId, TenantId
from domain.priority import Class
from gateway.deps import Deps
from gateway.fleet.health import note_outcome
from gateway.http.data_port import INFERENCE, usual
from gateway.http.edge.body_size import body_too_large
from gateway.http.edge.head import RequestHead
from gateway.http.edge.taps import PlainTap, StreamTap
from gateway.http.openai import check_caps
from gateway.http.openai import interpret as interpret_body
from gateway.http.openai.messages import refuse_link
from gateway.http.openai.parameters import check_closed, with_parameters
from gateway.http.openai.prompts import PROMPT_HEADER
from gateway.placement.decisions import decision
from gateway.placement.in_flight import InFlight, learn
from gateway.placement.place import Placement, circumstances_of, longest_context, prepare
from gateway.queue import refusals
from gateway.request.forward import call_for
from gateway.request.guards_asked import HEADER as GUARDS_HEADER
from gateway.request.interpret import check_type
from gateway.request.permissions import sticky_key, urgency
from gateway.request.policy_match import Asked, match_policy
from gateway.request.retry import refuse_deadly
from gateway.story import AttemptFacts, Story
from gateway.telemetry.families import PICK_OUTCOMES
from policies.caps import USUAL_CAPS
from policies.compile import ModelRule, TenantPolicy
from policies.parameters import CLOSED
from routing.fleet import Backend, Pool
from routing.ports import Held
from routing.schedule import ALONE, place
from tenancy.rights import EVERYTHING

NO_KEY: Final = KeyId("picker")
"""The key of every request here: none. Conditions of rules see it."""
NOT_HERE: Final = "The endpoint picker cannot choose an engine for this request:"
"""How the refusals of what only the data port can do begin."""
USAGE_OPTION: Final = b',"stream_options":{"include_usage":true}}'
"""How a streamed request's checked body ends: the gateway asks for usage, which a caller behind a proxy did not ask for."""
SERVICE_TIME: Final = b"x-envoy-upstream-service-time"
"""The header by which Envoy marks the answers of engines, unless it is set to suppress its headers."""
PICKED, NOBODY, SHED, REFUSED, DEFECT = PICK_OUTCOMES


class Pick(Protocol):
    """One request that has its engine."""

    endpoints: tuple[str, ...]
    """Where it is to go, as `address:port`; the first one is the choice."""
    path: str
    """The engine's path."""
    body: bytes
    """The engine's body. The stream empties it once the proxy has it: a worker is not to hold bodies while engines answer."""

    def answered(self, status: int, headers: Mapping[bytes, bytes], served: str) -> None:
        """Take the head of the answer.

        Args:
            served: the endpoint that gave it, where the proxy says so; else empty.
        """
        ...

    def feed(self, data: bytes) -> None:
        """Take a piece of the answer's body."""
        ...

    def whole(self) -> None:
        """The answer is over."""
        ...

    def over(self) -> None:
        """The proxy tells no more: give the load back; idempotent. Of an answer whose body it shows, the end was not seen."""
        ...


class EndpointPicker:
    """Picks endpoints for requests of one tenant.

    Args:
        tenant: whose policy counts.
        fallbacks: how many endpoints are named after the first.
        count: called with the outcome of each pick, one of `PICK_OUTCOMES`.
    """

    def __init__(self, deps: Deps, tenant: str, fallbacks: int, count: Callable[[str], None]) -> None:
        self._deps = deps
        self._caller = Caller(TenantId(tenant), ProjectId(""), NO_KEY)
        self._fallbacks = fallbacks
        self._proxies = _Proxies()
        self.count: Final = count

    async def pick(self, head: RequestHead, body: bytes, subset: Collection[str] | None, *, sees_answer: bool) -> Pick:
        """Choose the engine, and count the request there until `Pick.over`. Suspends only while a long prompt is read.

        Args:
            subset: the endpoints among which the proxy wants one; None for all.
            sees_answer: whether the proxy will show the answer's body.

        Raises:
            Fault: the request is none that can be sent to an engine as it is, or no engine can take it. `Fault.kind` OVERLOADED of a
                request that is to be shed has the status 429 here (`status_of`).
        """
        deps, now = self._deps, self._deps.clock()
        own_id = deps.new_id()
        story = Story(head.request_id() or own_id, now, deps.wall(), now, own_id)
        endpoint = endpoint_of(head)
        ask, rule = self._interpret(endpoint, head, body, story)
        placement = await prepare(ask, rule, head.headers, story, deps)
        begun = deps.clock()
        placement = self._routed(ask, placement, subset, story)
        pool, route = placement.pool, placement.route
        if deps.observe_decision is not None:
            deps.observe_decision(route, deps.clock() - begun)
        if not route.ranked:
            self._keep_decision(placement, story)
            raise self._nobody(placement, story)
        call = call_for(ask, placement, model_asked(deps.dialects[pool.name], pool.model, ""), head, story, deps)
        sent = call.body if ask.include_usage or not ask.stream else without_usage(call.body)
        endpoints = tuple([self._endpoint(backend) for backend in route.backends[: 1 + self._fallbacks]])
        self._keep_decision(placement, story)  # once nothing fails any more: whoever has the pick ends it
        return _PickedRequest(
            ask, placement, story, deps, _EngineRequest(endpoints, call.path, sent, self._proxies), sees_answer=sees_answer
        )

    def _interpret(self, endpoint: Endpoint, head: RequestHead, body: bytes, story: Story) -> tuple[Ask, ModelRule]:
        """The checked request, and the rule of its model in the tenant's policy; what is known of it is written into the Story."""
        deps, facts, headers = self._deps, story.asked, head.headers
        check_type(headers.get(b"content-type", b""), endpoint)
        if head.coding:
            raise Fault(Kind.UNSUPPORTED_MEDIA, f"{NOT_HERE} its body is compressed. Send it as it is.")
        policies = deps.live.policies
        policy = policies.for_tenant(self._caller.tenant)
        caps, links = (USUAL_CAPS, False) if policy is None else (policy.widest_caps, policy.may_fetch_images)
        ask = interpret_body(endpoint, body, None, head.deployment, caps, links=links)
        facts.caller, facts.endpoint, facts.stream, facts.user = self._caller, endpoint.value, ask.stream, ask.user
        facts.request_bytes, facts.policy_digest = len(body), policies.digest
        asked = Asked(ask, self._caller, ask.user, headers, story.at_unix)
        match = match_policy(policies, asked, EVERYTHING, sticky_key(ask, ask.user, story.own_id))
        if match is None:
            raise Fault(Kind.MODEL_NOT_FOUND, f"The model '{ask.model}' does not exist.")
        policy, rule = match.policy, match.model
        ask = treated(ask, policy, len(body))
        facts.model, facts.asked_model = rule.name, ask.model if ask.model != rule.name else ""
        facts.rule, facts.tenant_policy = match.rule, policy
        facts.priority_class, facts.retry = urgency(policy, EVERYTHING, ask, headers)
        if ask.image_links:
            if policy.image_urls is None:
                refuse_link(ask.image_links[0].param)
            raise Fault(Kind.NOT_PERMITTED, f"{NOT_HERE} it names images by URL. Send it to Tidegate's data port.")
        if ask.template is not None or PROMPT_HEADER in headers:
            raise Fault(Kind.NOT_PERMITTED, f"{NOT_HERE} it names a registered prompt. Send it to Tidegate's data port.")
        if policy.guards is not None or ask.guards or GUARDS_HEADER in headers:
            raise Fault(Kind.NOT_PERMITTED, f"{NOT_HERE} guard rules apply to it. Send it to Tidegate's data port.")
        if rule.lora:
            raise Fault(Kind.NOT_PERMITTED, f"{NOT_HERE} its model is an adapter. Send it to Tidegate's data port.", param="model")
        pool = deps.live.fleet.pools[rule.pool]
        if pool.has_roles or pool.name in deps.sharing:
            raise Fault(Kind.NOT_PERMITTED, f"{NOT_HERE} two engines share it. Send it to Tidegate's data port.", param="model")
        if deps.live.suspects.guilty:
            refuse_deadly(ask, self._caller.tenant, story, deps)
        return ask, rule

    def _routed(self, ask: Ask, placement: Placement, subset: Collection[str] | None, story: Story) -> Placement:
        """The placement with its route among the engines that can be named and that the proxy allows.

        A request whose best engine has enough to do for now is sent there all the same: nothing waits here. One of the lowest class is
        shed instead.
        """
        deps = self._deps
        pool = self._allowed(deps.live.fleet.pools[placement.pool.name], subset)
        held = Held.WAIT if story.asked.priority_class is Class.BATCH else Held.SEND
        circumstances = circumstances_of(placement.request, pool, placement.adapter, deps, held)
        route = place(placement.request, pool, placement.pool_state.load_table, placement.policy_instance, circumstances, deps.rng)
        story.placed.pool, story.placed.revision, story.placed.route = pool.name, pool.revision, route
        return msgspec.structs.replace(placement, pool=pool, circumstances=circumstances, route=route)

    def _allowed(self, pool: Pool, subset: Collection[str] | None) -> Pool:
        """The pool with those engines up that have an address, and that the proxy names where it names any."""
        endpoints = self._deps.live.endpoints
        up = tuple([backend for backend in pool.up if (at := endpoints.get(backend.id, "")) and (subset is None or at in subset)])
        if len(up) == len(pool.up):
            return pool
        return msgspec.structs.replace(pool, up=up, up_ids=frozenset([backend.id for backend in up]))

    def _endpoint(self, backend: Backend) -> str:
        return written_endpoint(self._deps.live.endpoints[backend.id])

    def _keep_decision(self, placement: Placement, story: Story) -> None:
        entry = story.placed.decision = decision(
            placement.route, placement.request, (story.own_id,), story.at_unix, story.asked.model, placement.pool.name
        )
        if story.request_id != story.own_id:
            entry.caller_id = story.request_id
        entry.asked_model, entry.rule, entry.rested_s = story.asked.asked_model, story.asked.rule, placement.rested_s
        self._deps.decisions.keep(entry)

    def _nobody(self, placement: Placement, story: Story) -> Fault:
        """Why no engine takes the request."""
        deps = self._deps
        if longest := longest_context(placement):
            message = f"This model's context is {longest:,} tokens, and the prompt is longer. Send less text."
            fault = Fault(Kind.CONTEXT_TOO_LONG, message)
        elif placement.route.full:
            fault = refusals.too_long(0.0, 0.0, deps.rng.random())
            fault.detail = refusals.TOO_LONG if story.asked.priority_class is not Class.BATCH else SHED
        else:
            fault = refusals.nobody(deps.rng.random(), placement.route.explanation().sentence())
        story.settled.fault, story.settled.status = fault, status_of(fault)[0]
        deps.decisions.end(story.placed.decision, story.close(deps.clock()))
        return fault


def endpoint_of(head: RequestHead) -> Endpoint:
    """The inference route of a request. Raises Fault: UNKNOWN_PATH or METHOD_NOT_ALLOWED, where it goes to no engine as it is."""
    endpoint = INFERENCE.get(usual(head.path)[0])
    if endpoint is None or endpoint.duplex or endpoint.sound == "in":
        raise Fault(Kind.UNKNOWN_PATH, f"{NOT_HERE} it has no rule for this path. Send it to Tidegate's data port.")
    if head.method != "POST":
        raise Fault(Kind.METHOD_NOT_ALLOWED, "Send the request with POST.", detail="POST")
    return endpoint


def treated(ask: Ask, policy: TenantPolicy, size: int) -> Ask:
    """The Ask with the policy's parameters.

    Args:
        size: bytes of the body.

    Raises:
        Fault: the request asks for more than the policy allows, or its body is larger.
    """
    if policy.caps is not policy.widest_caps:
        check_caps(ask, policy.caps)
    most = policy.caps.body_bytes
    if most is not None and size > most:
        raise body_too_large(size, most)
    if not CLOSED.isdisjoint(ask.names):
        check_closed(ask, policy.parameters)
    return ask if policy.parameters is None else with_parameters(ask, policy.parameters)


def written_endpoint(endpoint: str) -> str:
    """An endpoint as proxies read it: an IPv6 address in brackets."""
    address, _, port = endpoint.rpartition(":")
    return f"[{address}]:{port}" if ip_address(address).version == 6 else endpoint


def without_usage(body: bytes) -> bytes:
    """A streamed request's body without the wish for usage that the gateway adds: its caller would get an event too many."""
    if body.endswith(USAGE_OPTION):
        return body[: -len(USAGE_OPTION)] + b"}"
    document = msgspec.json.decode(body)
    document.pop("stream_options", None)
    return msgspec.json.encode(document)


def status_of(fault: Fault) -> tuple[int, str]:
    """The status of a refusal in the endpoint picker protocol where it is not that of the data port (0 where it is), and the outcome that
    counts it."""
    if fault.kind is Kind.OVERLOADED:
        return (429, SHED) if fault.detail == SHED else (503, NOBODY)
    return 0, NOBODY if fault.kind is Kind.NO_BACKEND else DEFECT if fault.kind is Kind.INTERNAL else REFUSED


class _Proxies(msgspec.Struct):
    """What is known of the proxies that ask."""

    mark_answers: bool = False
    """Whether an answer had `SERVICE_TIME`: a proxy that suppresses its own headers never says it."""


class _EngineRequest(msgspec.Struct, frozen=True):
    """What the proxy is to send, and where."""

    endpoints: tuple[str, ...]
    path: str
    body: bytes
    proxies: _Proxies


class _PickedRequest:
    """A request on its engine, as far as the proxy tells of it."""

    def __init__(self, ask: Ask, placement: Placement, story: Story, deps: Deps, sent: _EngineRequest, *, sees_answer: bool) -> None:
        self.endpoints, self.path, self.body, self._proxies = sent.endpoints, sent.path, sent.body, sent.proxies
        self._ask = msgspec.structs.replace(ask, fields=b"", names=frozenset(), prompt_at=(0, 0))  # nothing reads the body any more
        self._placement, self._story, self._deps = placement, story, deps
        self._sees_answer = sees_answer
        self._tap: StreamTap | PlainTap | None = None
        self._fault: Fault | None = None
        self._answered = False
        self._is_over = False
        self._enter(placement.route.ranked[0][0])

    def _enter(self, backend: Backend) -> None:
        deps, placement = self._deps, self._placement
        self._backend = backend
        self._in_flight = InFlight(placement, backend.id, deps, stream=self._ask.stream and self._sees_answer)
        breakers = deps.live.breakers
        if breakers.troubled:
            breakers.enter(backend.id, "", self._story.own_id, self._in_flight.at)
        tried = self._story.tried
        tried.backend, tried.charge = backend.id, self._in_flight.charge
        tried.attempts += 1
        if self._story.placed.decision is not None:
            self._story.placed.decision.served_by = backend.id

    def answered(self, status: int, headers: Mapping[bytes, bytes], served: str) -> None:
        """See `Pick`."""
        if self._is_over or self._answered:
            return
        at = self.endpoints.index(served) if served in self.endpoints else 0
        if at:  # the proxy went on to a fallback
            self._in_flight.over()
            fault = Fault(Kind.CONNECT_FAILED, "The proxy went on to another engine.")
            note_outcome(self._deps.live, self._backend, "", fault, self._story.own_id, self._deps.clock(), self._deps.rng)
            self._enter(self._placement.route.ranked[at][0])
        self._answered = True
        self._story.settled.status = status
        if SERVICE_TIME in headers:
            self._proxies.mark_answers = True
        self._fault = outcome_of(status, headers, marked=self._proxies.mark_answers)
        if self._fault is not None:
            self._end(self._fault)  # now, before the proxy passes it on: the caller's next request must know
            return
        facts = self._story.attempt = AttemptFacts()
        if self._placement.route.why != ALONE or self._in_flight.limiter is not None:
            facts.on_begun = self._in_flight.begun
        if self._sees_answer and status == 200 and not self._ask.endpoint.sound and b"content-encoding" not in headers:
            self._tap = self._new_tap(facts)

    def _new_tap(self, facts: AttemptFacts) -> StreamTap | PlainTap:
        ask, deps, pool = self._ask, self._deps, self._placement.pool
        names = deps.live.names.get(self._backend.id) if deps.dialects[pool.name].answers_as_listed else None
        if ask.stream:
            return StreamTap(facts, deps.clock, choices=ask.choices, include_usage=True, names=names)
        tap = PlainTap(facts, deps.clock, ask.endpoint, choices=ask.choices, names=names, whole_usage=self._tells_usage)
        tap.items = ask.items
        return tap

    @property
    def _tells_usage(self) -> bool:
        return not (self._deps.dialects[self._placement.pool.name].usage_of_each_choice and self._ask.choices > 1)

    def feed(self, data: bytes) -> None:
        """See `Pick`."""
        if self._tap is not None:
            self._tap.feed(data)

    def whole(self) -> None:
        """See `Pick`."""
        if self._is_over:
            return
        facts, tap = self._story.attempt, self._tap
        if tap is not None:
            tap.end()
            self._fault = tap.fault
            if tap.usage is not None and self._tells_usage:
                facts.usage, facts.cached = tap.usage, tap.cached
        elif self._fault is None and facts.on_begun is not None:
            facts.on_begun()  # nothing was seen of its beginning, which is long past
        if self._fault is None:
            learn(self._ask, self._placement, self._in_flight, self._story, self._deps)
        self._end(self._fault)

    def over(self) -> None:
        """See `Pick`."""
        if self._answered and not self._sees_answer:
            self.whole()  # of an answer whose body is not shown the end of the stream is all that tells the end
        self._end(self._fault or Fault(Kind.CLIENT_GONE, "The proxy ended the request before its answer was over."))

    def _end(self, fault: Fault | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        story, deps = self._story, self._deps
        story.attempt.on_begun = None
        self._in_flight.over()
        note_outcome(deps.live, self._backend, "", fault, story.own_id, deps.clock(), deps.rng)
        story.settled.fault = fault
        deps.decisions.end(story.placed.decision, story.close(deps.clock()))


def outcome_of(status: int, headers: Mapping[bytes, bytes], *, marked: bool) -> Fault | None:
    """What an answer's status says of the engine; None for a good one.

    Envoy marks the answers of engines with `SERVICE_TIME`; a 503 without it is Envoy's own, of an engine that it could not reach.

    Args:
        marked: whether the proxies are known to mark answers; else a 503 without the mark is taken for the engine's.
    """
    if status < 400:
        return None
    kind = Kind.REFUSED_BY_ENGINE
    if status in (429, 503):
        kind = Kind.ENGINE_BUSY
    elif status >= 500:
        kind = Kind.ENGINE_ERROR
    if status == 503 and marked and SERVICE_TIME not in headers:
        kind = Kind.CONNECT_FAILED
    return Fault(kind, "The engine did not answer the request.", detail=f"status {status}")
