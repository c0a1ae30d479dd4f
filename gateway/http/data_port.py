"""The routes of the data port: an exact allowlist of paths with a handler each. Any other path is a 404 in OpenAI's shape.

The router compares the bytes that the caller sent: nothing is decoded, normalised or joined, so a path cannot be authorised as
one route and served as another. No path of a caller ever reaches an engine; engines are called on paths of `Endpoint` only.
"""

from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import unquote

from msgspec import structs

from domain.ask import Endpoint
from domain.faults import Fault, Kind
from domain.identity import Caller
from gateway.deps import Deps
from gateway.docs_links import linked
from gateway.files.routes import STORED, is_stored, stored_handler, streams_body
from gateway.guards.coverage import check_guarded
from gateway.http.anthropic.faults import render_refusal
from gateway.http.anthropic.models import render_messages_model, render_messages_models
from gateway.http.edge.exchange import REASONS, Exchange, header_lines
from gateway.http.edge.head import RequestHead
from gateway.http.edge.per_address import AddressLimits
from gateway.http.faults import render
from gateway.http.openai.models import Abilities, ModelFacts, render_model, render_models
from gateway.http.openai.own_key import KeyFacts, render_own_key
from gateway.http.openai.realtime import with_protocol_key
from gateway.http.translations import COUNTS, TRANSLATED, Translations, speaks_messages
from gateway.http.unserved import INSTEAD, instead_of
from gateway.lifecycle import serve
from gateway.request.authenticate import authenticate, grant_of
from gateway.request.conversations import BELOW as ONE_CONVERSATION
from gateway.request.conversations import PATH as CONVERSATIONS
from gateway.request.conversations import conversation_handler, is_of_conversations
from gateway.request.count_tokens import count_tokens
from gateway.request.feedback import FEEDBACK, give_feedback
from gateway.request.guard_texts import JUDGEMENTS
from gateway.request.own_key import own_lines, usages_of
from gateway.request.permissions import exists_for
from gateway.request.reply_headers import cors_headers, reply_headers
from gateway.request.settle import defect, open_story, record, refuse
from gateway.request.stored_chats import BELOW as ONE_CHAT
from gateway.request.stored_chats import chat_handler
from gateway.request.stored_responses import BELOW as ONE_RESPONSE
from gateway.request.stored_responses import handler_of
from gateway.story import Story
from gateway.telemetry.logs import redact_text
from policies.compile import TenantPolicy
from tenancy.prices import FREE

INFERENCE: Final = {endpoint.path: endpoint for endpoint in Endpoint}
ALIASES: Final = {alias: endpoint.path for endpoint in Endpoint for alias in endpoint.aliases}
"""Further paths of inference routes. Records, metrics and rights know each route by its one path above."""
MODELS: Final = "/v1/models"
ONE_MODEL: Final = "/v1/models/"
OWN_KEY: Final = "/v1/key"
"""What a caller's own key may do, and what is left of its limits."""
OWN_POSTS: Final = {**JUDGEMENTS, **dict.fromkeys(COUNTS, count_tokens), FEEDBACK: give_feedback}
"""The routes with a body that the gateway answers itself."""
OWN: Final = frozenset({MODELS, OWN_KEY, *OWN_POSTS})
"""The routes that the gateway answers itself, beside those of single models."""
HEALTH: Final = "/health"
"""The probe of load balancers that can probe only the port that they send requests to (docs/explanation/decisions/0007)."""
AZURE: Final = "/openai"
"""The beginning of Azure OpenAI's paths: `/openai/v1/…` and `/openai/deployments/NAME/…`."""
DEPLOYMENTS: Final = "/openai/deployments/"

MAX_PATH_CHARS: Final = 256
"""Characters of an unknown path that the access log keeps. Its query is dropped: people put keys there."""

PREFLIGHT_AGE_S: Final = 600
"""How long a browser may remember a preflight; Chromium caps it at 2 h, Firefox at 24 h."""


