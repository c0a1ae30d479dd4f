"""Answers that are judged for metrics: whatever an engine sends, they are judged without an error, the same however they are cut, and a
number that is counted is finite."""

import math
from pathlib import Path
from typing import Any

import pytest

from gateway.telemetry.answer_samples import KEPT_BYTES, MOST_NATS, AnswerTap, judged
from tests.fuzz.mutation import Target, cut

PIECES = [
    b"data: ",
    b"data:",
    b"\n\n",
    b"[DONE]",
    b"null",
    b"\xff",
    b"\0",
    b"\\ud800",
    b'"logprob":-9999.0',
    b'"logprob":1e400',
    b'"logprob":-1e308,',
    b'"token_logprobs":[',
    b'"choices":[',
    b'{"delta":{"content":"',
    b'"message":',
    b'"text":null',
    b"[" * 500,
    b"{" * 500,
    b"x" * KEPT_BYTES,
]
ANSWERS = Target("answers", PIECES)


def seen(text: str) -> str | None:
    return text[:20] or None


def judge(chunks: list[bytes]) -> Any:
    taken: list[list[bytes]] = []
    tap = AnswerTap(taken.append)
    assert b"".join([tap.feed(chunk) for chunk in chunks]) == b"".join(chunks), "nothing of an answer is changed"
    assert tap.end() == b""
    assert sum(map(len, taken[0])) <= KEPT_BYTES
    return judged(taken[0], seen)


def answer(data: bytes) -> str:
    whole = judge([data])
    assert whole.language is not None
    assert whole.nats is None or (math.isfinite(whole.nats) and 0.0 <= whole.nats <= MOST_NATS)
    for chunks in cut(data):
        assert judge(chunks) == whole
    return "silent" if not whole.language else "ok" if whole.nats is None else "ok with log-probabilities"


@pytest.mark.parametrize("path", ANSWERS.corpus, ids=lambda p: p.stem)
def test_corpus(path: Path) -> None:
    answer(path.read_bytes())


def test_answers_are_judged_however_they_are_cut(record_property: Any) -> None:
    record_property("figure", ANSWERS.run(answer, 500))
