"""openai-agents with its default model, which speaks Responses: the runner, a tool and a typed output."""

import json
import os
from typing import Any, Literal

from agents import Agent, Runner, function_tool, set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

set_tracing_disabled(True)
calls: list[dict[str, Any]] = []


class Harbour(BaseModel):
    name: str
    depth_m: int = Field(ge=2, le=40)
    ships: list[str]
    open: bool


@function_tool
def get_weather(city: str, unit: Literal["celsius", "fahrenheit"]) -> str:
    """The weather of a city."""
    calls.append({"name": "get_weather", "arguments": {"city": city, "unit": unit}})
    return f"rain in {city}"


def agent(**options: Any) -> Agent:
    set_default_openai_client(AsyncOpenAI())  # each case has a loop of its own
    return Agent(name="pilot", model=os.environ["CLIENT_MODEL"], **options)


async def plain(prompt: str) -> str:
    return str((await Runner.run(agent(), prompt)).final_output)


async def stream(prompt: str) -> list[str]:
    run = Runner.run_streamed(agent(), prompt)
    events = [event async for event in run.stream_events()]
    return [event.data.delta for event in events if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"]


async def tool(prompt: str) -> dict[str, Any]:
    answer = (await Runner.run(agent(tools=[get_weather]), prompt)).final_output
    return {"calls": calls, "answer": answer}


async def structured(prompt: str) -> dict[str, Any]:
    return json.loads((await Runner.run(agent(output_type=Harbour), prompt)).final_output.model_dump_json())
