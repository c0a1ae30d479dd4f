import asyncio
import subprocess
import sys
import time

import httpx
import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from backends.simengine.settings import PRESETS

FAST = SimSettings(models=("m", "alias"), speed=1000)
ASK = {"model": "m", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 5}


def client(engine: SimEngine) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=engine.url, trust_env=False, timeout=10)


async def test_usage_agrees_with_tokenize_and_metrics() -> None:
    async with SimEngine(FAST) as engine, client(engine) as http:
        reply = (await http.post("/v1/chat/completions", json=ASK)).json()
        counted = (await http.post("/tokenize", json={"model": "m", "messages": ASK["messages"]})).json()
        assert reply["usage"]["prompt_tokens"] == counted["count"] == len(counted["tokens"])
        metrics = (await http.get("/metrics")).text
        assert f'vllm:prompt_tokens_total{{engine="0",model_name="m"}} {counted["count"]}.0' in metrics
        assert 'vllm:generation_tokens_total{engine="0",model_name="m"} 5.0' in metrics
        assert 'vllm:num_requests_running{engine="0",model_name="m"} 0.0' in metrics


async def test_streams_follow_the_dialect() -> None:
    for dialect, null_usage in (("vllm", True), ("sglang", False)):
        async with SimEngine(SimSettings(models=("m",), speed=1000, dialect=dialect)) as engine, client(engine) as http:
            body = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
            text = (await http.post("/v1/chat/completions", json=body)).text
            assert text.endswith("data: [DONE]\n\n")
            assert ('"usage":null' in text) == null_usage
            assert text.count('"finish_reason":"length"') == 1
            assert '"choices":[],"usage":{"prompt_tokens":' in text


@pytest.mark.parametrize(("dialect", "status"), [("vllm", 404), ("sglang", 200)])
async def test_unknown_models_are_treated_as_the_real_ones_do(dialect: str, status: int) -> None:
    async with SimEngine(SimSettings(models=("m",), speed=1000, dialect=dialect)) as engine, client(engine) as http:
        reply = await http.post("/v1/chat/completions", json={**ASK, "model": "nope"})
        assert reply.status_code == status


async def test_the_first_token_takes_the_presets_time() -> None:
    async with SimEngine(SimSettings(models=("m",))) as engine, client(engine) as http:
        await http.get("/health")
        begun = time.monotonic()
        await http.post("/v1/chat/completions", json={**ASK, "max_tokens": 1, "messages": [{"role": "user", "content": "x" * 40_000}]})
        expected = PRESETS["h100-8b"].step_ms([(2048, 0)], 0, 0) / 1000 * 4.9  # about 10,000 tokens in chunks of 2,048
        assert time.monotonic() - begun >= expected * 0.9


async def test_a_full_queue_is_the_engines_503_and_a_wrong_key_its_401() -> None:
    settings = SimSettings(models=("m",), max_queued=1, api_key="secret")
    async with SimEngine(settings) as engine, client(engine) as http:
        assert (await http.post("/v1/chat/completions", json=ASK)).json() == {"error": "Unauthorized"}
        http.headers["authorization"] = "Bearer secret"
        busy = asyncio.create_task(http.post("/v1/chat/completions", json={**ASK, "max_tokens": 50, "ignore_eos": True}))
        while not engine.in_flight:
            await asyncio.sleep(0.001)
        refused = await http.post("/v1/chat/completions", json=ASK)
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "Service Unavailable")
        assert (await busy).status_code == 200
        assert (await http.get("/metrics")).status_code == 200  # open without the key, as in vLLM


async def test_remote_control_of_faults_and_drain() -> None:
    async with SimEngine(FAST) as engine, client(engine) as http:
        wrong = await http.post("/sim/faults", json={"next": [{"name": "nonsense"}]})
        assert wrong.status_code == 400
        assert "frozen" in wrong.text
        await http.post("/sim/faults", json={"next": [{"name": "status_503", "retry_after": 2}]})
        refused = await http.post("/v1/chat/completions", json=ASK)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        own = await http.post("/v1/chat/completions", json={**ASK, "sim_fault": {"name": "status_500"}})
        assert own.status_code == 500
        assert (await http.post("/v1/chat/completions", json={**ASK, "sim_fault": "oops"})).status_code == 400
        assert (await http.post("/v1/chat/completions", json=ASK)).status_code == 200
        await http.post("/sim/drain")
        assert (await http.post("/v1/chat/completions", json=ASK)).status_code == 503


