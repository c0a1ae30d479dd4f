"""Two simulated engines share a request, in the dialect of vLLM's NIXL connector and in SGLang's."""

import asyncio
from typing import Any

import httpx
import pytest

from backends.simengine.disaggregation import FAKE_HOST
from backends.simengine.server import SimEngine
from backends.simengine.settings import SimSettings
from tests.timing import HANG_S, until

WORDS = "the quick brown fox jumps over the lazy dog " * 40
ASK: dict[str, Any] = {"model": "tide-sim-8b", "messages": [{"role": "user", "content": WORDS}], "max_tokens": 5, "ignore_eos": True}
COMPUTE = {**ASK, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}


def engine(**fields: Any) -> SimEngine:
    return SimEngine(SimSettings(**{"speed": 20.0, "lease_s": 5.0, **fields}))


def sglang_pair() -> tuple[SimEngine, SimEngine]:
    return engine(dialect="sglang", role="prefill"), engine(dialect="sglang", role="decode")


async def ask(to: SimEngine, fields: dict[str, Any]) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
        return await client.post(f"{to.url}/v1/chat/completions", json=fields)


def clean(*engines: SimEngine) -> bool:
    return all(not e.batcher.kv.used and not e.kv_transfers.values()["kv_kept_requests"] and not e.in_flight for e in engines)


async def test_what_one_computes_another_generates_from() -> None:
    async with engine() as prefill, engine() as decode, engine() as whole:
        first = (await ask(prefill, COMPUTE)).json()
        params = first["kv_transfer_params"]
        assert params["do_remote_prefill"] and not params["do_remote_decode"]
        assert params["remote_request_id"].startswith(first["id"]) and params["remote_port"] == prefill.port
        assert prefill.kv_transfers.values()["kv_kept_requests"] == 1
        assert prefill.batcher.kv.used > 0
        second = (await ask(decode, {**ASK, "kv_transfer_params": params})).json()
        alone = (await ask(whole, ASK)).json()
        assert second["choices"] == alone["choices"]
        assert second["usage"]["completion_tokens"] == 5
        # vLLM counts what was handed over as cached
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == second["usage"]["prompt_tokens"] - 1
        assert decode.counters.handed_tokens == second["usage"]["prompt_tokens"] - 1
        assert clean(prefill, decode)


async def test_kept_kv_is_freed_when_its_lease_ends_and_is_then_computed_again() -> None:
    async with engine(lease_s=0.1) as prefill, engine() as decode, engine(load_failure="fail") as strict:
        params = (await ask(prefill, COMPUTE)).json()["kv_transfer_params"]
        await until(lambda: clean(prefill))
        assert prefill.kv_transfers.values()["kv_expired"] == 1
        reply = await ask(decode, {**ASK, "kv_transfer_params": params})
        assert reply.status_code == 200
        assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert decode.kv_transfers.values()["kv_recomputed"] == 1
        assert (await ask(strict, {**ASK, "kv_transfer_params": params})).status_code == 500
        assert clean(decode, strict)


async def test_kv_is_fetched_once() -> None:
    async with engine() as prefill, engine() as decode:
        params = (await ask(prefill, COMPUTE)).json()["kv_transfer_params"]
        for _ in range(2):
            assert (await ask(decode, {**ASK, "kv_transfer_params": params})).status_code == 200
        assert prefill.kv_transfers.values()["kv_fetched"] == 1
        assert decode.kv_transfers.values()["kv_recomputed"] == 1


async def test_a_prompt_whose_answer_is_over_at_once_is_not_kept() -> None:
    async with engine() as prefill:
        reply = (await ask(prefill, {**COMPUTE, "ignore_eos": False, "max_tokens": 100_000})).json()
        assert reply["choices"][0]["finish_reason"] == "stop"
        assert reply["kv_transfer_params"] is None
        assert clean(prefill)


async def test_what_is_kept_can_be_seen() -> None:
    async with engine() as prefill, httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        await ask(prefill, COMPUTE)
        text = (await client.get(f"{prefill.url}/metrics")).text
        assert "simengine_kv_kept_requests 1.0" in text
        assert "simengine_kv_fetched_total 0.0" in text


async def test_sglang_prefill_and_decode_meet_whichever_comes_first() -> None:
    prefill, decode = sglang_pair()
    async with prefill, decode:
        for room, first in enumerate((prefill, decode)):
            fields = {**ASK, "bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.port, "bootstrap_room": room}
            second = decode if first is prefill else prefill
            one = asyncio.create_task(ask(first, fields))
            await until(lambda engine=first: engine.in_flight)
            two = await ask(second, fields)
            answers = {first: await one, second: two}
            assert all(reply.status_code == 200 for reply in answers.values())
            assert answers[decode].json()["usage"]["completion_tokens"] == 5
            assert clean(prefill, decode)
        assert prefill.kv_transfers.values()["kv_fetched"] == 2
        assert decode.counters.handed_tokens > 0


@pytest.mark.parametrize("leaves", ["prefill", "decode"])
async def test_when_one_half_is_given_up_the_other_ends(leaves: str) -> None:
    prefill, decode = engine(dialect="sglang", role="prefill", speed=2.0), engine(dialect="sglang", role="decode")
    async with prefill, decode:
        fields = {**ASK, "bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.port, "bootstrap_room": 7}
        sides = {"prefill": prefill, "decode": decode}
        goes, stays = sides.pop(leaves), sides.popitem()[1]
        fields["messages"] = [{"role": "user", "content": WORDS * 50}]
        going, staying = asyncio.create_task(ask(goes, fields)), asyncio.create_task(ask(stays, fields))
        await until(lambda: prefill.batcher.running)
        going.cancel()
        assert (await staying).status_code == 500
        await until(lambda: clean(prefill, decode))


async def test_nobody_waits_for_ever() -> None:
    async with engine(dialect="sglang", role="prefill", lease_s=0.1) as prefill:
        fields = {**ASK, "bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.port, "bootstrap_room": 7}
        assert (await ask(prefill, fields)).status_code == 500
        assert clean(prefill)


async def test_a_half_of_sglang_serves_nobody_alone_but_its_own_warm_up() -> None:
    prefill, decode = sglang_pair()
    async with prefill, decode:
        for one in (prefill, decode):
            refused = await ask(one, ASK)
            assert refused.status_code == 400
            assert "without bootstrap room id" in refused.json()["message"]
            assert (await ask(one, {**ASK, "bootstrap_host": FAKE_HOST, "bootstrap_room": 0})).status_code == 200
