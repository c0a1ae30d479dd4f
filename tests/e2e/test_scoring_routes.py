"""Routes for which nothing is generated, through a whole gateway: a table of routes and of what holds on every route.

A cell that says nothing of a route has its reason in `NOT_OF_ROUTES`, and a feature that is left out in `NOT_HERE`.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from backends.simengine.shapes import pieces_of, tokens_of
from backends.simengine.sound import speech_of, transcript
from domain.ask import Endpoint
from domain.usage import NO_USAGE
from gateway.placement.explain import Would, supposed
from gateway.telemetry.access_log import line_of
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tenancy.rights import Rights
from tests.gateway_harness import Gateway, gateway

SIM = SimSettings(models=("sim",), speed=2000)
MAIL = "ann@corp.io"
MAILS = {"id": "mails", "kind": "pii", "types": ["email"], "mode": "redact", "on": ["input", "documents"]}
WORDS = {"id": "words", "kind": "words", "words": ["open sesame"], "mode": "block", "on": ["input", "documents"]}
ACME = Scope(Level.TENANT, "acme")
MESSAGES = [{"role": "user", "content": "the red fox"}]
RECORDING = b"RIFF" + bytes(range(256)) * 300


@dataclass(frozen=True)
class Route:
    """One row of the table: a request, the places of its texts, and its reply."""

    endpoint: Endpoint
    body: dict[str, Any]
    texts: tuple[str, ...]
    """The members that a guard rule has to read, each a text or a list whose last item is one."""
    of_items: dict[str, type]
    """The members of an item of the reply."""
    items: int
    paths: tuple[str, ...] = ()
    """Further paths."""
    id: str = field(default="")
    value: dict[str, Any] | None = None
    """Members of a reply whose answer is one value, in place of items."""

    @property
    def name(self) -> str:
        return self.id or self.endpoint.word


ROUTES = [
    Route(
        Endpoint.EMBEDDINGS,
        {"input": ["the red fox", "a cat"], "encoding_format": "base64", "dimensions": 8},
        ("input",),
        {"index": int, "embedding": str},
        2,
        ("/openai/v1/embeddings",),
    ),
    Route(
        Endpoint.RERANK,
        {"query": "red fox", "documents": ["a cat", "the red fox"]},
        ("query", "documents"),
        {"index": int, "relevance_score": float, "document": dict},
        2,
        ("/rerank", "/v2/rerank", "/v1/rerank/", "/openai/v1/rerank"),
    ),
    Route(
        Endpoint.SCORE,
        {"text_1": "red fox", "text_2": ["a cat", "the red fox"]},
        ("text_1", "text_2"),
        {"index": int, "object": str, "score": float},
        2,
        ("/score",),
    ),
    Route(
        Endpoint.SCORE,
        {"queries": ["red fox", "cat"], "documents": ["a cat", "the red fox"]},
        ("queries", "documents"),
        {"index": int, "object": str, "score": float},
        2,
        id="score-documents",
    ),
    Route(
        Endpoint.CLASSIFY,
        {"input": ["the red fox", "a cat"]},
        ("input",),
        {"index": int, "label": str, "probs": list, "num_classes": int},
        2,
        ("/v1/classify",),
    ),
    Route(Endpoint.POOLING, {"input": ["the red fox", "a cat"]}, ("input",), {"index": int, "object": str, "data": list}, 2),
    Route(Endpoint.EMBEDDINGS, {"messages": MESSAGES}, ("messages",), {"index": int, "embedding": list}, 1, id="embeddings-messages"),
    Route(Endpoint.CLASSIFY, {"messages": MESSAGES}, ("messages",), {"index": int, "probs": list}, 1, id="classify-messages"),
    Route(Endpoint.POOLING, {"messages": MESSAGES}, ("messages",), {"index": int, "data": list}, 1, id="pooling-messages"),
    Route(
        Endpoint.TOKENIZE,
        {"prompt": "the red fox", "add_special_tokens": False},
        ("prompt",),
        {},
        1,
        ("/v1/tokenize", "/tokenize/"),
        value={"count": 3, "tokens": tokens_of("the red fox"), "token_strs": None, "max_model_len": SIM.max_model_len},
    ),
    Route(Endpoint.TOKENIZE, {"messages": MESSAGES}, ("messages",), {}, 1, id="tokenize-messages", value={"count": 12}),
    Route(Endpoint.DETOKENIZE, {"tokens": [7, 11]}, (), {}, 1, ("/v1/detokenize",), value={"prompt": "[7][11]"}),
    Route(
        Endpoint.TRANSCRIPTIONS,
        {"file": RECORDING, "prompt": "fox", "language": "en"},
        ("prompt",),
        {},
        1,
        ("/openai/v1/audio/transcriptions", "/openai/deployments/sim/audio/transcriptions"),
        value={"text": transcript("transcribe", RECORDING, SIM.seed), "usage": {"type": "duration", "seconds": 3}},
    ),
    Route(
        Endpoint.TRANSLATIONS,
        {"file": RECORDING, "prompt": "fox"},
        ("prompt",),
        {},
        1,
        value={"text": transcript("translate", RECORDING, SIM.seed)},
    ),
    Route(
        Endpoint.SPEECH,
        {"input": "the red fox", "voice": "alloy", "instructions": "slowly"},
        ("input", "instructions"),
        {},
        1,
        value={"sound": speech_of("the red fox")},
    ),
]

Feature = Callable[[Route], Awaitable[None]]


def policy(**fields: Any) -> dict[str, Any]:
    return {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "expose_headers": True, **fields}


async def send(client: httpx.AsyncClient, route: Route, path: str = "", **fields: Any) -> httpx.Response:
    body = {"model": "sim", **route.body, **fields}
    if "file" in body:
        return await client.post(path or route.endpoint.path, files={"file": ("a.wav", body.pop("file"))}, data=body)
    return await client.post(path or route.endpoint.path, json=body)


def read(reply: httpx.Response) -> dict[str, Any]:
    """The members of a reply; of one that is sound, its bytes."""
    if reply.headers["content-type"].startswith("audio/"):
        return {"sound": reply.content}
    body: dict[str, Any] = reply.json()
    return body


def with_text(value: Any, text: str) -> Any:
    """The value of a member with `text` in place of its last text."""
    if isinstance(value, str):
        return text
    return [*value[:-1], {**value[-1], "content": text} if isinstance(value[-1], dict) else text]


def place(name: str, value: Any) -> str:
    """The path of that text."""
    if isinstance(value, str):
        return name
    return f"{name}[{len(value) - 1}]" + (".content" if isinstance(value[-1], dict) else "")


async def used(running: Gateway, meter: Meter) -> tuple[int, int]:
    """What is used and held of a limit of acme's."""
    grant = running.deps.live.directory.grant(running.deps.live.directory.keys.authenticate(running.keys["acme"], 0.0).key_id, 0.0)  # type: ignore[union-attr]  # the harness made the key
    states = [state for group in grant.groups("sim") for state in await running.deps.counters.look(group)]
    return next((state.used, state.held) for state in states if state.line.meter == meter)


