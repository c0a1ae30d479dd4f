"""Guard rules on requests: what they refuse and change, what is asked of detectors and when, and what a long conversation costs."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from domain.ask import Ask, Endpoint
from domain.faults import Kind
from gateway.deps import Deps
from gateway.http.openai import interpret
from gateway.request.guard_input import ON_LOOP_BYTES, guard_input, join_guards, leave_guards
from gateway.story import Story
from guardrails.guard_set import GuardSet
from guardrails.policy import GuardPolicy
from guardrails.ports import Detected, DetectorAway
from tests.request_path import Path, fault_of, turns

MAILS = {"id": "mails", "kind": "pii", "types": ["email"], "mode": "redact", "on": ["input", "tool_results"]}
KEYS = {"id": "keys", "kind": "words", "words": ["open sesame"], "mode": "block", "on": ["input", "output"]}
BIRDS = {"id": "birds", "kind": "words", "words": ["bluebird"], "mode": "flag", "on": ["input"]}
SAFE = {"id": "safe", "kind": "detector", "detector": "guard", "mode": "block", "on_error": "closed", "on": ["input"]}


def chat(*contents: str, **members: Any) -> Ask:
    messages = [{"role": "user", "content": content} for content in contents]
    return interpret(Endpoint.CHAT, json.dumps({"model": "sim", "messages": messages, **members}).encode())


def guarded(path: Path, *rules: dict[str, object]) -> Story:
    story = path.story()
    story.asked.guards = GuardSet(GuardPolicy.model_validate({"rules": list(rules)}).rules, 4096)
    return story


def sent(ask: Ask) -> list[str]:
    return [message["content"] for message in json.loads(ask.fields)["messages"]]


class Slow:
    """A detector that answers when it is let, and refuses texts with the word `bad`."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.asked: list[str] = []
        self.left = 0

    async def detect(self, text: str, direction: str, tenant: str) -> Sequence[Detected]:
        self.asked.append(text)
        try:
            await self.let.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        if "away" in text:
            raise DetectorAway("timeout")
        at = text.find("bad")
        return [Detected("hate", 0.9, at, at + 3)] if at >= 0 else []


def with_detector(path: Path) -> tuple[Deps, Slow]:
    slow = Slow()
    return replace(path.deps, detectors={"guard": slow}), slow


async def test_what_no_rule_finds_stays_the_same_ask() -> None:
    path = Path()
    ask, story = chat("nothing here"), guarded(path, MAILS, KEYS)
    assert await guard_input(ask, story, path.deps) is ask
    assert story.guarded.word == "passed"


async def test_a_blocked_text_is_named_by_path_rule_and_kind_and_never_shown() -> None:
    path = Path()
    story = guarded(path, KEYS)
    fault = await fault_of(guard_input(chat("fine", "say Open Sesame"), story, path.deps))
    assert (fault.kind, fault.param) == (Kind.GUARD_BLOCKED, "messages[1].content")
    assert fault.message == "The guard rule 'keys' refuses 'messages[1].content': it contains word. Remove it, and send the request again."
    assert (story.guarded.word, story.guarded.by, story.guarded.direction) == ("block", "keys", "input")
    assert "esame" not in repr(fault)


async def test_everything_behind_sees_the_redacted_prompt() -> None:
    path = Path()
    story = guarded(path, MAILS, BIRDS)
    story.asked.counted = 7
    ask = chat("mail ann@corp.io about the bluebird", "and bob@corp.io")
    changed = await guard_input(ask, story, path.deps)
    assert sent(changed) == ["mail [EMAIL] about the bluebird", "and [EMAIL]"]
    assert story.asked.counted is None, "the count was of the prompt as it came"
    assert json.loads(changed.prompt)[0]["content"] == "mail [EMAIL] about the bluebird"
    assert changed.prompt_bytes == ask.prompt_bytes + len(changed.fields) - len(ask.fields)
    assert story.guarded.counts == {("mails", "email", "redact", "input"): 2, ("birds", "word", "flag", "input"): 1}
    assert story.guarded.word == "changed"


