"""Dialects: the table, the body an engine gets, and what never gets into one."""

import json
from typing import Any, get_args

import msgspec
import pytest

from backends.dialects import DIALECTS, body_for, fit, model_asked
from domain.ask import Endpoint
from domain.faults import Fault, Kind
from domain.priority import Class
from gateway.config.settings import PoolSettings
from gateway.http.openai import interpret
from gateway.http.openai.controls import CONTROLS, REMOVED

SALT = "s" * 32


def test_the_table() -> None:
    assert all(name == dialect.name for name, dialect in DIALECTS.items())
    assert all(path.startswith("/") for d in DIALECTS.values() for path in (d.health_path, d.models_path, d.signals_path or "/"))
    assert {name for name, d in DIALECTS.items() if d.isolation is not None} == {"vllm", "sglang", "trtllm", "dynamo"}
    assert all(dialect.errors and dialect.known_from for dialect in DIALECTS.values())
    assert not {"trtllm", "tgi", "triton", "dynamo", "openai"} & {name for name, d in DIALECTS.items() if d.proven}


def test_a_pool_may_name_every_dialect_and_no_other() -> None:
    assert list(get_args(PoolSettings.model_fields["dialect"].annotation)) == list(DIALECTS)


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("fields", [b"{}", b'{"messages":[],"n":1}'])
@pytest.mark.parametrize("salt", [None, SALT])
def test_the_body_is_the_fields_behind_what_only_we_may_set(name: str, fields: bytes, salt: str | None) -> None:
    dialect = DIALECTS[name]
    body = body_for(dialect, fields, 'org/"m"', cache_salt=salt)
    expected = {"model": 'org/"m"', **json.loads(fields)}
    if salt and dialect.isolation:
        expected[dialect.isolation.field] = salt
    assert json.loads(body) == expected
    assert fields[1:] in body


def test_the_callers_salt_never_stands_beside_ours() -> None:
    body = body_for(DIALECTS["vllm"], b'{"messages":[]}', "m", cache_salt="ours")
    assert body.count(b"cache_salt") == 1


def test_requests_are_salted_where_the_engine_takes_it() -> None:
    salted = {name: {e.name for e in Endpoint if dialect.salts(e)} for name, dialect in DIALECTS.items()}
    every = {endpoint.name for endpoint in Endpoint}
    assert salted["sglang"] == every
    assert salted["vllm"] == every - {"REALTIME"}, "a session's events have no such field"
    assert (salted["trtllm"], salted["dynamo"]) == ({"CHAT"}, {"CHAT", "COMPLETIONS"})
    assert salted["tgi"] == salted["triton"] == salted["llamacpp"] == salted["openai"] == set()


def routed(name: str, endpoint: Endpoint, **fields: Any) -> str:
    """The engine's path of the smallest request, or the field that is blamed where it has none."""
    body = fields or json.loads(endpoint.probe)
    try:
        return DIALECTS[name].path_of(interpret(endpoint, json.dumps({"model": "m", **body}).encode()))
    except Fault as fault:
        return f"{fault.kind is Kind.UNSUPPORTED_PARAMETER and fault.param}"


@pytest.mark.parametrize("name", DIALECTS)
def test_each_endpoint_has_a_path_at_an_engine_or_a_clear_fault(name: str) -> None:
    paths = {endpoint.word: routed(name, endpoint) for endpoint in Endpoint if not endpoint.generates}
    own = {endpoint.word: endpoint.path for endpoint in Endpoint if not endpoint.generates}
    lacks = dict.fromkeys(own, "model")
    assert paths == {
        "vllm": own,
        "openai": {**own, "realtime": "model"},
        "sglang": {**own, "classify": "/v1/classify", **dict.fromkeys(("score", "pooling", "translations", "speech", "realtime"), "model")},
        "llamacpp": {**lacks, "embeddings": "/v1/embeddings", "rerank": "/v1/rerank", "tokenize": "prompt", "detokenize": "/detokenize"},
        "tgi": lacks,
    }.get(name, {**lacks, "embeddings": "/v1/embeddings"})


def test_messages_in_place_of_an_input_go_to_engines_that_read_them() -> None:
    messages = [{"role": "user", "content": "x"}]
    asked = {name: routed(name, Endpoint.EMBEDDINGS, messages=messages) for name in DIALECTS}
    assert {name for name, path in asked.items() if path == "/v1/embeddings"} == {"vllm", "openai"}
    assert {path for path in asked.values()} == {"/v1/embeddings", "messages", "model"}


def test_a_text_to_tokenize_stands_in_the_field_that_the_engine_reads() -> None:
    bodies = {"prompt": "a", "content": "a", "messages": [{"role": "user", "content": "x"}]}
    asked = {
        name: [routed(name, Endpoint.TOKENIZE, **{field: bodies[field]}) for field in bodies] for name in ("vllm", "sglang", "llamacpp")
    }
    assert asked == {
        "vllm": ["/tokenize", "content", "/tokenize"],
        "sglang": ["/tokenize", "content", "messages"],
        "llamacpp": ["prompt", "/tokenize", "messages"],
    }


