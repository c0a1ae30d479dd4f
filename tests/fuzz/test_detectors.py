"""Answers of detectors' services: findings with sane places and scores, or no answer; and only the published words mean safe."""

import json
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from guardrails.detectors.guard_model import GuardModel
from guardrails.detectors.moderations import Moderations
from guardrails.detectors.presidio import Presidio
from guardrails.detectors.webhook import Webhook
from guardrails.policy import DetectorRule
from guardrails.ports import Detector, DetectorAway
from tests.fuzz.mutation import Target

TEXT = "To Ann Lee, in Oslo \U0001f600"


def chat(text: str) -> bytes:
    return json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}).encode()


SEEDS = [
    chat("safe"),
    chat("\n\nunsafe\nS1,S14"),
    chat("Safety: Unsafe\nCategories: Violent, PII\nRefusal: No"),
    b'{"results":[{"flagged":true,"categories":{"hate":true,"violence":false},"category_scores":{"hate":0.9,"violence":0.1}}]}',
    b'{"findings":[{"kind":"name","score":0.5,"begin":3,"end":10},{"kind":"tone"}]}',
    b'[{"entity_type":"PERSON","start":3,"end":10,"score":0.85},{"entity_type":"LOCATION","start":15,"end":19,"score":0.6}]',
]
PIECES = [
    *(b'"safe"', b'"unsafe\\nS1"', b'"Safety: Safe"', b'"stop"', b'"length"', b'"content"', b'"choices"', b'"findings"', b'"results"'),
    *(b'"kind"', b'"score"', b'"begin"', b'"end"', b'"start"', b'"entity_type"', b'"flagged"', b'"categories"', b'"category_scores"'),
    *(b"[]", b"{}", b"null", b"true", b"false", b'""', b'" "', b'"\\u0000"', b'"\\ud800"', b"\xff", b"[" * 1200, b"0.5", b"2"),
]
ANSWERS = Target("detectors", PIECES, SEEDS)


def done(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def answer(reply: bytes) -> str:
    async def post(_body: bytes) -> tuple[int, bytes]:
        return 200, reply

    services: Mapping[str, Detector] = {
        "llama": GuardModel("m", "llama_guard", post),
        "qwen": GuardModel("m", "qwen_guard", post),
        "moderations": Moderations(post),
        "webhook": Webhook(post),
        "presidio": Presidio(post),
    }
    outcomes = []
    for name, service in services.items():
        try:
            found = done(service.detect(TEXT, "input", "acme"))
        except DetectorAway as away:
            assert str(away) == "unreadable"
            continue
        for one in found:
            assert 0 <= one.begin < one.end <= len(TEXT)
            assert 0 <= one.score <= 1
            DetectorRule.model_validate({"id": "r", "kind": "detector", "mode": "flag", "detector": "d", "categories": [one.kind]})
        if name in ("llama", "qwen") and not any(one.decided for one in found):
            content = json.loads(reply)["choices"][0]["message"]["content"].strip().lower()
            assert content == "safe" or content.startswith("safety:"), "nothing but the published words is safe"
        outcomes.append(f"{name} {min(len(found), 2)}")
    return f"ok {' '.join(outcomes)}" if outcomes else "unreadable"


@pytest.mark.parametrize("path", ANSWERS.corpus, ids=lambda p: p.stem)
def test_corpus(path: Path) -> None:
    answer(path.read_bytes())


def test_answers_are_sane_or_none(record_property: Any) -> None:
    record_property("figure", ANSWERS.run(answer, 3_000))
