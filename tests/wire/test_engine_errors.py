"""Error bodies as real engines sent them (vLLM 0.32.0, SGLang 0.5.23, llama.cpp) or are documented to send them (the others),
and what callers get to see of each."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from backends.dialects import DIALECTS
from backends.dialects.dialect import ErrorShape
from backends.dialects.errors import fault_from_reply
from domain.ask import Endpoint
from domain.faults import Fault, Kind
from gateway.http.faults import render, render_event

CASES = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted((Path(__file__).parent / "engine_errors").glob("*.json"))}

SERVED = ("tiny", "alias-tiny", "lora-a", "lora-b", "lora-c", "lora-x", "smollm2-135m")
INTERNALS = re.compile(r"/|\\|File|line \d|sglang|vllm|site-packages|\.py|Valid aliases|nosuchdir|--|\{'|json\.exception|validation error")


def fault_of(name: str, served: tuple[str, ...] = ()) -> Fault:
    case, mistakes = CASES[name], DIALECTS[name.partition("_")[0]].mistakes
    return fault_from_reply(case["status"], case["body"].encode(), endpoint=Endpoint(case["endpoint"]), served=served, mistakes=mistakes)


def answered(name: str) -> tuple[int, dict[str, Any], dict[bytes, bytes]]:
    fault = fault_of(name)
    assert fault.kind is Kind(CASES[name]["kind"])
    rendered = render(fault, "req-1")
    return rendered.status, json.loads(rendered.body)["error"], dict(rendered.headers)


@pytest.mark.parametrize("name", CASES)
def test_a_recorded_error_becomes_ours(name: str) -> None:
    case = CASES[name]
    status, error, headers = answered(name)
    assert (status, error["code"], error["param"]) == (case["http"], case["code"], case["param"])
    assert error["message"] == case.get("message", error["message"])
    passing = case["status"] >= 500 or case["status"] in (424, 429)
    # only what may pass by itself is worth the caller's retry: never a refusal, never our own bad credentials
    assert headers[b"x-should-retry"] == (b"true" if passing and status >= 500 else b"false")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("served", [(), SERVED], ids=["names unknown", "names known"])
def test_no_internals_get_out(name: str, served: tuple[str, ...]) -> None:
    fault = fault_of(name, served)
    for shown in (fault.message, fault.param or "", fault.detail or ""):
        assert not INTERNALS.search(shown), shown
        assert not any(re.search(rf"\b{re.escape(word)}\b", shown) for word in SERVED), shown
    assert b"tiny" not in render(fault, "r").body + render_event(fault, "r")


def test_every_engine_is_covered() -> None:
    assert {name.partition("_")[0] for name in CASES} == set(DIALECTS) - {"openai"}
    assert len(CASES) == 60


def shape_of(body: str) -> ErrorShape:
    found = json.loads(body)
    if "error" in found:
        return ErrorShape.OBJECT if isinstance(found["error"], dict) else ErrorShape.TEXT
    return ErrorShape.DETAIL if "detail" in found else ErrorShape.FLAT


@pytest.mark.parametrize("name", CASES)
def test_a_dialect_names_the_shapes_its_refusals_come_in(name: str) -> None:
    assert shape_of(CASES[name]["body"]) in DIALECTS[name.partition("_")[0]].errors