async def test_placeholders_differ_for_each_request_also_where_the_verdict_is_remembered() -> None:
    path = Path()
    texts = set()
    for _ in range(3):
        story = guarded(path, MAILS | {"restore": True})
        (content,) = sent(await guard_input(chat("mail ann@corp.io"), story, path.deps))
        assert story.guarded.placeholders is not None
        assert story.guarded.placeholders.restored(content) == "mail ann@corp.io"
        texts.add(content)
    assert len(texts) == 3
    assert path.deps.remembered.judged == 1


async def test_of_a_conversation_that_grows_only_what_is_new_is_scanned() -> None:
    path = Path()
    turn = "The quick brown fox jumps over the lazy dog. " * 200
    contents = [f"{number}: {turn}" for number in range(48)]
    assert sum(map(len, contents)) > 400 * 1024
    for length in range(1, len(contents) + 1):
        await guard_input(chat(*contents[:length]), guarded(path, MAILS, KEYS), path.deps)
    assert path.deps.remembered.judged == len(contents)


@pytest.mark.req("R27")
@pytest.mark.parametrize("characters", [100, ON_LOOP_BYTES + 1])
async def test_a_long_request_is_scanned_outside_of_the_loop(characters: int) -> None:
    path = Path()
    calls: list[object] = []

    class Loop:
        def __getattr__(self, name: str) -> Any:
            return getattr(path.deps.loop, name)

        def run_in_executor(self, *args: Any) -> Any:
            calls.append(args)
            return path.deps.loop.run_in_executor(*args)

    await guard_input(chat("x" * characters), guarded(path, MAILS), replace(path.deps, loop=Loop()))  # type: ignore[arg-type]
    assert len(calls) == (characters > ON_LOOP_BYTES)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 3}, "logprobs"),
        ({"return_token_ids": True}, "return_token_ids"),
    ],
)
async def test_what_would_show_a_changed_answer_a_second_time_is_refused(members: dict[str, Any], param: str) -> None:
    path = Path()
    fault = await fault_of(guard_input(chat("hi", **members), guarded(path, KEYS), path.deps))
    assert (fault.kind, fault.param) == (Kind.UNSUPPORTED_PARAMETER, param)
    await guard_input(chat("hi", **members), guarded(path, BIRDS), path.deps)  # such rules change nothing
    await guard_input(chat("hi", logprobs=False), guarded(path, KEYS), path.deps)


async def test_a_prompt_of_token_ids_is_no_way_around_a_rule() -> None:
    path = Path()
    ask = interpret(Endpoint.COMPLETIONS, b'{"model": "sim", "prompt": [1, 2, 3]}')
    fault = await fault_of(guard_input(ask, guarded(path, KEYS), path.deps))
    assert (fault.kind, fault.param) == (Kind.INVALID_VALUE, "prompt")
    story = guarded(path, BIRDS)
    assert await guard_input(ask, story, path.deps) is ask
    assert story.guarded.unread == ("token ids",)


async def test_detectors_answer_while_the_request_waits() -> None:
    path = Path()
    deps, slow = with_detector(path)
    story = guarded(path, SAFE, MAILS)
    await guard_input(chat("mail ann@corp.io"), story, deps)
    await turns()
    assert slow.asked == ["mail [EMAIL]"], "rules that are evaluated here come first, and what they redact goes nowhere"
    joined = asyncio.ensure_future(join_guards(story))
    await turns()
    assert not joined.done()
    slow.let.set()
    await joined
    assert story.guarded.word == "changed"


@pytest.mark.parametrize(("text", "kind"), [("a bad text", Kind.GUARD_BLOCKED), ("an away text", Kind.GUARD_UNAVAILABLE)])
async def test_what_a_detector_refuses_is_refused_before_anything_is_sent(text: str, kind: Kind) -> None:
    path = Path()
    deps, slow = with_detector(path)
    slow.let.set()
    story = guarded(path, SAFE)
    await guard_input(chat(text), story, deps)
    fault = await fault_of(join_guards(story))
    assert (fault.kind, fault.param) == (kind, "messages[0].content")
    assert story.guarded.by == "safe"


async def test_a_detector_that_redacts_is_waited_for() -> None:
    path = Path()
    deps, slow = with_detector(path)
    story = guarded(path, SAFE | {"mode": "redact"}, SAFE | {"id": "more", "mode": "flag", "on_error": None})
    begun = asyncio.ensure_future(guard_input(chat("a bad text"), story, deps))
    await turns()
    assert not begun.done()
    slow.let.set()
    assert sent(await begun) == ["a [HATE] text"]
    await turns()
    assert slow.asked == ["a bad text", "a [HATE] text"], "the other rule sees what goes on"


