"""An engine's usage is billed as far as it is plausible: whole requests through a worker whose engines report what they like."""

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path as File
from typing import Any

import pytest
import tokenizers
from structlog.testing import capture_logs

from backends.health import MISREPORTS_TO_EJECT, Health
from backends.ports import PollResult, ReplySink
from domain.ask import Endpoint
from domain.usage import Usage
from gateway.fleet.health import HealthWatch
from gateway.http.openai import interpret
from gateway.ledger.writer import usage_event
from gateway.lifecycle import serve
from gateway.prompt.count import PromptCounts
from gateway.prompt.vocabulary import ModelVocabulary
from gateway.record import Record
from gateway.telemetry.access_log import line_of
from gateway.telemetry.metrics import Metrics
from routing.fleet import Availability
from tenancy.estimate import TEMPLATE_MOST, usage_bounds
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tests.placed import POOL
from tests.request_path import EVENT, KEY, SSE, Engine, Path, Script, caller

ROOT = File(__file__).parents[4]
JSON = {b"content-type": b"application/json"}
HUGE = 10**18
SEA = [{"role": "user", "content": "Why is the sea salty?"}]
GOOD = PollResult("", frozenset({"sim"}))


def plain(prompt: int, completion: int, choices: int = 1, **details: Any) -> Script:
    """A plain answer with this usage."""
    finished = [{"index": n, "message": {"role": "assistant", "content": "rain"}, "finish_reason": "length"} for n in range(choices)]
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, **details}
    body = json.dumps({"object": "chat.completion", "model": "sim", "choices": finished, "usage": usage}).encode()

    def script(sink: ReplySink) -> None:
        sink.on_head(200, JSON)
        sink.on_data(body)
        sink.on_end()

    return script


def streamed(stream: bytes) -> Script:
    def script(sink: ReplySink) -> None:
        sink.on_head(200, SSE)
        sink.on_data(stream)
        sink.on_end()

    return script


def endless(sink: ReplySink) -> None:
    """A stream whose engine has forgotten its cap, and stops for another reason."""
    sink.on_head(200, SSE)
    for _ in range(5_000):
        sink.on_data(EVENT)
    sink.on_end()


async def served(path: Path, endpoint: Endpoint = Endpoint.CHAT, **fields: Any) -> Record:
    body = {"model": "sim", **({"messages": SEA} if endpoint is Endpoint.CHAT else {}), **fields}
    exchange, _ = caller(body, endpoint.value, content_type=b"application/json", authorization=f"Bearer {KEY.text}".encode())
    await serve(exchange, endpoint, path.deps)
    assert not path.defects, path.defects
    return path.records[-1]


async def test_a_usage_above_all_that_was_asked_for_is_billed_at_the_bound_and_marked() -> None:
    record = await served(Path(a=Engine(plain(HUGE, HUGE))), max_tokens=5)
    assert (record.outcome, record.closing, record.usage.completion_tokens) == ("ok", "settle", 6)
    assert record.usage.prompt_tokens < 300
    assert record.reported == f"prompt {HUGE}, completion {HUGE}"
    event = usage_event(record)
    assert event is not None and (event.reported, event.usage) == (record.reported, record.usage)
    assert json.loads(line_of(record))["reported"] == record.reported


async def test_output_without_a_cap_is_billed_for_no_more_tokens_than_the_answer_has_bytes() -> None:
    record = await served(Path(a=Engine(plain(9, HUGE))))
    assert 0 < record.usage.completion_tokens < 300
    assert record.reported


@pytest.mark.parametrize("stream", [False, True])
async def test_a_report_within_the_context_is_bounded_by_what_was_seen_where_there_is_no_cap(stream: bool) -> None:
    end = (
        EVENT.replace(b"null", b'"stop"')
        + b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":50000}}\n\ndata: [DONE]\n\n'
    )
    record = await served(Path(a=Engine(streamed(EVENT + end) if stream else plain(9, 50_000))), stream=stream)
    assert 0 < record.usage.completion_tokens < 600
    assert record.reported == "prompt 9, completion 50000"


