"""Answers to similar questions through a whole gateway, with the packaged embedder and scripted or simulated engines."""

import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from cache.ports import Selection
from cache.stores import pgvector
from cache.stores import valkey as stored
from tenancy.stores.valkey import node
from tests.databases import postgres_server
from tests.gateway_harness import Gateway, chat, gateway, stream
from tests.scripted_server import Peer, scripted
from tests.timing import until
from tests.valkey_servers import Server

ASKED = "How do I reset my password?"
KEPT = "Password reset steps"
THRESHOLD: dict[str, Any] = {"decision": "threshold", "threshold": 0.7}


def answering(answer: Callable[[str], str], embeddings: Callable[[dict[str, Any]], dict[str, Any]] | None = None) -> Callable[[Peer], Any]:
    """An engine that answers a chat with a function of its last message; without `embeddings`, it makes no vectors."""

    async def script(peer: Peer) -> None:
        while received := await peer.request():
            head, _, body = received.partition(b"\r\n\r\n")
            status, reply = 200, dict[str, Any]()
            if head.startswith(b"POST /v1/embeddings"):
                status, reply = (404, {"error": {}}) if embeddings is None else (200, embeddings(json.loads(body)))
            elif head.startswith(b"GET"):
                reply = {"object": "list", "data": [{"id": "sim", "object": "model"}]}
            else:
                content = answer(json.loads(body)["messages"][-1]["content"])
                message = {"role": "assistant", "content": content}
                reply = {
                    "id": "chatcmpl-1",
                    "object": "chat.completion",
                    "created": 1,
                    "model": "sim",
                    "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15},
                }
            data = json.dumps(reply).encode()
            await peer.send(b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(data), data))

    return script


def policy(semantic: dict[str, Any], tenant: str = "*", **cache: Any) -> dict[str, Any]:
    fields = {"semantic": semantic, **cache}
    return {"tenant": tenant, "models": [{"name": "sim", "pool": "chat"}], "expose_headers": True, "cache": fields}


@contextlib.asynccontextmanager
async def similar(semantic: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[tuple[SimEngine, Gateway]]:
    policies = options.pop("policies", None) or (policy(THRESHOLD if semantic is None else semantic, **options.pop("cache", {})),)
    async with SimEngine(SimSettings(models=("sim",), speed=20)) as engine, gateway(engine.url, policies=policies, **options) as running:
        await ready(running)
        yield engine, running


async def ready(running: Gateway) -> None:
    """Wait until the embedder has been loaded, which the first look-up begins."""
    source = running.deps.answers.semantic
    assert source is not None
    await until(lambda: source.ready() is not None)


async def ask(client: httpx.AsyncClient, text: str, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    body = chat(**{"temperature": 0, "max_tokens": 300, "messages": [{"role": "user", "content": text}], **fields})
    return await client.post("/v1/chat/completions", json=body, headers=headers)


def seen(reply: httpx.Response) -> tuple[str, str]:
    """What the reply says of the cache."""
    assert reply.status_code == 200, reply.text
    return reply.headers["x-tidegate-cache"], reply.headers.get("x-tidegate-cache-semantic", "")


def text_of(reply: httpx.Response) -> str:
    text: str = reply.json()["choices"][0]["message"]["content"]
    return text


async def kept(running: Gateway, count: int) -> None:
    """Wait until so many questions are in the index: they are kept behind the replies."""
    source = running.deps.answers.semantic
    assert source is not None
    semantic = source.ready()
    assert semantic is not None
    await until(lambda: semantic.index.figures().questions >= count)


async def test_a_question_is_answered_from_one_that_asks_the_same() -> None:
    async with similar() as (engine, running), running.client() as client:
        first = await ask(client, KEPT)
        assert seen(first) == ("miss", "first")
        await kept(running, 1)
        again = await ask(client, ASKED)
        streamed = await stream(client, temperature=0, max_tokens=300, messages=[{"role": "user", "content": ASKED}])
        assert (seen(again), text_of(again)) == (("hit-semantic", ""), text_of(first))
        assert streamed.text == text_of(first)
        assert engine.count == 1
        assert 0.7 <= float(again.headers["x-tidegate-cache-similarity"]) < 1
        assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == first.json()["usage"]["prompt_tokens"]
        records = await running.recorded(3)
        assert [(record.cache, record.closing, record.backend != "") for record in records] == [
            ("miss", "settle", True), ("hit-semantic", "hit", False), ("hit-semantic", "hit", False),
        ]  # fmt: skip
        assert records[1].usage.total_tokens == 0
        assert records[1].saved == records[0].usage


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("How do I not reset my password?", "differs:negation"),
        ("How do I reset my 2 passwords?", "differs:numbers"),
        ("Who resets my password?", "differs:question"),
        ("reset password", "short"),
        ("How do I reset my password today?", "time"),
        ("What is my account balance after the password reset?", "personal"),
    ],
)
async def test_a_question_whose_answer_may_differ_is_asked_anew(text: str, said: str) -> None:
    async with similar({"decision": "threshold", "threshold": 0.5}) as (engine, running), running.client() as client:
        await ask(client, ASKED)
        await kept(running, 1)
        assert seen(await ask(client, text)) == ("miss", said)
        assert engine.count == 2


