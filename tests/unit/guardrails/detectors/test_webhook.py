"""A webhook as a detector: its message, and answers that are read strictly, because `redact` cuts where they say."""

import json
from typing import Any

import pytest

from guardrails.detectors.asking import MAX_FOUND
from guardrails.detectors.webhook import Webhook
from guardrails.ports import Detected, DetectorAway


class Receiver:
    def __init__(self, said: Any) -> None:
        self.message: dict[str, Any] = {}
        self._said = said

    async def post(self, body: bytes) -> tuple[int, bytes]:
        self.message = json.loads(body)
        return 200, self._said if isinstance(self._said, bytes) else json.dumps(self._said).encode()


def one(**fields: Any) -> dict[str, Any]:
    return {"findings": [{"kind": "code_name", **fields}]}


async def test_a_message_has_text_direction_and_tenant_and_its_answer_has_places() -> None:
    receiver = Receiver({"findings": [{"kind": "code_name", "score": 0.8, "begin": 3, "end": 9}, {"kind": "tone"}]})
    found = await Webhook(receiver.post).detect("\U0001f600 a Falcon", "output", "acme")
    assert receiver.message == {"text": "\U0001f600 a Falcon", "direction": "output", "tenant": "acme"}
    assert found == [Detected("code_name", 0.8, 3, 9), Detected("tone", 1.0, 0, 10)]


async def test_an_answer_without_findings() -> None:
    assert await Webhook(Receiver({"findings": []}).post).detect("t", "input", "acme") == []


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"ok",
        {},
        [],
        {"findings": None},
        {"findings": {}},
        {"finding": []},
        {"findings": [], "allow": True},
        one(score=1.2),
        one(score=-1),
        one(score="high"),
        one(begin=0, end=11),
        one(begin=-1, end=2),
        one(begin=2, end=2),
        one(begin=3, end=2),
        one(begin=1),
        one(end=1),
        one(begin=0.5, end=1),
        one(begin=2**63, end=2**64),
        one(severity="high"),
        {"findings": [{"score": 1}]},
        {"findings": [{"kind": ""}]},
        {"findings": [{"kind": "x" * 65}]},
        {"findings": [{"kind": "a\nb"}]},
        {"findings": [{"kind": "t"}] * (MAX_FOUND + 1)},
    ],
)
async def test_another_answer_is_unreadable(said: Any) -> None:
    with pytest.raises(DetectorAway, match=r"^unreadable$"):
        await Webhook(Receiver(said).post).detect("0123456789", "input", "acme")
