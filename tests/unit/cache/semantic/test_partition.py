"""The partition of a question: the same only for requests that are equal but for the text of the last turn."""

import json
from typing import Any

import pytest
from msgspec import structs

from cache.fields import WITHOUT_EFFECT
from cache.key import Scope, Target
from cache.semantic.conversation import Asked, conversation_of
from cache.semantic.partition import partition_of
from domain.ask import Endpoint
from gateway.http.openai import interpret

SCOPE = Scope("project", "acme", "web")
TARGET = Target(Endpoint.CHAT.path, "m", "llama", "r1")


def partition(text: str = "How are you?", scope: Scope = SCOPE, target: Target = TARGET, embedder: str = "e1", **members: Any) -> bytes:
    messages = [*members.pop("earlier", []), {"role": "user", "content": text}]
    ask = interpret(Endpoint.CHAT, json.dumps({"model": "m", "messages": messages, **members}).encode())
    asked = conversation_of(ask)
    assert isinstance(asked, Asked)
    return partition_of(scope, target, ask, asked, embedder)


@pytest.mark.req("R50")
def test_the_text_of_the_last_turn_alone_may_differ() -> None:
    assert partition("How are you?") == partition("Where are you?")
    assert len(partition()) == 32


@pytest.mark.req("R50")
@pytest.mark.parametrize(
    "members",
    [
        {"temperature": 0},
        {"seed": 1},
        {"max_tokens": 5},
        {"some_engines_own": 1},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"earlier": [{"role": "system", "content": "Be brief."}]},
        {"embedder": "e2"},
    ],
    ids=lambda members: next(iter(members)),
)
def test_everything_else_divides_questions(members: dict[str, Any]) -> None:
    assert partition(**members) != partition()


@pytest.mark.req("R50")
@pytest.mark.parametrize("field", [*Scope.__struct_fields__, *Target.__struct_fields__])
def test_scope_and_target_divide_questions_field_by_field(field: str) -> None:
    if field in Scope.__struct_fields__:
        assert partition(scope=structs.replace(SCOPE, **{field: "other"})) != partition()
    else:
        assert partition(target=structs.replace(TARGET, **{field: "other"})) != partition()


def test_members_without_effect_do_not_divide_questions() -> None:
    assert "user" in WITHOUT_EFFECT
    assert partition(user="ann", stream=True) == partition(user="bob")


def test_no_field_can_pass_for_another_one() -> None:
    one, other = Scope("project", "ab", "c"), Scope("project", "a", "bc")
    assert partition(scope=one) != partition(scope=other)
