"""Dialects: the table, and the body an engine gets."""

import json

import pytest

from backends.dialects import DIALECTS, body_for


def test_the_table() -> None:
    assert set(DIALECTS) == {"vllm", "sglang", "llamacpp", "openai"}
    assert all(name == dialect.name for name, dialect in DIALECTS.items())
    assert {name for name, dialect in DIALECTS.items() if dialect.takes_cache_salt} == {"vllm", "sglang"}
    assert all(path.startswith("/") for d in DIALECTS.values() for path in (d.health_path, d.models_path))


@pytest.mark.parametrize("name", ["vllm", "sglang", "llamacpp", "openai"])
@pytest.mark.parametrize("fields", [b"{}", b'{"messages":[],"n":1}'])
@pytest.mark.parametrize("salt", [None, "s" * 32])
def test_the_body_is_the_fields_behind_what_only_we_may_set(name: str, fields: bytes, salt: str | None) -> None:
    dialect = DIALECTS[name]
    body = body_for(dialect, fields, 'org/"m"', cache_salt=salt)
    expected = {"model": 'org/"m"', **json.loads(fields)}
    if salt and dialect.takes_cache_salt:
        expected["cache_salt"] = salt
    assert json.loads(body) == expected
    assert fields[1:] in body


def test_the_callers_salt_never_stands_beside_ours() -> None:
    body = body_for(DIALECTS["vllm"], b'{"messages":[]}', "m", cache_salt="ours")
    assert body.count(b"cache_salt") == 1


def test_adapters_are_loaded_by_two_calls_where_the_engine_has_them() -> None:
    loading = {name: dialect.lora for name, dialect in DIALECTS.items() if dialect.lora is not None}
    assert {name: (calls.load_path, calls.unload_path) for name, calls in loading.items()} == {
        "vllm": ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
        "sglang": ("/load_lora_adapter", "/unload_lora_adapter"),
    }
    assert {(calls.name_field, calls.path_field) for calls in loading.values()} == {("lora_name", "lora_path")}