async def answers(route: Route) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        for path in (route.endpoint.path, *route.paths):
            reply = await send(client, route, path)
            assert reply.status_code == 200, reply.text
            body = read(reply)
            if route.value is not None:
                assert {name: body[name] for name in route.value} == route.value
                continue
            assert body["model"] == "sim"
            items = body[route.endpoint.reply_field]
            assert len(items) == route.items
            for item in items:
                assert {name: type(item.get(name)) for name in route.of_items} == route.of_items
            assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 0
        assert {record.endpoint for record in await running.recorded(1 + len(route.paths))} == {route.endpoint.path}
        assert {received.path for received in engine.received} == {route.endpoint.path}


async def unknown_fields_go_on(route: Route) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        await send(client, route, foo=[1], truncate_prompt_tokens=9, user="ann", priority=-9, cache_salt="mine")
        sent = json.loads(engine.received[0].body)
        assert (sent["foo"], sent["truncate_prompt_tokens"]) == ([1], 9)
        assert "priority" not in sent
        assert sent.get("cache_salt") != "mine"
        assert (await running.recorded(1))[0].user == "ann"


async def requests_are_limited(route: Route) -> None:
    limits = [Limit(ACME, Meter.REQUESTS, Window.MINUTE, 1)]
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=limits) as running, running.client() as client:
        assert (await send(client, route)).headers["x-ratelimit-remaining-requests"] == "0"
        assert (await send(client, route)).status_code == 429
        assert len(engine.received) == 1