async def test_only_requests_that_are_equal_otherwise_are_compared() -> None:
    async with similar() as (_, running), running.client() as client:
        await ask(client, KEPT)
        await kept(running, 1)
        turn = {"role": "user", "content": ASKED}
        for fields in (
            {"messages": [{"role": "system", "content": "Be brief."}, turn]},
            {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}, turn]},
            {"max_tokens": 301},
            {"seed": 5},
        ):
            assert seen(await ask(client, ASKED, **fields)) == ("miss", "first"), fields
        form = {"type": "json_object"}
        assert seen(await ask(client, ASKED, response_format=form)) == ("miss", "schema")
        namespace = {"x-tidegate-cache-namespace": "v2"}
        assert seen(await ask(client, ASKED, namespace)) == ("miss", "first")
        assert seen(await ask(client, ASKED)) == ("hit-semantic", "")


@pytest.mark.req("R4")
async def test_nobody_gets_an_answer_of_another_tenant() -> None:
    async with similar() as (engine, running), running.client() as ours, running.client("bolt") as theirs:
        await ask(ours, KEPT)
        await kept(running, 1)
        assert seen(await ask(theirs, ASKED)) == ("miss", "first")
        assert seen(await ask(ours, ASKED)) == ("hit-semantic", "")
        assert engine.count == 2


async def test_tenants_of_a_group_share_similar_answers() -> None:
    group = {"scope": "group", "group": "support"}
    async with similar(cache=group) as (_, running), running.client() as ours, running.client("bolt") as theirs:
        await ask(ours, KEPT)
        await kept(running, 1)
        assert seen(await ask(theirs, ASKED)) == ("hit-semantic", "")


async def test_what_a_request_says_of_the_cache_counts_for_similar_answers() -> None:
    async with similar() as (engine, running), running.client() as client:
        await ask(client, KEPT)
        await kept(running, 1)
        assert seen(await ask(client, ASKED, {"cache-control": "max-age=0"})) == ("miss", "old")
        assert seen(await ask(client, "Steps to reset a password", {"cache-control": "only-if-cached"})) == ("hit-semantic", "")
        assert seen(await ask(client, "Steps for the password reset", {"cache-control": "no-store"}))[0] == "bypass:asked"
        # an engine's fresh answer of a request with no-cache is kept, with its question
        asked = engine.count
        assert seen(await ask(client, "Where can invoices be downloaded?", {"cache-control": "no-cache"}))[0] == "miss"
        await kept(running, 3)
        assert seen(await ask(client, "Where can I download invoices?")) == ("hit-semantic", "")
        assert engine.count == asked + 1


async def test_equal_requests_at_once_make_one_call_though_they_wait_for_a_vector() -> None:
    async with similar() as (engine, running), running.client() as client:
        replies = await asyncio.gather(*(ask(client, ASKED) for _ in range(20)))
        assert engine.count == 1
        assert len({text_of(reply) for reply in replies}) == 1
        assert {seen(reply) for reply in replies} == {("miss", "first"), ("hit-exact", "")}


