"""openai-python: `create`, streams, `parse`, tools in a loop, and what only this client shows whole."""

import json
import os
from typing import Any, Literal

from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel, Field

client = OpenAI()
MODEL, THINKS = os.environ["CLIENT_MODEL"], os.environ["CLIENT_THINKING_MODEL"]


class Weather(BaseModel):
    """The weather of a city."""

    city: str = Field(min_length=3)
    unit: Literal["celsius", "fahrenheit"]


class Harbour(BaseModel):
    name: str
    depth_m: int = Field(ge=2, le=40)
    ships: list[str]
    open: bool


def asked(prompt: str) -> list[Any]:
    return [{"role": "user", "content": prompt}]


def plain(prompt: str) -> str | None:
    return client.chat.completions.create(model=MODEL, messages=asked(prompt)).choices[0].message.content


def stream(prompt: str) -> list[str]:
    chunks = client.chat.completions.create(model=MODEL, messages=asked(prompt), stream=True, stream_options={"include_usage": True})
    return [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]


def tool(prompt: str) -> dict[str, Any]:
    messages = asked(prompt)
    tools = [pydantic_function_tool(Weather, name="get_weather")]
    calls = []
    while True:
        with client.chat.completions.stream(model=MODEL, messages=messages, tools=tools) as events:
            message = events.get_final_completion().choices[0].message
        if not message.tool_calls:
            return {"calls": calls, "answer": message.content}
        messages.append(message)
        for call in message.tool_calls:
            weather = call.function.parsed_arguments
            calls.append({"name": call.function.name, "arguments": weather.model_dump()})
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"rain in {weather.city}"})


def structured(prompt: str) -> dict[str, Any]:
    parsed = client.chat.completions.parse(model=MODEL, messages=asked(prompt), response_format=Harbour).choices[0].message.parsed
    assert parsed is not None
    return parsed.model_dump()


def reasoning(prompt: str) -> dict[str, Any]:
    message = client.chat.completions.create(model=THINKS, messages=asked(prompt)).choices[0].message.model_dump()
    chunks = client.chat.completions.create(model=THINKS, messages=asked(prompt), stream=True)
    deltas = [chunk.choices[0].delta.model_dump() for chunk in chunks if chunk.choices]
    thoughts = [delta.get("reasoning") or delta.get("reasoning_content") or "" for delta in deltas]
    return {"thought": message.get("reasoning") or message.get("reasoning_content"), "streamed": thoughts, "text": message["content"]}


def extras(prompt: str) -> dict[str, Any]:
    reply = client.chat.completions.create(model=MODEL, messages=asked(prompt), n=3, logprobs=True, top_logprobs=2, max_tokens=5)
    choices = reply.choices
    completion = client.completions.create(model=MODEL, prompt=prompt, max_tokens=4, logprobs=1).choices[0]
    assert completion.logprobs is not None
    return {
        "texts": [choice.message.content for choice in choices],
        "tokens": [[token.token for token in choice.logprobs.content] for choice in choices],
        "tops": [[len(token.top_logprobs) for token in choice.logprobs.content] for choice in choices],
        "completion": [completion.text, completion.logprobs.tokens],
        "models": [model.id for model in client.models.list()],
        "schema": json.loads(json.dumps(Harbour.model_json_schema())),
    }
