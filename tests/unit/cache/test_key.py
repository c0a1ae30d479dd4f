"""The key of the exact cache: equal only for requests whose answers may stand for each other."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from cache.fields import WITHOUT_EFFECT
from cache.key import DIGEST_BYTES, Scope, Target, exact_key, scope_of
from domain.ask import Ask, Endpoint
from domain.identity import Caller, KeyId, ProjectId, TenantId
from gateway.http.openai import interpret

SCOPE = Scope("project", "acme", "web")
TARGET = Target(Endpoint.CHAT.path, "m", "llama", "r1")
CALLER = Caller(TenantId("acme"), ProjectId("web"), KeyId("k"))


def ask(**members: Any) -> Ask:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **members}
    return interpret(Endpoint.CHAT, json.dumps(body).encode())


def key(scope: Scope = SCOPE, target: Target = TARGET, **members: Any) -> bytes:
    return exact_key(scope, target, ask(**members))


@pytest.mark.req("R49")
def test_a_key_is_a_whole_digest_and_the_same_each_time() -> None:
    assert len(key()) == DIGEST_BYTES
    assert key() == key()


def test_members_in_another_order_have_the_same_key() -> None:
    assert key(temperature=0, seed=7) == key(seed=7, temperature=0)


def test_a_streamed_and_a_plain_request_have_the_same_key() -> None:
    assert key(stream=True, stream_options={"include_usage": True}) == key()


def test_members_without_effect_on_the_answer_do_not_enter_the_key() -> None:
    values: dict[str, Any] = {
        "user": "u",
        "metadata": {"a": "b"},
        "prompt_cache_key": "p",
        "safety_identifier": "s",
        "service_tier": "auto",
        "store": False,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert values.keys() == WITHOUT_EFFECT
    assert key(**values) == key()


@pytest.mark.req("R49")
@pytest.mark.parametrize(
    "members",
    [
        {"temperature": 0},
        {"seed": 1},
        {"max_tokens": 5},
        {"stop": ["x"]},
        {"top_p": 0.5},
        {"response_format": {"type": "json_object"}},
        {"some_engines_own": 1},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"messages": [{"role": "user", "content": "Hi"}]},
        {"messages": [{"role": "system", "content": "hi"}]},
    ],
    ids=lambda members: next(iter(members)),
)
def test_every_other_member_enters_the_key(members: dict[str, Any]) -> None:
    assert key(**members) != key()


@pytest.mark.req("R49")
def test_the_order_inside_a_schema_enters_the_key() -> None:
    """Engines generate the properties of a schema in its order."""

    def schema(*names: str) -> dict[str, Any]:
        properties = {name: {"type": "string"} for name in names}
        return {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object", "properties": properties}}}

    assert key(response_format=schema("a", "b")) != key(response_format=schema("b", "a"))


@pytest.mark.req("R50")
@pytest.mark.parametrize("field", [*Scope.__struct_fields__, *Target.__struct_fields__])
def test_scope_and_target_enter_the_key_field_by_field(field: str) -> None:
    if field in Scope.__struct_fields__:
        assert key(scope=structs.replace(SCOPE, **{field: "other"})) != key()
    else:
        assert key(target=structs.replace(TARGET, **{field: "other"})) != key()


@pytest.mark.req("R50")
@given(st.lists(st.text(max_size=6), min_size=10, max_size=10), st.lists(st.text(max_size=6), min_size=10, max_size=10))
def test_no_two_scopes_and_targets_share_a_key(one: list[str], other: list[str]) -> None:
    """Without lengths, the tenants `org_1` with `2345` and `org_12345` with nothing would share one."""
    request = ask()
    keys = [exact_key(Scope(*fields[:4]), Target(*fields[4:]), request) for fields in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


@pytest.mark.req("R50")
def test_a_field_moved_to_its_neighbour_is_another_key() -> None:
    assert key(scope=Scope("project", "org_1", "2345")) != key(scope=Scope("project", "org_12345", ""))


def test_a_group_spans_tenants_and_nothing_else_does() -> None:
    other = structs.replace(CALLER, tenant=TenantId("beta"))
    assert scope_of("group", CALLER, "", "shared") == scope_of("group", other, "", "shared")
    for kind in ("tenant", "project", "user"):
        assert scope_of(kind, CALLER, "u") != scope_of(kind, other, "u")


def test_users_of_two_projects_are_apart() -> None:
    other = structs.replace(CALLER, project=ProjectId("webu"))
    assert scope_of("user", CALLER, "ux") != scope_of("user", other, "x")
    assert scope_of("tenant", CALLER, "u") == scope_of("tenant", other, "v")
    assert scope_of("project", CALLER, "u") == scope_of("project", CALLER, "v")


def test_an_ask_without_prompt_members_has_a_key_too() -> None:
    assert len(exact_key(SCOPE, TARGET, interpret(Endpoint.EMBEDDINGS, b'{"model":"m","input":"a"}'))) == DIGEST_BYTES
