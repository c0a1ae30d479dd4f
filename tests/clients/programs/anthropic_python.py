"""anthropic-sdk-python: `create`, streams, tools in a loop with `.stream()`, a schema of the answer, and thinking."""

import json
import os
from typing import Any

from anthropic import Anthropic

client = Anthropic()
MODEL, THINKS = os.environ["CLIENT_MODEL"], os.environ["CLIENT_THINKING_MODEL"]
MAX_TOKENS = 4096
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "minLength": 3}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}
HARBOUR = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "depth_m": {"type": "integer", "minimum": 2, "maximum": 40},
        "ships": {"type": "array", "items": {"type": "string"}},
        "open": {"type": "boolean"},
    },
    "required": ["name", "depth_m", "ships", "open"],
    "additionalProperties": False,
}


def asked(prompt: str) -> list[Any]:
    return [{"role": "user", "content": prompt}]


def text_of(message: Any) -> str:
    return "".join([block.text for block in message.content if block.type == "text"])


def plain(prompt: str) -> str:
    return text_of(client.messages.create(model=MODEL, max_tokens=MAX_TOKENS, messages=asked(prompt)))


def stream(prompt: str) -> list[str]:
    pieces = []
    for event in client.messages.create(model=MODEL, max_tokens=MAX_TOKENS, messages=asked(prompt), stream=True):
        if event.type == "content_block_delta" and event.delta.type == "text_delta":
            pieces.append(event.delta.text)
    return pieces


def tool(prompt: str) -> dict[str, Any]:
    messages = asked(prompt)
    calls = []
    while True:
        with client.messages.stream(model=MODEL, max_tokens=MAX_TOKENS, messages=messages, tools=[WEATHER]) as events:
            message = events.get_final_message()
        if message.stop_reason != "tool_use":
            return {"calls": calls, "answer": text_of(message)}
        messages.append({"role": "assistant", "content": message.content})
        results = []
        for block in message.content:
            if block.type == "tool_use":
                calls.append({"name": block.name, "arguments": block.input})
                results.append({"type": "tool_result", "tool_use_id": block.id, "content": f"rain in {block.input['city']}"})
        messages.append({"role": "user", "content": results})


def structured(prompt: str) -> dict[str, Any]:
    form = {"format": {"type": "json_schema", "schema": HARBOUR}}
    message = client.messages.create(model=MODEL, max_tokens=MAX_TOKENS, messages=asked(prompt), output_config=form)
    return dict(json.loads(text_of(message)))


def reasoning(prompt: str) -> dict[str, Any]:
    message = client.messages.create(model=THINKS, max_tokens=MAX_TOKENS, messages=asked(prompt))
    thought = "".join([block.thinking for block in message.content if block.type == "thinking"])
    streamed = []
    with client.messages.stream(model=THINKS, max_tokens=MAX_TOKENS, messages=asked(prompt)) as events:
        for event in events:
            if event.type == "thinking":
                streamed.append(event.thinking)
    return {"thought": thought, "streamed": streamed, "text": text_of(message)}
