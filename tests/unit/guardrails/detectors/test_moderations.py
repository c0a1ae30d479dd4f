"""A moderations endpoint: its published reply is read as decisions and scores, and nothing else is read at all."""

import json
from typing import Any

import pytest

from guardrails.detectors.asking import TextRefused
from guardrails.detectors.moderations import Moderations
from guardrails.ports import DetectorAway


def reply(flagged: bool, categories: dict[str, Any], scores: dict[str, Any] | None = None) -> dict[str, Any]:
    """In the members of OpenAI's documentation."""
    result = {
        "flagged": flagged,
        "categories": categories,
        "category_scores": scores or {},
        "category_applied_input_types": {"hate": ["text"]},
    }
    return {"id": "modr-1", "model": "omni-moderation-latest", "results": [result]}


class Endpoint:
    def __init__(self, said: Any, status: int = 200) -> None:
        self.body: dict[str, Any] = {}
        self._said, self._status = said, status

    async def post(self, body: bytes) -> tuple[int, bytes]:
        self.body = json.loads(body)
        if isinstance(self._said, Exception):
            raise self._said
        return self._status, self._said if isinstance(self._said, bytes) else json.dumps(self._said).encode()


async def test_flagged_categories_are_decisions_and_the_others_have_their_scores() -> None:
    endpoint = Endpoint(
        reply(True, {"hate": False, "violence": True, "self-harm/intent": False}, {"hate": 0.2, "violence": 0.97, "self-harm/intent": 3e-4})
    )
    found = await Moderations(endpoint.post, "omni-moderation-latest").detect("some text", "input", "acme")
    assert [(one.kind, one.score, one.decided) for one in found] == [
        ("hate", 0.2, False),
        ("violence", 0.97, True),
        ("self-harm/intent", 3e-4, False),
    ]
    assert all((one.begin, one.end) == (0, 9) for one in found)
    assert endpoint.body == {"input": "some text", "model": "omni-moderation-latest"}


async def test_without_scores_a_decision_is_sure() -> None:
    endpoint = Endpoint(reply(True, {"hate": True, "violence": None, "self harm": False}))
    found = await Moderations(endpoint.post).detect("t", "input", "acme")
    assert [(one.kind, one.score, one.decided) for one in found] == [
        ("hate", 1.0, True),
        ("violence", 0.0, False),
        ("self_harm", 0.0, False),
    ]
    assert endpoint.body == {"input": "t"}


async def test_a_text_that_is_flagged_for_no_category_is_flagged() -> None:
    found = await Moderations(Endpoint(reply(True, {"hate": False}, {"hate": 0.1})).post).detect("t", "input", "acme")
    assert [(one.kind, one.decided) for one in found] == [("hate", False), ("flagged", True)]


@pytest.mark.parametrize(
    "said",
    [
        b"{",
        b"{}",
        {"results": []},
        {"results": [{"flagged": False}]},
        {"results": [{"categories": {}}]},
        {"results": [reply(False, {})["results"][0]] * 2},
        reply(True, {"hate": True}, {"hate": 7}),
        reply(True, {"hate": True}, {"hate": -0.1}),
        reply(True, {"hate": "yes"}),
        reply(True, {"": True}),
        reply(True, {"h" * 65: True}),
        reply(True, {"h\u00e4te": True}),
    ],
)
async def test_another_reply_is_unreadable(said: Any) -> None:
    with pytest.raises(DetectorAway, match=r"^unreadable$"):
        await Moderations(Endpoint(said).post).detect("t", "input", "acme")


async def test_statuses() -> None:
    for status in (400, 413, 422):
        with pytest.raises(TextRefused):
            await Moderations(Endpoint(reply(False, {}), status).post).detect("t", "input", "acme")
    for endpoint in (Endpoint(reply(False, {}), 429), Endpoint(reply(False, {}), 500), Endpoint(OSError("away"))):
        with pytest.raises(DetectorAway, match=r"^error$") as away:
            await Moderations(endpoint.post).detect("t", "input", "acme")
        assert not isinstance(away.value, TextRefused)