async def test_a_purge_removes_questions_too() -> None:
    async with similar() as (_, running), running.client() as client:
        await ask(client, KEPT)
        await kept(running, 1)
        await running.deps.answers.purge(Selection(owner="acme"))
        assert seen(await ask(client, ASKED)) == ("miss", "first")


async def test_a_question_whose_answer_has_gone_is_forgotten() -> None:
    async with similar() as (_, running), running.client() as client:
        await ask(client, KEPT)
        await kept(running, 1)
        await running.deps.answers.store.purge(Selection(owner="acme"))
        assert seen(await ask(client, ASKED)) == ("miss", "gone")
        await until(lambda: len(running.records) == 2)
        assert seen(await ask(client, ASKED)) == ("hit-exact", "")


async def test_keys_without_trust_neither_add_questions_nor_teach() -> None:
    async with similar(cache={"write": "trusted_keys"}) as (_, running), running.client() as client:
        assert seen(await ask(client, KEPT)) == ("miss", "first")
        assert seen(await ask(client, ASKED)) == ("miss", "first")


TOPICS = {
    "password": "Open the settings and choose reset.",
    "invoice": "Invoices are under Billing.",
    "delivery": "Parcels take three days.",
    "refund": "Refunds go back to the card.",
}
WAYS = (
    "How does the {} work{}?", "Please explain the {}{}", "Tell me about the {}{}", "What do people do about the {}{}?",
    "I need help with the {}{}", "Describe the {}{}",
)  # fmt: skip
ENDS = (
    "", " in short", " in simple words", " step by step", " for beginners", " in a web shop", " in detail", " to a colleague",
    " on a phone", " as a guest", " with an example", " for a company", " to a child", " for students", " on paper", " in a hurry",
    " abroad", " from home",
)  # fmt: skip


def topic_of(text: str) -> str:
    return next(answer for word, answer in TOPICS.items() if word in text.lower())


async def test_the_learned_decision_gives_answers_once_labels_say_that_they_are_right() -> None:
    """Four topics, each asked in a hundred forms: at first the engine answers all, later half at most, and no more answers than allowed are
    another topic's."""
    async with scripted(answering(topic_of)) as engine:
        async with gateway(engine.url, policies=(policy({"wrong_per_hit": 0.05}),)) as running, running.client() as client:
            await ready(running)
            statuses: list[str] = []
            questions = [(word, way.format(word, end)) for way in WAYS for end in ENDS for word in TOPICS]
            random.Random(7).shuffle(questions)
            wrong = 0
            for word, text in questions:
                reply = await ask(client, text)
                wrong += text_of(reply) != TOPICS[word]
                statuses.append(seen(reply)[0])
            hits = len(statuses) - statuses.count("miss")
            # what is tried out is drawn at random, so a bound that holds once in a thousand runs not
            assert wrong <= 0.05 * hits + 3 * (0.05 * 0.95 * hits) ** 0.5, f"{wrong} of {hits}"
            early, late = statuses[:60], statuses[-100:]
            assert "hit-semantic" not in early
            assert late.count("hit-semantic") + late.count("hit-exact") >= 50


async def test_the_wrong_rate_that_is_shown_is_that_of_answers_which_engines_gave_anew() -> None:
    """The engine answers by topic until answers are given from the cache; then nothing that it said is right any longer. Audits find it."""
    told = {"stale": False}
    count = itertools.count()
    script = answering(lambda text: f"{next(count)} is another thing altogether" if told["stale"] else topic_of(text))
    async with scripted(script) as engine, gateway(engine.url, policies=(policy({"wrong_per_hit": 0.05}),)) as running:
        async with running.client() as client:
            await ready(running)
            questions = [way.format(word, end) for way in WAYS for end in ENDS for word in TOPICS]
            random.Random(7).shuffle(questions)
            semantic = running.deps.answers.semantic
            assert semantic is not None and semantic.audited() == []
            for text in questions:
                await ask(client, text)
            (before,) = semantic.audited()
            assert before.proof.audits > 0 and before.proof.wrong == 0 and not before.proof.stopped
            told["stale"] = True
            for text in questions:
                await ask(client, f"Please: {text}")
            (after,) = semantic.audited()
            assert after.proof.wrong > 0, "an audit asks the engine, whose answer is another one now"
            assert after.proof.wrong / after.proof.audits > before.proof.upper / 2 or after.proof.stopped


