"""An order of documents in one shape, whatever the engine's is."""

import json
from typing import Any

import pytest

from domain.ask import Ask, Endpoint
from domain.usage import Usage
from gateway.answers.rerank import RerankTap, rerank_reply
from gateway.http.openai import interpret
from gateway.story import Story
from tests.stories import with_facts

VLLM = {
    "id": "rerank-x",
    "model": "served",
    "usage": {"total_tokens": 9},
    "results": [{"index": 2, "document": {"text": "?", "multi_modal": None}, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1}],
}
SGLANG = [{"score": 0.1, "document": "a", "index": 0, "meta_info": {}}, {"score": 0.9, "document": "c", "index": 2, "meta_info": {}}]


def ask(**fields: Any) -> Ask:
    return interpret(Endpoint.RERANK, json.dumps({"model": "m", "query": "q", "documents": ["a", "b", "c"], **fields}).encode())


def written(reply: object, **fields: Any) -> Any:
    return json.loads(rerank_reply(ask(**fields), json.dumps(reply).encode(), model="m", own_id="own", tokens=9))


@pytest.mark.parametrize("reply", [VLLM, SGLANG], ids=["vllm", "sglang"])
def test_every_engines_reply_has_the_same_shape(reply: object) -> None:
    assert written(reply) == {
        "id": "rerank-own",
        "model": "m",
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
        "results": [
            {"index": 2, "relevance_score": 0.9, "document": {"text": "c"}},
            {"index": 0, "relevance_score": 0.1, "document": {"text": "a"}},
        ],
        "meta": {"api_version": {"version": "2"}, "tokens": {"input_tokens": 9, "output_tokens": 0}},
    }


def test_the_most_relevant_results_alone_and_no_documents_where_the_caller_says_so() -> None:
    assert written(SGLANG, top_n=1, return_documents=False)["results"] == [{"index": 2, "relevance_score": 0.9}]


def test_other_members_stay() -> None:
    assert written({**VLLM, "object": "list"})["object"] == "list"


def tap(reply: object, usage: Usage | None, counted: int | None = None) -> tuple[Any, RerankTap]:
    class Judge:
        cached = None

    Judge.usage = usage  # type: ignore[attr-defined]  # as the judging tap has it
    made = RerankTap(ask(), with_facts(Story("own", 0.0, 0.0, 0.0), model="m", counted=counted), Judge())  # type: ignore[arg-type]  # as above
    body = json.dumps(reply).encode()
    assert made.feed(body[:5]) == made.feed(body[5:]) == b""
    out = made.end()
    return json.loads(out) if out else None, made


def test_the_usage_is_the_engines_or_else_the_estimate() -> None:
    assert tap(VLLM, Usage(9, 0))[0]["usage"]["total_tokens"] == 9
    assert tap(SGLANG, None)[0]["usage"]["total_tokens"] > 9


@pytest.mark.parametrize("index", [3, -1, 0])
def test_results_about_no_document_or_twice_about_one_are_the_engines_fault(index: int) -> None:
    said, made = tap([*SGLANG, {"score": 0.5, "index": index}], None)
    assert said is None
    assert made.fault is not None