async def tokens_are_held_and_settled_as_reported(route: Route) -> None:
    limits = [Limit(ACME, Meter.TOKENS, Window.DAY, 100_000)]
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=limits) as running, running.client() as client:
        total = (await send(client, route)).json()["usage"]["total_tokens"]
        record = (await running.recorded(1))[0]
        assert await used(running, Meter.TOKENS) == (total, 0)
        assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (total, 0)
        assert (record.closing, record.reported) == ("settle", "")


async def what_no_limit_has_room_for_is_refused(route: Route) -> None:
    limits = [Limit(ACME, Meter.TOKENS, Window.DAY, 2)]
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=limits) as running, running.client() as client:
        assert (await send(client, route)).status_code in (400, 429)
        assert not engine.received


async def without_a_report_the_estimate_stands(route: Route) -> None:
    limits = [Limit(ACME, Meter.TOKENS, Window.DAY, 100_000)]
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=limits) as running, running.client() as client:
        engine.inject([FaultRule("no_usage")])
        assert (await send(client, route)).status_code == 200
        await running.recorded(1)
        charged, held = await used(running, Meter.TOKENS)
        assert charged > 0
        assert held == 0


async def nothing_but_the_request_is_counted(route: Route) -> None:
    limits = [Limit(ACME, Meter.TOKENS, Window.DAY, 1), Limit(ACME, Meter.COST_NANOUSD, Window.DAY, 1)]
    limits.append(Limit(ACME, Meter.REQUESTS, Window.DAY, 2))
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=limits) as running, running.client() as client:
        assert [(await send(client, route)).status_code for _ in range(3)] == [200, 200, 429]
        record = (await running.recorded(3))[0]
        assert (await used(running, Meter.TOKENS), await used(running, Meter.COST_NANOUSD)) == ((0, 0), (0, 0))
        assert await used(running, Meter.REQUESTS) == (2, 0)
        assert (record.usage, record.cost_nanousd) == (NO_USAGE, 0)


async def a_failure_is_not_held_against_the_engine(route: Route) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        engine.misbehave([FaultRule("status_500")])
        for _ in range(20):
            assert (await send(client, route)).status_code == 502
        engine.misbehave([])
        assert not running.deps.live.breakers.troubled
        assert (await send(client, route)).status_code == 200


async def policies_know_the_endpoint(route: Route) -> None:
    rules = [{"name": "these", "if": f'endpoint == "{route.endpoint.word}"', "then": {"class": "batch"}}]
    policies = [policy(rules=rules), {**policy(), "tenant": "bolt", "models": [{"name": "other", "pool": "chat"}]}]
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=policies) as running:
        async with running.client() as client, running.client("bolt") as other:
            assert (await send(client, route)).status_code == 200
            assert (await send(other, route)).status_code == 404
        first = (await running.recorded(2))[0]
        assert (first.rule, first.priority_class) == ("these", "batch")


async def rights_know_the_endpoint(route: Route) -> None:
    other = Endpoint.CHAT.path
    for allowed, status in ((route.endpoint.path, 200), (other, 403)):
        rights = {"acme": Rights(endpoints=frozenset({allowed}))}
        async with SimEngine(SIM) as engine, gateway(engine.url, rights=rights) as running, running.client() as client:
            assert (await send(client, route)).status_code == status


async def guards_read_every_text(route: Route) -> None:
    policies = [policy(guards={"rules": [MAILS, WORDS]})]
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=policies) as running, running.client() as client:
        for name in route.texts:
            changed = {name: with_text(route.body[name], f"to {MAIL}")}
            assert (await send(client, route, **changed)).status_code == 200
            sent = engine.received[-1].body
            assert b"to [EMAIL]" in sent
            assert MAIL.encode() not in sent
            blocked = await send(client, route, **{name: with_text(route.body[name], "Open sesame!")})
            assert (blocked.status_code, blocked.json()["error"]["param"]) == (400, place(name, route.body[name]))
        assert len(engine.received) == len(route.texts)


async def the_record_the_log_and_the_metrics_tell_of_it(route: Route) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        reply = await send(client, route)
        record = (await running.recorded(1))[0]
        assert (record.outcome, record.status, record.endpoint, record.pool) == ("ok", 200, route.endpoint.path, "chat")
        line = json.loads(line_of(record))
        assert (line["endpoint"], line["status"]) == (route.endpoint.path, 200)
        running.metrics.observe(record)
        families = running.metrics.snapshot().families.values()
        assert any(route.endpoint.path in labels for rows in families for labels, _ in rows), "labelled by its path"
        explained = running.deps.decisions.find(reply.headers["x-tidegate-request-id"])
        assert explained is not None
        assert explained.pool == "chat"