async def test_engines_make_the_vectors_where_a_pool_is_named() -> None:
    vectors = [[1.0, 0.0], [0.0, 1.0]]

    def embeddings(body: dict[str, Any]) -> dict[str, Any]:
        data = [{"index": at, "embedding": vectors["assword" in text]} for at, text in enumerate(body["input"])]
        return {"object": "list", "data": data, "usage": {"prompt_tokens": 1, "total_tokens": 1}}

    options: dict[str, Any] = {
        "policies": (policy({"decision": "threshold", "threshold": 0.9}),),
        "cache": {"semantic": {"embedder_pool": "chat", "wait_ms": 1000}},
    }
    async with (
        scripted(answering(topic_of, embeddings)) as engine,
        gateway(engine.url, **options) as running,
        running.client() as client,
    ):
        await ready(running)
        assert seen(await ask(client, KEPT)) == ("miss", "first")
        await kept(running, 1)
        assert seen(await ask(client, ASKED)) == ("hit-semantic", "")
        assert seen(await ask(client, "Tell me about the invoice")) == ("miss", "below")


async def test_an_embedder_that_fails_costs_a_miss_and_no_request() -> None:
    options: dict[str, Any] = {"policies": (policy(THRESHOLD),), "cache": {"semantic": {"embedder_pool": "chat", "wait_ms": 1000}}}
    async with scripted(answering(topic_of)) as engine, gateway(engine.url, **options) as running, running.client() as client:
        await ready(running)
        reply = await ask(client, "How does the refund work?")
        assert (seen(reply), text_of(reply)) == (("miss", "embedder"), TOPICS["refund"])


async def test_a_judge_tells_what_vectors_do_not() -> None:
    """Two answers to one question whose vectors are neither near nor far: the judge's pool is asked, once for each."""
    judged: list[str] = []

    def answer(text: str) -> str:
        if "<answer_a>" in text:
            judged.append(text)
            return "yes"
        return "Open the settings and choose reset." if text == KEPT else "In the settings, choose to reset the password."

    options: dict[str, Any] = {"policies": (policy({}),), "cache": {"semantic": {"judge_pool": "chat"}}}
    async with scripted(answering(answer)) as engine, gateway(engine.url, **options) as running, running.client() as client:
        await ready(running)
        assert seen(await ask(client, KEPT)) == ("miss", "first")
        await kept(running, 1)
        assert seen(await ask(client, ASKED)) == ("miss", "cold")
        await until(lambda: len(judged) == 1)
        assert ASKED in judged[0]


async def test_gateways_share_questions_in_postgres_and_answers_in_valkey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (stored, "PATIENCE_S"),
        (stored, "WRITE_PATIENCE_S"),
        (pgvector, "WRITE_PATIENCE_S"),
        (node, "TIMEOUT_S"),
        (node, "LOCAL_TIMEOUT_S"),
    ):
        monkeypatch.setattr(module, name, 60.0)  # a busy machine is no store that is away
    server = Server(tmp_path).start()
    try:
        with postgres_server() as database:
            semantic = {"index": database.get_uri(), "wait_ms": 1000}
            options: dict[str, Any] = {"policies": (policy(THRESHOLD),), "cache": {"store": server.url, "semantic": semantic}}
            async with (
                SimEngine(SimSettings(models=("sim",), speed=20)) as engine,
                gateway(engine.url, **options) as one,
                gateway(engine.url, **options) as other,
                one.client() as here,
                other.client() as there,
            ):
                await ready(one)
                await ready(other)
                for running in (one, other):
                    source = running.deps.answers.semantic
                    semantic = None if source is None else source.ready()
                    assert semantic is not None
                    assert isinstance(semantic.index, pgvector.PostgresQuestions)
                    semantic.index._patience_s = 60.0  # more than settings allow
                    if running is one:
                        semantic_here = semantic
                assert seen(await ask(here, KEPT)) == ("miss", "first")
                await until(lambda: semantic_here.learning == 0)  # questions are kept behind the reply
                assert seen(await ask(there, ASKED)) == ("hit-semantic", "")
                await other.deps.answers.purge(Selection(owner="acme"))
                assert seen(await ask(here, ASKED)) == ("miss", "first")
    finally:
        server.stop()


