"""One stream of the replies of two engines: the text that is kept, and the seam."""

from typing import Any

import msgspec
import pytest

from domain.usage import Usage
from gateway.http.edge.answer_so_far import MOST_CHARS, AnswerSoFar


class Judge:
    """The judging tap in front."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.before = 0

    def go_on(self, before: int) -> None:
        self.before, self.usage = before, None


def made() -> tuple[AnswerSoFar, Judge]:
    so_far, judge = AnswerSoFar(), Judge()
    so_far.judge = judge
    return so_far, judge


def event(delta: dict[str, Any] | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": None, **more.pop("choice", {})}
    return b"data: %b\n\n" % msgspec.json.encode({"id": "a", "created": 7, "choices": [choice], **more})


def test_text_passes_unchanged_and_is_kept() -> None:
    so_far, _ = made()
    whole = b"".join(
        [event({"role": "assistant", "content": ""}), event({"content": "one"}), event({"content": " two", "reasoning_content": None})]
    )
    assert so_far.feed(whole) == whole
    assert (so_far.text, so_far.tokens, so_far.plain, so_far.finished) == ("one two", 2, True, False)
    last = event({}, choice={"finish_reason": "stop"}) + b"data: [DONE]\n\n"
    assert so_far.feed(last) == last
    assert so_far.finished


@pytest.mark.parametrize(
    "delta", [{"reasoning_content": "hm"}, {"reasoning": "hm"}, {"tool_calls": [{"index": 0}]}, {"refusal": "no"}, {"audio": {"id": "x"}}]
)
def test_what_is_no_text_is_told_from_text(delta: dict[str, Any]) -> None:
    so_far, _ = made()
    so_far.feed(event({"content": "one"}) + event(delta) + event({"content": "two"}))
    assert not so_far.plain


def test_an_event_of_another_form_passes_and_is_no_text() -> None:
    so_far, _ = made()
    nothing = event(choice={"delta": None})
    assert so_far.feed(nothing) == nothing
    assert so_far.plain
    strange = event(choice={"delta": ["hm"]})
    assert so_far.feed(strange) == strange
    assert not so_far.plain


def test_a_long_answer_is_not_kept() -> None:
    so_far, _ = made()
    so_far.feed(event({"content": "x" * MOST_CHARS}))
    assert so_far.plain
    so_far.feed(event({"content": "y"}))
    assert (so_far.plain, so_far.text) == (False, "")


def test_behind_a_seam_there_is_no_second_role_and_one_time_of_creation() -> None:
    so_far, judge = made()
    begun: list[bool] = []
    so_far.feed(event({"role": "assistant", "content": ""}) + event({"content": "one"}))
    so_far.go_on(lambda: begun.append(True))
    assert (judge.before, begun) == (1, [])
    assert so_far.feed(event({"role": "assistant", "content": ""}, created=9)) == b""
    assert begun == [True]
    out = so_far.feed(event({"role": "assistant", "content": " two"}, created=9) + event({}, choice={"finish_reason": "stop"}, created=9))
    documents = [msgspec.json.decode(line[6:]) for line in out.split(b"\n\n") if line]
    assert [document["created"] for document in documents] == [7, 7]
    assert [document["choices"][0]["delta"] for document in documents] == [{"content": " two"}, {}]
    assert so_far.feed(b"data: [DONE]\n\n") == b"data: [DONE]\n\n"
    assert (so_far.text, so_far.finished, begun) == ("one two", True, [True])


def test_an_engine_knows_better_how_many_tokens_there_were() -> None:
    so_far, judge = made()
    so_far.feed(event({"content": "one two"}))
    judge.usage = Usage(10, 2)
    assert so_far.tokens == 2
    so_far.go_on(None)
    assert judge.before == 2
