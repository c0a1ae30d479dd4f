import json
from pathlib import Path

import pytest

from backends.launch.engine_facts import (
    COMPLETION,
    LLAMACPP_INFO,
    METRICS,
    MODELS,
    SGLANG_INFO,
    VLLM_EVENTS,
    VLLM_INFO,
    EngineFacts,
    model_paths,
    read_facts,
)

RECORDED = Path(__file__).parents[3] / "wire" / "engine_launch"


def vllm(kind: str = "") -> dict[str, bytes]:
    files = {MODELS: "models.json", METRICS: "cache_config.txt", VLLM_INFO: "server_info.json", COMPLETION: "completion.json"}
    replies = {path: (RECORDED / f"vllm-0.32.0-{kind}{file}").read_bytes() for path, file in files.items()}
    return {**replies, VLLM_EVENTS: b"{}" if kind else (RECORDED / "vllm-0.32.0-kv_event_sources.json").read_bytes()}


def test_a_vllm_started_by_its_configuration() -> None:
    assert read_facts("vllm", vllm()) == EngineFacts(
        served_names=("tiny",),
        context=2048,
        block_size=32,
        blocks=65_536,
        prefix_caching=True,
        hash_algorithm="sha256_cbor",
        kv_events=True,
        events_endpoint="ipc:///tmp/tidegate-8471-kv.sock",
        replay=True,
        sequences=16,
        admitted=24,
        lora=True,
        lora_slots=2,
        lora_rank=8,
        lora_held=2,
        usage_details=True,
        priority="lower first",
        grace_s=20,
    )


def test_a_vllm_with_other_flags() -> None:
    found = read_facts("vllm", vllm("wrong-"))
    assert (found.served_names, found.context, found.block_size, found.hash_algorithm) == (("tinny",), 1024, 64, "sha256")
    assert (found.kv_events, found.replay, found.usage_details, found.priority) == (False, None, False, "off")
    assert (found.sequences, found.admitted, found.lora_slots) == (4, 0, 1)


def test_without_dev_mode_the_rest_is_not_known_and_not_zero() -> None:
    found = read_facts("vllm", {path: body for path, body in vllm().items() if path != VLLM_INFO})
    assert found.block_size == 32
    assert (found.sequences, found.admitted, found.priority, found.lora, found.grace_s) == (None,) * 5
    seen = b'vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 1.0\n'
    assert read_facts("vllm", {METRICS: seen}).lora_slots == 4


def test_a_sglang_started_by_its_configuration() -> None:
    replies = {MODELS: (RECORDED / "sglang-0.5.23-models.json").read_bytes()}
    replies[SGLANG_INFO] = (RECORDED / "sglang-0.5.23-server_info.json").read_bytes()
    assert read_facts("sglang", replies) == EngineFacts(
        served_names=("tiny",),
        context=2048,
        block_size=16,
        blocks=1024,
        prefix_caching=True,
        kv_events=True,
        events_endpoint="tcp://127.0.0.1:5957",
        replay=True,
        sequences=16,
        admitted=24,
        lora=False,
        usage_details=True,
        priority="lower first",
    )


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"null", b'{"data":3}', b'{"data":[{"id":1}]}', b"[" * 100_000])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_garbage_is_nothing_known(engine: str, body: bytes) -> None:
    found = read_facts(engine, dict.fromkeys((MODELS, METRICS, VLLM_INFO, SGLANG_INFO, COMPLETION), body))
    assert found.served_names in (None, ())
    assert (found.block_size, found.sequences, found.context, found.usage_details) == (None,) * 4


def test_adapters_are_no_base_models() -> None:
    body = b'{"data":[{"id":"a","parent":"m","max_model_len":1},{"id":"m","parent":null,"max_model_len":7}]}'
    found = read_facts("openai", {MODELS: body})
    assert (found.served_names, found.context) == (("m",), 7)


def test_the_folder_of_the_model_is_read_from_each_kind_of_engine() -> None:
    base = {"id": "served", "root": "/models/base", "parent": None}
    listed = {"data": [base, {"id": "lora", "root": "/models/lora", "parent": "served"}]}
    assert model_paths("vllm", {MODELS: json.dumps(listed).encode()}) == ("/models/base",)
    info = {"page_size": 1, "model_path": "org/model", "tokenizer_path": "/models/tokenizer"}
    assert model_paths("sglang", {SGLANG_INFO: json.dumps(info).encode()}) == ("/models/tokenizer", "org/model")
    props = {"model_path": "/models/base/base-q4.gguf"}
    assert model_paths("llamacpp", {LLAMACPP_INFO: json.dumps(props).encode()}) == ("/models/base",)
    for odd in (b"", b"[]", b'{"model_path":5,"data":[{"id":"x","root":7}],"page_size":1,"tokenizer_path":null}'):
        for engine, path in (("vllm", MODELS), ("sglang", SGLANG_INFO), ("llamacpp", LLAMACPP_INFO)):
            assert model_paths(engine, {path: odd}) == ()
