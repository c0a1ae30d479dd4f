"""A network may cut or split a reply at any byte: a cut one never looks whole, a split one always is."""

import asyncio
from collections.abc import Callable

import pytest

from backends.simengine import SimEngine, SimSettings
from tests.fault.proxy import PASS, Fault, cut, proxied, reset, split
from tests.gateway_harness import Stream, chat, gateway, stream
from tests.scale import scaled
from tests.timing import HANG_S

pytestmark = pytest.mark.slow

Note = Callable[[str, object], None]

SIM = SimSettings(models=("sim",), speed=20_000)
ASK = {"max_tokens": 3, "ignore_eos": True}
STEP = scaled(7, 1)
"""Every so many bytes; all of them in the long form."""
AT_ONCE = [{"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "max_wait_s": 0, "expose_headers": True}]
"""A policy under which nobody waits for an engine whose connection broke before its reply (`tests/e2e/test_outage.py` has the others)."""


@pytest.mark.fault("crash mid-stream")
@pytest.mark.req("R1")
@pytest.mark.parametrize("end", [cut, reset], ids=["closed", "reset"])
async def test_a_stream_that_is_cut_at_any_byte_never_looks_whole(end: Callable[[int], Fault], record_property: Note) -> None:
    async with SimEngine(SIM) as engine, proxied(engine.url) as proxy, gateway(proxy.url, poll=False, policies=AT_ONCE) as running:
        async with running.client() as client:
            expected = (await stream(client, **ASK)).text
            at = 0
            whole: list[Stream] = []
            while len(whole) < 3:  # of the very last bytes only the framing's end is missing, and [DONE] has come
                proxy.fault = end(at)
                running.deps.live.contacts.found("e0")  # as a poll would say
                seen = await stream(client, **ASK)
                if seen.status == 200 and seen.done:
                    whole.append(seen)
                else:
                    assert not whole, f"whole when it was cut earlier, broken when cut after {at}"
                    refused = seen.status == 502 and b'"upstream_error"' in seen.raw
                    assert refused or (len(seen.errors) == 1 and not seen.clean and expected.startswith(seen.text)), (at, seen)
                at += STEP
            assert {(one.text, one.clean, len(one.errors)) for one in whole} == {(expected, True, 0)}
        assert running.open_holds == 0
        assert engine.in_flight == 0
        record_property("figure", f"{at // STEP - 3} cuts, 0 that look whole")


@pytest.mark.fault("crash mid-stream")
@pytest.mark.req("R1")
async def test_a_plain_answer_that_is_cut_at_any_byte_is_no_answer(record_property: Note) -> None:
    async with SimEngine(SIM) as engine, proxied(engine.url) as proxy, gateway(proxy.url, poll=False, policies=AT_ONCE) as running:
        async with running.client() as client:
            at = 0
            while True:
                proxy.fault = cut(at)
                running.deps.live.contacts.found("e0")  # as a poll would say
                reply = await client.post("/v1/chat/completions", json=chat(**ASK))
                if reply.status_code == 200:
                    break
                assert (reply.status_code, reply.json()["error"]["code"]) == (502, "upstream_error")
                at += STEP
            assert reply.json()["usage"]["completion_tokens"] == 3
            assert at > 300
        assert running.open_holds == 0
        record_property("figure", f"{at // STEP} cuts of a plain answer, each a 502")


@pytest.mark.fault("malformed stream")
@pytest.mark.req("R54")
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
async def test_a_reply_that_is_split_at_any_byte_is_the_same(streamed: bool, record_property: Note) -> None:
    async with SimEngine(SIM) as engine, proxied(engine.url) as proxy, gateway(proxy.url, poll=False) as running:
        async with running.client() as client:

            async def text() -> str:
                if streamed:
                    seen = await stream(client, **ASK)
                    assert (seen.done, seen.clean, seen.errors) == (True, True, [])
                    return seen.text
                reply = await client.post("/v1/chat/completions", json=chat(**ASK))
                assert reply.status_code == 200
                return str(reply.json()["choices"][0]["message"]["content"])

            proxy.reset_all()  # those of polls
            expected = await text()
            (size,) = [link.replied for link in proxy.links if link.replied]
            for at in range(1, size, STEP):
                proxy.fault = split(at)
                assert await text() == expected, at
            proxy.fault = PASS
        assert {r.outcome for r in running.records} == {"ok"}
        record_property("figure", f"{len(range(1, size, STEP))} splits of {size} bytes")


@pytest.mark.fault("crash mid-stream")
@pytest.mark.req("R1")
async def test_engines_that_lose_all_connections_at_once_leave_nothing_open(record_property: Note) -> None:
    """A process that is killed ends all its streams in the same moment."""
    at_once, times = 50, scaled(2, 10)
    slow = SimSettings(models=("sim",), speed=2)
    async with SimEngine(slow) as engine, proxied(engine.url) as proxy, gateway(proxy.url, poll=False) as running:
        async with running.client() as client:
            for n in range(times):
                asked = [asyncio.create_task(stream(client, max_tokens=5000, ignore_eos=True)) for _ in range(at_once)]
                async with asyncio.timeout(HANG_S):
                    while sum(link.replied > 1000 for link in proxy.links) < at_once:
                        await asyncio.sleep(0.01)
                proxy.reset_all()
                seen = await asyncio.wait_for(asyncio.gather(*asked), HANG_S)
                assert [(len(s.errors), s.done, s.clean) for s in seen] == [(1, False, False)] * at_once
                await running.recorded((n + 1) * at_once)
                assert running.open_holds == 0
        record_property("figure", f"{times * at_once} streams lost {at_once} at a time, {times * at_once} error events")