async def test_embeddings_in_both_encodings_and_models() -> None:
    async with SimEngine(FAST) as engine, client(engine) as http:
        floats = (await http.post("/v1/embeddings", json={"model": "m", "input": ["a", "b"], "dimensions": 8})).json()
        assert [len(item["embedding"]) for item in floats["data"]] == [8, 8]
        base64 = (await http.post("/v1/embeddings", json={"model": "m", "input": "a", "dimensions": 8, "encoding_format": "base64"})).json()
        assert isinstance(base64["data"][0]["embedding"], str)
        assert [m["id"] for m in (await http.get("/v1/models")).json()["data"]] == ["m", "alias"]
        assert (await http.get("/v1/models/alias")).status_code == 200
        assert (await http.get("/v1/models/none")).status_code == 404


async def test_a_restart_forgets_the_cache() -> None:
    long = {**ASK, "messages": [{"role": "user", "content": "the same words again " * 40}]}
    async with SimEngine(FAST) as engine, client(engine) as http:
        cached = []
        for fault in (None, None, FaultRule("restart_empty_kv")):
            engine.inject([fault] if fault else [])
            reply = await http.post("/v1/chat/completions", json=long)
            cached.append(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert cached[1] > 0 == cached[0] == cached[2]


@pytest.mark.parametrize("name", ["frozen", "half_open", "comments_only", "frozen_mid_stream", "slow_drip"])
async def test_silent_faults_stay_silent_and_health_stays_good(name: str) -> None:
    async with SimEngine(FAST) as engine, client(engine) as http:
        engine.inject([FaultRule(name, after=1)])
        with pytest.raises(httpx.TimeoutException):
            await http.post("/v1/chat/completions", json={**ASK, "stream": True}, timeout=0.15)
        assert (await http.get("/health")).status_code == 200


@pytest.mark.parametrize("fields", [{"dialect": "x"}, {"preset": "x"}, {"speed": 0}, {"models": ()}])
def test_settings_that_cannot_be_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"dialect|preset|positive"):
        SimSettings(**fields)  # type: ignore[arg-type]


async def test_a_restart_forgets_its_cache_and_cuts_what_was_running() -> None:
    settings = SimSettings(models=("m",), speed=1.0)
    async with SimEngine(settings) as engine, client(engine) as http:
        running = asyncio.create_task(http.post("/v1/chat/completions", json={**ASK, "max_tokens": 2000}))
        while not engine.in_flight:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        answered = await http.post("/v1/chat/completions", json={**ASK, "sim_fault": {"name": "restart_empty_kv"}})
        assert answered.status_code == 200
        with pytest.raises(httpx.TransportError):
            await running
        assert engine.in_flight == 0
        assert engine.counters.prompt_tokens == answered.json()["usage"]["prompt_tokens"], "counters begin anew"


@pytest.mark.parametrize("name", ["garbage_http", "close_before_headers", "reset_before_headers"])
async def test_faults_of_the_connection_are_no_replies(name: str) -> None:
    async with SimEngine(FAST) as engine, client(engine) as http:
        engine.inject([FaultRule(name)])
        with pytest.raises(httpx.TransportError):
            await http.post("/v1/chat/completions", json=ASK)
        assert (await http.post("/v1/chat/completions", json=ASK)).status_code == 200


async def test_another_model_may_answer() -> None:
    async with SimEngine(FAST) as engine, client(engine) as http:
        engine.inject([FaultRule("wrong_model")] * 2)
        plain = (await http.post("/v1/chat/completions", json=ASK)).json()
        streamed = (await http.post("/v1/chat/completions", json={**ASK, "stream": True})).text
        assert plain["model"] not in ("m", "alias")
        assert f'"model":"{plain["model"]}"' in streamed
        assert '"model":"m"' not in streamed


def test_a_process_may_end_in_the_middle_of_a_stream() -> None:
    command = [sys.executable, "-m", "backends.simengine", "--model", "m", "--speed", "1000", "--fault", "exit_process:after=2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        url = engine.stdout.readline().split()[-1]
        body = {**ASK, "stream": True, "max_tokens": 50, "ignore_eos": True}
        seen = b""
        with httpx.Client(trust_env=False, timeout=10) as http, http.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
            with pytest.raises(httpx.TransportError):
                for data in reply.iter_raw():
                    seen += data
        assert seen.count(b"data: {") == 2
        assert engine.wait(10) != 0
