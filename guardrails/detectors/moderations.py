"""A moderations endpoint in OpenAI's form, of this fleet or of somebody else: categories with scores, about the whole text."""

from collections.abc import Sequence

import msgspec

from guardrails.detectors.asking import Post, ask, sendable
from guardrails.detectors.found import few, kind_of, score_of
from guardrails.ports import Detected


class _Result(msgspec.Struct):
    flagged: bool
    categories: dict[str, bool | None]
    category_scores: dict[str, float | None] = {}


class _ModerationReply(msgspec.Struct):
    results: list[_Result]


_decode = msgspec.json.Decoder(_ModerationReply).decode


class Moderations:
    """`guardrails.ports.Detector` over `POST /v1/moderations`.

    Args:
        post: sends a request to the endpoint.
        model: the moderation model; None for the endpoint's own choice.
    """

    def __init__(self, post: Post, model: str | None = None) -> None:
        self._post = post
        self._model = model

    async def detect(self, text: str, direction: str, tenant: str) -> Sequence[Detected]:
        """As the port. Categories that the endpoint does not flag have their scores and are no decisions."""
        question = {"input": sendable(text)} | ({} if self._model is None else {"model": self._model})
        result = await ask(self._post, question, _one_result)
        found = []
        for category, flagged in result.categories.items():
            score = result.category_scores.get(category)
            score = (1.0 if flagged else 0.0) if score is None else score
            found.append(Detected(kind_of(category), score, 0, len(text), bool(flagged)))
        if result.flagged and not any(one.decided for one in found):
            found.append(Detected("flagged", 1.0, 0, len(text)))
        return found


def _one_result(reply: bytes) -> _Result:
    """The only result of a reply. Raises ValueError (msgspec's errors are some)."""
    results = _decode(reply).results
    if len(results) != 1:
        raise ValueError("has no result, or several")
    for score in results[0].category_scores.values():
        score_of(score or 0.0)
    for category in results[0].categories:
        kind_of(category)
    few(len(results[0].categories))
    return results[0]
