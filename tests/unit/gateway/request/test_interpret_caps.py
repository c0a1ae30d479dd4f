"""Caps of a policy on the path of a request: by tenant, by model, by rule."""

from typing import Any

from domain.faults import Kind
from gateway.request.interpret import Endpoint
from gateway.request.interpret import interpret as interpret_step
from tests.request_path import CALLER, Path, caller, fault_of

JSON = b"application/json"
MODELS = [{"name": "sim", "pool": "chat"}, {"name": "large", "pool": "chat"}]
BODY = {"model": "sim", "messages": [{"role": "user", "content": "hello"}]}


async def read(path: Path, **fields: Any) -> Any:
    exchange, _ = caller({**BODY, **fields}, content_type=JSON)
    return (await interpret_step(Endpoint.CHAT, exchange, CALLER, path.story(), path.deps))[0]


async def test_a_tenant_without_caps_has_todays() -> None:
    fault = await fault_of(read(Path(), n=17))
    assert fault.kind is Kind.INVALID_VALUE
    assert "17 is not between 1 and 16. The policy of your tenant sets this bound (caps.choices)." in fault.message


async def test_a_policy_opens_and_narrows() -> None:
    path = Path(policy={"caps": {"choices": 100, "stops": 1}})
    assert (await read(path, n=100)).choices == 100
    assert "caps.stops" in (await fault_of(read(path, stop=["a", "b"]))).message


async def test_a_model_and_a_rule_have_caps_of_their_own() -> None:
    rule = {"name": "plain", "if": "!stream && user == 'x'", "then": {"caps": {"choices": 2}}}
    path = Path(policy={"models": MODELS, "for_model": {"large": {"caps": {"choices": 100}}}, "rules": [rule]})
    assert (await read(path, model="large", n=100)).choices == 100
    assert "between 1 and 16" in (await fault_of(read(path, n=17))).message, "read under the widest caps, checked under the model's"
    assert (await read(path, n=16)).choices == 16
    assert "between 1 and 2." in (await fault_of(read(path, n=3, user="x"))).message


async def test_a_body_has_the_size_that_its_models_policy_allows() -> None:
    path = Path(policy={"models": MODELS, "caps": {"body_bytes": 2000}, "for_model": {"large": {"caps": {"body_bytes": 3000}}}})
    long = [{"role": "user", "content": "x" * 2500}]
    assert (await read(path, model="large", messages=long)).prompt_bytes > 2500
    fault = await fault_of(read(path, messages=long))
    assert (fault.kind, "at most 2000 bytes that are allowed" in fault.message, "caps.body_bytes" in fault.message) == (
        Kind.BODY_TOO_LARGE,
        True,
        True,
    )
    longer = [{"role": "user", "content": "x" * 3500}]
    assert (await fault_of(read(path, model="large", messages=longer))).kind is Kind.BODY_TOO_LARGE