@pytest.mark.parametrize(
    ("details", "fields"),
    [
        ({"completion_tokens_details": {"reasoning_tokens": 49_000}}, {}),
        ({}, {"include_reasoning": False}),
        ({}, {"separate_reasoning": False}),
    ],
)
async def test_reasoning_that_is_not_shown_is_no_lie(details: dict[str, Any], fields: dict[str, Any]) -> None:
    record = await served(Path(a=Engine(plain(9, 50_000, **details))), **fields)
    assert (record.usage.completion_tokens, record.reported) == (50_000, "")


def without_usage(message: dict[str, object], choices: int = 1, **choice: object) -> Script:
    finished = [{"index": n, "message": message, "finish_reason": "stop", **choice} for n in range(choices)]
    body = json.dumps({"object": "chat.completion", "model": "sim", "choices": finished}).encode()

    def script(sink: ReplySink) -> None:
        sink.on_head(200, JSON)
        sink.on_data(body)
        sink.on_end()

    return script


CALL = {"id": "call_0123456789", "type": "function", "function": {"name": "wind", "arguments": "{" + " " * 394 + "}"}}


@pytest.mark.parametrize(
    ("message", "fields", "billed"),
    [
        ({"content": "rain " * 400}, {}, 500),
        ({"content": "rain " * 400}, {"max_tokens": 7}, 7),
        ({"content": "rain " * 400}, {"n": 2}, 1000),
        ({"content": "\u00e9" * 100}, {}, 50),
        ({"content": "rain", "reasoning_content": "why " * 100}, {}, 101),
        ({"content": "rain", "reasoning": "why " * 100}, {}, 101),
        ({"content": None, "tool_calls": [CALL]}, {}, 100),
        ({"content": [{"type": "text", "text": "rain " * 4}]}, {}, 5),
        ({"content": ""}, {}, 1),
        ({"content": 5, "tool_calls": "odd"}, {}, 1),
    ],
)
async def test_a_plain_answer_without_usage_is_billed_by_its_text(message: dict[str, object], fields: dict[str, Any], billed: int) -> None:
    record = await served(Path(a=Engine(without_usage(message, fields.get("n", 1)))), **fields)
    assert (record.outcome, record.closing, record.usage.completion_tokens) == ("ok", "estimate", billed)
    assert record.usage.prompt_tokens > 0


async def test_a_completion_without_usage_is_billed_by_its_text() -> None:
    record = await served(Path(a=Engine(without_usage({}, text="rain " * 40))), Endpoint.COMPLETIONS, prompt="x")
    assert (record.closing, record.usage.completion_tokens) == ("estimate", 50)


async def test_a_negative_usage_gives_nothing_back_and_is_marked() -> None:
    record = await served(Path(a=Engine(plain(-1_000_000, -1_000_000))), max_tokens=5)
    assert (record.usage, record.reported) == (Usage(), "prompt -1000000, completion -1000000")


@pytest.mark.parametrize(("choices", "tokens", "believed"), [(1, 6, True), (1, 7, False), (3, 18, True), (3, 19, False)])
async def test_one_token_over_the_cap_is_believed_for_each_choice(choices: int, tokens: int, believed: bool) -> None:
    record = await served(Path(a=Engine(plain(9, tokens, choices))), max_tokens=5, n=choices)
    assert (record.reported == "", record.usage.completion_tokens) == (believed, min(tokens, 6 * choices))


async def test_without_a_tokenizer_the_bytes_and_the_longest_template_bound_the_prompt() -> None:
    honest = await served(Path(a=Engine(plain(TEMPLATE_MOST, 3))), max_tokens=5)
    assert (honest.usage.prompt_tokens, honest.reported) == (TEMPLATE_MOST, "")
    assert (await served(Path(a=Engine(plain(TEMPLATE_MOST + 200, 3))), max_tokens=5)).reported


async def test_a_part_is_at_most_its_whole_and_that_alone_marks_nothing() -> None:
    script = plain(9, 4, prompt_tokens_details={"cached_tokens": 36}, completion_tokens_details={"reasoning_tokens": HUGE})
    record = await served(Path(a=Engine(script)), max_tokens=5)
    assert (record.usage, record.reported) == (Usage(9, 4, 9, 4), "")


