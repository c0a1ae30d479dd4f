"""Answers on their way through guard rules: rules from what a policy says, engines' events and replies, and what a caller puts together."""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from domain.ask import Ask, Endpoint
from gateway.guards.reply_detectors import ReplyDetectors
from gateway.guards.reply_parts import OwnIndex, Path, place, texts
from gateway.http.edge.reply_chain import ReplyChain
from gateway.http.edge.taps import PlainTap, StreamTap, taps_for
from gateway.http.openai import interpret
from gateway.story import Story
from guardrails.guard_set import GuardSet
from guardrails.placeholders import Placeholders
from guardrails.policy import GuardPolicy
from guardrails.ports import Detected
from tests.stories import with_facts

DONE = b"data: [DONE]\n\n"
HELD_BYTES = 64 * 1024

CONTENT: Path = ("delta", "content")
REASONING: Path = ("delta", "reasoning_content")
REFUSAL: Path = ("delta", "refusal")
TRANSCRIPT: Path = ("delta", "audio", "transcript")
VENDOR: Path = ("delta", "thinking_out_loud")
TEXT: Path = ("text",)


def arguments(call: int) -> Path:
    return ("delta", "tool_calls", OwnIndex(call), "function", "arguments")


def guards(*rules: dict[str, Any], held_bytes: int = HELD_BYTES) -> GuardSet:
    """Rules that look at answers and at arguments of tools, unless they say otherwise."""
    written = [{"id": f"r{at}", "on": ["output", "tool_arguments"], **rule} for at, rule in enumerate(rules)]
    return GuardSet(GuardPolicy.model_validate({"rules": written}).rules, held_bytes)


def asked(endpoint: Endpoint = Endpoint.CHAT, *, stream: bool = True, choices: int = 1, usage: bool = False, **more: Any) -> Ask:
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if endpoint.has_messages else {"prompt": "hi"}
    options = {"stream_options": {"include_usage": True}} if usage else {}
    body = {"model": "m", **prompt, "n": choices, **({"stream": True, **options} if stream else {}), **more}
    return interpret(endpoint, msgspec.json.encode(body))


def event(endpoint: Endpoint, index: int, path: Path | None = None, text: str = "", *, finish: str | None = None, **more: Any) -> bytes:
    """One event of an engine, with one text or none."""
    part: dict[str, Any] = {"index": index, **({"delta": {}} if endpoint.has_messages else {"text": ""})}
    if path is not None:
        place(part, path, text, None)
    part |= {"logprobs": None, "finish_reason": finish}
    kind = "chat.completion.chunk" if endpoint.has_messages else "text_completion"
    return b"data: %b\n\n" % msgspec.json.encode({"id": "c", "object": kind, "created": 1, "model": "m", "choices": [part], **more})


def role(index: int = 0) -> bytes:
    return event(Endpoint.CHAT, index, ("delta", "role"), "assistant")


def usage_event(prompt: int, completion: int) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return b"data: %b\n\n" % msgspec.json.encode({"id": "c", "choices": [], "usage": counts})


async def settled() -> None:
    """Until everything has run that could run."""
    for _ in range(20):
        await asyncio.sleep(0)


class FakeDetector:
    """A detector that finds each match of an expression, and answers when it is let.

    Args:
        kind: of what it finds.
        away: what it raises in place of an answer; None for answers.
    """

    def __init__(self, pattern: str, kind: str = "harm", *, score: float = 1.0, away: Exception | None = None) -> None:
        self._pattern = re.compile(pattern)
        self._kind = kind
        self._score = score
        self._away = away
        self.let = asyncio.Event()
        self.let.set()
        self.asked: list[tuple[str, str, str]] = []
        self.under_way = self.most_under_way = 0

    async def detect(self, text: str, direction: str, tenant: str) -> Sequence[Detected]:
        self.asked.append((text, direction, tenant))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.let.wait()
        finally:
            self.under_way -= 1
        if self._away is not None:
            raise self._away
        return [Detected(self._kind, self._score, *match.span()) for match in self._pattern.finditer(text)]


