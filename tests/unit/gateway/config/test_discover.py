import pytest
from pydantic import ValidationError

from gateway.config.discover import DiscoverSettings
from gateway.config.pools import checked_networks
from gateway.config.settings import PoolSettings


@pytest.mark.parametrize(
    "good",
    [
        {"file": "b.yaml"},
        {"dns": "engines.svc", "port": 8000},
        {"dns": "_http._tcp.engines.svc", "record": "srv"},
        {"kubernetes": {"service": "chat", "port": 8000}},
        {"kubernetes": {"pods": "app=vllm", "port": 8000}, "ports": {"kv_events": 5557, "kv_replay": 5558}},
        {"kubernetes": {"inference_pool": "llama.v1"}},
        {"kubernetes": {"service": "chat", "labels": {"pool": "Chat_1.x", "revision": True}}},
        {"kubernetes": {"llm_inference_service": "llama"}, "scheme": "https"},
        {"kubernetes": {"selector": "app=vllm,revision in (r2, r3)", "port": "http"}, "scheme": "https"},
    ],
)
def test_one_place(good: dict[str, object]) -> None:
    DiscoverSettings.model_validate(good)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "names no place, or two"),
        ({"file": "b.yaml", "dns": "x", "port": 1}, "names no place, or two"),
        ({"dns": "x", "port": 1, "kubernetes": {"service": "chat"}}, "names no place, or two"),
        ({"kubernetes": {}}, "names no backends, or them in two ways"),
        ({"kubernetes": {"service": "chat", "pods": "app=vllm"}}, "names no backends, or them in two ways"),
        ({"kubernetes": {"inference_pool": "llama", "port": 80}}, "has a port beside inference_pool"),
        ({"kubernetes": {"inference_pool": "llama..v1"}}, "which Kubernetes allows for no name"),
        ({"kubernetes": {"service": "Chat"}}, "which Kubernetes allows for no name"),
        ({"kubernetes": {"service": "chat", "labels": {}}}, "asks for no label; write pool: name, revision: true or both"),
        ({"kubernetes": {"service": "chat", "labels": {"pool": "a,b"}}}, "pool"),
        ({"kubernetes": {"service": "chat", "labels": {"pool": "a" * 64}}}, "at most 63"),
        ({"kubernetes": {"service": "chat", "labels": {"revision": "r2"}}}, "revision"),
        ({"kubernetes": {"selector": "a=$b"}}, "is no label selector"),
        ({"kubernetes": {"service": "chat", "port": 0}}, "greater than or equal to 1"),
        ({"kubernetes": {"service": "chat", "address": "https://169.254.169.254"}}, "link-local or cloud-metadata"),
        ({"kubernetes": {"service": "chat"}, "port": 80}, "has a port beside kubernetes"),
        ({"file": "b.yaml", "ports": {"bootstrap": 8998}}, "has ports beside file"),
        ({"dns": "x", "port": 1, "ports": {"kv_replay": 5558}}, "has kv_replay without kv_events"),
        ({"dns": "x"}, "does not say which port"),
        ({"dns": "x", "record": "srv", "port": 80}, "does not say which port"),
        ({"dns": "a b", "port": 80}, "no usable host name"),
        ({"dns": "x", "port": 0}, "greater than or equal to 1"),
        ({"dns": "x", "port": 80, "record": "mx"}, "'a' or 'srv'"),
    ],
)
def test_what_is_wrong_is_said(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        DiscoverSettings.model_validate(wrong)


def test_a_source_has_a_name_in_words() -> None:
    written = ({"file": "b.yaml"}, {"dns": "x", "port": 1})
    assert [DiscoverSettings.model_validate(each).in_words for each in written] == ["file b.yaml", "DNS x"]
    found = ({"service": "chat"}, {"selector": "app=vllm"}, {"pods": "app=vllm"}, {"inference_pool": "l"}, {"llm_inference_service": "l"})
    assert [DiscoverSettings.model_validate({"kubernetes": each}).in_words for each in found] == [
        "Kubernetes chat",
        "Kubernetes app=vllm",
        "Kubernetes pods app=vllm",
        "Kubernetes InferencePool l",
        "Kubernetes LLMInferenceService l",
    ]


def test_networks() -> None:
    assert checked_networks(["10.0.0.0/8", "fc00::/7"]) == ["10.0.0.0/8", "fc00::/7"]
    for wrong in ("10.0.0.1/8", "example.com", "10.0.0.0/33"):
        with pytest.raises(ValueError, match=f"has '{wrong}', which is no network; write address/bits"):
            checked_networks(["10.0.0.0/8", wrong])


def test_a_pool_says_where_its_backends_are() -> None:
    PoolSettings.model_validate({"name": "p", "model": "m", "backends": []})
    PoolSettings.model_validate({"name": "p", "model": "m", "discover": {"file": "b.yaml"}})
    with pytest.raises(ValidationError, match="has no backends"):
        PoolSettings.model_validate({"name": "p", "model": "m"})
