"""Every route that generates by everything that a gateway does around it: one table of laws, so that no route lacks a feature in silence.

A route of another API becomes a chat at the edge, so it has what chats have. `ABSENT` names each cell that does not hold, with its reason.
"""

import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from gateway.placement.explain import Would, supposed
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tenancy.prices import ANY_REVISION, Price, TokenRates
from tenancy.rights import Rights
from tests.databases import migrated_file
from tests.gateway_harness import Gateway, gateway, no_engine
from tests.response_stores import response_stores

SIM = SimSettings(models=("sim",), speed=2000)
SECRET = "open sesame"
POLICY: dict[str, Any] = {
    "tenant": "*",
    "models": [{"name": "sim", "pool": "chat"}, {"name": "first", "pool": "gone", "fallback": [{"to": "sim"}]}],
    "expose_headers": True,
    "parameters": {"defaults": {"temperature": 0}, "at_most": {"temperature": 1}},
    "cache": {},
    "guards": {
        "rules": [
            {"id": "mails", "kind": "pii", "types": ["email"], "mode": "redact"},
            {"id": "keys", "kind": "words", "words": [SECRET], "mode": "block"},
        ]
    },
}


ANSWERS = {"id": "answers", "kind": "pattern", "pattern": "[a-z]", "mode": "block", "on": ["output"]}
"""A rule that no answer passes."""


@dataclass(frozen=True)
class Route:
    """One route: how it is asked, and where its answer stands."""

    path: str
    ask: Callable[[str], dict[str, Any]]
    text: Callable[[dict[str, Any]], str]
    streamed: Callable[[list[dict[str, Any]]], str]
    tokens: Callable[[dict[str, Any]], tuple[int, int]]
    """The tokens of the prompt and of the answer that the reply tells."""
    error: Callable[[dict[str, Any]], str]
    """The message of an error."""
    background: bool = False
    """Whether the answer is made without its caller, who reads its events."""


CHAT = Route(
    "/v1/chat/completions",
    lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 4000},
    lambda reply: str(reply["choices"][0]["message"]["content"]),
    lambda events: "".join([event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"]]),
    lambda reply: (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]),
    lambda reply: str(reply["error"]["message"]),
)
MESSAGES = Route(
    "/v1/messages",
    lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 4000},
    lambda reply: "".join([block["text"] for block in reply["content"]]),
    lambda events: "".join([event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]),
    lambda reply: (reply["usage"]["input_tokens"] + reply["usage"]["cache_read_input_tokens"], reply["usage"]["output_tokens"]),
    lambda reply: str(reply["error"]["message"]) if reply["type"] == "error" else "",
)
RESPONSES = Route(
    "/v1/responses",
    lambda text: {"input": text, "max_output_tokens": 4000},
    lambda reply: "".join([part["text"] for item in reply["output"] if item["type"] == "message" for part in item["content"]]),
    lambda events: "".join([event["delta"] for event in events if event["type"] == "response.output_text.delta"]),
    lambda reply: (reply["usage"]["input_tokens"], reply["usage"]["output_tokens"]),
    lambda reply: str(reply["error"]["message"]),
)
IN_BACKGROUND = "/v1/responses in the background"
ROUTES = {route.path: route for route in (CHAT, MESSAGES, RESPONSES)} | {IN_BACKGROUND: replace(RESPONSES, background=True)}


class Site:
    """A gateway in front of two pools, of which the second one has no engine that answers, and one caller of one route."""

    def __init__(self, route: Route, engine: SimEngine, running: Gateway, client: httpx.AsyncClient) -> None:
        self.route = route
        self.engine = engine
        self.running = running
        self._client = client

    async def ask(self, text: str = "the sea", **fields: Any) -> httpx.Response:
        headers = fields.pop("headers", None)
        body = {"model": "sim", **self.route.ask(text), **fields}
        if not self.route.background:
            return await self._client.post(self.route.path, json=body, headers=headers)
        reply = await self._client.post(self.route.path, json={**body, "background": True, "stream": True}, headers=headers)
        if fields.get("stream") or reply.status_code != 200:
            return reply
        last = [line for line in reply.text.splitlines() if line.startswith("data: {")][-1]
        return httpx.Response(200, headers=reply.headers, json=json.loads(last.removeprefix("data: "))["response"])

    async def stream(self, text: str = "the sea") -> list[dict[str, Any]]:
        reply = await self.ask(text, stream=True)
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
        return [json.loads(line) for line in lines]

    def key(self, tenant: str) -> dict[str, str]:
        """The header of another tenant's key."""
        return {"authorization": f"Bearer {self.running.keys[tenant]}"}

    def sent(self) -> list[dict[str, Any]]:
        """The bodies that the engine got."""
        return [json.loads(received.body) for received in self.engine.received]


