"""instructor: models by tools, by JSON schema, and partial ones from a stream."""

import os
from typing import Any, Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field

MODEL = os.environ["CLIENT_MODEL"]
by_tools = instructor.from_openai(OpenAI(), mode=instructor.Mode.TOOLS)
by_schema = instructor.from_openai(OpenAI(), mode=instructor.Mode.JSON_SCHEMA)


class Harbour(BaseModel):
    name: str
    depth_m: int = Field(ge=2, le=40)
    ships: list[str]
    open: bool


class get_weather(BaseModel):
    """The weather of a city."""

    city: str = Field(min_length=3)
    unit: Literal["celsius", "fahrenheit"]


def asked(prompt: str) -> list[Any]:
    return [{"role": "user", "content": prompt}]


def plain(prompt: str) -> Any:
    return by_schema.chat.completions.create(model=MODEL, messages=asked(prompt), response_model=None).choices[0].message.content


def stream(prompt: str) -> list[dict[str, Any]]:
    """Partial models: each has more than the one before."""
    found = by_tools.chat.completions.create_partial(model=MODEL, messages=asked(prompt), response_model=Harbour)
    return [part.model_dump() for part in found]


def tool(prompt: str) -> dict[str, Any]:
    found = by_tools.chat.completions.create(model=MODEL, messages=asked(prompt), response_model=get_weather)
    return {"calls": [{"name": "get_weather", "arguments": found.model_dump()}], "answer": None}


def structured(prompt: str) -> dict[str, Any]:
    return by_schema.chat.completions.create(model=MODEL, messages=asked(prompt), response_model=Harbour).model_dump()
