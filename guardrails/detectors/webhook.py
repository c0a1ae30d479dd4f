"""A classifier of the operator's own behind a URL: a signed message for each text, with findings as the answer.

The message is `{"text", "direction", "tenant"}`, the answer `{"findings": [{"kind", "score", "begin", "end"}]}`; `begin` and `end` count
characters (code points) from the beginning of `text`, and both are left out for what concerns the whole text.
"""

from collections.abc import Sequence

import msgspec

from guardrails.detectors.asking import Post, ask, sendable
from guardrails.detectors.found import few, kind_of, placed, score_of
from guardrails.ports import Detected


class _Finding(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    score: float = 1.0
    begin: int | None = None
    end: int | None = None


class _HookReply(msgspec.Struct, forbid_unknown_fields=True):
    findings: list[_Finding]


_decode = msgspec.json.Decoder(_HookReply).decode


class Webhook:
    """`guardrails.ports.Detector` over a webhook.

    Args:
        post: signs and sends a message.
    """

    def __init__(self, post: Post) -> None:
        self._post = post

    async def detect(self, text: str, direction: str, tenant: str) -> Sequence[Detected]:
        """As the port."""
        message = {"text": sendable(text), "direction": direction, "tenant": tenant}

        def read(reply: bytes) -> list[Detected]:
            findings = _decode(reply).findings
            few(len(findings))
            return [_detected(one, len(text)) for one in findings]

        return await ask(self._post, message, read)


def _detected(one: _Finding, length: int) -> Detected:
    """A finding of a text of `length` characters. Raises ValueError."""
    if one.begin is None and one.end is None:
        return Detected(kind_of(one.kind), score_of(one.score), 0, length)
    if one.begin is None or one.end is None:
        raise ValueError("has a finding with half a place")
    return placed(one.kind, one.score, one.begin, one.end, length)
