"""Streams whose engine is lost in the middle, of a pool that goes on with them: what callers see and pay, and what is not continued."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import msgspec
import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from domain.membership import Member
from gateway.fleet.sources import RegisteredSource
from gateway.http.edge.attempt_faults import backend_drained
from tenancy.stores.memory import MemoryMemberStore
from tests.gateway_harness import Gateway, Stream, chat, gateway, stream
from tests.pool_states import charged
from tests.timing import until

ON = {"continue_streams": True}
SEAM = b": continued by another engine\n\n"
TOTALS = ("prompt_tokens", "completion_tokens", "total_tokens")
POLICY = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "expose_headers": True}


def sim(dialect: str = "vllm", **more: Any) -> SimSettings:
    return SimSettings(**{"models": ("sim",), "speed": 2000, "dialect": dialect, **more})


async def first_on(running: Gateway, backend: str, **fields: Any) -> Stream:
    """A stream that this backend begins to answer: the others seem to have much to do."""
    for other in running.deps.live.fleet.pools["chat"].up:
        if other.id != backend:
            charged(running.deps.pool_states, other.id, running.deps.clock(), tokens=100_000)
    async with running.client() as client:
        return await stream(client, stream_options={"include_usage": True}, **fields)


async def uncut(dialect: str = "vllm", **fields: Any) -> Stream:
    """The answer that nothing cuts."""
    async with SimEngine(sim(dialect)) as engine, gateway(engine.url, pool={"dialect": dialect}) as running:
        return await first_on(running, "e0", **fields)


def usage_of(seen: Stream) -> tuple[int, ...]:
    (usage,) = [event["usage"] for event in seen.events if event.get("usage")]
    return tuple(usage[name] for name in TOTALS)


def reasons(seen: Stream) -> list[str]:
    return [choice["finish_reason"] for event in seen.events for choice in event["choices"] if choice.get("finish_reason")]


def is_one_stream(seen: Stream) -> None:
    assert (seen.status, seen.done, seen.clean, seen.errors) == (200, True, True, [])
    for name in ("id", "created", "model"):
        assert len({event[name] for event in seen.events}) == 1, name
    roles = [choice["delta"].get("role") for event in seen.events for choice in event["choices"] if "delta" in choice]
    assert [role for role in roles if role] == ["assistant"]


@pytest.mark.fault("crash mid-stream")
@pytest.mark.req("R11")
@pytest.mark.parametrize("name", ["crash_mid_stream", "reset_mid_stream", "eof_without_done", "error_event"])
@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_another_engine_says_the_rest_and_the_caller_pays_once(name: str, dialect: str) -> None:
    plain = await uncut(dialect, max_tokens=40)
    pool = {**ON, "dialect": dialect}
    async with SimEngine(sim(dialect)) as one, SimEngine(sim(dialect)) as two, gateway(one.url, two.url, pool=pool) as running:
        one.misbehave([FaultRule(name, after=11)])
        seen = await first_on(running, "e0", max_tokens=40)
        is_one_stream(seen)
        assert SEAM in seen.raw
        assert (seen.text, usage_of(seen), reasons(seen)) == (plain.text, usage_of(plain), reasons(plain))
        (record,) = await running.recorded(1)
        assert (record.outcome, record.continued, record.failed, record.backend) == ("ok", 1, ("e0",), "e1")
        assert (record.usage.prompt_tokens, record.usage.completion_tokens) == usage_of(plain)[:2]
        assert record.closing == "settle"
        assert running.open_holds == 0
        again = msgspec.json.decode(two.received[-1].body)
        assert (len(again["messages"]), again["messages"][-1]["role"], again["max_tokens"]) == (2, "assistant", 30)


@pytest.mark.parametrize("after", [1, 2, 39])
async def test_an_answer_goes_on_wherever_it_was_cut(after: int) -> None:
    plain = await uncut(max_tokens=40)
    async with SimEngine(sim()) as one, SimEngine(sim()) as two, gateway(one.url, two.url, pool=ON) as running:
        one.misbehave([FaultRule("crash_mid_stream", after=after)])
        seen = await first_on(running, "e0", max_tokens=40)
        is_one_stream(seen)
        assert (seen.text, usage_of(seen)) == (plain.text, usage_of(plain))


@pytest.mark.parametrize(("cuts", "whole"), [(2, True), (3, False)])
async def test_an_answer_may_be_cut_twice_and_not_three_times(cuts: int, whole: bool) -> None:
    plain = await uncut(max_tokens=40)
    async with SimEngine(sim()) as one, SimEngine(sim()) as two, SimEngine(sim()) as three, SimEngine(sim()) as four:
        engines = (one, two, three, four)
        async with gateway(*[engine.url for engine in engines], pool=ON, engines={"token_gap_s": 1.0}) as running:
            for place, engine in enumerate(engines):  # they are tried in this order
                engine.misbehave([FaultRule("frozen_mid_stream", after=5)] * (place < cuts))
                charged(running.deps.pool_states, f"e{place}", running.deps.clock(), tokens=1 + 100_000 * place)
            seen = await first_on(running, "e0", max_tokens=40)
            (record,) = await running.recorded(1)
            assert (record.continued, record.failed) == (2, ("e0", "e1"))
            assert running.open_holds == 0
            if whole:
                is_one_stream(seen)
                assert (seen.text, usage_of(seen)) == (plain.text, usage_of(plain))
            else:
                assert (seen.done, len(seen.errors), record.outcome) == (False, 1, "token_gap_timeout")
                assert len(seen.text) < len(plain.text)
                assert plain.text.startswith(seen.text)


@pytest.mark.req("R11")
async def test_an_answer_of_which_two_engines_have_died_is_given_to_no_third() -> None:
    async with SimEngine(sim()) as one, SimEngine(sim()) as two, SimEngine(sim()) as three:
        engines = (one, two, three)
        async with gateway(*[engine.url for engine in engines], pool=ON) as running:
            for engine in engines:
                engine.misbehave([FaultRule("crash_mid_stream", after=5)])
            seen = await first_on(running, "e0", max_tokens=40)
            assert (seen.done, len(seen.errors)) == (False, 1)
            assert sum(len(engine.received) for engine in engines) == 2


async def test_another_engine_goes_on_for_a_silent_one() -> None:
    plain = await uncut(max_tokens=40)
    async with (
        SimEngine(sim()) as one,
        SimEngine(sim()) as two,
        gateway(one.url, two.url, pool=ON, engines={"token_gap_s": 1.0}) as running,
    ):
        one.misbehave([FaultRule("frozen_mid_stream", after=4)])
        seen = await first_on(running, "e0", max_tokens=40)
        is_one_stream(seen)
        assert seen.text == plain.text


@pytest.mark.req("R11")
async def test_what_an_engine_cannot_end_within_its_drain_goes_on_elsewhere() -> None:
    plain = await uncut(max_tokens=40)
    async with SimEngine(sim()) as one, SimEngine(sim()) as two, gateway(one.url, two.url, pool=ON) as running:
        one.misbehave([FaultRule("frozen_mid_stream", after=6)])  # it would not end in time
        asked = asyncio.create_task(first_on(running, "e0", max_tokens=40))
        await until(lambda: any(relay.last_event_at for relay in running.deps.watch.watched))
        for relay in list(running.deps.watch.watched):
            relay.end_with(backend_drained("its grace is over"))
        seen = await asked
        is_one_stream(seen)
        assert (seen.text, usage_of(seen)) == (plain.text, usage_of(plain))
        assert len(two.received) == 1


@pytest.mark.slow
@pytest.mark.parametrize("grace_s", [0.3, 30.0])
async def test_a_spot_engine_leaves_within_its_notice_and_no_stream_is_cut(grace_s: float) -> None:
    leaving = sim(speed=0.2 if grace_s < 1 else 1)  # in the first case its answers need half a minute
    plain = await uncut(max_tokens=300, ignore_eos=True)
    store = MemoryMemberStore()
    async with SimEngine(leaving) as spot, SimEngine(sim(speed=4)) as other:
        async with gateway(registered=RegisteredSource(store), pool={"backends": [], **ON}) as running, running.client() as client:
            for name, engine in (("spot", spot), ("other", other)):
                await store.add(Member("chat", name, engine.url, "registered"), 0.0)
            await until(lambda: len(running.deps.live.fleet.pools["chat"].up) == 2)
            asked = [asyncio.create_task(stream(client, max_tokens=300, ignore_eos=True)) for _ in range(8)]
            await until(lambda: any(relay.backend == "spot" and relay.last_event_at for relay in running.deps.watch.relays()))
            await store.set_drain("spot", grace_s)
            await until(lambda: "spot" not in running.deps.live.fleet.pools["chat"].up_ids)
            seen = await asyncio.gather(*asked)
            late = await stream(client, max_tokens=4)
        for one in seen:
            is_one_stream(one)
            assert one.text == plain.text
        moved = [record for record in running.records if record.continued]
        assert bool(moved) is (grace_s < 1), "what ends within the notice stays where it is"
        assert (late.done, running.records[-1].backend, running.open_holds) == (True, "other", 0)


async def test_where_nobody_goes_on_the_caller_hears_why_the_answer_was_cut() -> None:
    async with SimEngine(sim()) as one, SimEngine(sim()) as two, gateway(one.url, two.url, pool=ON) as running:
        one.misbehave([FaultRule("crash_mid_stream", after=4)])
        two.misbehave([FaultRule("status_500")])
        seen = await first_on(running, "e0", max_tokens=40)
        assert (seen.done, seen.clean, len(seen.errors)) == (False, False, 1)
        record = (await running.recorded(1))[0]
        assert (record.continued, record.closing, record.outcome) == (1, "estimate", "broken_stream")
        assert running.open_holds == 0
    async with SimEngine(sim()) as alone, gateway(alone.url, pool=ON) as running:
        alone.misbehave([FaultRule("crash_mid_stream", after=4)])
        seen = await first_on(running, "e0", max_tokens=40)
        assert (len(seen.errors), SEAM in seen.raw) == (1, False)
        assert (await running.recorded(1))[0].continued == 0


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.req("R11")
@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"logprobs": True},
        {"tools": [TOOL]},
        {"frequency_penalty": 0.5},
        {"min_tokens": 30},
        {"response_format": {"type": "json_object"}},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "add_generation_prompt": False},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_what_is_more_than_plain_text_is_not_continued(fields: Mapping[str, Any]) -> None:
    async with SimEngine(sim()) as one, SimEngine(sim()) as two, gateway(one.url, two.url, pool=ON) as running:
        one.misbehave([FaultRule("crash_mid_stream", after=3)])
        seen = await first_on(running, "e0", max_tokens=40, **fields)
        assert (len(seen.errors), seen.done, SEAM in seen.raw) == (1, False, False)
        assert len(two.received) == 0


@pytest.mark.req("R11")
@pytest.mark.parametrize(
    ("name", "pool", "settings"),
    [
        ("crash_mid_stream", {}, {}),
        ("malformed_sse", ON, {}),
        ("truncated_json_event", ON, {}),
        ("crash_mid_stream", ON, {"reasoning": True}),
    ],
)
async def test_nothing_goes_on_unasked_after_garbage_or_from_reasoning(name: str, pool: dict[str, Any], settings: dict[str, Any]) -> None:
    async with SimEngine(sim(**settings)) as one, SimEngine(sim()) as two, gateway(one.url, two.url, pool=pool) as running:
        one.misbehave([FaultRule(name, after=4)])
        seen = await first_on(running, "e0", max_tokens=40)
        assert (len(seen.errors), seen.done) == (1, False)
        assert len(two.received) == 0


async def test_a_completion_goes_on_with_its_prompt_and_the_text() -> None:
    body = {"model": "sim", "prompt": "say something about the sea", "max_tokens": 40, "stream": True}
    async with SimEngine(sim()) as one, SimEngine(sim()) as two, gateway(one.url, two.url, pool=ON) as running, running.client() as client:
        charged(running.deps.pool_states, "e1", running.deps.clock(), tokens=100_000)
        one.misbehave([FaultRule("crash_mid_stream", after=6)])
        reply = await client.post("/v1/completions", json=body)
        events = [msgspec.json.decode(line[6:]) for line in reply.content.split(b"\n\n") if line.startswith(b"data: {")]
        pieces = [choice["text"] for event in events for choice in event["choices"]]
        again = msgspec.json.decode(two.received[-1].body)
        assert again["prompt"] == body["prompt"] + "".join(pieces[:6])
        assert again["max_tokens"] == 34
        assert b"continue_final_message" not in two.received[-1].body
        assert (await running.recorded(1))[0].usage.completion_tokens == 40


async def test_guard_rules_see_one_answer_over_the_seam() -> None:
    plain = await uncut(max_tokens=40)
    words = plain.text.split()
    pair = f"{words[11]} {words[12]}"
    rule = {"id": "pair", "kind": "pattern", "pattern": pair, "mode": "redact"}
    policies = ({**POLICY, "guards": {"rules": [rule]}},)
    async with SimEngine(sim()) as one, SimEngine(sim()) as two, gateway(one.url, two.url, pool=ON, policies=policies) as running:
        one.misbehave([FaultRule("crash_mid_stream", after=13)])  # the role and twelve words
        seen = await first_on(running, "e0", max_tokens=40)
        is_one_stream(seen)
        assert (await running.recorded(1))[0].continued == 1
        assert seen.text.split()[:11] == words[:11]
        assert pair not in seen.text
        assert seen.text.split()[-10:] == words[-10:]


@pytest.mark.parametrize(
    ("path", "body", "delta", "last"),
    [
        ("/v1/messages", {"max_tokens": 40, "messages": chat()["messages"]}, "content_block_delta", "message_delta"),
        ("/v1/responses", {"max_output_tokens": 40, "input": "hi"}, "response.output_text.delta", "response.incomplete"),
    ],
)
async def test_callers_of_other_apis_get_one_answer_with_its_seam_marked(path: str, body: dict[str, Any], delta: str, last: str) -> None:
    async def asked(running: Gateway) -> tuple[bytes, Sequence[dict[str, Any]]]:
        charged(running.deps.pool_states, "e1", running.deps.clock(), tokens=100_000)
        async with running.client() as client:
            reply = await client.post(path, json={"model": "sim", "stream": True, **body})
            return reply.content, [msgspec.json.decode(line[6:]) for line in reply.content.split(b"\n") if line.startswith(b"data: ")]

    def text(events: Sequence[dict[str, Any]]) -> str:
        said = [event["delta"] for event in events if event["type"] == delta]
        return "".join(one if isinstance(one, str) else one["text"] for one in said)

    def usage(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
        ended = next(event for event in events if event["type"] == last)
        counted: dict[str, Any] = ended.get("response", ended)["usage"]
        return counted

    async with SimEngine(sim()) as one, SimEngine(sim()) as two, gateway(one.url, two.url, pool=ON) as running:
        uncut, plain = await asked(running)
        one.misbehave([FaultRule("crash_mid_stream", after=7)])
        raw, seen = await asked(running)
        assert [event["type"] for event in seen if event["type"] != delta] == [event["type"] for event in plain if event["type"] != delta]
        assert text(seen) == text(plain) != ""
        assert usage(seen) == usage(plain)
        assert (SEAM in uncut, raw.count(SEAM)) == (False, 1)
        before, after = raw.split(SEAM)
        assert before.endswith(b"\n\n")
        assert delta.encode() in before
        assert delta.encode() in after
        assert (await running.recorded(2))[1].continued == 1


async def test_equal_requests_that_share_an_answer_all_see_the_seam() -> None:
    policy = {**POLICY, "cache": {}}
    async with (
        SimEngine(sim(speed=20)) as one,
        SimEngine(sim(speed=20)) as two,
        gateway(one.url, two.url, pool=ON, policies=[policy]) as running,
    ):
        charged(running.deps.pool_states, "e1", running.deps.clock(), tokens=100_000)
        one.misbehave([FaultRule("crash_mid_stream", after=9)])
        async with running.client() as client:
            seen = await asyncio.gather(*(stream(client, temperature=0, max_tokens=40) for _ in range(3)))
        assert (one.count, two.count) == (1, 1), "one answer for all of them"
        for each in seen:
            is_one_stream(each)
            assert each.raw.count(SEAM) == 1
        assert len({each.text for each in seen}) == 1


@pytest.mark.req("R11")
async def test_continuations_stay_within_the_retry_budget() -> None:
    count = 60
    async with SimEngine(sim()) as one, SimEngine(sim()) as two, gateway(one.url, two.url, pool=ON) as running:
        for engine in (one, two):
            engine.misbehave([FaultRule("crash_mid_stream", after=3)])
        async with running.client(limits=httpx.Limits(max_connections=8)) as client:
            gate = asyncio.Semaphore(8)

            async def call() -> Stream:
                async with gate:
                    return await stream(client, max_tokens=12)

            seen = await asyncio.gather(*(call() for _ in range(count)))
        assert all(len(one.errors) == 1 for one in seen)
        assert len(one.received) + len(two.received) <= 1.2 * count + 10
        assert running.open_holds == 0
