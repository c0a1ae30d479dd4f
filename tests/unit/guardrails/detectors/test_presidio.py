"""Presidio's analyzer behind `POST /analyze`, with replies in the members that its service sends."""

import json
from typing import Any

import pytest

from guardrails.detectors.presidio import Presidio
from guardrails.ports import Detected, DetectorAway

TEXT = "My name is Ann Lee and I live in Oslo"
REPLY: list[dict[str, Any]] = [
    {
        "analysis_explanation": None,
        "end": 18,
        "entity_type": "PERSON",
        "score": 0.85,
        "start": 11,
        "recognition_metadata": {"recognizer_name": "Spacy"},
    },
    {"analysis_explanation": None, "end": 37, "entity_type": "LOCATION", "score": 0.6499999999999999, "start": 33},
]


class Service:
    def __init__(self, said: Any, status: int = 200) -> None:
        self.body: dict[str, Any] = {}
        self._said, self._status = said, status

    async def post(self, body: bytes) -> tuple[int, bytes]:
        self.body = json.loads(body)
        return self._status, json.dumps(self._said).encode()


async def test_entities_are_found_at_their_places() -> None:
    service = Service(REPLY)
    found = await Presidio(service.post, "en", ["PERSON", "LOCATION"], 0.4).detect(TEXT, "input", "acme")
    assert found == [Detected("PERSON", 0.85, 11, 18), Detected("LOCATION", 0.6499999999999999, 33, 37)]
    assert [TEXT[one.begin : one.end] for one in found] == ["Ann Lee", "Oslo"]
    assert service.body == {"text": TEXT, "language": "en", "score_threshold": 0.4, "entities": ["PERSON", "LOCATION"]}


async def test_all_entities_are_asked_for_by_naming_none() -> None:
    service = Service([])
    assert await Presidio(service.post, "de").detect(TEXT, "input", "acme") == []
    assert service.body == {"text": TEXT, "language": "de", "score_threshold": 0.5}


async def test_an_empty_text_is_not_asked_about() -> None:
    service = Service({"error": "No text provided"}, 500)
    assert await Presidio(service.post).detect("  \n", "input", "acme") == ()
    assert service.body == {}


@pytest.mark.parametrize(
    "said",
    [
        {"error": "x"},
        {},
        None,
        [{"entity_type": "PERSON"}],
        [{**REPLY[0], "end": 99}],
        [{**REPLY[0], "score": 3}],
        [{**REPLY[0], "start": 18}],
        [[]],
    ],
)
async def test_another_reply_is_unreadable(said: Any) -> None:
    with pytest.raises(DetectorAway, match=r"^unreadable$"):
        await Presidio(Service(said).post).detect(TEXT, "input", "acme")