async def it_can_be_asked_where_it_would_go(route: Route) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running:
        file = {"file": {"name": "audio.wav", "bytes": 9}} if "file" in route.body else {}
        told = await supposed(Would("acme", route.endpoint.path, json.dumps({"model": "sim", **route.body, **file}).encode()), running.deps)
        assert told.refusal is None
        assert told.explained is not None
        assert not engine.received


async def a_failing_engine_costs_no_answer(route: Route) -> None:
    faults = ["status_500", "plain_not_json", "plain_error_200", "wrong_model", "close_before_headers"]
    for fault in faults if route.value is None else [fault for fault in faults if fault != "wrong_model"]:  # the reply names no model
        async with SimEngine(SIM) as one, SimEngine(SIM) as two, gateway(one.url, two.url) as running, running.client() as client:
            one.inject([FaultRule(fault)])
            sent = 0
            while not one.received and sent < 20:
                sent += 1
                assert (await send(client, route)).status_code == 200, fault
            assert len(one.received) + len(two.received) == sent + 1, "the failed attempt was one more"


async def what_the_engine_lacks_is_said(route: Route) -> None:
    sim = SimSettings(models=("sim",), dialect="sglang", speed=2000)
    async with SimEngine(sim) as engine, gateway(engine.url, pool={"dialect": "sglang"}) as running, running.client() as client:
        reply = await send(client, route)
        its = (Endpoint.EMBEDDINGS, Endpoint.RERANK, Endpoint.CLASSIFY, Endpoint.TOKENIZE, Endpoint.DETOKENIZE, Endpoint.TRANSCRIPTIONS)
        has = route.endpoint in its and "messages" not in route.body
        assert reply.status_code == (200 if has else 400), reply.text
        assert len(engine.received) == has
        if has:
            assert route.value is not None or reply.json()["usage"]["prompt_tokens"] > 0
        else:
            assert reply.json()["error"]["code"] == "unsupported_parameter"
            assert reply.json()["error"]["param"] == (
                "messages" if route.id in ("embeddings-messages", "classify-messages", "tokenize-messages") else "model"
            )


async def the_cache_keeps_only_embeddings(route: Route) -> None:
    policies = [policy(cache={})]
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=policies) as running, running.client() as client:
        replies = [await send(client, route) for _ in range(2)]
        assert [reply.status_code for reply in replies] == [200, 200]
        bypassed = {reply.headers.get("x-tidegate-cache") for reply in replies} == {"bypass:endpoint"}
        assert bypassed == (not route.endpoint.kept)
        assert len(engine.received) == (2 if bypassed else 1)


async def nothing_is_streamed(route: Route) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        reply = await send(client, route, stream=True)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "stream")
        assert not engine.received


FEATURES: list[Feature] = [
    answers,
    unknown_fields_go_on,
    requests_are_limited,
    tokens_are_held_and_settled_as_reported,
    what_no_limit_has_room_for_is_refused,
    without_a_report_the_estimate_stands,
    nothing_but_the_request_is_counted,
    a_failure_is_not_held_against_the_engine,
    policies_know_the_endpoint,
    rights_know_the_endpoint,
    guards_read_every_text,
    the_record_the_log_and_the_metrics_tell_of_it,
    it_can_be_asked_where_it_would_go,
    a_failing_engine_costs_no_answer,
    what_the_engine_lacks_is_said,
    the_cache_keeps_only_embeddings,
    nothing_is_streamed,
]
NOT_HERE: dict[str, str] = {
    "guards of answers": "nothing is generated, so there is no text that a model wrote; the texts in a reply are those of the request",
    "fallback by finish reason": "a reply has no finish reason",
    "prefix routing": "an engine keeps no prefix of these requests, or none that a later one could use",
    "registry prompts": "they are messages of a chat to answer",
}
"""Features that the table leaves out, each with its reason."""

