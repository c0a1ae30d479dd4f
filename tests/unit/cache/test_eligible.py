"""Which requests pass by the exact cache."""

import json
from typing import Any

import pytest

from cache import eligible
from cache.eligible import MAX_BODY_BYTES, SIMILAR_REASONS, passes_by
from cache.policy import CachePolicy
from cache.semantic import conversation, never_words
from cache.semantic.guard import DIFFERENCES
from domain.ask import Ask, Endpoint
from gateway.http.openai import interpret

STRICT = CachePolicy()
OPEN = CachePolicy(sampled=True, tools=True)
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def ask(**members: Any) -> Ask:
    return interpret(Endpoint.CHAT, json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **members}).encode())


@pytest.mark.parametrize(
    ("members", "strict", "opened"),
    [
        ({"temperature": 0}, "", ""),
        ({"temperature": 0.0}, "", ""),
        ({"top_k": 1}, "", ""),
        ({}, eligible.SAMPLED, ""),
        ({"temperature": 0.7}, eligible.SAMPLED, ""),
        ({"temperature": 0, "tools": [TOOL]}, eligible.TOOLS, ""),
        ({"temperature": 0, "n": 2}, eligible.CHOICES, eligible.CHOICES),
        ({"temperature": 0, "logprobs": True, "top_logprobs": 2}, eligible.LOGPROBS, eligible.LOGPROBS),
        ({"temperature": 0, "logprobs": False}, "", ""),
        ({"temperature": 0, "return_token_ids": True}, eligible.TOKEN_IDS, eligible.TOKEN_IDS),
        (
            {"temperature": 0, "messages": [{"role": "user", "content": [IMAGE]}]},
            eligible.MEDIA,
            eligible.MEDIA,
        ),
        ({"temperature": 0, "messages": [{"role": "user", "content": "x" * MAX_BODY_BYTES}]}, eligible.LARGE, eligible.LARGE),
    ],
)  # fmt: skip
def test_a_request_passes_by_for_a_reason(members: dict[str, Any], strict: str, opened: str) -> None:
    assert passes_by(ask(**members), STRICT) == strict
    assert passes_by(ask(**members), OPEN) == opened


def test_embeddings_are_never_sampled() -> None:
    assert passes_by(interpret(Endpoint.EMBEDDINGS, b'{"model":"m","input":"a"}'), STRICT) == ""


def test_completions_that_echo_pass_by() -> None:
    request = interpret(Endpoint.COMPLETIONS, b'{"model":"m","prompt":"a","temperature":0,"echo":true}')
    assert passes_by(request, OPEN) == eligible.LOGPROBS


@pytest.mark.parametrize("written", [{"scope": "group"}, {"group": "g"}, {"ttl_s": 0.5}, {"hit_price": 2.0}])
def test_a_policy_that_makes_no_sense_is_refused(written: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        CachePolicy(**written)


def test_every_word_for_a_question_without_an_answer_is_counted() -> None:
    """A word that the metric does not know would end the counting of its request."""
    assert {*conversation.REFUSALS, *never_words.REFUSALS} <= {*SIMILAR_REASONS}
    assert not {*DIFFERENCES} & {*SIMILAR_REASONS}, "they stand behind `differs:`"
