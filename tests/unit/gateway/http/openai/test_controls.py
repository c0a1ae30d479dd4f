"""Fields that steer engines: the list the threat model names is in it, and nothing a caller legitimately sets."""

import json
from pathlib import Path

import pytest

from domain.ask import Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai import interpret
from gateway.http.openai.controls import CHANGE_ANSWER, CONTROLS, REMOVED, without_controls
from gateway.http.openai.endpoints import FORMS
from gateway.http.openai.generation import REFUSED

API_PAGE = (Path(__file__).parents[5] / "docs" / "reference" / "api.md").read_text("utf-8")


def test_the_trust_boundary_is_covered() -> None:
    named = {"priority", "cache_salt", "extra_key", "kv_transfer_params", "ec_transfer_params", "routed_dp_rank", "rid"}
    named |= {"bootstrap_host", "bootstrap_port", "bootstrap_room", "request_id", "data_parallel_rank"}
    assert named <= CONTROLS
    assert {"vllm_xargs", "session_params", "lora_path"} <= REMOVED


def test_no_field_is_both_stripped_and_checked() -> None:
    checked = {field for form in FORMS.values() for field in form.checks}
    assert REMOVED.isdisjoint({*checked, "model", "stream_options"})


def test_stripping() -> None:
    clean: dict[str, object] = {"a": 1}
    assert without_controls(clean) == clean
    assert without_controls({"priority": 1, "a": 1, "rid": "x"}) == {"a": 1}


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])
@pytest.mark.parametrize(
    ("field", "value", "advice"),
    [
        ("lora_path", "adapters/x", "send the adapter's name as 'model'"),
        ("lora_path", ["adapters/x"], "send the adapter's name as 'model'"),
        ("lora", [{"id": 0, "scale": 1.0}], "send the adapter's name as 'model'"),
        ("adapter_id", 0, "send the adapter's name as 'model'"),
        ("session_params", {"id": "s"}, "send the whole conversation"),
        ("vllm_xargs", {"a": 1}, "Leave it out"),
        ("return_hidden_states", "last", "Leave it out"),
        ("return_routed_experts", True, "Leave it out"),
    ],
)
def test_a_field_without_which_the_answer_is_another_one_is_refused(endpoint: Endpoint, field: str, value: object, advice: str) -> None:
    document = {"model": "m", endpoint.prompt_fields[0]: [{"role": "user", "content": "x"}] if endpoint.has_messages else "x"}
    with pytest.raises(Fault, match=advice) as caught:
        interpret(endpoint, json.dumps(document | {field: value}).encode())
    assert (caught.value.kind, caught.value.param) == (Kind.UNSUPPORTED_PARAMETER, field)


def test_the_default_of_such_a_field_is_stripped() -> None:
    for value in (None, False, "", [], {}):
        assert without_controls({"a": 1, **dict.fromkeys(CHANGE_ANSWER, value)}) == {"a": 1}


def test_every_stripped_or_refused_field_is_documented() -> None:
    missing = {name for name in REMOVED | REFUSED.keys() if f"`{name}`" not in API_PAGE}
    assert not missing


@pytest.mark.parametrize(
    ("member", "value", "advice"),
    [
        ("guided_json", {"type": "object"}, "send 'response_format'"),
        ("guided_regex", "a+", "send 'response_format'"),
        ("ignore_eos", True, "send 'ignore_eos' at the top level"),
        ("top_k", 5, "send 'top_k' at the top level"),
        ("repetition_penalty", 1.2, "send 'repetition_penalty' at the top level"),
        ("greed_sampling", True, "send 'temperature': 0"),
        ("use_raw_prompt", True, "send the text to /v1/completions"),
        ("max_thinking_tokens", 5, "Leave it out"),
        ("something_new", {"a": 1}, "Leave it out"),
    ],
)
def test_a_member_of_nvext_without_which_the_answer_is_another_one_is_refused_by_its_path(member: str, value: object, advice: str) -> None:
    document = {"model": "m", "messages": [{"role": "user", "content": "x"}], "nvext": {"agent_hints": {"priority": 9}, member: value}}
    with pytest.raises(Fault, match=advice) as caught:
        interpret(Endpoint.CHAT, json.dumps(document).encode())
    assert (caught.value.kind, caught.value.param) == (Kind.UNSUPPORTED_PARAMETER, f"nvext.{member}")


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"agent_hints": {"priority": 9, "osl": 5}, "annotations": ["llm_metrics"], "backend_instance_id": 7, "extra_fields": ["timing"]},
        {"ignore_eos": False, "top_k": None, "guided_json": {}, "greed_sampling": False, "repetition_penalty": None},
    ],
)
def test_what_places_a_request_and_defaults_are_stripped_from_nvext(value: object) -> None:
    assert without_controls({"a": 1, "nvext": value}) == {"a": 1}


@pytest.mark.parametrize("value", ["x", 5, [1]])
def test_nvext_that_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(Fault, match="object") as caught:
        without_controls({"a": 1, "nvext": value})
    assert caught.value.param == "nvext"
