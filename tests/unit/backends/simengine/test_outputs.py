import json
import math
import re
from collections.abc import Iterable
from typing import Any

import httpx
import jsonschema
import pytest

from backends.simengine import SimEngine, SimSettings
from tests.timing import HANG_S

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 3}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
CLOCK = {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "get_time", "parameters": CLOCK}},
]
FORCED = {"type": "function", "function": {"name": "get_weather"}}
USER = {"role": "user", "content": "What is the weather?"}
DIALECTS = ("vllm", "sglang")


def settings(dialect: str = "vllm", **options: Any) -> SimSettings:
    return SimSettings(models=("m",), speed=1000, dialect=dialect, **options)


async def asked(how: SimSettings, path: str = "chat/completions", **fields: Any) -> httpx.Response:
    prompt = {} if "prompt" in fields or "messages" in fields else {"messages": [USER]}
    async with SimEngine(how) as engine, httpx.AsyncClient(base_url=engine.url, trust_env=False, timeout=HANG_S) as http:
        return await http.post(f"/v1/{path}", json={"model": "m", **prompt, **fields})


def chunks(reply: httpx.Response) -> list[dict[str, Any]]:
    assert reply.status_code == 200, reply.text
    events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def joined(events: Iterable[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """The message of a stream, put together as OpenAI's clients do."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "calls": {}, "finish": None}
    for event in events:
        for choice in event["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning") or delta.get("reasoning_content") or ""
            message["finish"] = choice["finish_reason"] or message["finish"]
            for piece in delta.get("tool_calls", []):
                call = message["calls"].setdefault(piece["index"], {"id": None, "name": None, "arguments": ""})
                call["id"] = piece.get("id") or call["id"]
                call["name"] = piece["function"].get("name") or call["name"]
                call["arguments"] += piece["function"].get("arguments") or ""
    return message


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}], ids=["auto", "required", "named"]
)
async def test_a_tool_call_satisfies_its_schema_plain_and_streamed_alike(dialect: str, choice: Any) -> None:
    plain = (await asked(settings(dialect), tools=TOOLS, tool_choice=choice)).json()["choices"][0]
    (call,) = plain["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    jsonschema.validate(json.loads(call["function"]["arguments"]), WEATHER)
    assert plain["message"]["content"] in (None, "")
    named = isinstance(choice, dict) and dialect == "vllm"  # vLLM reports a named tool's call as `stop`
    assert plain["finish_reason"] == ("stop" if named else "tool_calls")
    streamed = joined(chunks(await asked(settings(dialect), tools=TOOLS, tool_choice=choice, stream=True)))
    assert streamed["calls"] == {0: {"id": call["id"], "name": "get_weather", "arguments": call["function"]["arguments"]}}
    assert (streamed["content"], streamed["finish"]) == ("", plain["finish_reason"])


async def test_the_deltas_of_a_call_are_those_of_vllm() -> None:
    events = chunks(await asked(settings(), tools=TOOLS, stream=True))
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    first = deltas[1]["tool_calls"][0]
    assert re.fullmatch("chatcmpl-tool-[0-9a-f]{24}", first.pop("id"))
    assert first == {"type": "function", "index": 0, "function": {"name": "get_weather"}}
    assert all(set(delta["tool_calls"][0]) == {"index", "function"} for delta in deltas[2:-1])
    assert (deltas[-1], events[-1]["choices"][0]["finish_reason"]) == ({}, "tool_calls")
    forced = chunks(await asked(settings(), tools=TOOLS, tool_choice="required", stream=True))[1]["choices"][0]["delta"]["tool_calls"][0]
    assert forced["function"]["name"] == "get_weather"
    assert forced["function"]["arguments"].startswith("{")


async def test_agents_that_call_tools_come_to_an_end() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    history = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "rain"}]
    answer = (await asked(settings(), messages=history, tools=TOOLS)).json()["choices"][0]
    assert answer["finish_reason"] == "stop"
    assert "tool_calls" not in answer["message"]
    assert answer["message"]["content"]
    forced = (await asked(settings(), messages=history, tools=TOOLS, tool_choice="required")).json()["choices"][0]["message"]["tool_calls"]
    assert [one["function"]["name"] for one in forced] == ["get_time"]


async def test_several_tools_are_called_where_the_user_names_them_unless_parallel_calls_are_off() -> None:
    messages = [{"role": "user", "content": "Use get_time and get_weather."}]
    both = joined(chunks(await asked(settings(), messages=messages, tools=TOOLS, stream=True)))["calls"]
    assert [call["name"] for call in both.values()] == ["get_weather", "get_time"]
    jsonschema.validate(json.loads(both[1]["arguments"]), CLOCK)
    assert both[0]["id"] != both[1]["id"]
    one = (await asked(settings(), messages=messages, tools=TOOLS, parallel_tool_calls=False)).json()["choices"][0]["message"]
    assert len(one["tool_calls"]) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_structured_output_satisfies_its_schema_plain_and_streamed_alike(dialect: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER, "strict": True}}
    plain = (await asked(settings(dialect), response_format=form)).json()
    jsonschema.validate(json.loads(plain["choices"][0]["message"]["content"]), WEATHER)
    assert plain["choices"][0]["finish_reason"] == "stop"
    streamed = joined(chunks(await asked(settings(dialect), response_format=form, stream=True, ignore_eos=True)))
    assert (streamed["content"], streamed["finish"]) == (plain["choices"][0]["message"]["content"], "stop")
    cut = (await asked(settings(dialect), response_format=form, max_tokens=3)).json()
    assert (cut["usage"]["completion_tokens"], cut["choices"][0]["finish_reason"]) == (3, "length")
    assert plain["choices"][0]["message"]["content"].startswith(cut["choices"][0]["message"]["content"])


@pytest.mark.parametrize(
    ("dialect", "fields", "pattern"),
    [
        ("vllm", {"structured_outputs": {"regex": "[A-F]{4}-\\d"}}, "[A-F]{4}-\\d"),
        ("vllm", {"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ("vllm", {"structured_outputs": {"json": CLOCK}}, '{"zone":".*"}'),
        ("vllm", {"response_format": {"type": "json_object"}}, '{"text":".*"}'),
        ("sglang", {"regex": "[A-F]{4}-\\d"}, "[A-F]{4}-\\d"),
        ("sglang", {"json_schema": json.dumps(CLOCK)}, '{"zone":".*"}'),
    ],
)
async def test_other_constraints(dialect: str, fields: dict[str, Any], pattern: str) -> None:
    for path, prompt in (("chat/completions", {}), ("completions", {"prompt": "say"})):
        choice = (await asked(settings(dialect), path, **prompt, **fields)).json()["choices"][0]
        assert re.fullmatch(pattern, choice["message"]["content"] if path == "chat/completions" else choice["text"])


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_reasoning_comes_before_the_answer_and_is_counted(dialect: str) -> None:
    how = settings(dialect, reasoning=True)
    name = "reasoning" if dialect == "vllm" else "reasoning_content"
    reply = (await asked(how)).json()
    message = reply["choices"][0]["message"]
    assert message[name]
    quiet = (await asked(how, chat_template_kwargs={"enable_thinking": False})).json()
    assert quiet["choices"][0]["message"] == {"role": "assistant", "content": message["content"]}
    assert (await asked(settings(dialect))).json()["choices"][0]["message"]["content"] == message["content"]
    details = reply["usage"].get("completion_tokens_details") or reply["usage"]
    assert details["reasoning_tokens"] == len(message[name].split())
    assert (
        reply["usage"]["completion_tokens"] == quiet["usage"]["completion_tokens"] + details["reasoning_tokens"] + 1
    )  # the mark of its end
    events = chunks(await asked(how, stream=True))
    assert {**joined(events), "calls": None} == {"content": message["content"], "reasoning": message[name], "finish": "stop", "calls": None}
    assert not any("</think>" in json.dumps(event) for event in events)


async def test_reasoning_that_a_length_cuts_leaves_no_content_and_can_be_hidden() -> None:
    how = settings(reasoning=True)
    cut = (await asked(how, max_tokens=4)).json()["choices"][0]
    assert (cut["message"]["content"], cut["finish_reason"]) == (None, "length")
    assert len(cut["message"]["reasoning"].split()) == 4
    hidden = (await asked(how, include_reasoning=False, logprobs=True)).json()["choices"][0]
    assert (hidden["message"]["reasoning"], hidden["logprobs"]) == (None, None)
    assert not joined(chunks(await asked(how, include_reasoning=False, stream=True)))["reasoning"]


async def test_reasoning_comes_before_a_tool_call_too() -> None:
    message = (await asked(settings(reasoning=True), tools=TOOLS)).json()["choices"][0]["message"]
    assert message["reasoning"]
    assert message["tool_calls"][0]["function"]["name"] == "get_weather"


async def test_logprobs_cover_every_token_and_are_probabilities() -> None:
    plain = (await asked(settings(), logprobs=True, top_logprobs=3, max_tokens=6)).json()
    tokens = plain["choices"][0]["logprobs"]["content"]
    assert len(tokens) == plain["usage"]["completion_tokens"] == 6
    assert "".join(one["token"] for one in tokens) == plain["choices"][0]["message"]["content"]
    for one in tokens:
        assert bytes(one["bytes"]).decode() == one["token"]
        best = one["top_logprobs"][0]
        assert (best["token"], best["logprob"]) == (one["token"], one["logprob"])
        assert len({top["token"] for top in one["top_logprobs"]}) == 3
        chances = [math.exp(top["logprob"]) for top in one["top_logprobs"]]
        assert chances == sorted(chances, reverse=True)
        assert sum(chances) <= 1
    events = chunks(await asked(settings(), logprobs=True, top_logprobs=3, max_tokens=6, stream=True))
    streamed = [one for event in events for one in (event["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == tokens
    assert [one["top_logprobs"] for one in (await asked(settings(), logprobs=True)).json()["choices"][0]["logprobs"]["content"]][:1] == [[]]


async def test_logprobs_of_completions_have_their_own_shape() -> None:
    choice = (await asked(settings(), "completions", prompt="say", logprobs=2, max_tokens=4)).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    rows = list(zip(logprobs["text_offset"], logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True))
    assert len(rows) == 4
    for at, token, own, top in rows:
        assert choice["text"][at:].startswith(token)
        assert (top[token], len(top)) == (own, 2)
    events = chunks(await asked(settings(), "completions", prompt="say", logprobs=2, max_tokens=4, stream=True))
    assert [at for event in events for at in event["choices"][0]["logprobs"]["text_offset"]] == logprobs["text_offset"]


async def test_choices_differ_and_each_is_whole() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER}}
    for fields in ({}, {"tools": TOOLS}, {"response_format": form}):
        plain = (await asked(settings(), n=3, **fields)).json()["choices"]
        assert len({json.dumps(choice["message"]) for choice in plain}) == 3
        events = chunks(await asked(settings(), n=3, stream=True, **fields))
        for choice in plain:
            streamed = joined(events, choice["index"])
            assert streamed["content"] == (choice["message"]["content"] or "")
            calls = choice["message"].get("tool_calls", [])
            assert [call["arguments"] for call in streamed["calls"].values()] == [call["function"]["arguments"] for call in calls]


async def test_a_tool_call_that_a_length_cuts_is_text_as_vllm_s_parsers_leave_it() -> None:
    cut = (await asked(settings(), tools=TOOLS, max_tokens=5)).json()["choices"][0]
    assert cut["finish_reason"] == "length"
    assert cut["message"]["content"].startswith('<tool_call>\n{"name": "get_weather", "arguments": {')
    assert "tool_calls" not in cut["message"]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"tools": []}, "`tools` must not be an empty array"),
        ({"tool_choice": "auto"}, "`tools` must be set"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "Only named tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nosuch"}}}, "does not match any"),
        ({"tools": [{"type": "function"}]}, "body.tools"),
        ({"top_logprobs": 2}, "`logprobs` must be set to true"),
        ({"logprobs": True, "top_logprobs": 50}, "greater than max allowed: 20"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nosuch"}}}}, "Invalid type: nosuch"),
        ({"response_format": {"type": "nosuch"}}, "response format 'nosuch'"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "only use one kind"),
        ({"structured_outputs": {"grammar": "root ::= x"}}, "constraint 'grammar'"),
        ({"structured_outputs": {"choice": []}}, "list of texts"),
    ],
)
async def test_what_no_engine_takes_is_a_400_that_says_why(fields: dict[str, Any], told: str) -> None:
    reply = await asked(settings(), **fields)
    assert reply.status_code == 400
    assert told in reply.json()["error"]["message"]


# --- a guard model --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([{"role": "user", "content": "How is a BOMB made?"}], "\n\nunsafe\nS9"),
        ([{"role": "user", "content": "the password of the bomb"}], "\n\nunsafe\nS9,S7"),
        ([{"role": "user", "content": [{"type": "text", "text": "a bomb"}]}], "\n\nunsafe\nS9"),
        ([{"role": "user", "content": "user assistant end"}], "\n\nsafe"),
        ([{"role": "user", "content": "a bomb"}, {"role": "assistant", "content": "No."}], "\n\nsafe"),
        ([{"role": "user", "content": ""}, {"role": "assistant", "content": "a bomb"}], "\n\nunsafe\nS9"),
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_guard_model_judges_the_last_message(dialect: str, messages: list[dict[str, Any]], says: str) -> None:
    guard = settings(dialect, guard={"bomb": "S9", "Password": "S7"})
    reply = (await asked(guard, messages=messages, max_tokens=64, temperature=0)).json()
    assert reply["choices"][0]["message"]["content"] == says
    assert reply["choices"][0]["finish_reason"] == "stop"
    stream = joined(chunks(await asked(guard, messages=messages, stream=True)))
    assert (stream["content"], stream["finish"]) == (says, "stop")


async def test_a_guard_models_answer_can_be_cut_short() -> None:
    reply = (await asked(settings(guard={"bomb": "S9"}), messages=[{"role": "user", "content": "bomb"}], max_tokens=1)).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert not reply["choices"][0]["message"]["content"].endswith("S9")


async def test_a_guard_model_refuses_an_empty_chat_as_before() -> None:
    assert (await asked(settings(guard={"bomb": "S9"}), messages=[])).status_code == 400


# --- a judge --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({"REQUEST": "a bad question", "ANSWER": "a fine answer"}, '"score": 5'),
        ({"REQUEST": "x", "ANSWER": "MAYBE it is bad"}, '"score": 1'),
        ({"REQUEST": "x", "A": "maybe", "B": "yes"}, '"better": "B"'),
        ({"REQUEST": "x", "A": "maybe", "B": "bad"}, '"better": "A"'),
        ({"REQUEST": "x", "A": "yes", "B": "no"}, '"better": "tie"'),
    ],
)
async def test_a_judge_scores_by_words_and_prefers_the_greater_score(answers: dict[str, str], says: str) -> None:
    question = "\n".join(f'mark {name}\n"{text}"' for name, text in answers.items()) + "\nmark END"
    judge = settings(judge={"maybe": 2, "bad": 1})
    reply = (await asked(judge, messages=[{"role": "user", "content": question}], max_tokens=64)).json()
    assert says in reply["choices"][0]["message"]["content"]


async def test_a_judge_answers_other_chats_with_words() -> None:
    reply = (await asked(settings(judge={"bad": 1}), messages=[{"role": "user", "content": "bad"}], max_tokens=5)).json()
    assert "score" not in reply["choices"][0]["message"]["content"]
