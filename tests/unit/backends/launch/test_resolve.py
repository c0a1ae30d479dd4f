import json

import pytest
from pydantic import JsonValue

from backends.launch.catalogue import load
from backends.launch.manifest import manifest_for
from backends.launch.resolve import KvEventsAddress, Launch, LaunchError, command_line, contradictions, is_loopback, is_wildcard, resolve


def launched(name: str, given: dict[str, JsonValue] | None = None) -> Launch:
    config = load(name)
    return resolve(config, manifest_for(config.engine, config.version), given)


def events(launch: Launch) -> tuple[str, str]:
    found = launch.flags["kv-events-config"]
    assert isinstance(found, dict)
    return str(found["endpoint"]), str(found["replay_endpoint"])


def test_parameters_reach_the_command_line_the_addresses_and_the_environment() -> None:
    launch = launched("vllm-pd-prefill", {"model": "/m/x", "served_name": "x", "host": "10.0.0.5", "port": 9000, "side_channel_port": 7777})
    assert launch.command[:3] == ("vllm", "serve", "/m/x")
    assert launch.command[launch.command.index("--served-model-name") + 1] == "x"
    assert launch.url == "http://10.0.0.5:9000"
    assert launch.environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "7777"


@pytest.mark.parametrize(
    ("name", "host", "published", "subscribed"),
    [
        ("vllm-8b", "127.0.0.1", "ipc:///tmp/tidegate-8000-kv.sock", "ipc:///tmp/tidegate-8000-kv.sock"),
        ("vllm-8b", "0.0.0.0", "tcp://*:5557", "tcp://127.0.0.1:5557"),
        ("vllm-8b", "10.0.0.5", "tcp://*:5557", "tcp://10.0.0.5:5557"),
        ("sglang-8b", "127.0.0.1", "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5557"),
        ("sglang-8b", "::1", "tcp://[::1]:5557", "tcp://[::1]:5557"),
        ("sglang-8b", "engine-0", "tcp://*:5557", "tcp://engine-0:5557"),
    ],
)
def test_events_leave_the_machine_only_where_the_engine_does(name: str, host: str, published: str, subscribed: str) -> None:
    launch = launched(name, {"host": host})
    assert events(launch)[0] == published
    assert isinstance(launch.kv_events, KvEventsAddress)
    assert launch.kv_events.endpoint == subscribed
    if name.startswith("sglang"):
        assert launch.flags["load-publish-endpoint"] == ("auto" if "*" in published else "off")


@pytest.mark.parametrize(
    ("name", "given", "pushed"),
    [
        ("sglang-8b", {"host": "engine-0"}, ("tcp://engine-0:5558", 1)),
        ("sglang-8b", {"host": "0.0.0.0", "replay_port": 5558}, ("tcp://127.0.0.1:5559", 1)),
        ("sglang-moe-ep", {"host": "10.0.0.5"}, ("tcp://10.0.0.5:5565", 8)),
        ("sglang-moe-ep", {"host": "10.0.0.5", "replay_port": 5570}, ("tcp://10.0.0.5:5578", 8)),
        ("sglang-8b", {"host": "10.0.0.5", "load_endpoint": "tcp://*:7000"}, ("tcp://10.0.0.5:7000", 1)),
        ("sglang-8b", {"host": "127.0.0.1"}, None),
        ("sglang-8b", {"host": "10.0.0.5", "load_endpoint": "off"}, None),
        ("sglang-embeddings", {"host": "10.0.0.5"}, None),
        ("vllm-8b", {"host": "10.0.0.5"}, None),
    ],
)
def test_the_load_is_pushed_where_the_engine_works_out_that_it_is(
    name: str, given: dict[str, JsonValue], pushed: tuple[str, int] | None
) -> None:
    """As `resolve_load_pub_range` of SGLang 0.5.23."""
    found = launched(name, given).load_push
    assert (found and (found.endpoint, found.ranks)) == pushed


def test_endpoints_may_be_set_outright() -> None:
    assert events(launched("vllm-8b", {"events_endpoint": "tcp://*:7000"})) == ("tcp://*:7000", "ipc:///tmp/tidegate-8000-replay.sock")


def test_a_set_name_is_a_parameter_a_flag_or_a_mistake() -> None:
    assert launched("vllm-8b", {"max-num-seqs": 100}).flags["max-num-seqs"] == 100
    assert "enable-prefix-caching" not in launched("vllm-8b", {"enable-prefix-caching": False}).flags
    for given, says in [
        ({"max-num-seq": 4}, "neither a parameter of vllm-8b nor a flag of vllm 0.33.0; did you mean max-num-seqs?"),
        ({"port": "http"}, "--set port: takes a whole number, not 'http'"),
        ({"port": 70_000}, "--set port: is between 1 and 65535, not 70000"),
        ({"shutdown-timeout": 600}, "--set shutdown-timeout: is the parameter grace_s, which other parts follow; write --set grace_s=…"),
        ({"served-model-name": "mine"}, "write --set served_name=…"),
        ({"model": [1]}, "--set model: takes text or a number"),
        ({"gpu-memory-utilization": "most"}, "--gpu-memory-utilization: takes a number, not 'most'"),
        ({"max-num-seqs": 900}, "is never reached; raise it"),
    ]:
        with pytest.raises(LaunchError) as caught:
            launched("vllm-8b", given)
        assert says in str(caught.value)


def test_flags_become_arguments() -> None:
    flags: dict[str, JsonValue] = {"on": True, "count": 3, "share": 0.5, "names": ["a", "b c"], "events": {"topic": "a b", "on": True}}
    assert command_line(flags) == ["--on", "--count", "3", "--share", "0.5", "--names", "a", "b c", "--events", '{"topic":"a b","on":true}']
    assert json.loads(command_line(flags)[-1]) == flags["events"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"max-num-seqs": 8, "max-num-queued-reqs": 7}, "counts running requests too"),
        ({"enable-priority-scheduling": True, "schedule-policy": "lpm"}, "write fcfs or lof"),
        ({"disaggregation-mode": "decode", "kv-events-config": {}}, "says nothing without"),
        ({"model-path": "/m", "served-model-name": "a:b"}, "choose another"),
    ],
)
def test_flags_that_do_not_go_together(flags: dict[str, JsonValue], says: str) -> None:
    (found,) = contradictions(flags)
    assert says in found


def test_an_engine_is_killed_only_after_its_drain() -> None:
    launch = launched("vllm-8b", {"grace_s": 300})
    assert launch.flags["shutdown-timeout"] == 300
    assert launch.stop_s > 300


def test_hosts() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "engine")] == [True, True, True, False, False]
    assert [is_wildcard(host) for host in ("0.0.0.0", "::", "127.0.0.1")] == [True, True, False]
    assert launched("vllm-8b", {"host": "0.0.0.0"}).url == "http://127.0.0.1:8000"
    assert launched("vllm-8b", {"host": "::1"}).url == "http://[::1]:8000"