@pytest.mark.parametrize(("reported", "billed"), [(30, 30), (49, 49), (50, 49), (HUGE, 49), (11, 11), (10, 11)])
async def test_token_ids_are_counted_as_they_were_sent(reported: int, billed: int) -> None:
    """30 ids: a tenth and 16 tokens are between our count and an honest engine's."""
    record = await served(Path(a=Engine(plain(reported, 3))), Endpoint.COMPLETIONS, prompt=list(range(1, 31)), max_tokens=5)
    assert (record.usage.prompt_tokens, record.reported == "") == (billed, billed == reported)


async def test_a_prompt_that_the_engine_is_told_to_truncate_may_have_fewer_tokens() -> None:
    fields = {"prompt": list(range(1, 101)), "truncate_prompt_tokens": 10, "max_tokens": 5}
    record = await served(Path(a=Engine(plain(10, 3))), Endpoint.COMPLETIONS, **fields)
    assert (record.usage.prompt_tokens, record.reported) == (10, "")


@pytest.fixture
def vocabulary(tmp_path: File) -> ModelVocabulary:
    """Counts words."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    return ModelVocabulary(tmp_path, str)


async def billed_of_a_thousand(vocabulary: ModelVocabulary, reported: int, limits: Sequence[Limit]) -> tuple[int, bool]:
    """The tokens billed for a prompt of 1,000 words, and whether the row is marked."""
    path = Path(limits, a=Engine(plain(reported, 3)))
    with ThreadPoolExecutor(1) as executor:
        path.deps = replace(path.deps, prompt_counts=PromptCounts({POOL: vocabulary}, executor, asyncio.get_running_loop()))
        record = await served(path, messages=[{"role": "user", "content": "a " * 1000}], max_tokens=5)
    return record.usage.prompt_tokens, record.reported != ""


@pytest.mark.parametrize(
    ("reported", "billed"), [(1000, 1000), (1116, 1116), (1117, 1116), (2500, 1116), (HUGE, 1116), (884, 884), (883, 884), (0, 884)]
)
async def test_a_counted_prompt_is_believed_within_a_tenth(vocabulary: ModelVocabulary, reported: int, billed: int) -> None:
    counted = [Limit(Scope(Level.TENANT, "acme"), Meter.INPUT_TOKENS, Window.MINUTE, 10_000)]
    assert await billed_of_a_thousand(vocabulary, reported, counted) == (billed, reported != billed)


async def test_a_prompt_that_nobody_counted_is_counted_when_its_bytes_raise_a_doubt(vocabulary: ModelVocabulary) -> None:
    assert await billed_of_a_thousand(vocabulary, 1117, []) == (1116, True)


async def test_a_stream_that_runs_past_its_cap_is_cut_as_a_broken_engine() -> None:
    path = Path(a=Engine(endless))
    record = await served(path, max_tokens=5, stream=True)
    assert (record.outcome, record.closing, record.usage.completion_tokens) == ("invalid_reply", "estimate", 5)
    assert record.events == 2 * 5 + 16 + 1
    assert path.engines["a"].flights[-1].aborted
    assert (await served(Path(a=Engine(endless)), max_tokens=5, n=2, stream=True)).events == 2 * 26 + 1


async def test_a_stream_without_a_cap_is_not_cut() -> None:
    stream = EVENT * 3000 + EVENT.replace(b"null", b'"stop"') + b"data: [DONE]\n\n"
    record = await served(Path(a=Engine(streamed(stream))), stream=True)
    assert (record.outcome, record.events) == ("ok", 3001)


# --- honest engines --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", (ROOT / "tests/wire/engine_usage/recorded.jsonl").read_text().splitlines())
async def test_no_recorded_reply_of_a_real_engine_is_marked(line: str) -> None:
    case = json.loads(line)
    script = plain(case["prompt_tokens"], case["completion_tokens"], case["request"].get("n", 1))
    fields = {**case["request"], "model": "sim"}
    record = await served(Path(a=Engine(script)), Endpoint(case["path"]), **fields)
    assert (record.outcome, record.reported) == ("ok", ""), case
    assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (case["prompt_tokens"], case["completion_tokens"])


@pytest.mark.parametrize("name", ["recorded_vllm.bin", "recorded_sglang.bin"])
async def test_no_recorded_stream_of_a_real_engine_is_cut_or_marked(name: str) -> None:
    """The recorded engines were asked for four tokens."""
    stream = (ROOT / "tests/fuzz/corpus/sse" / name).read_bytes()
    record = await served(Path(a=Engine(streamed(stream))), messages=[{"role": "user", "content": "hi"}], max_tokens=4, stream=True)
    assert (record.outcome, record.usage.prompt_tokens, record.usage.completion_tokens, record.reported) == ("ok", 15, 4, "")


# --- a backend that keeps doing it -----------------------------------------------------------------------------------


def watched(path: Path) -> HealthWatch:
    """The health of the path's backends, all of them up."""
    deps = path.deps
    for backend in path.engines:
        health = deps.live.health[backend] = Health(10.0)
        health.polled(GOOD, path.worker.now)
    return HealthWatch(deps.live, deps.pool_states, deps.watch, 10.0, deps.clock)


