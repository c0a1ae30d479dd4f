"""LlamaIndex: `OpenAILike` with complete, stream_chat, tools and a structured LLM."""

import os
from typing import Any, Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

llm = OpenAILike(
    model=os.environ["CLIENT_MODEL"],
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    is_chat_model=True,
    is_function_calling_model=True,
    should_use_structured_outputs=True,
    context_window=32_000,
)


class Harbour(BaseModel):
    name: str
    depth_m: int = Field(ge=2, le=40)
    ships: list[str]
    open: bool


def get_weather(city: str, unit: Literal["celsius", "fahrenheit"]) -> str:
    """The weather of a city."""
    return f"rain in {city}"


def plain(prompt: str) -> str | None:
    return llm.chat([ChatMessage(role="user", content=prompt)]).message.content


def stream(prompt: str) -> list[str]:
    return [chunk.delta for chunk in llm.stream_chat([ChatMessage(role="user", content=prompt)]) if chunk.delta]


def tool(prompt: str) -> dict[str, Any]:
    weather = FunctionTool.from_defaults(get_weather)
    history = [ChatMessage(role="user", content=prompt)]
    calls = []
    while True:
        reply = llm.chat_with_tools([weather], chat_history=history)
        history.append(reply.message)
        wanted = llm.get_tool_calls_from_response(reply, error_on_no_tool_call=False)
        if not wanted:
            return {"calls": calls, "answer": reply.message.content}
        for call in wanted:
            calls.append({"name": call.tool_name, "arguments": call.tool_kwargs})
            result = str(weather(**call.tool_kwargs))
            history.append(ChatMessage(role="tool", content=result, additional_kwargs={"tool_call_id": call.tool_id}))


def structured(prompt: str) -> dict[str, Any]:
    reply = llm.as_structured_llm(Harbour).chat([ChatMessage(role="user", content=prompt)])
    return reply.raw.model_dump()
