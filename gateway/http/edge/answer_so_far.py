"""What a stream has said so far, so that another engine can go on with it when its engine is lost.

`AnswerSoFar` stands right behind the judging tap of an attempt (`taps.py`) whose pool has `continue_streams`. It keeps the text while it
passes, and when the answer goes on with another engine's reply, it makes one stream of the two: without a second role, with one time of
creation. `gateway.request.continuation` decides whether the answer goes on, and writes the call. The judging tap adds up the usage.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from backends.sse import EventSplitter
from domain.faults import Fault
from domain.usage import Usage

MOST_CHARS: Final = 262_144
"""Characters that are kept of an answer, some 60,000 tokens; a longer one does not go on."""

_SILENT: Final = frozenset({"role", "content"})


class JudgesStream(Protocol):
    """The judging tap of the stream."""

    @property
    def usage(self) -> Usage | None:
        """The usage that the engine reported last."""
        ...

    def go_on(self, before: int) -> None:
        """Expect another engine's reply, after `before` output tokens."""
        ...


class SpokenChoice(msgspec.Struct, gc=False):
    """The choice of an event."""

    delta: dict[str, Any] | None = None
    text: str | None = None
    finish_reason: str | None = None


class SpokenEvent(msgspec.Struct, gc=False):
    """An event of a stream, as far as its text is concerned."""

    choices: list[SpokenChoice] = []
    created: int | None = None


_decode: Final = msgspec.json.Decoder(SpokenEvent).decode


class AnswerSoFar:
    """The text of an answer with one choice, and the seam between the replies of two engines. A tap that is never over."""

    __slots__ = ("_chars", "_created", "_on_begun", "_pieces", "_seam", "_splitter", "_told", "finished", "judge", "plain")

    over: Final = False
    fault: Final[Fault | None] = None

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._chars = 0
        self._created: int | None = None
        self._splitter = EventSplitter()
        self._seam = False
        self._on_begun: Callable[[], None] | None = None
        self._told = 0
        self.judge: JudgesStream | None = None
        """The tap in front of this one."""
        self.plain = True
        """Whether everything said so far is the text of the answer, and all of it is kept: no reasoning, no call of a tool."""
        self.finished = False
        """Whether the answer has its finish reason, so that only its end is missing."""

    @property
    def text(self) -> str:
        """What the answer has said so far."""
        return "".join(self._pieces)

    @property
    def tokens(self) -> int:
        """Output tokens so far: as an engine said last, or one for each event with text, since engines make one of each token or two."""
        usage = None if self.judge is None else self.judge.usage
        return self._told if usage is None else usage.completion_tokens

    def go_on(self, on_begun: Callable[[], None] | None) -> None:
        """Expect another engine's reply, which goes on from here.

        Args:
            on_begun: called at its first event.
        """
        assert self.judge is not None
        self.judge.go_on(self.tokens)
        self._seam = True
        self._splitter = EventSplitter()
        self._on_begun = on_begun

    def feed(self, data: bytes) -> bytes:
        """Whole events in; the same out, or behind a seam the events as those of the first reply."""
        lone = self._splitter.lone(data)
        payloads = self._splitter.feed(data) if lone is None else (lone,)
        if not self._seam:
            for payload in payloads:
                self._keep(payload)
            return data
        if payloads and self._on_begun is not None:
            begun, self._on_begun = self._on_begun, None
            begun()
        return b"".join([self._joined(payload) for payload in payloads])

    def end(self) -> bytes:
        """Nothing is ever held."""
        return b""

    def _keep(self, payload: bytes) -> None:
        if payload.strip() == b"[DONE]":
            return
        try:
            event = _decode(payload)
        except msgspec.DecodeError:  # the judging tap has taken it, and looks at less of it
            self.plain = False
            return
        self._created = self._created or event.created
        for choice in event.choices:
            self._said(choice)

    def _said(self, choice: SpokenChoice) -> None:
        delta = choice.delta or {}
        said = choice.text or delta.get("content")
        if choice.finish_reason:
            self.finished = True
        if any(value for name, value in delta.items() if name not in _SILENT):
            self.plain = False
        if not said or not isinstance(said, str):
            return
        self._told += 1
        self._chars += len(said)
        if self._chars > MOST_CHARS:
            self.plain = False
            self._pieces.clear()
        if self.plain:
            self._pieces.append(said)

    def _joined(self, payload: bytes) -> bytes:
        """An event of a later reply as one of the first."""
        if payload.strip() == b"[DONE]":
            return b"data: %b\n\n" % payload
        self._keep(payload)
        document: dict[str, Any] = msgspec.json.decode(payload)
        if self._created is not None and "created" in document:
            document["created"] = self._created
        choices = document.get("choices") or []
        for choice in choices:
            delta = choice.get("delta")
            if delta is None:
                continue
            role = delta.pop("role", None)
            if role is not None and not any(delta.values()) and not choice.get("finish_reason") and document.get("usage") is None:
                return b""
        return b"data: %b\n\n" % msgspec.json.encode(document)
