"""Requests that two simulated engines share, over real HTTP, in both dialects."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from httpx import AsyncClient

from backends.simengine import FaultRule, SimEngine, SimSettings
from gateway.placement.explain import Would, supposed
from gateway.record import Record
from routing.disaggregation import reserve
from tests.gateway_harness import Gateway, chat, gateway, stream
from tests.timing import HANG_S, until

WORDS = "the quick brown fox jumps over the lazy dog " * 100
"""Some 1,200 tokens."""

FAST = {"models": ("sim",), "speed": 20.0, "lease_s": 3.0}
TERMS = {"kv_bytes_token": 131_072, "bandwidth_gb_s": 50.0}


@dataclass
class Pair:
    """A gateway in front of engines by name."""

    gateway: Gateway
    engines: dict[str, SimEngine]

    def __getitem__(self, name: str) -> SimEngine:
        return self.engines[name]

    def calls(self, name: str) -> list[dict[str, Any]]:
        """Chat requests that an engine got, health's own questions left out."""
        bodies = [json.loads(one.body) for one in self.engines[name].received]
        return [body for body in bodies if body.get("messages", [{}])[0].get("content") != "1"]

    async def ask(self, **fields: Any) -> Any:
        async with self.gateway.client() as client:
            return await client.post("/v1/chat/completions", json=long(**fields))

    async def until_failed(self) -> Record:
        """Ask until an attempt has failed (who is asked first is drawn) and was made good."""
        for at in range(1, 50):
            assert (await self.ask()).status_code == 200
            record = (await self.gateway.recorded(at))[-1]
            if record.failed:
                return record
        raise AssertionError("nothing failed")

    async def clean(self) -> None:
        """Wait until nothing is kept, in flight, reserved or watched any more, anywhere."""
        await until(lambda: not self.left())

    def expired(self) -> int:
        """KV and rooms that nobody asked for in time, so that only their lease has ended them."""
        return sum(one.kv_transfers.values()["kv_expired"] for one in self.engines.values())

    def left(self) -> dict[str, object]:
        """What there still is, by where it is."""
        deps = self.gateway.deps
        found: dict[str, object] = {"in flight": deps.pool_states.total(), "relays": deps.watch.relays()}
        for name, one in self.engines.items():
            found |= {f"{name} {what}": value for what, value in one.kv_transfers.values().items() if what in LEFT}
            found |= {f"{name} blocks": one.batcher.kv.used, f"{name} in flight": one.in_flight}
        return {what: value for what, value in found.items() if value}


LEFT = ("kv_kept_requests", "kv_kept_tokens", "rooms_waiting")


def long(**fields: Any) -> dict[str, Any]:
    return chat(**{"messages": [{"role": "user", "content": WORDS}], "max_tokens": 6, "ignore_eos": True, **fields})


@asynccontextmanager
async def pool(dialect: str, roles: dict[str, str], *, engine: dict[str, Any] | None = None, **sections: Any) -> AsyncIterator[Pair]:
    """A gateway in front of one engine for each of `roles`, by id."""
    async with AsyncExitStack() as stack:
        engines, backends = {}, []
        for name, role in roles.items():
            played = role if dialect == "sglang" else "both"
            settings = SimSettings(
                **{"models": ("sim",), "dialect": dialect, "role": played, "speed": 20.0, "lease_s": 3.0, **(engine or {})}
            )
            one = engines[name] = await stack.enter_async_context(SimEngine(settings))
            backend: dict[str, Any] = {"id": name, "url": one.url, "role": role}
            if dialect == "sglang" and role == "prefill":
                backend["bootstrap_port"] = one.port
            backends.append(backend)
        terms = {**TERMS, **sections.pop("terms", {})}
        made = await stack.enter_async_context(
            gateway(
                pool={"dialect": dialect, "disaggregation": terms, "backends": backends, "limit": sections.pop("limit", {})}, **sections
            )
        )
        yield Pair(made, engines)


STRICT = {"p": "prefill", "d": "decode"}
BOTH_DIALECTS = pytest.mark.parametrize("dialect", ["vllm", "sglang"])


