"""The simulated engine's adapters behave like vLLM's, as recorded from 0.32."""

import asyncio

import httpx
import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings

VLLM = SimSettings(models=("m",), speed=1000, max_loras=2, loras=("own",))
ASK = {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 8, "temperature": 0}


def client(engine: SimEngine) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=engine.url, trust_env=False, timeout=10)


async def test_loading_serving_and_unloading() -> None:
    async with SimEngine(VLLM) as engine, client(engine) as http:
        load = {"lora_name": "bot", "lora_path": "/adapters/bot"}
        loaded = await http.post("/v1/load_lora_adapter", json=load)
        assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'bot' added successfully.")
        again = await http.post("/v1/load_lora_adapter", json=load)
        assert (again.status_code, "already been loaded" in again.text) == (400, True)
        missing = await http.post("/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": "/nosuch"})
        assert missing.status_code == 404
        full = await http.post("/v1/load_lora_adapter", json={**load, "lora_name": "third"})
        assert full.status_code == 400
        cards = (await http.get("/v1/models")).json()["data"]
        assert [(card["id"], card.get("parent")) for card in cards] == [("m", None), ("own", "m"), ("bot", "m")]
        texts = []
        for model in ("m", "own", "bot"):
            reply = (await http.post("/v1/chat/completions", json={**ASK, "model": model})).json()
            assert reply["model"] == model
            texts.append(reply["choices"][0]["message"]["content"])
        assert len(set(texts)) == 3
        assert (await http.post("/v1/unload_lora_adapter", json={"lora_name": "bot"})).status_code == 200
        assert (await http.post("/v1/unload_lora_adapter", json={"lora_name": "bot"})).status_code == 404
        assert (await http.post("/v1/chat/completions", json={**ASK, "model": "bot"})).status_code == 404
        assert (await http.post("/v1/load_lora_adapter", content=b"[]")).status_code == 400


async def test_a_restart_forgets_all_but_those_of_the_start() -> None:
    async with SimEngine(VLLM) as engine, client(engine) as http:
        await http.post("/v1/load_lora_adapter", json={"lora_name": "bot", "lora_path": "/adapters/bot"})
        engine.inject([FaultRule("restart_empty_kv")])
        await http.post("/v1/chat/completions", json={**ASK, "model": "m"})
        assert [*engine.loras.loaded] == ["own"]


async def test_sglang_names_the_model_and_the_adapter() -> None:
    async with SimEngine(SimSettings(models=("m",), speed=1000, max_loras=1, dialect="sglang")) as engine, client(engine) as http:
        reply = await http.post("/v1/chat/completions", json={**ASK, "model": "m:bot"})
        assert (reply.status_code, "adapters are not loaded: bot" in reply.text) == (400, True)
        assert (await http.post("/load_lora_adapter", json={"lora_name": "bot", "lora_path": "/a"})).status_code == 200
        assert (await http.post("/v1/chat/completions", json={**ASK, "model": "m:bot"})).json()["model"] == "m:bot"


async def test_the_metrics_name_what_runs() -> None:
    async with SimEngine(SimSettings(models=("m",), speed=1, max_loras=1, loras=("bot",))) as engine, client(engine) as http:
        long = {**ASK, "model": "bot", "max_tokens": 100, "ignore_eos": True}
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=long))
        while not engine.in_flight:
            await asyncio.sleep(0.005)
        assert 'max_lora="1",running_lora_adapters="bot",waiting_lora_adapters=""' in (await http.get("/metrics")).text
        await asking
        assert 'running_lora_adapters=""' in (await http.get("/metrics")).text


async def test_an_engine_without_adapters_has_no_such_routes() -> None:
    async with SimEngine(SimSettings(models=("m",))) as engine, client(engine) as http:
        assert (await http.post("/v1/load_lora_adapter", json={"lora_name": "bot", "lora_path": "/a"})).status_code == 404
    with pytest.raises(ValueError, match="max_loras must have room"):
        SimSettings(loras=("a",))
