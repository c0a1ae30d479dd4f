"""Guard rules over the answers of real requests: engines that say a given text, piece by piece, behind a whole gateway."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import msgspec
import pytest

from domain.ask import Endpoint
from gateway.guards.reply_parts import Path
from gateway.request import fallback, interpret
from guardrails.guard_set import GuardSet
from tests.gateway_harness import SWEEP_S, Gateway, chat, gateway
from tests.guarded_replies import (
    CONTENT,
    DONE,
    REASONING,
    TEXT,
    FakeDetector,
    arguments,
    as_plain,
    event,
    events_of,
    guards,
    plain,
    plain_body,
    role,
    streamed,
    usage_event,
)
from tests.scripted_server import Peer, ScriptedServer, scripted
from tests.timing import until

CHAT, COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS
CARD = {"kind": "pattern", "pattern": "[0-9]{4}-[0-9]{4}-[0-9]{4}-[0-9]{4}", "mode": "redact"}
STOP = {"kind": "words", "words": ["kraken"], "mode": "block"}
NUMBER = "4111-1111-1111-1111"
PROMPT_TOKENS = 11
MODELS = b'{"object":"list","data":[{"id":"sim","object":"model"}]}'

Said = Sequence[tuple[int, Path, str]]
"""The texts of an answer: the choice, the place, and the text of each event."""


class Talker:
    """An engine that says a given text.

    Args:
        said: the texts of its events.
        dying: events after which it breaks off its next answers; empty for whole answers. Engines may share the list.
        goes_on: whether it talks on behind its text until its caller leaves.
    """

    def __init__(self, said: Said, *, dying: list[int] | None = None, goes_on: bool = False, pause_s: float = 0.0) -> None:
        self.said = said
        self.dying = [] if dying is None else dying
        self.goes_on = goes_on
        self.pause_s = pause_s
        self.asked = 0
        self.left_at: float | None = None
        """When the gateway gave up the answer."""

    async def play(self, peer: Peer) -> None:
        while request := await peer.request():
            head, _, body = request.partition(b"\r\n\r\n")
            if head.startswith(b"GET"):
                await peer.send(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(MODELS), MODELS)
                )
                continue
            self.asked += 1
            endpoint = CHAT if b" /v1/chat" in head else COMPLETIONS
            if not msgspec.json.decode(body).get("stream"):
                reply = self._plain(endpoint)
                await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(reply), reply))
                continue
            try:
                if not await self._stream(peer, endpoint):
                    return
            except ConnectionError:
                self.left_at = time.monotonic()
                return

    def _plain(self, endpoint: Endpoint) -> bytes:
        choices: list[dict[Path, str]] = [{} for _ in {index for index, _, _ in self.said}]
        for index, path, text in self.said:
            choices[index][path] = choices[index].get(path, "") + text
        return plain_body(endpoint, choices).replace(b'"model":"m"', b'"model":"sim"')

    async def _stream(self, peer: Peer, endpoint: Endpoint) -> bool:
        """Whether the answer came to its end."""
        indices = sorted({index for index, _, _ in self.said})
        events = [role(index) for index in indices] if endpoint is CHAT else []
        events += [event(endpoint, *one) for one in self.said]
        dies_after = self.dying.pop() if self.dying else None
        if dies_after is not None:
            events = events[: dies_after + len(indices)]
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for one in events:
            await self._send(peer, one)
            await asyncio.sleep(self.pause_s)
        if dies_after is not None:
            peer.reset()
            return False
        gone = asyncio.ensure_future(peer.reader.read(1))
        while self.goes_on and not gone.done():
            with contextlib.suppress(ConnectionError):
                await self._send(peer, event(endpoint, indices[0], CONTENT if endpoint is CHAT else TEXT, " and on"))
            await asyncio.sleep(0.005)
        if gone.done():
            self.left_at = time.monotonic()
            return False
        gone.cancel()
        for index in indices:
            await self._send(peer, event(endpoint, index, finish="stop"))
        await self._send(peer, usage_event(PROMPT_TOKENS, len(self.said)))
        await self._send(peer, DONE)
        await peer.send(b"0\r\n\r\n")
        return True

    async def _send(self, peer: Peer, data: bytes) -> None:
        data = data.replace(b'"model":"m"', b'"model":"sim"')
        await peer.send(b"%x\r\n%b\r\n" % (len(data), data))


@contextlib.asynccontextmanager
async def served(
    rules: GuardSet, *talkers: Talker, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    """A gateway in front of these engines, whose tenants have these rules."""
    known = interpret.apply_policy

    def with_rules(match: Any, ask: Any, grant: Any, exchange: Any, story: Any, deps: Any) -> Any:
        story.asked.guards = rules
        return known(match, ask, grant, exchange, story, deps)

    monkeypatch.setattr(interpret, "apply_policy", with_rules)
    monkeypatch.setattr(fallback, "apply_policy", with_rules)
    async with contextlib.AsyncExitStack() as stack:
        engines: list[ScriptedServer] = [await stack.enter_async_context(scripted(talker.play)) for talker in talkers]
        made = await stack.enter_async_context(gateway(*[engine.url for engine in engines], **options))
        yield made, await stack.enter_async_context(made.client())


async def raw(client: httpx.AsyncClient, path: str = "/v1/chat/completions", **fields: Any) -> bytes:
    body = chat(**fields) if path.endswith("/chat/completions") else {"model": "sim", "prompt": "say", **fields}
    reply = await client.post(path, json={"stream": True, **body})
    return reply.content


def words(text: str, index: int = 0, path: Path = CONTENT, size: int = 3) -> list[tuple[int, Path, str]]:
    return [(index, path, text[at : at + size]) for at in range(0, len(text), size)]


@pytest.mark.req("R26")
async def test_a_cut_ends_the_answer_tells_its_usage_and_stops_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    talker = Talker(words("Out there swims a kraken, they say."), goes_on=True)
    async with served(guards(STOP), talker, monkeypatch=monkeypatch) as (made, client):
        out = await raw(client, stream_options={"include_usage": True})
        over_at = time.monotonic()
        await until(lambda: talker.left_at is not None)
        seen = streamed(out)[0]
        assert (seen.texts, seen.finish) == ({CONTENT: "Out there swims a "}, "content_filter")
        assert out.endswith(DONE)
        told = list(events_of(out))[-1]["usage"]
        (record,) = await made.recorded(1)
        assert talker.left_at is not None
        assert talker.left_at - over_at <= 0.2
        assert (record.outcome, record.status, record.closing, record.declined) == ("ok", 200, "estimate", True)
        assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (told["prompt_tokens"], told["completion_tokens"])
        assert record.usage.completion_tokens == record.events > 0
        assert record.caller_ttft_s is not None
        assert record.ttft_s is not None
        assert record.caller_ttft_s > record.ttft_s
        assert record.guards is not None
        assert (record.guards.word, record.guards.by, record.guards.direction) == ("block", "r0", "output")
        assert made.open_holds == 0


@pytest.mark.parametrize("path", [CONTENT, REASONING, arguments(0), TEXT])
async def test_a_value_is_hidden_in_streams_and_plain_replies_wherever_it_stands(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = "/v1/completions" if path == TEXT else "/v1/chat/completions"
    talker = Talker(words(f"pay {NUMBER} now", path=path))
    async with served(guards(CARD), talker, monkeypatch=monkeypatch) as (made, client):
        out = await raw(client, where)
        assert streamed(out)[0].texts == {path: "pay [PATTERN] now"}
        whole = await raw(client, where, stream=False)
        assert b"pay [PATTERN] now" in whole
        assert NUMBER.encode() not in whole
        first, second = await made.recorded(2)
        assert first.guards == second.guards
        assert first.guards is not None
        assert first.guards.word == "changed"
        assert first.usage.prompt_tokens == PROMPT_TOKENS, "the engine's own usage"


async def test_of_two_choices_one_is_cut_and_the_other_goes_on_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    talker = Talker([*words("a kraken is near"), *words("." * 99, size=9), *words("all is well", index=1)])
    async with served(guards(STOP), talker, monkeypatch=monkeypatch) as (made, client):
        out = await raw(client, n=2, stream_options={"include_usage": True})
        seen = streamed(out)
        assert (seen[0].texts, seen[0].finish) == ({CONTENT: "a "}, "content_filter")
        assert (seen[1].texts, seen[1].finish) == ({CONTENT: "all is well"}, "stop")
        assert out.endswith(DONE)
        (record,) = await made.recorded(1)
        assert record.outcome == "ok"
        assert record.usage.completion_tokens == list(events_of(out))[-1]["usage"]["completion_tokens"]


async def test_another_engine_answers_where_one_dies_with_everything_held(monkeypatch: pytest.MonkeyPatch) -> None:
    dying = [5]
    talkers = [Talker(words("a long and quiet sea"), dying=dying) for _ in range(2)]
    async with served(guards({**STOP, "words": ["a long and quiet sea monster"]}), *talkers, monkeypatch=monkeypatch) as (made, client):
        out = await raw(client)
        assert streamed(out)[0].texts == {CONTENT: "a long and quiet sea"}
        assert out.count(b'"role":"assistant"') == 1
        assert out.endswith(DONE)
        (record,) = await made.recorded(1)
        assert (record.outcome, record.attempts, len(record.failed)) == ("ok", 2, 1)
        assert [talker.asked for talker in talkers] == [1, 1]


async def test_an_answer_whose_beginning_was_released_is_not_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    talkers = [Talker(words("a long and quiet sea, and " * 5), dying=[30]) for _ in range(2)]
    async with served(guards(STOP), *talkers, monkeypatch=monkeypatch) as (made, client):
        with contextlib.suppress(httpx.TransportError):
            await raw(client)
        (record,) = await made.recorded(1)
        assert (record.attempts, record.outcome) == (1, "broken_stream")


async def test_a_caller_who_leaves_while_everything_is_held_stops_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    talker = Talker(words("xabc"), goes_on=True)
    rules = guards({"kind": "pattern", "pattern": "x[a-z ]{900}y", "mode": "block"})
    async with served(rules, talker, monkeypatch=monkeypatch) as (made, client):
        with contextlib.suppress(httpx.TimeoutException):
            await client.post("/v1/chat/completions", json=chat(stream=True), timeout=0.3)
        await until(lambda: talker.left_at is not None)
        (record,) = await made.recorded(1)
        assert record.outcome == "client_gone"
        assert made.open_holds == 0


async def test_a_failing_rule_is_an_honest_status_before_the_first_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    class Boom:
        id, longest = "boom", 4

        def scan(self, text: object) -> list[object]:
            raise RuntimeError

    monkeypatch.setattr("guardrails.build.Words", lambda *_, **__: Boom())
    talker = Talker(words("hello there"))
    failing = guards({**STOP, "words": ["a word of this test alone"]})  # equal rules share one scanner
    async with served(failing, talker, monkeypatch=monkeypatch) as (made, client):
        for stream in (True, False):
            reply = await client.post("/v1/chat/completions", json=chat(stream=stream))
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "guard_unavailable")
        for record in await made.recorded(2):
            assert (record.outcome, record.closing) == ("guard_unavailable", "release")


async def test_a_kept_answer_is_one_that_rules_have_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "expose_headers": True, "cache": {}}
    talker = Talker(words(f"pay {NUMBER} now"))
    async with served(guards(CARD), talker, monkeypatch=monkeypatch, policies=[policy]) as (_, client):
        replies = [await client.post("/v1/chat/completions", json=chat(stream=stream, temperature=0)) for stream in (True, True, False)]
        assert [reply.headers["x-tidegate-cache"] for reply in replies] == ["miss", "hit-exact", "hit-exact"]
        assert all(b"[PATTERN]" in reply.content and NUMBER.encode() not in reply.content for reply in replies)
        assert talker.asked == 1


async def test_a_cut_answer_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "cache": {}}
    talker = Talker(words("a kraken comes"))
    async with served(guards(STOP), talker, monkeypatch=monkeypatch, policies=[policy]) as (made, client):
        for stream in (False, True):
            await client.post("/v1/chat/completions", json=chat(stream=stream, temperature=0))
        records = await made.recorded(2)
        assert [record.not_kept for record in records] == ["finish", "usage"], "a stream that was cut has no usage of its engine"
        assert talker.asked == 2


ASK = {
    "kind": "detector",
    "detector": "guard",
    "mode": "block",
    "on_error": "closed",
    "on": ["output"],
    "window_chars": 100,
    "overlap_chars": 20,
}
SAFE = "the sea is wide and quiet. " * 9


@contextlib.asynccontextmanager
async def asking(
    detector: FakeDetector, talker: Talker, monkeypatch: pytest.MonkeyPatch, *, policy: dict[str, Any] | None = None, **rule: Any
) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    policies = [{"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], **(policy or {})}]
    async with served(guards({**ASK, **rule}), talker, monkeypatch=monkeypatch, policies=policies) as (made, client):
        object.__setattr__(made.deps, "detectors", {"guard": detector})  # no settings make a detector that a test lets answer
        yield made, client


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_waits_for_its_detector_also_behind_the_engines_end(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    detector = FakeDetector("kraken")
    detector.let.clear()
    async with asking(detector, Talker(words(SAFE)), monkeypatch) as (made, client):
        asked = asyncio.ensure_future(raw(client, stream=stream))
        await until(lambda: bool(detector.asked))
        await asyncio.sleep(5 * SWEEP_S)
        assert not asked.done()
        assert made.deps.watch.watched, "the engine's reply has ended, and the answer has not"
        detector.let.set()
        out = await asked
        assert (streamed(out)[0].texts if stream else plain(out)[0].texts) == {CONTENT if stream else as_plain(CONTENT): SAFE}
        assert detector.asked[0][2] == "acme"
        (record,) = await made.recorded(1)
        assert (record.outcome, record.closing, record.usage.prompt_tokens > 0) == ("ok", "settle", True)


@pytest.mark.req("R26")
@pytest.mark.parametrize("hold", [True, False])
async def test_a_detectors_word_cuts_the_answer_and_stops_the_engine(hold: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    talker = Talker(words("a kraken " + SAFE), goes_on=True)
    async with asking(FakeDetector("kraken"), talker, monkeypatch, hold=hold) as (made, client):
        out = await raw(client)
        over_at = time.monotonic()
        await until(lambda: talker.left_at is not None)
        assert streamed(out)[0].finish == "content_filter"
        assert out.endswith(DONE)
        assert (b"kraken" not in out.replace(b'"},', b"")) or not hold
        assert talker.left_at is not None
        assert talker.left_at - over_at <= 0.2
        (record,) = await made.recorded(1)
        assert record.guards is not None
        assert (record.guards.word, record.guards.late) == ("block", not hold)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_caller_who_leaves_while_a_detector_is_asked_leaves_nothing_behind(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    detector = FakeDetector("kraken")
    detector.let.clear()
    async with asking(detector, Talker(words(SAFE)), monkeypatch) as (made, client):
        with contextlib.suppress(httpx.TimeoutException):
            await client.post("/v1/chat/completions", json=chat(stream=stream), timeout=0.5)
        (record,) = await made.recorded(1)
        assert record.outcome == "client_gone"
        await until(lambda: detector.under_way == 0)
        assert len(detector.asked) == 1
        assert not made.deps.watch.watched
        assert made.open_holds == 0


async def test_a_request_whose_time_is_over_while_a_detector_is_asked_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = FakeDetector("kraken")
    detector.let.clear()
    async with asking(detector, Talker(words(SAFE)), monkeypatch, policy={"deadline_s": 1}) as (made, client):
        reply = await client.post("/v1/chat/completions", json=chat())
        assert reply.status_code == 504
        await until(lambda: detector.under_way == 0)
        assert (await made.recorded(1))[0].closing == "release"