@pytest.mark.req("R27")
@pytest.mark.parametrize("mode", ["flag", "shadow"])
@pytest.mark.parametrize("in_time", [True, False])
async def test_nobody_waits_for_a_detector_that_changes_nothing(mode: str, in_time: bool) -> None:
    path = Path()
    late: list[tuple[str, str, tuple[str, ...]]] = []
    deps, slow = with_detector(path)
    deps = replace(deps, late_findings=lambda tenant, on, verdict: late.append((tenant, on, tuple(one.kind for one in verdict.findings))))
    story = guarded(path, SAFE | {"mode": mode, "on_error": None})
    ask = chat("a bad text")
    assert await guard_input(ask, story, deps) is ask
    await turns()
    joined = asyncio.ensure_future(join_guards(story))
    await turns()
    assert joined.done()
    assert (slow.asked, len(deps.noting)) == (["a bad text"], 1)
    if not in_time:
        leave_guards(story)
    slow.let.set()
    await turns(6)
    found = {("safe", "hate", mode, "input"): 1}
    assert story.guarded.counts == (found if in_time else {})
    tenant = story.asked.caller.tenant if story.asked.caller else ""
    assert (late, deps.noting) == ([] if in_time else [(tenant, "input", ("hate",))], set())


async def test_a_defect_of_a_detector_that_nobody_waits_for_is_logged() -> None:
    path = Path()
    defects: list[BaseException] = []

    class Broken:
        async def detect(self, text: str, direction: str, tenant: str) -> Sequence[Detected]:
            raise KeyError(direction)

    deps = replace(path.deps, detectors={"guard": Broken()}, log_defect=lambda error, _: defects.append(error))
    await guard_input(chat("hello"), guarded(path, SAFE | {"mode": "flag", "on_error": None}), deps)
    await turns(6)
    assert [type(error) for error in defects] == [KeyError]


async def test_a_request_that_ends_asks_nobody_any_more() -> None:
    path = Path()
    deps, slow = with_detector(path)
    story = guarded(path, SAFE)
    await guard_input(chat("hello"), story, deps)
    await turns()
    leave_guards(story)
    await turns()
    assert slow.left == 1
    await join_guards(story)


async def test_a_cancelled_wait_gives_the_place_back() -> None:
    path = Path()
    deps, slow = with_detector(path)
    story = guarded(path, SAFE)
    await guard_input(chat("hello"), story, deps)
    await turns()

    class Place:
        given_back = 0

        def give_back(self) -> None:
            self.given_back += 1

    place = Place()
    waiting = asyncio.ensure_future(join_guards(story, place))  # type: ignore[arg-type]
    await turns()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await turns()
    assert (place.given_back, slow.left) == (1, 1)


async def test_calls_of_earlier_turns_are_judged_by_name_and_arguments() -> None:
    path = Path()
    rule = {"id": "calls", "kind": "tools", "mode": "block", "allow": ["find_*"]}
    calls = [
        {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": "{}"}} for at, name in enumerate(("find_a", "drop"))
    ]
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": calls}]
    ask = interpret(Endpoint.CHAT, json.dumps({"model": "sim", "messages": messages}).encode())
    fault = await fault_of(guard_input(ask, guarded(path, rule), path.deps))
    assert (fault.kind, fault.param) == (Kind.GUARD_BLOCKED, "messages[1].tool_calls[1].function")
    assert "tool_not_allowed" in fault.message


async def test_rules_for_answers_get_the_system_prompt_of_their_request() -> None:
    path = Path()
    story = guarded(path, {"id": "leak", "kind": "prompt_leak", "mode": "block", "min_words": 4})
    messages = [{"role": "system", "content": "never tell them of the garden"}, {"role": "user", "content": "hi"}]
    ask = interpret(Endpoint.CHAT, json.dumps({"model": "sim", "messages": messages}).encode())
    assert await guard_input(ask, story, path.deps) is ask
    assert story.asked.guards is not None
    assert story.asked.guards.chain("output").judge("They said: never tell them of the garden!").by == "leak"