async def test_prefill_and_decode_are_explained_also_of_a_request_that_nobody_sends() -> None:
    async with pool("vllm", STRICT) as pair:
        await pair.ask()
        deps = pair.gateway.deps
        body = json.dumps(long()).encode()
        told = (await supposed(Would("acme", "/v1/chat/completions", body), deps)).explained
        sent = deps.decisions.find((await pair.gateway.recorded(1))[-1].request_id)
        assert told is not None
        assert sent is not None
        for one in (told, sent):
            assert one.chosen == "d"
            assert one.split.startswith("split: no backend serves requests whole; decode d (memory_s=")
            assert {c.backend: c.lost for c in one.contenders}["p"] == "serves one half of requests only (prefill)"
        assert deps.pool_states.total() == 0
        two = (await supposed(Would("acme", "/v1/chat/completions", json.dumps(long(n=2)).encode()), deps)).refusal
        assert two is not None
        assert "cannot answer requests with more than one answer" in two.message


@BOTH_DIALECTS
@pytest.mark.parametrize("streamed", [False, True])
async def test_one_computes_the_prompt_and_the_other_answers(dialect: str, streamed: bool) -> None:
    async with pool(dialect, STRICT) as pair, SimEngine(SimSettings(models=("sim",), dialect=dialect, speed=20.0)) as whole:
        if streamed:
            async with pair.gateway.client() as client:
                answer = await stream(client, **{k: v for k, v in long().items() if k != "model"})
            assert (answer.status, answer.done, answer.errors) == (200, True, [])
            text = answer.text
        else:
            reply = await pair.ask()
            assert reply.status_code == 200
            text = reply.json()["choices"][0]["message"]["content"]
            assert reply.headers["x-tidegate-backend"] == "d"
            assert reply.headers["x-tidegate-prefill-backend"] == "p"
            assert "no backend serves requests whole" in reply.headers["x-tidegate-reason"]
        async with gateway(whole.url, pool={"dialect": dialect}) as other, other.client() as client:
            alone = (await client.post("/v1/chat/completions", json=long())).json()
        assert text == alone["choices"][0]["message"]["content"]
        assert len(pair.calls("p")) == len(pair.calls("d")) == 1
        await pair.clean()
        assert pair["d"].counters.handed_tokens > 0
        (record,) = await pair.gateway.recorded(1)
        assert (record.outcome, record.backend, record.prefill, record.attempts) == ("ok", "d", "p", 1)
        # tokens are the answering engine's, and those that count as cached are what was in a cache
        assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (alone["usage"]["prompt_tokens"], 6)
        assert record.usage.cached_tokens == 0
        assert record.closing == "settle"


@pytest.mark.req("R29")
@BOTH_DIALECTS
async def test_no_word_of_a_caller_reaches_what_makes_engines_meet(dialect: str) -> None:
    theirs = {
        "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "10.9.9.9", "remote_port": 1, "remote_request_id": "theirs"},
        "bootstrap_host": "10.9.9.9",
        "bootstrap_port": 9,
        "bootstrap_room": 9,
        "bootstrap_anything": "10.9.9.9",
        "disagg_prefill_dp_rank": 9,
    }
    ours = {"kv_transfer_params"} if dialect == "vllm" else {"bootstrap_host", "bootstrap_port", "bootstrap_room"}
    async with pool(dialect, STRICT) as pair:
        assert (await pair.ask(**theirs)).status_code == 200
        for name in STRICT:
            (call,) = pair.calls(name)
            assert "10.9.9.9" not in json.dumps(call)
            assert "theirs" not in json.dumps(call)
            assert call.get("bootstrap_room") != 9
            assert set(call) & set(theirs) == ours