Law = Callable[[Site], Awaitable[None]]


async def _plain_and_streamed(site: Site) -> None:
    whole = await site.ask()
    assert whole.status_code == 200
    assert site.route.streamed(await site.stream()) == site.route.text(whole.json()) != ""


async def _usage_and_ledger(site: Site) -> None:
    told = site.route.tokens((await site.ask()).json())
    await site.stream("the wind")
    first, second = await site.running.recorded(2)
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == told
    assert second.usage.completion_tokens > 0
    assert first.cost_nanousd > 0
    assert [record.endpoint for record in (first, second)] == [site.route.path] * 2
    assert site.running.open_holds == 0


async def _limits(site: Site) -> None:
    refused = [await site.ask(f"wave {number}") for number in range(4)][-1]
    assert (refused.status_code, refused.headers["x-should-retry"]) == (429, "false")
    assert "3 requests" in site.route.error(refused.json())
    assert len(site.engine.received) == 3


async def _unknown_key(site: Site) -> None:
    reply = await site.ask(headers={"authorization": "Bearer gw_test_0000000000_x"})
    assert reply.status_code == 401
    assert "key is not valid" in site.route.error(reply.json())


async def _unknown_model(site: Site) -> None:
    reply = await site.ask(model="other")
    assert reply.status_code == 404
    assert "'other' does not exist" in site.route.error(reply.json())


async def _rights(site: Site) -> None:
    """A right to the route itself is enough, and so is one to chats, which a translated route is."""
    allowed = [await site.ask(), await site.ask(headers=site.key("bolt"))]
    assert [reply.status_code for reply in allowed] == [200, 200]
    refused = await site.ask(headers=site.key("crane"))
    assert refused.status_code == 403
    assert f"{site.route.path} may not be used here" in site.route.error(refused.json())


async def _policy_parameters(site: Site) -> None:
    await site.ask()
    assert site.sent()[0]["temperature"] == 0
    refused = await site.ask(temperature=1.5)
    assert refused.status_code == 400
    assert "temperature" in site.route.error(refused.json())


async def _input_guards(site: Site) -> None:
    await site.ask("write to ann@corp.io")
    assert "ann@corp.io" not in str(site.sent())
    blocked = await site.ask(f"say {SECRET}")
    assert blocked.status_code == 400
    assert len(site.sent()) == 1


async def _answer_guards(site: Site) -> None:
    whole = await site.ask()
    assert (whole.status_code, site.route.text(whole.json())) == (200, "")
    events = await site.stream("the wind")
    assert site.route.streamed(events) == ""
    assert [record.outcome for record in await site.running.recorded(2)] == ["ok", "ok"]
    ends = {"content_filter", "refusal", "incomplete"}
    assert ends & set(json.dumps([whole.json(), events]).replace('"', " ").split())


async def _cache(site: Site) -> None:
    first, again = await site.ask(), await site.ask()
    assert [reply.headers["x-tidegate-cache"] for reply in (first, again)] == ["miss", "hit-exact"]
    assert site.route.text(again.json()) == site.route.text(first.json()) == site.route.streamed(await site.stream())
    assert len(site.engine.received) == 1


async def _fallback(site: Site) -> None:
    reply = await site.ask(model="first")
    assert (reply.status_code, reply.headers["x-tidegate-fallback"]) == (200, "first=no_capacity")
    assert site.route.text(reply.json())


