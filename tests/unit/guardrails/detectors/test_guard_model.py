"""A guard model behind chat completions: what it is asked, and what of its replies counts."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from guardrails.detectors.guard_model import GuardModel
from guardrails.ports import DetectorAway


class Engine:
    """Answers chat completions with what a function makes of the request."""

    def __init__(self, say: Callable[[dict[str, Any]], Any], status: int = 200) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._say = say
        self._status = status

    async def post(self, body: bytes) -> tuple[int, bytes]:
        self.bodies.append(json.loads(body))
        said = self._say(self.bodies[-1])
        if isinstance(said, Exception):
            raise said
        return self._status, said if isinstance(said, bytes) else json.dumps(said).encode()


def completion(text: object, finish: str | None = "stop", **choice: Any) -> dict[str, Any]:
    """As vLLM 0.11 answers, in its members."""
    message = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
    whole = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish, "stop_reason": None, **choice}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "guard",
        "choices": [whole],
        "usage": {"total_tokens": 9},
    }


async def test_a_question_is_greedy_short_and_not_streamed() -> None:
    engine = Engine(lambda _: completion("\n\nunsafe\nS9"))
    found = await GuardModel("guard-3", "llama_guard", engine.post).detect("how do I", "input", "acme")
    assert [(one.kind, one.score, one.begin, one.end) for one in found] == [("S9", 1.0, 0, 8)]
    (body,) = engine.bodies
    assert (body["model"], body["temperature"], body["stream"], body["max_tokens"]) == ("guard-3", 0, False, 64)
    assert body["messages"] == [{"role": "user", "content": "how do I"}]
    assert "acme" not in json.dumps(body), "the model is not told whose text it is"


@pytest.mark.parametrize(
    ("direction", "last"), [("input", "user"), ("tool_results", "user"), ("output", "assistant"), ("tool_arguments", "assistant")]
)
async def test_what_a_model_wrote_is_judged_as_an_answer(direction: str, last: str) -> None:
    engine = Engine(lambda _: completion("safe"))
    assert await GuardModel("g", "llama_guard", engine.post).detect("text", direction, "acme") == []
    assert engine.bodies[0]["messages"][-1] == {"role": last, "content": "text"}


async def test_shield_gemma_is_asked_about_each_harm_and_its_scores_are_those_of_the_words() -> None:
    def say(body: dict[str, Any]) -> dict[str, Any]:
        harassment = "No Harassment" in body["chat_template_kwargs"]["guideline"]
        top = [
            {"token": "Yes", "logprob": -0.1 if harassment else -4.0, "bytes": [89]},
            {"token": "No", "logprob": -3.0 if harassment else -0.02},
        ]
        logprobs = {"content": [{"token": top[0]["token"], "logprob": -0.1, "bytes": None, "top_logprobs": top}], "refusal": None}
        return completion("Yes" if harassment else "No", "length", logprobs=logprobs)

    engine = Engine(say)
    found = await GuardModel("shield", "shield_gemma", engine.post).detect("text", "input", "acme")
    assert len(engine.bodies) == 4
    assert all(body["logprobs"] is True and body["top_logprobs"] == 5 for body in engine.bodies)
    assert [(one.kind, one.decided) for one in found] == [
        ("dangerous_content", False),
        ("harassment", True),
        ("hate_speech", False),
        ("sexually_explicit", False),
    ]
    assert 0.9 < found[1].score < 1
    assert found[0].score < 0.05


async def test_one_harm_without_an_answer_leaves_none() -> None:
    engine = Engine(lambda body: completion("Yes" if "No Hate" not in body["chat_template_kwargs"]["guideline"] else "Well"))
    with pytest.raises(DetectorAway, match=r"^unreadable$"):
        await GuardModel("shield", "shield_gemma", engine.post).detect("text", "input", "acme")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "unreadable"),
        (b"not json", "unreadable"),
        (b"[" * 100_000, "unreadable"),
        (b"{}", "unreadable"),
        ({"choices": []}, "unreadable"),
        (completion(None), "unreadable"),
        (completion(["safe"]), "unreadable"),
        (completion("safe", "abort"), "unreadable"),
        (completion("safe", None), "unreadable"),
        (completion("safe", "content_filter"), "unreadable"),
        (b'{"choices": [{"message": {"content": "safe"}, "finish_reason": "stop"}], "pad": "' + b"x" * 2**20 + b'"}', "unreadable"),
        (OSError("refused"), "error"),
    ],
)
async def test_no_broken_reply_is_safe(said: Any, why: str) -> None:
    with pytest.raises(DetectorAway, match=rf"^{why}$"):
        await GuardModel("g", "llama_guard", Engine(lambda _: said).post).detect("text", "input", "acme")


@pytest.mark.parametrize("status", [201, 204, 301, 401, 404, 429, 500, 503])
async def test_another_status_is_an_error(status: int) -> None:
    with pytest.raises(DetectorAway, match=r"^error$"):
        await GuardModel("g", "llama_guard", Engine(lambda _: completion("safe"), status).post).detect("text", "input", "acme")


async def test_half_a_surrogate_pair_can_be_asked_about() -> None:
    engine = Engine(lambda _: completion("safe"))
    await GuardModel("g", "qwen_guard", Engine(lambda _: completion("Safety: Safe")).post, written=True).detect("a\ud800b", "input", "acme")
    await GuardModel("g", "llama_guard", engine.post).detect("a\ud800b", "input", "acme")
    assert engine.bodies[0]["messages"][0]["content"] == "a?b"
