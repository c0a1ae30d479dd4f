"""The input file of a batch: its checks and its order."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.ask import Endpoint
from gateway.batches.input_lines import MAX_LINE_BYTES, MAX_MISTAKES, InputLine, InputReader, body_of, left


def line(custom_id: str = "a", prompt: str = "hi", **changes: Any) -> bytes:
    chat = {"model": "m", "messages": [{"role": "user", "content": prompt}], **changes.pop("body", {})}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": chat, **changes}).encode()


def read(data: bytes, cuts: Iterable[int] = (), most: int = 100) -> tuple[InputReader, list[InputLine]]:
    reader = InputReader(Endpoint.CHAT.path, most)
    begin = 0
    for end in (*sorted(cuts), len(data)):
        reader.feed(data[begin:end])
        begin = end
    return reader, reader.end()


def test_lines_are_found_again_by_their_place() -> None:
    data = b"\n".join((line("a"), b"", line("b", "ho"), b"  ")) + b"\r\n"
    reader, lines = read(data)
    assert reader.mistakes == [] and reader.model == "m"
    assert {one.custom_id: json.loads(data[one.start : one.start + one.length])["custom_id"] for one in lines} == {"a": "a", "b": "b"}
    assert json.loads(body_of(data[lines[0].start : lines[0].start + lines[0].length]))["model"] == "m"
    assert [one.number for one in left(lines, {0})] == [1]


@given(st.lists(st.integers(0, 400), max_size=8))
def test_pieces_of_any_size_say_the_same(cuts: list[int]) -> None:
    data = b"\n".join(line(f"{at}", "x" * at) for at in range(5))
    assert read(data, (min(cut, len(data)) for cut in cuts))[1] == read(data)[1]


def test_lines_with_the_same_beginning_stand_together() -> None:
    data = b"\n".join(line(f"{at}", f"prompt {at % 3}") for at in range(9))
    _, lines = read(data)
    assert [one.number for one in lines] == [0, 3, 6, 1, 4, 7, 2, 5, 8]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (b"{", "invalid_json_line"),
        (b"\xff", "invalid_json_line"),
        (b"[]", "invalid_request"),
        (b"{}", "invalid_request"),
        (line("first"), "duplicate_custom_id"),
        (line(""), "invalid_custom_id"),
        (line("x" * 513), "invalid_custom_id"),
        (line(method="GET"), "invalid_method"),
        (line(url="/v1/embeddings"), "mismatched_url"),
        (line(body={"model": "other"}), "mismatched_model"),
        (line(body={"model": 1}), "invalid_body"),
        (line(body={"stream": True}), "invalid_stream"),
        (b"x" * (MAX_LINE_BYTES + 1), "line_too_long"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_mistake_has_a_code_and_its_line(wrong: bytes, code: str) -> None:
    reader, _ = read(line("first") + b"\n" + wrong)
    assert [(mistake.code, mistake.line) for mistake in reader.mistakes] == [(code, 2)]


def test_a_line_that_is_too_long_is_one_mistake_however_it_comes() -> None:
    data = b"x" * (3 * MAX_LINE_BYTES) + b"\n" + line("a") + b"\n{"
    reader, _ = read(data, range(0, len(data), MAX_LINE_BYTES))
    assert [(mistake.code, mistake.line) for mistake in reader.mistakes] == [("line_too_long", 1), ("invalid_json_line", 3)]


def test_a_file_has_lines_and_not_too_many() -> None:
    assert [mistake.code for mistake in read(b"\n\n")[0].mistakes] == ["empty_file"]
    many = b"\n".join(line(f"{at}") for at in range(5))
    assert [(mistake.code, mistake.line) for mistake in read(many, most=3)[0].mistakes] == [("too_many_requests", 4)]
    assert read(many, most=5)[0].mistakes == []
    assert len(read(b"x\n" * 500)[0].mistakes) == MAX_MISTAKES
