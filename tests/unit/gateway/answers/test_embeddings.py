"""Embeddings in the cache, input by input."""

from typing import Any

import msgspec
import pytest

from cache.answers import Answer
from domain.ask import Ask, Endpoint
from domain.usage import Usage
from gateway.answers.embeddings import (
    MAX_MERGED_BYTES,
    KnownInputs,
    MergeTap,
    asking_for,
    inputs_of,
    known_reply,
    merged_reply,
    shares,
    vectors_of,
)
from gateway.http.openai import interpret


def ask(value: Any, **fields: Any) -> Ask:
    return interpret(Endpoint.EMBEDDINGS, msgspec.json.encode({"model": "m", "input": value, **fields}))


def answer(vector: str, tokens: int = 3) -> Answer:
    return Answer("acme", b"k", vector.encode(), Usage(tokens, 0), "m", 0.0, 9.0)


def engine_reply(*vectors: Any, tokens: int = 5, order: list[int] | None = None) -> bytes:
    data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(vectors)]
    return msgspec.json.encode(
        {
            "id": "embd-1",
            "object": "list",
            "model": "m",
            "data": [data[at] for at in order or range(len(data))],
            "usage": {"prompt_tokens": tokens},
        }
    )


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        ("hi", [b'"hi"']),
        (["hi"], [b'"hi"']),
        (["a", "b"], [b'"a"', b'"b"']),
        ([1, 2], [b"[1,2]"]),
        ([[1, 2], [3]], [b"[1,2]", b"[3]"]),
    ],
)
def test_an_input_is_a_text_or_a_list_of_token_ids(value: Any, inputs: list[bytes]) -> None:
    assert inputs_of(ask(value)) == inputs


def test_the_request_for_some_inputs_is_that_request_otherwise() -> None:
    whole = ask([[1, 2], [3]], dimensions=8)
    part = asking_for(whole, [b"[3]"])
    assert msgspec.json.decode(part.fields) == {"input": [[3]], "dimensions": 8}
    assert (part.prompt, part.token_ids) == (b"[[3]]", 1)
    assert part.prompt_bytes <= whole.prompt_bytes


def test_known_vectors_stand_where_their_inputs_stood() -> None:
    known = KnownInputs([b'"a"', b'"b"', b'"c"', b'"b"'], [b"1", b"2", b"3", b"2"], [answer("[0.5]"), None, answer("[0.25]"), None])
    assert known.wanted == [b'"b"']
    reply = msgspec.json.decode(merged_reply(known, engine_reply([0.125])) or b"")
    assert [item["embedding"] for item in reply["data"]] == [[0.5], [0.125], [0.25], [0.125]]
    assert [item["index"] for item in reply["data"]] == [0, 1, 2, 3]
    assert (reply["id"], reply["usage"]["prompt_tokens"], reply["usage"]["prompt_tokens_details"]) == ("embd-1", 11, {"cached_tokens": 6})


def test_engines_may_send_vectors_in_any_order() -> None:
    read = vectors_of(engine_reply([1], [2], [3], order=[2, 0, 1]), 3)
    assert read == [b"[1]", b"[2]", b"[3]"]


@pytest.mark.parametrize(
    "reply",
    [
        b"{",
        b'{"data":[]}',
        engine_reply([1]),
        engine_reply([1], [2], [3]),
        b'{"data":[{"index":0,"embedding":[1]},{"index":0,"embedding":[1]}]}',
    ],
)
def test_a_reply_without_just_one_vector_for_each_input_is_not_merged(reply: bytes) -> None:
    assert vectors_of(reply, 2) is None
    tap = MergeTap(KnownInputs([b'"a"', b'"b"', b'"c"'], [b"1", b"2", b"3"], [None, None, answer("[1]")]))
    assert tap.feed(reply) == b""
    assert tap.end() == b""
    assert tap.fault is not None


def test_the_numbers_of_a_vector_are_kept_as_the_engine_wrote_them() -> None:
    (vector,) = vectors_of(b'{"data":[{"index":0,"embedding":[1e-9, 0.10000000000000001]}]}', 1) or []
    assert b'"embedding":[1e-9, 0.10000000000000001]' in known_reply(KnownInputs([b'"a"'], [b"1"], [answer(vector.decode())]), "m")


def test_an_engine_is_asked_for_all_where_the_rest_would_not_fit_in_memory() -> None:
    inputs = [b'"%d"' % at for at in range(1000)]
    long = answer("[" + "1," * 60_000 + "1]")
    known = KnownInputs(inputs, inputs, [long, *[None] * 999])
    assert 999 * len(long.document) > MAX_MERGED_BYTES
    assert not known.is_worth_merging


def test_shares_sum_up_to_what_the_engine_reported() -> None:
    assert shares(10, [b"aaaa", b"a", b"aaaaa"]) == [4, 1, 5]
    assert sum(shares(7, [b"ab"] * 5)) == 7
