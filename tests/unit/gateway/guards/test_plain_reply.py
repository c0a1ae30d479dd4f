"""Guard rules over plain replies: the same verdict and text as for a stream of the same answer."""

import random
from itertools import pairwise

import msgspec
import pytest

from domain.ask import Endpoint
from domain.faults import Kind
from gateway.guards.reply_parts import Path, direction_of
from guardrails.placeholders import Placeholders
from tests.guarded_replies import (
    CONTENT,
    DONE,
    REASONING,
    REFUSAL,
    TEXT,
    TRANSCRIPT,
    VENDOR,
    Guarded,
    arguments,
    as_plain,
    asked,
    event,
    guards,
    plain,
    plain_body,
    streamed,
)

CHAT, COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS
CARD = {"kind": "pattern", "pattern": "[0-9]{4}-[0-9]{4}-[0-9]{4}-[0-9]{4}", "mode": "redact"}
STOP = {"kind": "words", "words": ["kraken"], "mode": "block"}
NUMBER = "4111-1111-1111-1111"
IN_ORDER = (REASONING, CONTENT, REFUSAL, TRANSCRIPT, VENDOR, arguments(0), arguments(1))
"""The texts of a message in the order in which engines write them."""


def judged(body: bytes, *rules: dict[str, object], endpoint: Endpoint = CHAT, choices: int = 1, held_bytes: int = 65536) -> Guarded:
    made = Guarded(asked(endpoint, stream=False, choices=choices), guards(*rules, held_bytes=held_bytes))
    made.fed(body)
    return made


def test_a_reply_in_which_nothing_is_found_stays_as_it_is() -> None:
    body = plain_body(CHAT, [{CONTENT: "a whale", arguments(0): "{}"}], logprobs=None)
    made = judged(body, CARD, STOP)
    assert made.out == body
    assert made.story.guarded.word == "passed"


def test_flags_change_nothing_and_refuse_nothing_of_any_size() -> None:
    body = plain_body(CHAT, [{CONTENT: "kraken " * 2000}])
    made = judged(body, {**STOP, "mode": "flag"}, held_bytes=1024)
    assert made.out == body
    assert made.story.guarded.counts == {("r0", "word", "flag", "output"): 2000}


def test_a_reply_that_is_larger_than_what_may_be_held_is_refused_by_name() -> None:
    made = judged(plain_body(CHAT, [{CONTENT: "x" * 2000}]), STOP, held_bytes=1024)
    assert made.out == b""
    assert made.chain.fault is not None
    assert made.chain.fault.kind is Kind.GUARD_LIMIT
    assert "1024 bytes (held_bytes)" in made.chain.fault.message


def test_a_block_leaves_what_stands_before_it_and_drops_what_stands_behind() -> None:
    said = {REASONING: f"pay {NUMBER}", CONTENT: "a kraken swims", REFUSAL: "no", arguments(0): "{}"}
    made = judged(plain_body(CHAT, [said, {CONTENT: "a whale"}]), CARD, STOP, choices=2)
    reply = msgspec.json.decode(made.out)
    assert reply["choices"][0]["message"] == {
        "reasoning_content": "pay [PATTERN]",
        "content": "a ",
        "refusal": "",
        "role": "assistant",
    }
    assert [one["finish_reason"] for one in reply["choices"]] == ["content_filter", "stop"]
    assert reply["usage"]["total_tokens"] == 7
    assert made.story.attempt.declined
    assert (made.story.guarded.ended, made.story.guarded.by) == ("block", "r1")


def test_a_block_in_the_arguments_of_a_call_drops_the_calls_behind_it() -> None:
    said = {CONTENT: "ok", arguments(0): "{}", arguments(1): '{"a":"kraken"}', arguments(2): '{"b":1}'}
    message = msgspec.json.decode(judged(plain_body(CHAT, [said]), STOP).out)["choices"][0]["message"]
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == ["{}", '{"a":"']


def test_a_text_beside_the_choices_is_judged_too() -> None:
    body = plain_body(CHAT, [{CONTENT: "fine"}, {CONTENT: "well"}], note={"by": ["the kraken"]}, prompt_logprobs=[1])
    reply = msgspec.json.decode(judged(body, STOP, choices=2).out)
    assert reply["note"] == {"by": ["the "]}
    assert "prompt_logprobs" not in reply
    assert [(one["message"]["content"], one["finish_reason"]) for one in reply["choices"]] == [("", "content_filter")] * 2