FORMS: tuple[Endpoint, ...] = (Endpoint.TRANSCRIPTIONS, Endpoint.TRANSLATIONS)
SOUND: tuple[Endpoint, ...] = (*FORMS, Endpoint.SPEECH)
ELSEWHERE = "tests/e2e/test_audio_routes.py"
TOKENIZERS: tuple[Endpoint, ...] = (Endpoint.TOKENIZE, Endpoint.DETOKENIZE)
UNCOUNTED = "a tokenizer computes no tokens: a request counts as one, and holds and uses nothing else"
COUNTED = "the engine computes the prompt, so its tokens count, and its failures are those of the engine"
NOT_OF_ROUTES: dict[tuple[Endpoint, Feature], str] = {
    **{(endpoint, tokens_are_held_and_settled_as_reported): UNCOUNTED for endpoint in TOKENIZERS},
    **{(endpoint, what_no_limit_has_room_for_is_refused): UNCOUNTED for endpoint in TOKENIZERS},
    **{(endpoint, without_a_report_the_estimate_stands): UNCOUNTED for endpoint in TOKENIZERS},
    **{(row.endpoint, nothing_but_the_request_is_counted): COUNTED for row in ROUTES if row.endpoint not in TOKENIZERS},
    **{(row.endpoint, a_failure_is_not_held_against_the_engine): COUNTED for row in ROUTES if row.endpoint not in TOKENIZERS},
    (
        Endpoint.DETOKENIZE,
        guards_read_every_text,
    ): "a request has no text, and the reply's is made of the caller's own ids; no model reads it",
    **{(endpoint, unknown_fields_go_on): f"they go on as parts of a form: {ELSEWHERE}" for endpoint in FORMS},
    **{(endpoint, nothing_is_streamed): f"transcripts are streamed: {ELSEWHERE}" for endpoint in FORMS},
    **{(endpoint, tokens_are_held_and_settled_as_reported): f"seconds are reported, or nothing: {ELSEWHERE}" for endpoint in SOUND},
}
"""Cells that the table leaves out, each with its reason."""
CELLS = [(route, feature) for route in ROUTES for feature in FEATURES if (route.endpoint, feature) not in NOT_OF_ROUTES]


@pytest.mark.parametrize(("route", "feature"), CELLS, ids=[f"{route.name}-{feature.__name__}" for route, feature in CELLS])
async def test_every_route_has_every_feature(route: Route, feature: Feature) -> None:
    await feature(route)


def test_the_table_has_a_row_for_every_route_and_every_alternative() -> None:
    beside = {"encoding_format", "dimensions", "add_special_tokens", "voice", "instructions", "language"}
    rows = {(row.endpoint, tuple(sorted(row.body.keys() - beside - ({"prompt"} if "file" in row.body else set())))) for row in ROUTES}
    # it is llama.cpp's, whose own test is below
    rows.add((Endpoint.TOKENIZE, ("content",)))
    wanted = {
        (endpoint, tuple(sorted(fields)))
        for endpoint in Endpoint
        if not (endpoint.generates or endpoint.duplex)  # a session is asked for in its handshake (`test_realtime.py`)
        for fields in (endpoint.prompt_fields, *endpoint.alternatives)
    }
    assert rows == wanted
    assert {path for row in ROUTES for path in row.paths} >= {alias for endpoint in Endpoint for alias in endpoint.aliases}
    assert all(NOT_HERE.values())
    assert all(NOT_OF_ROUTES.values())


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_jinas_and_coheres_clients_get_one_shape_from_every_engine(dialect: str) -> None:
    sim = SimSettings(models=("sim",), dialect=dialect, speed=2000)
    async with SimEngine(sim) as engine, gateway(engine.url, pool={"dialect": dialect}) as running, running.client() as client:
        documents = ["a cat", {"text": "the red fox", "title": "t"}, "red"]
        body = {"model": "sim", "query": "red fox", "documents": documents, "top_n": 2}
        cohere = (await client.post("/v2/rerank", json={**body, "return_documents": False})).json()
        jina = (await client.post("/v1/rerank", json=body)).json()
        ranked = [{"index": 1, "relevance_score": 1.0}, {"index": 2, "relevance_score": 0.5}]
        assert cohere["results"] == ranked
        assert [{name: row[name] for name in ranked[0]} for row in jina["results"]] == ranked
        assert [row["document"] for row in jina["results"]] == [{"text": "the red fox"}, {"text": "red"}]
        records = await running.recorded(2)
        assert [reply["id"] for reply in (cohere, jina)] == [f"rerank-{record.own_id}" for record in records]
        assert jina["usage"] == {"prompt_tokens": 12, "total_tokens": 12}
        assert cohere["meta"] == {"api_version": {"version": "2"}, "tokens": {"input_tokens": 12, "output_tokens": 0}}
        assert [record.usage.prompt_tokens for record in records] == [12, 12]
        assert json.loads(engine.received[0].body)["documents"] == ["a cat", "the red fox", "red"]