def usual(path: str) -> tuple[str, str]:
    """The path of the routes above that `path` is another form of, and the model that it names (empty for none).

    A slash may follow any path, and some routes have several paths. Azure's paths are `/openai/v1/…`, and
    `/openai/deployments/NAME/…`, where NAME is one segment and says the model. Nothing is joined or removed from the middle of a path.
    """
    path = path.removesuffix("/")
    deployment = ""
    if path.startswith(DEPLOYMENTS):
        name, _, operation = path.removeprefix(DEPLOYMENTS).partition("/")
        if name and f"/v1/{operation}" in INFERENCE:
            path, deployment = f"/v1/{operation}", unquote(name)
    elif path.startswith(f"{AZURE}/v1/"):
        path = path.removeprefix(AZURE)
    return ALIASES.get(path, path), deployment


class DataPort:
    """Starts one coroutine per request, which serves the request to its end."""

    def __init__(self, deps: Deps) -> None:
        check_guarded(INFERENCE.values())
        self._deps = deps
        self._translations = Translations(deps.salt_secret, deps.wall, deps.new_id)

    def start(self, exchange: Exchange) -> None:
        """Serve one request whose head is acceptable."""
        head = exchange.head
        endpoint = INFERENCE.get(head.path)
        if endpoint is None:
            if head.path in (HEALTH, f"{HEALTH}/") and head.method in ("GET", "HEAD"):
                _health(exchange)
                return
            path, deployment = usual(head.path)
            known = path in INFERENCE or path in OWN or path in TRANSLATED
            if known or path.startswith((ONE_MODEL, ONE_RESPONSE, ONE_CHAT, CONVERSATIONS)) or is_stored(path):
                head = exchange.head = structs.replace(head, path=path, deployment=deployment)
                endpoint = INFERENCE.get(path)
            exchange.translation = self._translations.of(head)
            if path in TRANSLATED:
                endpoint = Endpoint.CHAT
        if endpoint is not None and endpoint.duplex:
            exchange.head = with_protocol_key(exchange.head)
        if head.method != ("GET" if endpoint is not None and endpoint.duplex else "POST"):
            endpoint = None
        deps = self._deps
        reply = serve(exchange, endpoint, deps) if endpoint is not None else self._answer(exchange)
        exchange.task = deps.loop.create_task(reply)

    def start_within(self, addresses: AddressLimits) -> Callable[[Exchange], None]:
        """`start` for requests within the limits of their address; others are refused before their key is looked at. The probe of load
        balancers is never refused: it would take the gateway out for all callers."""

        def start(exchange: Exchange) -> None:
            fault = addresses.request(exchange.client) if exchange.head.path not in (HEALTH, f"{HEALTH}/") else None
            if fault is None:
                self.start(exchange)
                return
            exchange.translation = self._translations.of(exchange.head)
            story = open_story(exchange, self._deps)
            refuse(fault, exchange, story, self._deps)
            record(exchange, story, self._deps)

        return start

    def streams(self, head: RequestHead) -> bool:
        """Whether the route of a request stores its body as it arrives, so that it may be longer than bodies that are held."""
        return self._deps.files is not None and streams_body(usual(head.path)[0], head.method)

    def refuse(self, fault: Fault, head: RequestHead | None) -> bytes:
        """The whole reply to a request that never became an exchange: broken HTTP, a late head, too many connections."""
        deps = self._deps
        now = deps.clock()
        own_id = deps.new_id()
        story = Story(own_id, now, deps.wall(), now, own_id)
        rendered = render_refusal(fault, own_id) if head is not None and speaks_messages(head) else render(fault, own_id)
        story.settled.fault, story.settled.status = fault, rendered.status
        deps.observe(story.close(deps.clock()))
        ours = (b"x-tidegate-request-id", own_id.encode("ascii"))
        lines = header_lines([ours, *(header for header in rendered.headers if header[0] != b"connection")])
        end = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(rendered.body)
        return b"HTTP/1.1 %d %b\r\n%b%b%b" % (rendered.status, REASONS[rendered.status], lines, end, rendered.body)

    async def _answer(self, exchange: Exchange) -> None:
        """Answer a request that needs no engine: the model list, a judgement of guard rules, a preflight, a path or method that is
        refused."""
        deps = self._deps
        story = open_story(exchange, deps)
        try:
            handler = self._handler(exchange.head)
            await handler(exchange, story)
        except Fault as fault:
            if fault.kind in (Kind.UNKNOWN_PATH, Kind.METHOD_NOT_ALLOWED):
                story.unknown = exchange.head.method, redact_text(exchange.head.path[:MAX_PATH_CHARS])
            refuse(fault, exchange, story, deps)
        except Exception as error:  # noqa: BLE001 - as in lifecycle.serve: a defect answers 500 and never hangs
            refuse(defect(error, story, deps), exchange, story, deps)
        record(exchange, story, deps)

    def _handler(self, head: RequestHead) -> Callable[[Exchange, Story], Awaitable[None]]:
        """The handler of a request that needs no engine. Raises Fault: UNKNOWN_PATH or METHOD_NOT_ALLOWED."""
        path, method = head.path, head.method
        below = path.startswith((ONE_RESPONSE, ONE_CHAT)) and path not in OWN and path not in INSTEAD
        if method != "OPTIONS":
            of_stored = handler_of(head) if below and path.startswith(ONE_RESPONSE) else chat_handler(head) or conversation_handler(head)
            if of_stored is not None:
                return lambda exchange, story: of_stored(exchange, story, self._deps)
        stored = is_stored(path)
        known = path in INFERENCE or path in OWN or path in TRANSLATED or (path.startswith(ONE_MODEL) and len(path) > len(ONE_MODEL))
        known = known or (method == "OPTIONS" and (below or is_of_conversations(path)))
        if not (known or stored):
            hint = instead_of(path) or "Routes are listed in docs/reference/api.md."
            if "/v1" + path in (*INFERENCE, *TRANSLATED, *OWN, *STORED, CONVERSATIONS):
                hint = "Set base_url to end in /v1."
            elif path.startswith("/v1/v1/"):
                hint = "The client adds /v1 itself: set its base URL to end before it."
            raise Fault(Kind.UNKNOWN_PATH, f"There is no route {method} {_shown(path)}. {linked(hint, self._deps.docs_url)}")
        if method == "OPTIONS" and b"origin" in head.headers:
            return self._preflight
        if stored:
            return stored_handler(path, method, self._deps)
        if (endpoint := INFERENCE.get(path)) is not None and endpoint.duplex:
            raise Fault(Kind.METHOD_NOT_ALLOWED, "Only GET is allowed here, as a WebSocket.", detail="GET")
        if path in INFERENCE or path in TRANSLATED or (path in OWN_POSTS and method != "POST"):
            raise Fault(Kind.METHOD_NOT_ALLOWED, "Only POST is allowed here.", detail="POST")
        if path in OWN_POSTS:
            judge = OWN_POSTS[path]
            return lambda exchange, story: judge(exchange, story, self._deps)
        if method not in ("GET", "HEAD"):
            raise Fault(Kind.METHOD_NOT_ALLOWED, "Only GET is allowed here.", detail="GET, HEAD")
        return self._own_key if path == OWN_KEY else self._models

    async def _models(self, exchange: Exchange, story: Story) -> None:
        """Answer with the models that the caller may use, or with one model."""
        deps = self._deps
        story.asked.endpoint = MODELS
        caller = await authenticate(exchange, story, deps)
        policy, models = self._allowed(caller, story)
        path = exchange.head.path
        if path == MODELS:
            rendering = render_models if exchange.translation is None else render_messages_models
            body = rendering([self._facts(name, policy, caller.project) for name in sorted(models)], created=deps.started_unix)
        else:
            # the rest of the path is a name, and clients write the slashes in it as %2F
            name = unquote(path.removeprefix(ONE_MODEL))
            if name not in models:
                raise Fault(Kind.MODEL_NOT_FOUND, f"The model '{_shown(name)}' does not exist or you do not have access to it.")
            rendering_one = render_model if exchange.translation is None else render_messages_model
            body = rendering_one(self._facts(name, policy, caller.project), created=deps.started_unix)
        story.settled.status = 200
        exchange.reply(200, reply_headers(exchange, story, None, deps, stream=False), body)

    def _allowed(self, caller: Caller, story: Story) -> tuple[TenantPolicy | None, set[str]]:
        """The caller's policy, and the models that the caller may use."""
        deps = self._deps
        policies = deps.live.policies
        story.asked.policy_digest = policies.digest
        policy = policies.for_tenant(caller.tenant)
        rights = grant_of(caller, deps).rights
        return policy, {name for name, rule in policy.models.items() if exists_for(rights, rule)} if policy is not None else set()

    async def _own_key(self, exchange: Exchange, story: Story) -> None:
        """Answer with what the caller's own key may use, has used and has left."""
        deps = self._deps
        story.asked.endpoint = OWN_KEY
        caller = await authenticate(exchange, story, deps)
        _, models = self._allowed(caller, story)
        grant, key = grant_of(caller, deps), deps.live.directory.key(caller.key_id)
        label, expires = (key.label, key.expires_unix) if key is not None else ("", None)
        facts = KeyFacts(caller.tenant, caller.project, caller.key_id, label, expires, sorted(models))
        lines, looked_unix = own_lines(grant), deps.wall()
        usages = await usages_of(grant, lines, deps.counters)
        body = render_own_key(facts, lines, usages, await deps.own_spend.of(caller), looked_unix)
        story.settled.status = 200
        exchange.reply(200, reply_headers(exchange, story, None, deps, stream=False) + b"cache-control: no-store\r\n", body)

    def _facts(self, name: str, policy: TenantPolicy | None, project: str) -> ModelFacts:
        """What the caller may know of one model. Where several pools serve it, what holds for each of them."""
        deps = self._deps
        assert policy is not None  # a caller without a policy has no model
        rule = policy.models[name]
        pools = [pool for _, pool in rule.shares] or [rule.pool]
        fleet, contexts, price = deps.live.fleet, deps.live.contexts, None
        known = [
            deps.context_tokens.get(pool) or min((contexts[one.id] for one in fleet.pools[pool].backends if one.id in contexts), default=0)
            for pool in pools
        ]
        if policy.treating(project, rule.name).show_prices:
            found = deps.live.directory.prices.at(rule.name, fleet.pools[pools[0]].revision, deps.wall())
            price = found if found is not FREE else None
        return ModelFacts(name, deps.abilities.get(pools[0], Abilities()), min(filter(None, known), default=None), price)

    async def _preflight(self, exchange: Exchange, story: Story) -> None:
        """Answer a CORS preflight of an allowed origin; for any other origin the route does not take OPTIONS."""
        origin_headers = cors_headers(exchange, self._deps.cors_origins)
        if not origin_headers:
            raise Fault(
                Kind.METHOD_NOT_ALLOWED,
                "Cross-origin requests are not allowed here.",
                detail="POST" if exchange.head.path in (*INFERENCE, *TRANSLATED, *OWN_POSTS) else "GET, HEAD",
            )
        story.settled.status = 204
        requested_headers = exchange.head.headers.get(b"access-control-request-headers", b"authorization, content-type")
        deletes = exchange.head.path.startswith((ONE_RESPONSE, ONE_CHAT, ONE_CONVERSATION, *STORED))
        headers = (
            (b"x-request-id", story.request_id.encode("ascii")),
            (b"x-tidegate-request-id", story.gateway_id.encode("ascii")),
            (b"access-control-allow-methods", b"GET, POST, DELETE" if deletes else b"GET, POST"),
            (b"access-control-allow-headers", requested_headers),
            (b"access-control-max-age", b"%d" % PREFLIGHT_AGE_S),
        )
        exchange.reply(204, origin_headers + header_lines(headers), b"")


def _health(exchange: Exchange) -> None:
    """Answer a load balancer: 200, or 503 from SIGTERM on. Neither recorded nor logged, and it says nothing of keys, models or engines."""
    draining = exchange.draining
    headers = b"content-type: application/json\r\ncache-control: no-store\r\n"
    exchange.reply(503 if draining else 200, headers, b'{"status":"draining"}' if draining else b'{"status":"ok"}')


def _shown(text: str) -> str:
    """A string of the caller for an error message: printable ASCII, at most 100 characters."""
    return "".join(c if " " <= c <= "~" else "?" for c in text[:100])
