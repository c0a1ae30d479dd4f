"""Requests for an order of documents and for scores of pairs: texts alone, and the size of every pair."""

import json
from typing import Any

import pytest

from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai import check_caps, interpret
from gateway.http.openai.rerank import PAIR_BYTES
from policies.caps import RequestCaps


def rerank(**fields: Any) -> Ask:
    return interpret(Endpoint.RERANK, json.dumps({"model": "m", "query": "q", "documents": ["a", "b"], **fields}).encode())


def score(**fields: Any) -> Ask:
    return interpret(Endpoint.SCORE, json.dumps({"model": "m", **fields}).encode())


def test_documents_go_to_the_engine_as_texts() -> None:
    got = rerank(documents=["a", {"text": "b", "title": "t"}], rank_fields=["text"], max_chunks_per_doc=3)
    sent = json.loads(got.fields)
    assert sent == {"documents": ["a", "b"], "query": "q", "rank_fields": ["text"], "max_chunks_per_doc": 3}
    assert (got.prompt_field, got.choices, got.sequences) == ("documents", 0, 0)


@pytest.mark.parametrize(("top_n", "items"), [(None, 2), (1, 1), (9, 2)])
def test_the_results_of_a_whole_answer(top_n: int | None, items: int) -> None:
    assert rerank(top_n=top_n).items == items


def test_the_query_counts_with_each_document() -> None:
    one, many = rerank(query="q" * 100, documents=["a"]), rerank(query="q" * 100, documents=["a"] * 11)
    assert many.prompt_bytes - one.prompt_bytes == 10 * (len(',"a"') + len(" ") + len('"') * 2 + 100 + PAIR_BYTES)


@pytest.mark.parametrize(
    ("fields", "param", "kind"),
    [
        ({"query": None}, "query", Kind.MISSING_PARAMETER),
        ({"documents": None}, "documents", Kind.MISSING_PARAMETER),
        ({"query": ["q"]}, "query", Kind.INVALID_VALUE),
        ({"query": {"content": []}}, "query", Kind.INVALID_VALUE),
        ({"documents": []}, "documents", Kind.INVALID_VALUE),
        ({"documents": "a"}, "documents", Kind.INVALID_VALUE),
        ({"documents": ["a"] * 2049}, "documents", Kind.INVALID_VALUE),
        ({"documents": ["a", 5]}, "documents[1]", Kind.INVALID_VALUE),
        ({"documents": [{"content": []}]}, "documents[0].text", Kind.INVALID_VALUE),
        ({"documents": [[1, 2]]}, "documents[0]", Kind.INVALID_VALUE),
        ({"top_n": 0}, "top_n", Kind.INVALID_VALUE),
        ({"top_n": -1}, "top_n", Kind.INVALID_VALUE),
        ({"top_n": "2"}, "top_n", Kind.INVALID_VALUE),
        ({"return_documents": "yes"}, "return_documents", Kind.INVALID_VALUE),
        ({"max_chunks_per_doc": 0}, "max_chunks_per_doc", Kind.INVALID_VALUE),
        ({"max_tokens_per_doc": 0}, "max_tokens_per_doc", Kind.INVALID_VALUE),
        ({"stream": True}, "stream", Kind.UNSUPPORTED_PARAMETER),
    ],
)
def test_refused(fields: dict[str, Any], param: str, kind: Kind) -> None:
    with pytest.raises(Fault) as caught:
        rerank(**fields)
    assert (caught.value.kind, caught.value.param) == (kind, param)


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents")], ids="-".join)
@pytest.mark.parametrize(
    ("first", "second", "items"), [("a", "b", 1), ("a", ["b", "c"], 2), (["a"], ["b", "c"], 2), (["a", "b"], ["c", "d"], 2)]
)
def test_pairs(names: tuple[str, str], first: object, second: object, items: int) -> None:
    got = score(**dict(zip(names, (first, second), strict=True)))
    assert (got.items, got.prompt_field) == (items, names[1])
    assert json.loads(got.fields) == dict(zip(names, (first, second), strict=True))
    check_caps(got, RequestCaps(inputs=2))


def test_one_text_counts_with_each_of_the_others() -> None:
    many = score(text_1="q" * 100, text_2=["a"] * 10)
    paired = score(text_1=["q" * 100] * 10, text_2=["a"] * 10)
    assert abs(many.prompt_bytes - paired.prompt_bytes) < 50


@pytest.mark.parametrize(
    ("fields", "param", "kind"),
    [
        ({}, "text_2", Kind.MISSING_PARAMETER),
        ({"text_1": "a"}, "text_2", Kind.MISSING_PARAMETER),
        ({"queries": "a"}, "documents", Kind.MISSING_PARAMETER),
        ({"text_1": "a", "text_2": []}, "text_2", Kind.INVALID_VALUE),
        ({"text_1": "a", "text_2": ["b", 5]}, "text_2[1]", Kind.INVALID_VALUE),
        ({"text_1": {"content": []}, "text_2": "b"}, "text_1", Kind.INVALID_VALUE),
        ({"text_1": ["a", "b"], "text_2": ["c"]}, "text_1", Kind.INVALID_VALUE),
        ({"queries": ["a", "b"], "documents": ["c", "d", "e"]}, "queries", Kind.INVALID_VALUE),
        ({"text_1": "a", "documents": ["c"]}, "documents", Kind.INVALID_VALUE),
        ({"text_1": "a", "text_2": "b", "data_1": "c"}, "data_1", Kind.UNSUPPORTED_PARAMETER),
        ({"text_1": "a", "text_2": "b", "items": ["c"]}, "items", Kind.UNSUPPORTED_PARAMETER),
    ],
)
def test_pairs_refused(fields: dict[str, Any], param: str, kind: Kind) -> None:
    with pytest.raises(Fault) as caught:
        score(**fields)
    assert (caught.value.kind, caught.value.param) == (kind, param)