STEERING = {
    "priority": -5,
    "cache_salt": "theirs",
    "extra_key": "theirs",
    "kv_transfer_params": {"do_remote_prefill": True},
    "bootstrap_host": "10.0.0.9",
    "bootstrap_port": 1,
    "bootstrap_room": 2,
    "bootstrap_whatever_comes": 3,
    "routed_dp_rank": 4,
    "rid": "theirs",
    "nvext": {"agent_hints": {"priority": 9}},
    "conversation_params": {"conversation_id": "theirs"},
}
"""What routers.md §2.5 lists, and its like of the other engines."""


@pytest.mark.req("R29")
@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize(
    ("endpoint", "required"),
    [
        (Endpoint.CHAT, {"messages": [{"role": "user", "content": "x"}]}),
        (Endpoint.COMPLETIONS, {"prompt": "x"}),
        (Endpoint.EMBEDDINGS, {"input": "x"}),
    ],
    ids=["chat", "completions", "embeddings"],
)
def test_no_field_that_steers_the_fleet_passes(name: str, endpoint: Endpoint, required: dict[str, object]) -> None:
    dialect = DIALECTS[name]
    if dialect.fields.takes is not None and endpoint not in dialect.fields.takes:
        return
    ask = interpret(endpoint, json.dumps({"model": "m", **required, **STEERING}).encode())
    body = body_for(dialect, fit(dialect.fields, ask), "m", cache_salt=SALT if dialect.salts(endpoint) else None)
    ours = {"cache_salt"} if dialect.salts(endpoint) else set()
    assert set(json.loads(body)) == {"model", *required, *ours}
    assert b"theirs" not in body


def test_whatever_sets_a_priority_or_a_salt_is_ours_alone() -> None:
    for dialect in DIALECTS.values():
        if dialect.priority is not None:
            assert dialect.priority.field.partition(".")[0] in CONTROLS
        if dialect.isolation is not None:
            assert dialect.isolation.field in CONTROLS
        for taken in (dialect.fields.takes or {}).values():
            assert REMOVED.isdisjoint(taken)


PRIORITIES = {name: dialect.priority for name, dialect in DIALECTS.items() if dialect.priority is not None}


@pytest.mark.req("ROUTERS-33")
@pytest.mark.parametrize("name", PRIORITIES)
def test_classes_are_in_the_same_order_for_every_engine_by_its_own_sign(name: str) -> None:
    dialect, told = DIALECTS[name], PRIORITIES[name]
    numbers = []
    for member in told.written():
        value: Any = json.loads(body_for(dialect, b'{"messages":[]}', "m", cache_salt=SALT, priority=member))
        for step in told.field.split("."):
            value = value[step]
        numbers.append(value)
    assert len(set(numbers)) == len(Class)
    assert numbers == sorted(numbers, reverse=told.sooner == "higher")
    assert numbers[Class.DEFAULT] == (0.5 if told.share else 0)
    assert not told.share or all(0 <= number <= 1 for number in numbers)


def test_the_numbers_of_each_engine() -> None:
    assert PRIORITIES["vllm"].written() == (b'"priority":-2', b'"priority":-1', b'"priority":0', b'"priority":1')
    assert PRIORITIES["sglang"].written() == (b'"priority":2', b'"priority":1', b'"priority":0', b'"priority":-1')
    assert PRIORITIES["trtllm"].written()[Class.BATCH] == b'"priority":0.3'
    assert PRIORITIES["dynamo"].written()[Class.CRITICAL] == b'"nvext":{"agent_hints":{"priority":2}}'


def test_an_ask_names_its_fields() -> None:
    ask = interpret(Endpoint.CHAT, b'{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true,"priority":1,"n":null}')
    assert ask.names == set(msgspec.json.decode(ask.fields))


def test_adapters_are_loaded_by_two_calls_where_the_engine_has_them() -> None:
    loading = {name: dialect.lora for name, dialect in DIALECTS.items() if dialect.lora is not None}
    assert {name: (calls.load_path, calls.unload_path) for name, calls in loading.items()} == {
        "vllm": ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
        "sglang": ("/load_lora_adapter", "/unload_lora_adapter"),
    }
    assert {(calls.name_field, calls.path_field) for calls in loading.values()} == {("lora_name", "lora_path")}
    assert all(DIALECTS[name].lora_model is not None for name in loading)


def test_model_names_of_adapters_are_patterns() -> None:
    names = {name: d.lora_model.format(base="b", adapter="a") for name, d in DIALECTS.items() if d.lora_model is not None}
    assert names == {"vllm": "a", "sglang": "b:a", "tgi": "a", "dynamo": "a"}


@pytest.mark.parametrize(("name", "asked"), [("vllm", "bot@12"), ("sglang", "m:bot@12"), ("tgi", "bot@12")])
def test_a_request_names_the_adapter_as_the_engine_wants_it(name: str, asked: str) -> None:
    assert model_asked(DIALECTS[name], "m", "bot@12") == asked
    assert model_asked(DIALECTS[name], "m", "") == "m"