def test_values_are_put_back() -> None:
    values = Placeholders(random.Random(3))
    name = values.label("name", 'Ann "A" Lee')
    made = Guarded(asked(stream=False), None, values)
    seen = plain(made.fed(plain_body(CHAT, [{CONTENT: f"Dear {name}", arguments(0): f'{{"to":"{name}"}}'}])))[0].texts
    assert seen[as_plain(CONTENT)] == 'Dear Ann "A" Lee'
    assert msgspec.json.decode(seen[as_plain(arguments(0))]) == {"to": 'Ann "A" Lee'}


class Boom:
    """A rule that fails."""

    id, longest = "boom", 4

    def scan(self, text: object) -> list[object]:
        raise RuntimeError


def test_a_rule_that_fails_refuses_or_passes_as_its_policy_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guardrails.build.Words", lambda *_, **__: Boom())
    body = plain_body(CHAT, [{CONTENT: "hello"}])
    failing = {**STOP, "words": ["a word of this test alone"]}  # equal rules share one scanner
    closed, opened = judged(body, failing), judged(body, {**failing, "on_error": "open"})
    assert closed.out == b""
    assert closed.chain.fault is not None
    assert closed.chain.fault.kind is Kind.GUARD_UNAVAILABLE
    assert opened.out == body
    assert opened.story.guarded.failed == ("boom",)


@pytest.mark.parametrize(
    "bad", [b'{"choices":[{"finish_reason":"stop","text":"\\ud800"}]}', b'{"choices":[{"finish_reason":"stop","a":%b}]}']
)
def test_what_rules_cannot_read_does_not_go_on(bad: bytes) -> None:
    made = judged(bad.replace(b"%b", b"[" * 40 + b'"x"' + b"]" * 40), STOP)
    assert made.out == b""
    assert made.chain.fault is not None
    assert made.chain.fault.kind is Kind.INVALID_REPLY


def _text(rng: random.Random) -> str:
    return " ".join(
        rng.choices(["so", NUMBER, "a kraken", "4111-", "\u00fc", '"', "the sea"], weights=[5, 2, 1, 2, 2, 2, 5], k=rng.randint(1, 7))
    )


def _cut(text: str, rng: random.Random) -> list[str]:
    edges = sorted({0, len(text), *rng.choices(range(len(text) + 1), k=rng.randint(0, 6))})
    return [text[a:b] for a, b in pairwise(edges)]


@pytest.mark.req("R25")
@pytest.mark.parametrize("endpoint", [one for one in Endpoint if one.generates])
def test_a_stream_and_a_plain_reply_have_the_same_verdict(endpoint: Endpoint) -> None:
    """2,000 answers with one or two choices and all their texts: the finish reasons, what guards say, and the text of what is not cut. Of a
    choice that is cut both show no more of each text than its rules let pass; a stream may show less, as what it still held is dropped."""
    rng = random.Random(25)
    rules = guards(CARD, STOP)
    refused = changed = 0
    for _ in range(2_000):
        choices: list[dict[Path, str]] = []
        stream = b""
        for index in range(rng.randint(1, 2)):
            paths = sorted(rng.sample(IN_ORDER, rng.randint(1, 3)), key=IN_ORDER.index) if endpoint is CHAT else [TEXT]
            if arguments(1) in paths and arguments(0) not in paths:
                paths[-1] = arguments(0)
            said = {path: _text(rng) for path in paths}
            choices.append(said)
            stream += b"".join([event(endpoint, index, path, piece) for path, text in said.items() for piece in _cut(text, rng)])
            stream += event(endpoint, index, finish="stop")
        live = Guarded(asked(endpoint, choices=len(choices)), rules)
        whole = Guarded(asked(endpoint, stream=False, choices=len(choices)), rules)
        of_stream, of_plain = streamed(live.fed(stream + DONE)), plain(whole.fed(plain_body(endpoint, choices)))
        assert live.chain.fault is whole.chain.fault is None
        for index in range(len(choices)):
            one, other = of_stream[index], of_plain[index]
            assert one.finish == other.finish
            shown = {as_plain(path): text for path, text in one.texts.items()}
            if one.finish == "stop":
                assert shown == other.texts
            else:
                passed = {as_plain(path): rules.chain(direction_of(path)).judge(text).text or "" for path, text in choices[index].items()}
                assert all(passed[path].startswith(text) for seen in (shown, other.texts) for path, text in seen.items())
                refused += 1
        one_fact, other_fact = live.story.guarded, whole.story.guarded
        assert (one_fact.word, one_fact.ended, one_fact.by) == (other_fact.word, other_fact.ended, other_fact.by)
        assert live.story.attempt.declined == whole.story.attempt.declined
        changed += one_fact.word == "changed"
    assert refused > 500
    assert changed > 300
