"""litellm as a library, with the providers `openai` and `hosted_vllm`."""

import json
import os
from typing import Any, Literal

import litellm
from pydantic import BaseModel, Field

litellm.telemetry = False
BASE = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
MODEL, THINKS = (f"hosted_vllm/{os.environ[name]}" for name in ("CLIENT_MODEL", "CLIENT_THINKING_MODEL"))


class Harbour(BaseModel):
    name: str
    depth_m: int = Field(ge=2, le=40)
    ships: list[str]
    open: bool


class Weather(BaseModel):
    city: str = Field(min_length=3)
    unit: Literal["celsius", "fahrenheit"]


TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": Weather.model_json_schema()}}]


def asked(prompt: str) -> list[Any]:
    return [{"role": "user", "content": prompt}]


def plain(prompt: str) -> str | None:
    return litellm.completion(model=f"openai/{os.environ['CLIENT_MODEL']}", messages=asked(prompt), **BASE).choices[0].message.content


def stream(prompt: str) -> list[str]:
    chunks = litellm.completion(model=MODEL, messages=asked(prompt), stream=True, **BASE)
    return [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]


def tool(prompt: str) -> dict[str, Any]:
    messages = asked(prompt)
    calls = []
    while True:
        message = litellm.completion(model=MODEL, messages=messages, tools=TOOLS, **BASE).choices[0].message
        if not message.tool_calls:
            return {"calls": calls, "answer": message.content}
        messages.append(message.model_dump())
        for call in message.tool_calls:
            arguments = json.loads(call.function.arguments)
            calls.append({"name": call.function.name, "arguments": arguments})
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"rain in {arguments['city']}"})


def structured(prompt: str) -> dict[str, Any]:
    message = litellm.completion(model=MODEL, messages=asked(prompt), response_format=Harbour, **BASE).choices[0].message
    return Harbour.model_validate_json(message.content).model_dump()


def reasoning(prompt: str) -> dict[str, Any]:
    message = litellm.completion(model=THINKS, messages=asked(prompt), **BASE).choices[0].message
    chunks = litellm.completion(model=THINKS, messages=asked(prompt), stream=True, **BASE)
    thoughts = [getattr(chunk.choices[0].delta, "reasoning_content", None) or "" for chunk in chunks if chunk.choices]
    return {"thought": message.reasoning_content, "streamed": thoughts, "text": message.content}