@pytest.mark.req("ROUTERS-24")
@BOTH_DIALECTS
async def test_no_half_is_asked_before_both_are_reserved(dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pool(dialect, STRICT) as pair:
        deps, seen = pair.gateway.deps, []
        load_table = deps.pool_states["chat"].load_table
        for name in STRICT:
            way = deps.upstreams[name]
            send = way.dispatch

            def dispatched(call: Any, sink: Any, send: Any = send, name: str = name) -> Any:
                seen.append((name, load_table.in_flight("p"), load_table.in_flight("d")))
                return send(call, sink)

            monkeypatch.setattr(way, "dispatch", dispatched)
        assert (await pair.ask()).status_code == 200
        assert [(name, p, d) for name, p, d in seen if (p, d) != (1, 1)] == []
        assert {name for name, _, _ in seen} == {"p", "d"}
        await pair.clean()


@pytest.mark.req("ROUTERS-24")
@BOTH_DIALECTS
@pytest.mark.parametrize("leaves", ["p", "d"])
async def test_a_half_that_leaves_after_the_decision_leaves_no_charge_and_no_call_behind(
    dialect: str, leaves: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool(dialect, STRICT) as pair:

        def gone(load_table: Any, prefill: str, decode: str, *rest: Any) -> Any:
            return reserve(load_table, *("nobody" if name == leaves else name for name in (prefill, decode)), *rest)

        monkeypatch.setattr("gateway.request.prefill.reserve", gone)
        assert (await pair.ask()).status_code == 502
        assert (await pair.gateway.recorded(1))[0].outcome == "backend_drained"
        assert pair.calls("p") == pair.calls("d") == []
        await pair.clean()


@pytest.mark.req("ROUTERS-24")
async def test_a_caller_that_leaves_after_the_prompt_was_computed_leaves_no_kv_behind() -> None:
    """vLLM's way: KV that nobody will fetch is freed by its lease, and by nothing sooner."""
    async with pool("vllm", STRICT, engine={"lease_s": 0.4}) as pair:
        pair["d"].misbehave([FaultRule("frozen")])
        going = asyncio.create_task(pair.ask())
        await until(lambda: pair["p"].kv_transfers.values()["kv_kept_requests"])
        assert pair["p"].batcher.kv.used > 0
        going.cancel()
        await pair.clean()
        assert pair["p"].kv_transfers.values()["kv_expired"] == 1
        (record,) = await pair.gateway.recorded(1)
        assert (record.outcome, record.closing) == ("client_gone", "estimate")


@pytest.mark.req("ROUTERS-24")
async def test_a_caller_that_leaves_while_the_prompt_is_computed_stops_it() -> None:
    async with pool("vllm", STRICT, engine={"speed": 0.2}) as pair:
        going = asyncio.create_task(pair.ask())
        await until(lambda: pair["p"].batcher.running)
        going.cancel()
        await pair.clean()
        assert pair["p"].counters.aborted == 1
        assert pair.calls("d") == []


@pytest.mark.req("ROUTERS-24")
@pytest.mark.parametrize("when", ["computing", "generating"])
async def test_a_caller_that_leaves_ends_prefill_and_decode_of_sglang_at_once(when: str) -> None:
    async with pool("sglang", STRICT, engine={"speed": 0.5, "lease_s": 60.0}) as pair:
        going = asyncio.create_task(pair.ask(max_tokens=500))
        await until(lambda: pair["p" if when == "computing" else "d"].batcher.running)
        going.cancel()
        await pair.clean()
        assert pair.expired() == 0


@BOTH_DIALECTS
async def test_there_is_one_retry_and_then_the_failure_is_told(dialect: str) -> None:
    async with pool(dialect, {"p1": "prefill", "p2": "prefill", "p3": "prefill", "d": "decode"}) as pair:
        for name in ("p1", "p2", "p3"):
            pair[name].misbehave([FaultRule("status_500")])
        reply = await pair.ask()
        assert reply.status_code == 502
        assert reply.headers["x-should-retry"] == "false"
        assert sum(len(pair.calls(name)) for name in ("p1", "p2", "p3")) == 2
        await pair.clean()


FAILURES = [(dialect, fault) for dialect in ("vllm", "sglang") for fault in ("status_500", "reset_before_headers", "status_503")]


@pytest.mark.parametrize(("dialect", "fault"), [*FAILURES, ("vllm", "plain_not_json")])
async def test_a_failed_prefill_is_made_good_by_the_next(dialect: str, fault: str) -> None:
    async with pool(dialect, {"p1": "prefill", "p2": "prefill", "d": "decode"}) as pair:
        pair["p1"].misbehave([FaultRule(fault)])
        failed = await pair.until_failed()
        assert (failed.failed, failed.prefill) == (("p1",), "p2")
        await pair.clean()


@BOTH_DIALECTS
async def test_a_prefill_engine_that_dies_in_the_middle_is_made_good(dialect: str) -> None:
    async with (
        pool(dialect, {"p1": "prefill", "p2": "prefill", "d": "decode"}, engine={"speed": 0.05}) as pair,
        AsyncClient(trust_env=False, timeout=HANG_S) as client,
    ):
        going = asyncio.create_task(pair.ask(max_tokens=2))
        await until(lambda: pair["p1"].batcher.running or pair["p2"].batcher.running)
        dying = "p1" if pair["p1"].batcher.running else "p2"
        pair[dying].inject([FaultRule("restart_empty_kv")])
        await client.post(f"{pair[dying].url}/v1/chat/completions", json={"model": "sim"})
        reply = await going
        assert reply.status_code == 200, reply.text
        (record,) = await pair.gateway.recorded(1)
        assert (record.failed, record.prefill) == ((dying,), "p2" if dying == "p1" else "p1")
        await pair.clean()


async def test_kv_that_is_gone_is_computed_again_where_the_engine_does_that() -> None:
    """The prefill engine restarts between its reply and the fetch, so nobody has the KV any more."""
    async with pool("vllm", STRICT) as pair:
        pair["d"].inject([FaultRule("slow_start", delay_s=0.3)])
        going = asyncio.create_task(pair.ask())
        await until(lambda: pair["p"].kv_transfers.values()["kv_kept_requests"])
        pair["p"]._restart()
        assert (await going).status_code == 200
        assert pair["d"].kv_transfers.values()["kv_recomputed"] == 1
        await pair.clean()


@BOTH_DIALECTS
@pytest.mark.parametrize("fault", ["status_500", "reset_before_headers"])
async def test_a_failed_decode_is_made_good_by_another_pair(dialect: str, fault: str) -> None:
    async with pool(dialect, {"p": "prefill", "d1": "decode", "d2": "decode"}, engine={"lease_s": 0.5}) as pair:
        pair["d1"].misbehave([FaultRule(fault)])
        failed = await pair.until_failed()
        assert (failed.failed, failed.backend) == (("d1",), "d2")
        await pair.clean()


async def test_nothing_is_tried_again_once_the_answer_has_begun() -> None:
    for dialect in ("vllm", "sglang"):
        async with pool(dialect, {"p": "prefill", "d1": "decode", "d2": "decode"}) as pair:
            for name in ("d1", "d2"):
                pair[name].misbehave([FaultRule("reset_mid_stream", after=3)])
            async with pair.gateway.client() as client:
                answer = await stream(client, **{k: v for k, v in long().items() if k != "model"})
            assert answer.errors
            assert len(pair.calls("d1")) + len(pair.calls("d2")) == 1
            await pair.clean()


@BOTH_DIALECTS
async def test_the_engines_word_on_a_bad_request_reaches_the_caller(dialect: str) -> None:
    async with pool(dialect, STRICT, engine={"max_model_len": 64}) as pair:
        reply = await pair.ask()
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == "context_length_exceeded"
        await pair.clean()


async def test_a_prefill_engine_that_hangs_is_given_up_in_time_and_the_caller_hears_heartbeats() -> None:
    engines = {"first_token_base_s": 0.6, "first_token_tokens_per_s": 1e6, "first_token_cap_s": 5.0, "heartbeat_s": 0.1}
    async with pool("vllm", STRICT, engines=engines) as pair:
        pair["p"].misbehave([FaultRule("frozen")])
        async with pair.gateway.client() as client:
            answer = await stream(client, **{k: v for k, v in long().items() if k != "model"})
        assert b": ping" in answer.raw
        assert answer.errors
        (record,) = await pair.gateway.recorded(1)
        assert record.outcome == "first_token_timeout"
        assert pair.calls("d") == []


async def test_short_prompts_are_served_whole_and_long_ones_by_two_when_others_would_wait() -> None:
    async with pool("vllm", {"a": "both", "b": "both"}, terms={"min_uncached_tokens": 200, "fixed_s": 0.0}) as pair:
        load_table = pair.gateway.deps.pool_states["chat"].load_table
        for name in ("a", "b"):
            load_table.prefill_s_token[load_table.row_of[name]] = 1e-3
        assert (await pair.ask()).status_code == 200
        assert pair["a"].kv_transfers.values()["kv_fetched"] + pair["b"].kv_transfers.values()["kv_fetched"] == 0
        others = [load_table.charge(name, 0, 100, 0.0) for name in ("a", "b") for _ in range(8)]
        for one in others:
            load_table.begun(one)
        for name in ("a", "b"):
            load_table.prefill_s_token[load_table.row_of[name]] = 1e-3  # as slow as before, whatever the first answer taught
        reply = await pair.ask(messages=[{"role": "user", "content": f"another {WORDS}"}])  # of the first one the prompt is cached
        assert reply.status_code == 200
        assert "split: a stall of" in reply.headers["x-tidegate-reason"]
        assert pair["a"].kv_transfers.values()["kv_fetched"] + pair["b"].kv_transfers.values()["kv_fetched"] == 1
        short = await pair.ask(messages=[{"role": "user", "content": "hello"}])
        assert "whole: " in short.headers["x-tidegate-reason"]
        for one in others:
            load_table.release(one)
        await pair.clean()


async def test_an_engine_that_can_serves_the_request_whole_when_the_prompts_engine_fails() -> None:
    async with pool("vllm", {"p": "prefill", "a": "both"}, terms={"min_uncached_tokens": 200, "fixed_s": 0.0}) as pair:
        load_table = pair.gateway.deps.pool_states["chat"].load_table
        for name in ("a", "p"):
            load_table.prefill_s_token[load_table.row_of[name]] = 1e-3
        others = [load_table.charge("a", 0, 100, 0.0) for _ in range(8)]
        for one in others:
            load_table.begun(one)
        pair["p"].misbehave([FaultRule("status_500")])
        assert (await pair.ask()).status_code == 200
        (record,) = await pair.gateway.recorded(1)
        assert (record.backend, record.failed, record.prefill, record.outcome) == ("a", ("p",), "", "ok")
        (call,) = pair.calls("a")
        assert "kv_transfer_params" not in call
        for one in others:
            load_table.release(one)
        await pair.clean()


@BOTH_DIALECTS
@pytest.mark.parametrize(("fields", "what"), [({"n": 2}, "more than one answer"), ({"prompt_logprobs": 1}, "prompt_logprobs")])
async def test_what_cannot_be_split_goes_to_who_serves_whole_and_is_refused_where_nobody_does(
    dialect: str, fields: dict[str, Any], what: str
) -> None:
    if dialect == "sglang" and "n" not in fields:
        fields, what = {"n": 2}, "more than one answer"
    async with pool(dialect, STRICT) as pair:
        reply = await pair.ask(**fields)
        assert reply.status_code == 400
        assert what in reply.json()["error"]["message"]
        assert pair.calls("p") == pair.calls("d") == []
    async with pool(dialect, {**STRICT, "w": "both"}) as pair:
        assert (await pair.ask(**fields)).status_code == 200
        assert len(pair.calls("w")) == 1
        assert pair.calls("p") == pair.calls("d") == []


@BOTH_DIALECTS
async def test_many_shared_requests_leave_nothing_behind(dialect: str) -> None:
    async with pool(dialect, {"p1": "prefill", "p2": "prefill", "d1": "decode", "d2": "decode"}, engine={"lease_s": 0.5}) as pair:
        pair["p1"].misbehave([FaultRule("status_500", every=7)])
        pair["d1"].misbehave([FaultRule("reset_mid_stream", every=5, after=2)])
        tasks = []
        for at in range(40):
            task = asyncio.create_task(pair.ask(messages=[{"role": "user", "content": f"{at} {WORDS}"}], stream=at % 2 == 0))
            tasks.append(task)
            await asyncio.sleep(0.01)
            if at % 6 == 0:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await pair.clean()
        assert pair.gateway.open_holds == 0


@BOTH_DIALECTS
async def test_pairs_wait_for_room_on_both_backends_and_take_both_at_once(dialect: str) -> None:
    async with pool(dialect, STRICT, limit={"enabled": False}) as pair:
        load_table = pair.gateway.deps.pool_states["chat"].load_table
        load_table.set_limit("d", requests=2)
        load_table.set_limit("p", requests=1)
        most = {"p": 0, "d": 0}

        async def look() -> None:
            while True:
                for name in most:
                    most[name] = max(most[name], load_table.in_flight(name), pair[name].in_flight)
                await asyncio.sleep(0.001)

        looking = asyncio.create_task(look())
        replies = await asyncio.gather(*[pair.ask() for _ in range(6)])
        looking.cancel()
        assert {reply.status_code for reply in replies} == {200}
        assert most["p"] == 1
        assert most["d"] <= 2
        records = await pair.gateway.recorded(6)
        assert {(record.prefill, record.backend, record.failed) for record in records} == {("p", "d", ())}
        assert "served" in {record.queued for record in records}
        await pair.clean()
