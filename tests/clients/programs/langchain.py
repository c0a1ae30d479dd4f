"""LangChain: `ChatOpenAI` with invoke, stream, bound tools and both ways of structured output."""

import os
from typing import Any, Literal

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool as as_tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

model = ChatOpenAI(model=os.environ["CLIENT_MODEL"])


class Harbour(BaseModel):
    name: str
    depth_m: int = Field(ge=2, le=40)
    ships: list[str]
    open: bool


@as_tool
def get_weather(city: str = Field(min_length=3), unit: Literal["celsius", "fahrenheit"] = "celsius") -> str:
    """The weather of a city."""
    return f"rain in {city}"


def plain(prompt: str) -> Any:
    return model.invoke(prompt).content


def stream(prompt: str) -> list[Any]:
    return [chunk.content for chunk in model.stream(prompt) if chunk.content]


def tool(prompt: str) -> dict[str, Any]:
    bound = model.bind_tools([get_weather])
    messages: list[Any] = [HumanMessage(prompt)]
    calls = []
    while True:
        message = bound.invoke(messages)
        messages.append(message)
        if not message.tool_calls:
            return {"calls": calls, "answer": message.content}
        for call in message.tool_calls:
            calls.append({"name": call["name"], "arguments": call["args"]})
            messages.append(get_weather.invoke(call))


def structured(prompt: str) -> Any:
    found = [model.with_structured_output(Harbour, method=way).invoke(prompt) for way in ("function_calling", "json_schema")]
    return found[-1].model_dump()