SUBJECTS = ("password", "invoice", "delivery", "refund", "contract", "warranty", "account", "address", "order form", "newsletter")
VERBS = ("change", "cancel", "find", "print", "explain", "renew", "check", "send", "close", "read")
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
PICTURE = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def never_cached(kind: str, verb: str, subject: str) -> dict[str, Any]:
    """A request that is neither answered from similar ones nor kept for them."""
    question = f"How do I {verb} the {subject}?"
    if kind == "tools":
        return {"messages": [{"role": "user", "content": question}], "tools": [TOOL]}
    if kind == "image":
        parts = [{"type": "text", "text": question}, {"type": "image_url", "image_url": {"url": PICTURE}}]
        return {"messages": [{"role": "user", "content": parts}]}
    texts = {"time": f"How do I {verb} the {subject} today?", "personal": f"What is my account balance when I {verb} the {subject}?"}
    return {"messages": [{"role": "user", "content": texts[kind]}]}


@pytest.mark.req("R48")
@pytest.mark.parametrize("kind", ["tools", "image", "time", "personal"])
async def test_what_must_not_be_cached_is_neither_kept_nor_given(kind: str) -> None:
    """100 requests of each of four kinds, each sent twice with another seed, so that no exact entry could answer either."""
    async with similar({"decision": "threshold", "threshold": 0.5}) as (engine, running), running.client() as client:
        for seed in (1, 2):
            for verb in VERBS:
                bodies = [never_cached(kind, verb, subject) for subject in SUBJECTS]
                replies = await asyncio.gather(*(ask(client, "", seed=seed, **body) for body in bodies))
                said = [seen(reply) for reply in replies]
                expected = {"tools": ("bypass:tools", ""), "image": ("bypass:media", "")}.get(kind, ("miss", kind))
                assert set(said) == {expected}
        source = running.deps.answers.semantic
        assert source is not None
        semantic = source.ready()
        assert semantic is not None
        assert (engine.count, semantic.index.figures().questions) == (2 * len(VERBS) * len(SUBJECTS), 0)


@pytest.mark.req("R48")
@pytest.mark.parametrize("mode", ["flag", "redact"])
async def test_what_guard_rules_find_of_persons_is_neither_kept_nor_given(mode: str) -> None:
    """100 requests with an address of e-mail, each sent twice as it is, so that both an equal and a similar one could answer."""
    people = {"id": "people", "kind": "pii", "types": ["email"], "mode": mode}
    guarded = policy({"decision": "threshold", "threshold": 0.5}) | {"guards": {"rules": [people]}}
    async with similar(policies=[guarded]) as (engine, running), running.client() as client:
        for _ in range(2):
            for verb in VERBS:
                bodies = [f"How do I {verb} the {subject} of bob@corp.io?" for subject in SUBJECTS]
                replies = await asyncio.gather(*(ask(client, body) for body in bodies))
                assert {seen(reply) for reply in replies} == {("bypass:personal", "")}
        source = running.deps.answers.semantic
        assert source is not None
        semantic = source.ready()
        assert semantic is not None
        assert (engine.count, semantic.index.figures().questions) == (2 * len(VERBS) * len(SUBJECTS), 0)


@pytest.mark.req("R48")
async def test_a_follow_up_resembles_only_what_was_asked_after_the_same_turns() -> None:
    async with similar({"decision": "threshold", "threshold": 0.5}) as (engine, running), running.client() as client:
        for subject in SUBJECTS:
            earlier = [{"role": "user", "content": f"Tell me about the {subject}"}, {"role": "assistant", "content": "It is fine."}]
            follow_up = [*earlier, {"role": "user", "content": "How do I cancel it then?"}]
            assert seen(await ask(client, "", messages=follow_up)) == ("miss", "first")
        assert engine.count == len(SUBJECTS)