async def _explain(site: Site) -> None:
    reply = await site.ask()
    assert reply.headers["x-tidegate-backend"] == "chat-0"
    assert reply.headers["x-tidegate-reason"]
    decision = site.running.deps.decisions.find(reply.headers["x-tidegate-request-id"])
    assert decision is not None
    body = json.dumps({"model": "sim", **site.route.ask("the wind")}).encode()
    told = await supposed(Would("acme", site.route.path, body), site.running.deps)
    assert told.explained is not None
    refused = await supposed(Would("acme", site.route.path, b'{"model":"sim","messages":7,"input":7,"max_tokens":5}'), site.running.deps)
    assert refused.refusal is not None


async def _engine_dies_in_a_stream(site: Site) -> None:
    site.engine.misbehave([FaultRule("reset_mid_stream", after=3)])
    with pytest.raises(httpx.RemoteProtocolError):
        await site.ask(stream=True)
    (record,) = await site.running.recorded(1)
    assert (record.status, record.outcome) == (200, "broken_stream")
    assert site.running.open_holds == 0


async def _bad_body(site: Site) -> None:
    reply = await site.ask(messages="x", input=7)
    assert reply.status_code == 400
    assert "messages" in site.route.error(reply.json()) or "input" in site.route.error(reply.json())


LAWS: dict[str, Law] = {
    "plain and streamed": _plain_and_streamed,
    "usage and ledger": _usage_and_ledger,
    "limits": _limits,
    "unknown key": _unknown_key,
    "unknown model": _unknown_model,
    "rights": _rights,
    "parameters of policies": _policy_parameters,
    "guard rules on requests": _input_guards,
    "guard rules on answers": _answer_guards,
    "answer cache": _cache,
    "fallback": _fallback,
    "explain": _explain,
    "an engine dies in a stream": _engine_dies_in_a_stream,
    "bad body": _bad_body,
}

_EARLY = "the headers of its reply are sent before an engine or the cache is asked; the Record has what they would say"
ABSENT: dict[tuple[str, str], str] = {
    (
        IN_BACKGROUND,
        "guard rules on requests",
    ): "a request that a rule blocks is a Response that failed, as the caller has its reply by then",
    (IN_BACKGROUND, "answer cache"): _EARLY,
    (IN_BACKGROUND, "fallback"): _EARLY,
    (IN_BACKGROUND, "explain"): _EARLY,
    (IN_BACKGROUND, "an engine dies in a stream"): "its events end well, with `response.failed`",
}
"""Cells that do not hold, each with its reason."""


@pytest.mark.parametrize("law", list(LAWS))
@pytest.mark.parametrize("path", list(ROUTES))
async def test_every_route_has_every_feature(path: str, law: str, tmp_path: Path) -> None:
    if (path, law) in ABSENT:
        pytest.skip(ABSENT[path, law])
    limits = [Limit(Scope(Level.TENANT, "acme"), Meter.REQUESTS, Window.EVER, 3)] if law == "limits" else []
    endpoints = {"acme": CHAT.path, "bolt": ROUTES[path].path, "crane": "/v1/embeddings"} if law == "rights" else {}
    rights = {tenant: Rights(endpoints=frozenset({route})) for tenant, route in endpoints.items()}
    price = Price("p", "sim", ANY_REVISION, 0.0, TokenRates(uncached_input=10**9, output=10**9))
    async with SimEngine(SIM) as engine, no_engine() as nobody:
        pools = [
            {"name": name, "model": "sim", "backends": [{"id": f"{name}-0", "url": url}]}
            for name, url in (("chat", engine.url), ("gone", nobody))
        ]
        policy = POLICY | ({"guards": {"rules": [ANSWERS]}} if law == "guard rules on answers" else {})
        stores: dict[str, Any] = {}
        async with contextlib.AsyncExitStack() as stack:
            if ROUTES[path].background:
                policy = policy | {"responses": {}}
                await migrated_file(tmp_path / "store.db")
                responses, background = await stack.enter_async_context(response_stores(tmp_path / "store.db"))
                stores = {"responses": responses, "background": background}
            served = gateway(pools=pools, policies=(policy,), limits=limits, prices=[price], rights=rights, **stores)
            running = await stack.enter_async_context(served)
            client = await stack.enter_async_context(running.client())
            await LAWS[law](Site(ROUTES[path], engine, running, client))