async def test_a_backend_that_keeps_misreporting_goes_out_by_name_while_another_one_is_there() -> None:
    path = Path(a=Engine(plain(HUGE, 3)), b=Engine(plain(9, 3)))
    watch, metrics = watched(path), Metrics()
    with capture_logs() as logs:
        for _ in range(40):
            metrics.observe(await served(path, max_tokens=5))
            watch.look()
    out = {backend.id: (backend.state, backend.reason) for backend in path.deps.live.fleet.pools[POOL].backends}
    assert out["b"] == (Availability.UP, "")
    assert out["a"][0] is Availability.EJECTED
    assert out["a"][1] == f"reports more tokens than 3 requests can have used, for the last one: prompt {HUGE}, completion 3"
    assert path.calls()["a"] == MISREPORTS_TO_EJECT
    said = [line for line in logs if line["event"] == "implausible usage"]
    assert [(line["log_level"], line["backend"], line["reported"]) for line in said] == [("warning", "a", f"prompt {HUGE}, completion 3")]
    assert metrics.snapshot().families["tidegate_usage_implausible_total"] == [((POOL, "a"), [3])]


async def test_the_last_backend_stays_and_is_named() -> None:
    path = Path(a=Engine(plain(HUGE, 3)))
    watch = watched(path)
    for _ in range(MISREPORTS_TO_EJECT):
        assert path.deps.live.fleet.pools[POOL].backends[0].reason == ""
        await served(path, max_tokens=5)
        watch.look()
    (backend,) = path.deps.live.fleet.pools[POOL].backends
    assert backend.state is Availability.UP
    assert backend.reason.startswith("suspect: reports more tokens than 3 requests")


async def test_a_backend_that_reports_too_little_is_named_and_stays() -> None:
    path = Path(a=Engine(plain(-5, 3)), b=Engine(plain(-5, 3)))
    watch = watched(path)
    for _ in range(20):
        assert (await served(path, max_tokens=5)).reported
        watch.look()
    assert {backend.state for backend in path.deps.live.fleet.pools[POOL].backends} == {Availability.UP}


def test_a_suffix_and_a_chosen_tool_are_no_lie_of_the_engine() -> None:
    body = {"model": "m", "prompt": [1, 2, 3], "suffix": "word " * 2000, "max_tokens": 5}
    bounds = usage_bounds(interpret(Endpoint.COMPLETIONS, json.dumps(body).encode()), None, None)
    assert bounds.prompt_least == 0
    assert bounds.prompt_most >= 10_000
    tool = {"type": "function", "function": {"name": "f", "description": "word " * 2000, "parameters": {"type": "object"}}}
    chat = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [tool], "tool_choice": "none"}
    assert usage_bounds(interpret(Endpoint.CHAT, json.dumps(chat).encode()), 2100, None).prompt_least == 0
