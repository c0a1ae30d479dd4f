"""Replies without a generation: each value follows from the text alone, in the shapes of vLLM and SGLang."""

import base64
import json
import struct
from typing import Any

import pytest

from backends.simengine import shapes
from backends.simengine.pooling import EMBEDDING_DIMENSIONS, LABELS, PATHS, overlap, pooled
from backends.simengine.reading import ErrorAnswer

HEAD = shapes.ids("vllm", "r", "rerank", 1, "m")
DOCUMENTS = ["a cat", "the red fox", "red"]


def reply(kind: str, request: dict[str, Any], dialect: str = "vllm", fault: str = "") -> Any:
    return json.loads(pooled(kind, dialect, request, HEAD, fault=fault)[0])


def test_one_vector_per_text_and_the_same_text_has_the_same() -> None:
    body, tokens = pooled("embd", "vllm", {"input": ["sea", "sky", "sea"]}, HEAD)
    data = json.loads(body)["data"]
    assert [len(row["embedding"]) for row in data] == [EMBEDDING_DIMENSIONS] * 3
    assert data[0]["embedding"] == data[2]["embedding"] != data[1]["embedding"]
    assert json.loads(body)["usage"]["total_tokens"] == tokens


def test_base64_holds_the_same_numbers() -> None:
    request = {"input": [1, 2, 3], "dimensions": 8}
    plain = reply("embd", request)["data"][0]["embedding"]
    packed = reply("embd", {**request, "encoding_format": "base64"})["data"][0]["embedding"]
    assert list(struct.unpack("<8f", base64.b64decode(packed))) == [struct.unpack("<f", struct.pack("<f", x))[0] for x in plain]


def test_messages_are_one_input() -> None:
    messages = [{"role": "user", "content": "x"}]
    for kind in ("embd", "classify", "pool"):
        assert len(reply(kind, {"messages": messages})["data"]) == 1


def test_the_best_document_comes_first_and_the_query_counts_with_each() -> None:
    got = reply("rerank", {"query": "red fox", "documents": DOCUMENTS, "top_n": 2})
    assert [(row["index"], row["relevance_score"]) for row in got["results"]] == [(1, 1.0), (2, 0.5)]
    assert got["usage"] == {"prompt_tokens": 12, "total_tokens": 12}


def test_sglang_answers_with_a_list() -> None:
    got = reply("rerank", {"query": "red fox", "documents": DOCUMENTS}, "sglang")
    assert [row["index"] for row in got] == [1, 2, 0]
    assert sum(row["meta_info"]["prompt_tokens"] for row in got) == 12


def test_a_document_that_is_no_text_is_refused_as_vllm_does() -> None:
    with pytest.raises(ErrorAnswer):
        reply("rerank", {"query": "q", "documents": [{"text": "a"}]})


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents")])
def test_scores_of_one_against_many_and_of_pairs(names: tuple[str, str]) -> None:
    one = reply("score", {names[0]: "red fox", names[1]: DOCUMENTS})
    assert [row["score"] for row in one["data"]] == [0.0, 1.0, 0.5]
    pairs = reply("score", {names[0]: ["cat", "dog"], names[1]: ["a cat", "a cat"]})
    assert [row["score"] for row in pairs["data"]] == [1.0, 0.0]
    with pytest.raises(ErrorAnswer, match="Input lengths"):
        reply("score", {names[0]: ["a", "b"], names[1]: ["a"]})


def test_the_probabilities_of_all_classes() -> None:
    for row in reply("classify", {"input": ["a", "b"]})["data"]:
        assert row["num_classes"] == len(row["probs"]) == len(LABELS)
        assert sum(row["probs"]) == pytest.approx(1.0, abs=1e-5)
        assert row["label"] == LABELS[row["probs"].index(max(row["probs"]))]


def test_without_usage() -> None:
    assert "usage" not in reply("score", {"text_1": "a", "text_2": "b"}, fault="no_usage")
    assert "meta_info" not in reply("rerank", {"query": "a", "documents": ["b"]}, "sglang", "no_usage")[0]
    assert reply("pool", {"input": "a"}, fault="plain_error_200")["error"]["code"] == 500


def test_no_word_matches_nothing() -> None:
    assert overlap("?", "a") == 0.0


def test_sglang_has_fewer_paths() -> None:
    assert PATHS["sglang"].keys() - PATHS["vllm"].keys() == {"/v1/classify"}
    assert "/v1/score" not in PATHS["sglang"]


def test_a_pair_that_is_too_long_is_refused() -> None:
    with pytest.raises(ErrorAnswer, match="maximum context length is 3 tokens"):
        pooled("score", "vllm", {"text_1": "red fox", "text_2": ["a", "the red fox"]}, HEAD, longest=3)
