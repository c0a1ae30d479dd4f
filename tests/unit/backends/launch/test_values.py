import pytest
from pydantic import JsonValue

from backends.launch.catalogue import load
from backends.launch.manifest import manifest_for, manifests
from backends.launch.resolve import LaunchError, resolve
from backends.launch.values import BACKEND_ID, RANGES, out_of_range, wrong_parameters
from gateway.config.pools import Name


def refusal(name: str, given: dict[str, JsonValue]) -> str:
    config = load(name)
    with pytest.raises(LaunchError) as caught:
        resolve(config, manifest_for(config.engine, config.version), given)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("vllm-8b", {"max-num-seqs": -1}, "--max-num-seqs: is at least 1, not -1"),
        ("vllm-8b", {"gpu-memory-utilization": 7}, "--gpu-memory-utilization: is above 0 and at most 1, not 7"),
        ("vllm-8b", {"gpu-memory-utilization": ".nan"}, "--gpu-memory-utilization: takes a number"),
        ("vllm-8b", {"max-model-len": 0}, "--max-model-len: is at least 1, or -1 for what fits, not 0"),
        ("vllm-8b", {"scheduling-policy": "bogus"}, "--scheduling-policy: does not take 'bogus'; choices: fcfs, priority"),
        ("vllm-8b", {"model": ""}, "--set model: is empty"),
        ("vllm-8b", {"id": "a b"}, "--set id: the gateway does not take 'a b'; it is 1 to 64 letters"),
        ("vllm-8b", {"events_endpoint": "http://x:1"}, "--set events_endpoint: does not take 'http://x:1'; write tcp://HOST:PORT"),
        ("sglang-8b", {"replay_endpoint": "tcp://x:70000"}, "--set replay_endpoint: does not take 'tcp://x:70000'"),
        ("sglang-8b", {"tp-size": 0}, "--tp-size: is at least 1, not 0"),
        ("sglang-8b", {"mem-fraction-static": 0}, "--mem-fraction-static: is above 0 and at most 1, not 0"),
    ],
)
def test_nonsense_is_refused_with_flag_value_and_what_is_allowed(name: str, given: dict[str, JsonValue], says: str) -> None:
    assert says in refusal(name, given)


def test_ends_of_ranges_and_unlisted_flags_pass() -> None:
    for name, value in [("gpu-memory-utilization", 1), ("max-num-seqs", "1"), ("max-model-len", -1), ("chunked-prefill-size", -1)]:
        assert out_of_range(name, value) is None
    assert out_of_range("gpu-memory-utilization", float("nan")) is not None


def test_ranges_are_of_flags_that_an_engine_has() -> None:
    known = {flag for manifest in manifests().values() for flag in manifest.flags}
    assert {f"--{name}" for name in RANGES} <= known


def test_an_id_is_what_the_gateway_takes() -> None:
    assert Name.__metadata__[0].pattern == BACKEND_ID


@pytest.mark.parametrize("endpoint", ["tcp://*:5557", "tcp://[::1]:5557", "tcp://engine-0:5557", "ipc:///tmp/a.sock"])
def test_endpoints_of_both_kinds_pass(endpoint: str) -> None:
    assert wrong_parameters({"events_endpoint": endpoint}) == []