@pytest.mark.parametrize("dialect", ["trtllm", "dynamo", "tgi", "llamacpp"])
async def test_dialects_without_an_endpoint_say_so_before_any_engine_is_asked(dialect: str) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, pool={"dialect": dialect}, poll=False) as running, running.client() as client:
        for route in ROUTES:
            lacks = (*SOUND, Endpoint.SCORE, Endpoint.CLASSIFY, Endpoint.POOLING, *(TOKENIZERS if dialect != "llamacpp" else ()))
            if route.endpoint in lacks:
                reply = await send(client, route)
                assert (reply.status_code, reply.json()["error"]["param"]) == (400, "model")
        assert not engine.received


@pytest.mark.parametrize("fields", [{"messages": MESSAGES}, {"input": "the red fox"}], ids=["messages", "input"])
async def test_the_field_that_the_caller_sent_is_blamed_for_a_prompt_that_is_too_long(fields: dict[str, Any]) -> None:
    short = SimSettings(models=("sim",), speed=2000, max_model_len=2)
    async with SimEngine(short) as engine, gateway(engine.url, poll=False) as running, running.client() as client:
        reply = await client.post("/pooling", json={"model": "sim", **fields})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, next(iter(fields)))


async def test_arguments_for_media_stay_closed() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url) as running, running.client() as client:
        reply = await client.post("/v1/embeddings", json={"model": "sim", "messages": MESSAGES, "mm_processor_kwargs": {"size": 1}})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "mm_processor_kwargs")
        assert not engine.received


async def test_a_tokenizer_in_the_shape_of_llama_cpp() -> None:
    async with SimEngine(SIM) as engine:
        policies = [policy(guards={"rules": [MAILS, WORDS]})]
        started = gateway(engine.url, pool={"dialect": "llamacpp"}, policies=policies, poll=False)
        async with started as running, running.client() as client:
            sent = {"model": "sim", "content": f"to {MAIL}", "with_pieces": True, "add_special": False}
            reply = await client.post("/tokenize", json=sent)
            pieces = [{"id": token, "piece": piece} for token, piece in zip(tokens_of("to [EMAIL]"), pieces_of("to [EMAIL]"), strict=True)]
            assert reply.json() == {"tokens": pieces}
            blocked = await client.post("/tokenize", json={"model": "sim", "content": "open sesame"})
            assert (blocked.status_code, blocked.json()["error"]["param"]) == (400, "content")
            assert (await client.post("/detokenize", json={"model": "sim", "tokens": [7]})).status_code == 200
            for fields, param in (
                ({"prompt": "a"}, "prompt"),
                ({"messages": MESSAGES}, "messages"),
                ({"content": "a", "return_token_strs": True}, "return_token_strs"),
            ):
                refused = await client.post("/tokenize", json={"model": "sim", **fields})
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_a_text_of_any_length_is_tokenized_and_pieces_come_back() -> None:
    short = SimSettings(models=("sim",), speed=2000, max_model_len=2)
    async with SimEngine(short) as engine, gateway(engine.url) as running, running.client() as client:
        text = "the red fox " * 30_000
        reply = (await client.post("/tokenize", json={"model": "sim", "prompt": text, "return_token_strs": True})).json()
        assert (reply["count"], reply["max_model_len"], reply["token_strs"]) == (len(tokens_of(text)), 2, pieces_of(text))


async def test_lists_of_texts_and_of_ids_for_sglang() -> None:
    sim = SimSettings(models=("sim",), dialect="sglang", speed=2000)
    async with SimEngine(sim) as engine, gateway(engine.url, pool={"dialect": "sglang"}) as running, running.client() as client:
        reply = (await client.post("/v1/tokenize", json={"model": "sim", "prompt": ["red", "a cat"]})).json()
        assert (reply["tokens"], reply["count"]) == ([tokens_of("red"), tokens_of("a cat")], [1, 2])
        assert (await client.post("/v1/detokenize", json={"model": "sim", "tokens": [[1], [2, 3]]})).json() == {"text": ["[1]", "[2][3]"]}
        assert (await client.post("/v1/detokenize", json={"model": "sim", "tokens": []})).json() == {"text": ""}
        refused = await client.post("/v1/tokenize", json={"model": "sim", "prompt": "red", "return_token_strs": True})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "return_token_strs")
