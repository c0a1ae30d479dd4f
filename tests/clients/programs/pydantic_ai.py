"""pydantic-ai: agents with a tool, a stream and a typed output."""

import os
from typing import Any, Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
model = OpenAIChatModel(os.environ["CLIENT_MODEL"], provider=provider)
calls: list[dict[str, Any]] = []


class Harbour(BaseModel):
    name: str
    depth_m: int = Field(ge=2, le=40)
    ships: list[str]
    open: bool


def get_weather(city: str, unit: Literal["celsius", "fahrenheit"]) -> str:
    """The weather of a city."""
    calls.append({"name": "get_weather", "arguments": {"city": city, "unit": unit}})
    return f"rain in {city}"


async def plain(prompt: str) -> str:
    return (await Agent(model).run(prompt)).output


async def stream(prompt: str) -> list[str]:
    async with Agent(model).run_stream(prompt) as run:
        return [piece async for piece in run.stream_text(delta=True, debounce_by=None)]


async def tool(prompt: str) -> dict[str, Any]:
    answer = (await Agent(model, tools=[get_weather]).run(prompt)).output
    return {"calls": calls, "answer": answer}


async def structured(prompt: str) -> dict[str, Any]:
    return (await Agent(model, output_type=Harbour).run(prompt)).output.model_dump()