@dataclass
class Guarded:
    """An answer behind its guard rules."""

    ask: Ask
    guards: GuardSet | None = None
    placeholders: Placeholders | None = None
    detectors: ReplyDetectors | None = None
    clock: Callable[[], float] = field(default_factory=lambda: iter(range(1, 10**9)).__next__)
    story: Story = field(init=False)
    chain: StreamTap | PlainTap | ReplyChain = field(init=False)
    woken: int = field(init=False)
    out: bytes = b""
    """What has gone on, where `fed` was called."""

    def __post_init__(self) -> None:
        self.story = with_facts(Story("r", 0.0, 0.0, 0.0), model="m", guards=self.guards)
        self.story.guarded.placeholders = self.placeholders
        self.chain = taps_for(self.ask, self.story, self.clock, "m", None, detectors=self.detectors)
        self.woken = 0
        if isinstance(self.chain, ReplyChain):
            self.chain.listen(self._more)

    def _more(self) -> None:
        assert isinstance(self.chain, ReplyChain)
        self.woken += 1
        self.out += self.chain.more()

    async def drive(self, stream: bytes, *, end: bool = True) -> bytes:
        """What goes on of an answer whose events come one by one, between which detectors may answer."""
        for one in stream.split(b"\n\n") if self.ask.stream else [stream]:
            if one:
                self.out += self.chain.feed(one + b"\n\n" if self.ask.stream else one)
                await settled()
        if end:
            self.out += self.chain.end()
            await settled()
        return self.out

    def fed(self, stream: bytes, cuts: Iterable[int] = ()) -> bytes:
        """What goes on of an answer that comes in pieces."""
        edges = [0, *cuts, len(stream)]
        self.out = b"".join([self.chain.feed(stream[a:b]) for a, b in pairwise(edges)]) + self.chain.end()
        return self.out


@dataclass
class Seen:
    """What a caller has of one choice."""

    texts: dict[Path, str] = field(default_factory=dict)
    finish: str | None = None


def events_of(stream: bytes) -> Iterator[dict[str, Any]]:
    for one in stream.split(b"\n\n"):
        if one.startswith(b"data: {"):
            yield msgspec.json.decode(one[6:])


def streamed(stream: bytes) -> dict[int, Seen]:
    """What a caller puts together from events, by choice. No event may follow the end of its choice."""
    seen: dict[int, Seen] = {}
    for one in events_of(stream):
        for part in one["choices"]:
            choice = seen.setdefault(part["index"], Seen())
            assert choice.finish is None, "an event behind the end of its choice"
            for text in texts(part):
                choice.texts[text.path] = choice.texts.get(text.path, "") + text.value
            choice.finish = part["finish_reason"]
    return seen


def plain_body(endpoint: Endpoint, choices: Sequence[dict[Path, str]], **more: Any) -> bytes:
    """A plain reply with the texts that a stream would have at these paths."""
    parts = []
    for index, said in enumerate(choices):
        part: dict[str, Any] = {"index": index, "finish_reason": "stop"}
        for path, text in said.items():
            place(part, as_plain(path), text, None)
        if endpoint.has_messages:
            part.setdefault("message", {})["role"] = "assistant"
        parts.append(part)
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    return msgspec.json.encode({"id": "c", "object": "x", "created": 1, "model": "m", "choices": parts, "usage": usage, **more})


def as_plain(path: Path) -> Path:
    """The path of the same text in a plain reply."""
    steps = [step.at if isinstance(step, OwnIndex) else step for step in path]
    return ("message", *steps[1:]) if steps[0] == "delta" else tuple(steps)


def plain(body: bytes) -> dict[int, Seen]:
    """What a caller reads in a plain reply, by choice."""
    reply = msgspec.json.decode(body)
    return {part["index"]: Seen({text.path: text.value for text in texts(part)}, part["finish_reason"]) for part in reply["choices"]}
